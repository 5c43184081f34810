#!/bin/sh
# Pay an order once, with redis-cli: pay.sh HOST:PORT ORDER AMOUNT BANK
set -eu
address=$1 order=$2 amount=$3 bank=$4

# Answers come one value a line: the verdict, then its values. Without an answer, send it again: the nonce of BEGIN and
# the fence of the others make that safe.
idem() {
    for pause in 0.1 0.2 0.4 0.8 1.6; do
        redis-cli -e -h "${address%:*}" -p "${address##*:}" "$@" && return
        sleep "$pause"
    done
    redis-cli -e -h "${address%:*}" -p "${address##*:}" "$@"
}

in_doubt() {
    echo "$order: outcome unknown ($1): ask the bank, then run" >&2
    echo "idem settle shop '$order' --as succeeded --result '...', or --as failed" >&2
    exit 1
}

# The work: ask the bank. Prints the status; curl exits with 7 if there was no connection.
pay() {
    curl --silent --output /dev/null --max-time 5 --write-out '%{http_code}' \
        --data-urlencode "order=$order" --data-urlencode "amount=$amount" "$bank/payments"
}

fingerprint=$(printf 'pay %s %s' "$order" "$amount" | sha256sum | cut -c1-64)
nonce=$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')
answer=$(idem BEGIN shop "$order" FP "$fingerprint" NONCE "$nonce" LEASE 30000 WAIT 20000)
value() { printf '%s\n' "$answer" | sed -n "$1"; }
case $answer in
started*)
    fence=$(value 2p) code=0
    status=$(pay) || code=$?
    case $code:$status in
    0:200) outcome=succeeded result="paid $amount for $order" ;;
    0:402) outcome=failed result="declined: $amount for $order" ;;
    7:*) # the bank was never asked: it is safe to try again
        idem RELEASE shop "$order" "$fence" >/dev/null
        echo "not paid: no connection to the bank" >&2
        exit 1
        ;;
    *) in_doubt "the bank answered $status, curl $code" ;; # paid or not: keep the claim
    esac
    idem FINISH shop "$order" "$fence" "$outcome" "$result" >/dev/null
    ;;
replay*) outcome=$(value 2p) result=$(value '5,$p') ;; # state, kind, expires, result
doubt*) in_doubt "whoever paid it did not say how it went" ;;
*) # busy, mismatch
    echo "$order: $(value 1p)" >&2
    exit 1
    ;;
esac
echo "$result"
[ "$outcome" = succeeded ]
