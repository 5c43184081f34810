<?php
// Pay an order once, with phpredis: php pay_redis.php HOST:PORT ORDER AMOUNT LEDGER

[, $address, $order, $amount, $ledger] = $argv;
[$host, $port] = explode(':', $address);

class NotPaid extends RuntimeException
{
}

// The work: here it appends a line, in your service it calls the bank.
function pay(string $order, string $amount, string $ledger): string
{
    if (@file_put_contents($ledger, "$order $amount\n", FILE_APPEND) === false) {
        throw new NotPaid("cannot write $ledger");
    }
    return "paid $amount for $order";
}

// Claim. The fingerprint makes another amount under the same order a mismatch; the nonce makes it safe to send the
// same BEGIN again after a broken connection; WAIT: a duplicate waits for the first one's result.
function pay_once(Redis $idem, string $order, string $amount, string $ledger): string
{
    $answer = $idem->rawCommand('BEGIN', 'shop', $order, 'FP', hash('sha256', "pay $order $amount"),
        'NONCE', bin2hex(random_bytes(8)), 'LEASE', 30000, 'WAIT', 20000);
    if ($answer === false) {
        throw new RuntimeException($idem->getLastError());   // "UNAVAILABLE ...", "LOST ..."
    }
    switch ($answer[0]) {
        case 'started':
            $fence = $answer[1];
            try {
                $result = pay($order, $amount, $ledger);
            } catch (NotPaid $e) {                           // surely not: another may try
                $idem->rawCommand('RELEASE', 'shop', $order, $fence);
                throw $e;
            }
            if ($idem->rawCommand('FINISH', 'shop', $order, $fence, 'SUCCEEDED', $result) === false) {
                throw new RuntimeException($idem->getLastError());
            }
            return $result;
        case 'replay':
            return $answer[4];                               // state, kind, expires, result
        default:                                             // busy, mismatch, doubt
            throw new RuntimeException("$order: {$answer[0]}");
    }
}

$idem = new Redis();
$idem->connect($host, (int) $port, 2.0, null, 0, 30.0);      // the read time-out is longer than WAIT
try {
    echo pay_once($idem, $order, $amount, $ledger), "\n";
} catch (RuntimeException $e) {
    fwrite(STDERR, $e->getMessage() . "\n");
    exit(1);
}
