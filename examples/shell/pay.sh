#!/bin/sh
# Pay an order once, with redis-cli: pay.sh HOST:PORT ORDER AMOUNT LEDGER
set -eu
address=$1 order=$2 amount=$3 ledger=$4

# Answers come one value a line: the verdict, then its values.
idem() { redis-cli -h "${address%:*}" -p "${address##*:}" "$@"; }

fingerprint=$(printf 'pay %s %s' "$order" "$amount" | sha256sum | cut -c1-64)
answer=$(idem BEGIN shop "$order" FP "$fingerprint" LEASE 30000 WAIT 20000)
case $answer in
started*)
    fence=$(printf '%s\n' "$answer" | sed -n 2p)
    # The work: here it appends a line, in your script it calls the bank.
    if ! echo "$order $amount" >>"$ledger"; then
        idem RELEASE shop "$order" "$fence" >/dev/null # surely not paid
        exit 1
    fi
    result="paid $amount for $order"
    idem FINISH shop "$order" "$fence" SUCCEEDED "$result" >/dev/null
    echo "$result"
    ;;
replay*) printf '%s\n' "$answer" | sed -n '5,$p' ;;
*) # busy, mismatch, doubt
    echo "$order: $(printf '%s\n' "$answer" | head -n 1)" >&2
    exit 1
    ;;
esac
