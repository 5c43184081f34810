<?php
declare(strict_types=1);

namespace Idem;

require_once __DIR__ . '/errors.php';

/**
 * Sends a request to a service behind idem until there is an answer. The key is made before the first try and kept through all of them.
 *
 *     $http = new Idem\RetryingHttp();
 *     $answer = $http->send('POST', 'http://127.0.0.1:8080/orders', $json, ['Content-Type' => 'application/json'], 'order-7');
 */
final class RetryingHttp
{
    public function __construct(private readonly int $tries = 6, private readonly float $timeoutSeconds = 30.0)
    {
    }

    /**
     * The answer of the service, or of the last try. Throws OutcomeUnknown where the service says that nobody knows, and RuntimeException
     * where no try got an answer: send it again later, with the same key. Without a key it makes one: right where the process that
     * retries is the one that decided to send.
     *
     * @param array<string, string> $headers
     */
    public function send(string $method, string $url, string $body = '', array $headers = [], ?string $key = null): HttpAnswer
    {
        $key ??= bin2hex(random_bytes(16));
        $lines = ['Idempotency-Key: "' . addcslashes($key, '"\\') . '"', 'Connection: close'];
        foreach ($headers as $name => $value) {
            $lines[] = "$name: $value";
        }
        $context = stream_context_create(['http' => ['method' => $method, 'header' => $lines, 'content' => $body, 'protocol_version' => '1.1',
            'timeout' => $this->timeoutSeconds, 'ignore_errors' => true, 'follow_location' => 0]]);
        for ($i = 1; ; $i++) {
            $answer = self::once($url, $context);
            if ($answer !== null) {
                $problem = self::problem($answer);
                if (preg_match('~[/#]outcome-unknown$~D', (string)($problem['type'] ?? ''))) {
                    throw new OutcomeUnknown("nobody knows whether the request with the key $key was executed");
                }
                if (($problem['retryable'] ?? null) !== true || $i >= $this->tries) {
                    return $answer;
                }
            } elseif ($i >= $this->tries) {
                throw new \RuntimeException("no answer from $url: " . (error_get_last()['message'] ?? 'the connection broke'));
            }
            $after = $answer?->headers['Retry-After'][0] ?? '';
            $pause = 100 * 2 ** min($i - 1, 8) * (0.5 + random_int(0, 1000) / 1000);
            usleep((int)max(preg_match('/^\d{1,5}$/D', $after) ? (int)$after * 1e6 : 0, $pause * 1000));
        }
    }

    /**
     * One try; null: no answer, or only a part of one.
     *
     * @param resource $context
     */
    private static function once(string $url, $context): ?HttpAnswer
    {
        $stream = @fopen($url, 'rb', false, $context);
        if ($stream === false) {
            return null;
        }
        $meta = stream_get_meta_data($stream);
        $body = @stream_get_contents($stream);
        $timedOut = stream_get_meta_data($stream)['timed_out'];
        fclose($stream);
        if ($body === false || $timedOut || !preg_match('/^HTTP\/\S+ (\d{3})/', $meta['wrapper_data'][0] ?? '', $found)) {
            return null;
        }
        $headers = [];
        foreach (array_slice($meta['wrapper_data'], 1) as $line) {
            [$name, $value] = explode(':', $line, 2) + [1 => ''];
            $headers[ucwords(strtolower($name), '-')][] = trim($value);
        }
        $length = $headers['Content-Length'][0] ?? null;
        return $length !== null && strlen($body) < (int)$length ? null : new HttpAnswer((int)$found[1], $headers, $body);
    }

    /** @return array<string, mixed> */
    private static function problem(HttpAnswer $answer): array
    {
        $told = str_starts_with($answer->headers['Content-Type'][0] ?? '', 'application/problem+json') ? json_decode($answer->body, true) : [];
        return is_array($told) ? $told : [];
    }
}
