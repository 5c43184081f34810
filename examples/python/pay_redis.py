#!/usr/bin/env python3
"""Pay an order once, with the ordinary Redis client: pay_redis.py HOST:PORT ORDER AMOUNT BANK"""
import hashlib
import secrets
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import redis

address, order, amount, bank = sys.argv[1:5]
host, port = address.rsplit(":", 1)
client = redis.Redis(host=host, port=int(port), decode_responses=True, socket_timeout=60)


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


def idem(*words):
    """Send a command. Without a reply, send it again: the nonce of BEGIN and the fence of the others make that safe."""
    for attempt in range(6):
        try:
            return client.execute_command(*words)
        except redis.RedisError:  # broken connections, and "UNAVAILABLE ...", "LOST ..."
            if attempt == 5:
                raise
            time.sleep(0.1 * 2 ** attempt)


def in_doubt(why):
    sys.exit("%s: outcome unknown (%s): ask the bank, then run\n"
             "idem settle shop '%s' --as succeeded --result '...', or --as failed" % (order, why, order))


# Claim. The fingerprint makes another amount under the same order a mismatch. WAIT: a duplicate waits for the first
# one's result.
fingerprint = hashlib.sha256(("pay %s %s" % (order, amount)).encode()).hexdigest()
verdict, *values = idem("BEGIN", "shop", order, "FP", fingerprint, "NONCE", secrets.token_hex(8), "LEASE", 30000, "WAIT", 20000)
if verdict == "started":
    fence = values[0]
    try:
        outcome, result = "succeeded", pay()
    except Declined as no:
        outcome, result = "failed", str(no)
    except NotPaid as error:
        idem("RELEASE", "shop", order, fence)
        sys.exit(str(error))
    except Exception as error:  # paid or not: keep the claim, so that nobody pays again
        in_doubt(error)
    idem("FINISH", "shop", order, fence, outcome, result)
elif verdict == "replay":
    outcome, _, _, result = values
elif verdict == "doubt":
    in_doubt("whoever paid it did not say how it went")
else:  # busy, mismatch
    sys.exit("%s: %s" % (order, verdict))
print(result)
sys.exit(outcome != "succeeded")
