<?php
declare(strict_types=1);

namespace Idem;

/** An HTTP answer: of a service, as it is stored with kind `http` (docs/results.md), or a problem of docs/problems.md. */
final class HttpAnswer
{
    private const NOT_STORED = ['content-length', 'connection', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'transfer-encoding',
        'upgrade', 'proxy-authenticate', 'proxy-authorization', 'date', 'set-cookie', 'www-authenticate'];
    private const LOOK_MAX = 65536;
    /** status, class, retryable, title, detail */
    private const PROBLEMS = [
        'key-missing' => [400, 'not executed', false, 'An idempotency key is needed',
            'Send a key (by default the header Idempotency-Key) that is unique for this request, for instance a UUID, and the same key again with every retry of it.'],
        'key-malformed' => [400, 'not executed', false, 'The idempotency key is malformed', 'Send the key as a quoted string of printable ASCII, at most 255 bytes, for instance "order-7".'],
        'in-progress' => [409, 'in progress', true, 'The first request with this key is still running',
            'Send the same request again after a while: it will not run twice.'],
        'mismatch' => [422, 'not executed', false, 'This key was used for a different request',
            'This key was used for a request with another method, path, query or body. If this is a retry, send exactly the first '
            . 'request again: with a new key it could run twice. Use a new key only for a new request.'],
        'outcome-unknown' => [409, 'outcome unknown', false, 'It is not known whether this request was done',
            'The first request with this key was started and its outcome was lost. It will not be run again.'],
        'settled' => [409, 'failed for good', false, 'This request was settled as failed', 'It was declared failed and will not be run.'],
        'failed' => [409, 'failed for good', false, 'This request failed before and will not be run again',
            'The service answered the first request with an error. It will not be run again.'],
        'not-replayable' => [410, 'done', false, 'It was done, but its response was not kept',
            'The request was done before. Its response was too large to keep.'],
        'not-executed' => [503, 'not executed', true, 'This attempt was not executed',
            'idem could not record this attempt, so it was not executed. An earlier one with the same key may have been: keep the key.'],
        'body-too-large' => [413, 'not executed', false, "The request's body is too large",
            'The body is over the limit for requests with an idempotency key: send a smaller one.'],
        'scope-missing' => [400, 'not executed', false, 'The request does not say who sends it',
            'A key belongs to the caller who uses it. What names the caller here is missing or empty.'],
        'scope-refused' => [403, 'not executed', false, "The caller's name cannot be used",
            'The value that names the caller is too long, or holds bytes that it must not.'],
    ];

    /** @param array<string, list<string>> $headers */
    public function __construct(public readonly int $status, public readonly array $headers, public readonly string $body)
    {
    }

    public static function problem(string $name, ?int $status = null, ?string $detail = null, ?int $retryAfter = null): self
    {
        [$usual, $class, $retryable, $title, $text] = self::PROBLEMS[$name];
        // The default is a name without a page.
        $type = (getenv('IDEM_PROBLEM_BASE') ?: 'urn:idem:problems/') . $name;
        $told = ['type' => $type, 'title' => $title, 'status' => $status ?? $usual, 'detail' => $detail ?? $text,
            'retryable' => $retryable, 'class' => $class, 'documentation' => $type];
        $headers = ['Content-Type' => ['application/problem+json'], 'Link' => ["<$type>; rel=\"describedby\""],
            'Cache-Control' => ['no-store']] + ($retryAfter === null ? [] : ['Retry-After' => [(string)$retryAfter]]);
        return new self($told['status'], $headers, Json::dump($told) . "\n");
    }

    /** Headers of one connection, and those that only the first caller may see, are left out. */
    public function stored(): string
    {
        $head = "{$this->status}\n";
        foreach ($this->headers as $name => $values) {
            foreach (in_array(strtolower((string)$name), self::NOT_STORED, true) ? [] : $values as $value) {
                $head .= strpbrk($value, "\r\n\0") === false ? "$name: $value\n" : '';
            }
        }
        return "$head\n{$this->body}";
    }

    public static function replayed(string $stored): self
    {
        [$head, $body] = explode("\n\n", $stored, 2) + [1 => ''];
        $lines = explode("\n", $head);
        $headers = [];
        foreach (array_slice($lines, 1) as $line) {
            [$name, $value] = explode(':', $line, 2) + [1 => ''];
            $headers[$name][] = ltrim($value, ' ');
        }
        return new self((int)$lines[0], $headers + ['Idempotent-Replayed' => ['true']], $body);
    }

    /** A success that was recorded without an HTTP answer: an operator settled it, or a service finished it itself. */
    public static function settled(string $result): self
    {
        $look = strlen($result) <= self::LOOK_MAX;
        $type = match (true) {
            $look && preg_match('/^[{\[]/', $result) && json_decode($result, true) !== null => 'application/json',
            $look && preg_match('/^[^\x00-\x08\x0b\x0c\x0e-\x1f]*$/Du', $result) => 'text/plain; charset=utf-8',
            default => 'application/octet-stream',
        };
        $headers = ($result === '' ? [] : ['Content-Type' => [$type]]) + ['Idempotent-Replayed' => ['true']];
        return new self($result === '' ? 204 : 200, $headers, $result);
    }

    /** Reads the header Idempotency-Key: "abc" as the IETF draft writes it, or bare. InvalidArgumentException: a sentence for the client. */
    public static function key(string $header): string
    {
        $text = trim($header, " \t");
        $quoted = str_starts_with($text, '"');
        if ($quoted && !preg_match('/^"((?:[ !#-\[\]-~]|\\\\["\\\\])*)"$/D', $text, $found)) {
            throw new \InvalidArgumentException('The key is not a quoted string: "…", with \" and \\\\ for a quote and a backslash in it.');
        }
        $key = $quoted ? preg_replace('/\\\\(.)/', '$1', $found[1]) : $text;
        $wrong = match (true) {
            $key === '' => 'The key is empty: send a value that is unique for this request, for instance a UUID.',
            strlen($key) > 255 => 'The key is longer than 255 bytes: send a shorter one, for instance a UUID.',
            $key !== trim($key, ' ') => 'The key begins or ends with a space: remove the space.',
            !$quoted && !preg_match('/^[!#-+\--~]+$/D', $key) => 'The key has a character that needs quotes, or that is not ASCII: send printable ASCII, in double quotes if it has a space, comma or quote.',
            default => null,
        };
        return $wrong === null ? $key : throw new \InvalidArgumentException($wrong);
    }
}
