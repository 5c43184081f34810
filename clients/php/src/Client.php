<?php
declare(strict_types=1);

namespace Idem;

require_once __DIR__ . '/errors.php';

/**
 * Runs work once: the contract of clients/README.md.
 *
 *     $client = new Idem\Client('idem://127.0.0.1:6390', ['scope' => 'shop']);
 *     $order = $client->once('order-7', fn () => place_order($cart), ['arguments' => $cart]);
 *
 * Times are milliseconds. Options: scope, mode ('strict' or 'loose'), ttl, lease, wait, deadline, token, fail_open, arguments,
 * renew (in the background, where pcntl is there).
 */
final class Client
{
    private const DEFAULTS = ['scope' => 'default', 'mode' => 'strict', 'ttl' => 86400000, 'lease' => 30000, 'wait' => 0,
        'deadline' => 30000, 'token' => false, 'fail_open' => false, 'renew' => true];
    private const TRANSIENT = ['UNAVAILABLE', 'LOST', 'OVERLOADED', 'CLOSED', 'MEMORY', 'TIMEOUT'];

    private Connection $connection;
    private ?Keeper $keeper;
    /** @var array<string, mixed> */
    private array $options;

    /** @param array<string, mixed> $options */
    public function __construct(?string $url = null, array $options = [])
    {
        $this->connection = new Connection($url);
        $this->options = $options + self::DEFAULTS;
        $this->keeper = $this->options['renew'] && Keeper::possible() ? new Keeper($url) : null;
    }

    /**
     * Run `work` at most once for the key; every caller gets its result. `work` gets the claim.
     *
     * @param callable(Claim): mixed $work
     * @param array<string, mixed> $options
     */
    public function once(string $key, callable $work, array $options = []): mixed
    {
        $o = $options + $this->options;
        if (!in_array($o['mode'], ['strict', 'loose'], true)) {
            throw new \InvalidArgumentException("mode is 'strict' or 'loose'");
        }
        if ($o['fail_open'] && $o['mode'] === 'strict') {
            throw new \InvalidArgumentException("fail_open needs mode 'loose': strict work never runs without its record");
        }
        try {
            $got = $this->begin($key, $o);
        } catch (Unavailable $e) {
            if (!$o['fail_open']) {
                throw $e;
            }
            error_log("idem: running without protection (fail_open): {$e->getMessage()}");
            return $work(new Claim($o['scope'], $key, 0, $o, null));
        }
        return $got instanceof Claim ? $this->work($got, $work) : $got['value'];
    }

    /** A one-time token for the subject. */
    public function issue(string $subject, int $ttlMs = 300000): string
    {
        return $this->ask(['ISSUE', $subject, 'TTL', $ttlMs], $this->options['deadline'])[1];
    }

    /** Use a token up. Throws TokenUsed or TokenUnknown. */
    public function redeem(string $token, string $subject): void
    {
        $verdict = $this->ask(['REDEEM', $token, $subject, 'NONCE', bin2hex(random_bytes(8))], $this->options['deadline'])[0];
        if ($verdict === 'duplicate') {
            throw new TokenUsed('the token was used before');
        }
        if ($verdict !== 'redeemed') {
            throw new TokenUnknown('there is no such token for this subject');
        }
    }

    /** 64 hex digits over what was asked. */
    public static function fingerprint(mixed $arguments): string
    {
        return hash('sha256', self::canonical($arguments));
    }

    /**
     * Send until there is an answer. The same command again is safe: it carries a nonce or a fence.
     *
     * @internal
     * @param list<string|int> $args
     * @return list<mixed>
     */
    public function ask(array $args, int $deadlineMs, int $waitMs = 0): array
    {
        $end = microtime(true) + ($deadlineMs + $waitMs) / 1000;
        $sent = false;
        for ($pause = 20; ; $pause = min($pause * 2, 1000)) {
            try {
                return (array)$this->connection->call($args, $waitMs);
            } catch (Broken $e) {
                $sent = $sent || $e->sent;
            } catch (Refused $e) {
                if (!in_array($e->word, self::TRANSIENT, true)) {
                    throw $e;
                }
                $sent = $sent || $e->word === 'LOST';
            }
            $delay = $pause * (0.5 + mt_rand() / mt_getrandmax());
            if (microtime(true) + $delay / 1000 > $end) {
                throw $sent ? new OutcomeUnknown("no answer in time, and it may have been stored: {$e->getMessage()}", 0, $e)
                    : new Unavailable("the server cannot be reached: {$e->getMessage()}", 0, $e);
            }
            usleep((int)($delay * 1000));
        }
    }

    /**
     * @param array<string, mixed> $o
     * @return Claim|array{value: mixed}
     */
    private function begin(string $key, array $o): Claim|array
    {
        $args = ['BEGIN', $o['scope'], $key, strtoupper($o['mode']), 'LEASE', max(1, $o['lease']), 'TTL', max(1, $o['ttl']), 'NONCE',
            bin2hex(random_bytes(8))];
        if (array_key_exists('arguments', $o)) {
            array_push($args, 'FP', self::fingerprint($o['arguments']));
        }
        if ($o['wait'] > 0) {
            array_push($args, 'WAIT', $o['wait']);
        }
        if ($o['token']) {
            $args[] = 'TOKEN';
        }
        $answer = $this->ask($args, $o['deadline'], $o['wait']);
        $where = "{$o['scope']}/$key";
        return match ($answer[0]) {
            'started' => new Claim($o['scope'], $key, $answer[1], $o, $this->keeper),
            'replay' => ['value' => self::replayed($answer, $where)],
            'busy' => throw new InProgress("$where is being executed", $answer[1]),
            'doubt' => throw new OutcomeUnknown("nobody knows whether $where was executed: settle it"),
            'mismatch' => throw new Mismatch("$where was used before with other arguments"),
            'duplicate' => throw new TokenUsed('the token was used before'),
            'unknown' => throw new TokenUnknown("there is no such token for {$o['scope']}"),
            default => throw new OutcomeUnknown("unexpected verdict {$answer[0]} for $where"),
        };
    }

    /** @param list<mixed> $answer */
    private static function replayed(array $answer, string $where): mixed
    {
        [, $state, , , $result] = $answer;
        if ($state === 'failed') {
            $told = json_decode((string)$result, true);
            throw is_array($told) && isset($told['error'], $told['message']) ? new Failed($told['error'], $told['message'])
                : new Failed(null, (string)$result);
        }
        if ($result === null) {
            throw new ResultNotKept("$where was done; its result was too large to keep");
        }
        return json_decode($result, false, 512, JSON_THROW_ON_ERROR);
    }

    private function work(Claim $claim, callable $work): mixed
    {
        $this->keeper?->watch($claim);
        try {
            $value = $work($claim);
        } catch (\Throwable $e) {
            $this->keeper?->done($claim);
            $this->conclude($claim, $e);
            throw $e;
        }
        $this->keeper?->done($claim);
        try {
            $result = json_encode($value, JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES | JSON_PRESERVE_ZERO_FRACTION);
        } catch (\JsonException $e) { // the result cannot be written: the work is done all the same
            $this->finish($claim, 'SUCCEEDED', null);
            throw $e;
        }
        $this->finish($claim, 'SUCCEEDED', $result);
        return $value;
    }

    private function conclude(Claim $claim, \Throwable $error): void
    {
        if ($error instanceof OutcomeUnknown) {
            return;
        }
        try {
            if ($claim->options['mode'] === 'loose' || $error instanceof NotExecuted) {
                $this->finish($claim, null, null);
            } else {
                $name = (new \ReflectionClass($error))->getShortName();
                $this->finish($claim, 'FAILED', (string)json_encode(['error' => $name, 'message' => $error->getMessage()],
                    JSON_UNESCAPED_UNICODE | JSON_INVALID_UTF8_SUBSTITUTE));
            }
        } catch (\Throwable $e) {
            error_log("idem: the outcome of {$claim->scope}/{$claim->key} could not be recorded: {$e->getMessage()}");
        }
    }

    /** Record the outcome; null: release the claim. A result of null is recorded as too large to keep. */
    private function finish(Claim $claim, ?string $outcome, ?string $result): void
    {
        $args = [$outcome === null ? 'RELEASE' : 'FINISH', $claim->scope, $claim->key, $claim->fence];
        if ($outcome !== null) {
            array_push($args, $outcome, ...($result === null ? ['', 'NOREPLAY'] : [$result]));
        }
        try {
            $verdict = $this->ask($args, $claim->options['deadline'])[0];
        } catch (Unavailable $e) {
            throw new OutcomeUnknown("the work was done, and its result could not be recorded: {$e->getMessage()}", 0, $e);
        } catch (Refused $e) {
            if ($outcome === null || $result === null) {
                throw $e;
            }
            $this->finish($claim, $outcome, null);
            return;
        }
        if ($outcome !== null && $verdict !== 'ok') {
            throw new LeaseLost("somebody else decided about {$claim->scope}/{$claim->key} meanwhile ($verdict)");
        }
    }

    /** JSON that two languages write alike: see clients/README.md. An empty array is a list; an empty map is an object. */
    private static function canonical(mixed $value): string
    {
        if ($value instanceof \JsonSerializable) {
            $value = $value->jsonSerialize();
        }
        if (is_array($value) && array_is_list($value)) {
            return '[' . implode(',', array_map(self::canonical(...), $value)) . ']';
        }
        if (is_array($value) || is_object($value)) {
            $members = (array)$value;
            uksort($members, fn ($a, $b) => strcmp((string)$a, (string)$b));
            $parts = [];
            foreach ($members as $name => $member) {
                $parts[] = self::canonical((string)$name) . ':' . self::canonical($member);
            }
            return '{' . implode(',', $parts) . '}';
        }
        return json_encode($value, JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_LINE_TERMINATORS);
    }
}
