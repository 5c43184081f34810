#!/usr/bin/env python3
"""Pay an order once, with nothing but the standard library: pay_http.py HOST:PORT ORDER AMOUNT BANK"""
import hashlib
import http.client
import json
import secrets
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

address, order, amount, bank = sys.argv[1:5]


class NotPaid(Exception):
    """The bank was never asked: it is safe to try again."""


class Declined(Exception):
    """The bank said no: that is the result."""


def pay():
    """The work: ask the bank. What raises anything but NotPaid and Declined may have been paid."""
    form = urllib.parse.urlencode({"order": order, "amount": amount}).encode()
    try:
        urllib.request.urlopen(bank + "/payments", form, timeout=5).close()
    except urllib.error.HTTPError as answer:
        if answer.code == 402:
            raise Declined("declined: %s for %s" % (amount, order))
        raise
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionRefusedError):
            raise NotPaid("not paid: %s" % error.reason)
        raise
    return "paid %s for %s" % (amount, order)


def idem(verb, **fields):
    """POST /v1/records/shop/ORDER/VERB and return the answer, which has a verdict.

    Without an answer, send it again: the nonce of begin and the fence of the others make that safe."""
    url = "http://%s/v1/records/shop/%s/%s" % (address, urllib.parse.quote(order, safe=""), verb)
    request = urllib.request.Request(url, json.dumps(fields).encode(), {"Content-Type": "application/json"})
    for attempt in range(6):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except (OSError, http.client.HTTPException) as error:
            if attempt == 5 or getattr(error, "code", 500) < 500:
                raise
            time.sleep(0.1 * 2 ** attempt)


def in_doubt(why):
    sys.exit("%s: outcome unknown (%s): ask the bank, then run\n"
             "idem settle shop '%s' --as succeeded --result '...', or --as failed" % (order, why, order))


fingerprint = hashlib.sha256(("pay %s %s" % (order, amount)).encode()).hexdigest()
claim = idem("begin", fingerprint=fingerprint, nonce=secrets.token_hex(8), lease_ms=30000, wait_ms=20000)
if claim["verdict"] == "started":
    try:
        outcome, result = "succeeded", pay()
    except Declined as no:
        outcome, result = "failed", str(no)
    except NotPaid as error:
        idem("release", fence=claim["fence"])
        sys.exit(str(error))
    except Exception as error:  # paid or not: keep the claim, so that nobody pays again
        in_doubt(error)
    idem("finish", fence=claim["fence"], outcome=outcome, result=result)
elif claim["verdict"] == "replay":
    outcome, result = claim["state"], claim["result"]
elif claim["verdict"] == "doubt":
    in_doubt("whoever paid it did not say how it went")
else:  # busy, mismatch
    sys.exit("%s: %s" % (order, claim["verdict"]))
print(result)
sys.exit(outcome != "succeeded")
