#!/usr/bin/env python3
"""Pay an order once, with nothing but the standard library: pay_http.py HOST:PORT ORDER AMOUNT LEDGER"""
import hashlib
import json
import secrets
import sys
import urllib.parse
import urllib.request

address, order, amount, ledger = sys.argv[1:5]


def idem(verb, **fields):
    """POST /v1/records/shop/ORDER/VERB; an answer has a verdict, whatever it is. Problems raise HTTPError."""
    url = "http://%s/v1/records/shop/%s/%s" % (address, urllib.parse.quote(order, safe=""), verb)
    request = urllib.request.Request(url, json.dumps(fields).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def pay():
    """The work: here it appends a line, in your service it calls the bank."""
    with open(ledger, "a") as f:
        f.write("%s %s\n" % (order, amount))
    return "paid %s for %s" % (amount, order)


fingerprint = hashlib.sha256(("pay %s %s" % (order, amount)).encode()).hexdigest()
claim = idem("begin", fingerprint=fingerprint, nonce=secrets.token_hex(8), lease_ms=30000, wait_ms=20000)
if claim["verdict"] == "started":
    try:
        result = pay()
    except OSError as error:  # surely not paid: another may try
        idem("release", fence=claim["fence"])
        sys.exit("not paid: %s" % error)
    idem("finish", fence=claim["fence"], outcome="succeeded", result=result)
    print(result)
elif claim["verdict"] == "replay":
    print(claim["result"])
else:  # busy, mismatch, doubt
    sys.exit("%s: %s" % (order, claim["verdict"]))
