<?php
// Pay an order once, with phpredis: php pay_redis.php HOST:PORT ORDER AMOUNT BANK

[, $address, $order, $amount, $bank] = $argv;

class NotPaid extends RuntimeException      // the bank was never asked: it is safe to try again
{
}

class Declined extends RuntimeException     // the bank said no: that is the result
{
}

// The work: ask the bank. What throws anything but NotPaid and Declined may have been paid.
function pay(string $bank, string $order, string $amount): string
{
    $call = curl_init("$bank/payments");
    curl_setopt_array($call, [CURLOPT_POSTFIELDS => http_build_query(['order' => $order, 'amount' => $amount]),
        CURLOPT_RETURNTRANSFER => true, CURLOPT_TIMEOUT => 5]);
    if (curl_exec($call) === false) {
        throw curl_errno($call) === CURLE_COULDNT_CONNECT
            ? new NotPaid('not paid: ' . curl_error($call)) : new RuntimeException(curl_error($call));
    }
    $status = curl_getinfo($call, CURLINFO_RESPONSE_CODE);
    if ($status === 402) {
        throw new Declined("declined: $amount for $order");
    }
    if ($status !== 200) {
        throw new RuntimeException("the bank answered $status");
    }
    return "paid $amount for $order";
}

// Send a command, and send it again when no reply came: the nonce of BEGIN and the fence of the others make that safe.
function idem(string $address, ...$words): array
{
    [$host, $port] = explode(':', $address);
    for ($attempt = 0; ; $attempt++) {
        try {
            $redis = new Redis();
            $redis->connect($host, (int) $port, 2.0, null, 0, 30.0);   // the read time-out is longer than WAIT
            $answer = $redis->rawCommand(...$words);
            if ($answer !== false) {
                return $answer;
            }
            $error = new RuntimeException($redis->getLastError() ?? 'no reply');   // "UNAVAILABLE ...", "LOST ..."
        } catch (RedisException $error) {
        }
        if ($attempt === 5) {
            throw $error;
        }
        usleep(100000 << $attempt);
    }
}

function in_doubt(string $order, string $why): RuntimeException
{
    return new RuntimeException("$order: outcome unknown ($why): ask the bank, then run\n"
        . "idem settle shop '$order' --as succeeded --result '...', or --as failed");
}

// Claim. The fingerprint makes another amount under the same order a mismatch; WAIT: a duplicate waits for the first
// one's result. Returns the outcome and the result.
function pay_once(string $address, string $order, string $amount, string $bank): array
{
    $answer = idem($address, 'BEGIN', 'shop', $order, 'FP', hash('sha256', "pay $order $amount"),
        'NONCE', bin2hex(random_bytes(8)), 'LEASE', 30000, 'WAIT', 20000);
    switch ($answer[0]) {
        case 'started':
            $fence = $answer[1];
            try {
                $end = ['succeeded', pay($bank, $order, $amount)];
            } catch (Declined $e) {
                $end = ['failed', $e->getMessage()];
            } catch (NotPaid $e) {
                idem($address, 'RELEASE', 'shop', $order, $fence);
                throw $e;
            } catch (Exception $e) {        // paid or not: keep the claim, so that nobody pays again
                throw in_doubt($order, $e->getMessage());
            }
            idem($address, 'FINISH', 'shop', $order, $fence, ...$end);
            return $end;
        case 'replay':                      // state, kind, expires, result
            return [$answer[1], $answer[4]];
        case 'doubt':
            throw in_doubt($order, 'whoever paid it did not say how it went');
        default:                            // busy, mismatch
            throw new RuntimeException("$order: {$answer[0]}");
    }
}

try {
    [$outcome, $result] = pay_once($address, $order, $amount, $bank);
    echo $result, "\n";
    exit($outcome === 'succeeded' ? 0 : 1);
} catch (Exception $e) {
    fwrite(STDERR, $e->getMessage() . "\n");
    exit(1);
}
