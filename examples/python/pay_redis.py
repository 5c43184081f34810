#!/usr/bin/env python3
"""Pay an order once, with the ordinary Redis client: pay_redis.py HOST:PORT ORDER AMOUNT LEDGER"""
import hashlib
import secrets
import sys

import redis

address, order, amount, ledger = sys.argv[1:5]
host, port = address.rsplit(":", 1)
idem = redis.Redis(host=host, port=int(port), decode_responses=True)


def pay():
    """The work: here it appends a line, in your service it calls the bank."""
    with open(ledger, "a") as f:
        f.write("%s %s\n" % (order, amount))
    return "paid %s for %s" % (amount, order)


# Claim. The fingerprint makes another amount under the same order a mismatch. The nonce makes it safe to send the
# same BEGIN again after a broken connection. WAIT: a duplicate waits for the first one's result.
fingerprint = hashlib.sha256(("pay %s %s" % (order, amount)).encode()).hexdigest()
verdict, *values = idem.execute_command("BEGIN", "shop", order, "FP", fingerprint, "NONCE", secrets.token_hex(8),
                                        "LEASE", 30000, "WAIT", 20000)
if verdict == "started":
    fence = values[0]
    try:
        result = pay()
    except OSError as error:  # surely not paid: another may try
        idem.execute_command("RELEASE", "shop", order, fence)
        sys.exit("not paid: %s" % error)
    idem.execute_command("FINISH", "shop", order, fence, "SUCCEEDED", result)
    print(result)
elif verdict == "replay":
    print(values[3])
else:  # busy, mismatch, doubt
    sys.exit("%s: %s" % (order, verdict))
