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
 * dump and load (functions that write and read a result; JSON with arrays otherwise), renew (in the background, where pcntl is
 * there).
 */
final class Client
{
    private const DEFAULTS = ['scope' => 'default', 'mode' => 'strict', 'ttl' => 86400000, 'lease' => 30000, 'wait' => 0,
        'deadline' => 30000, 'token' => false, 'fail_open' => false, 'renew' => true];
    private const GIVE_BACK_MS = 3000;
    private const TRANSIENT = ['UNAVAILABLE', 'LOST', 'OVERLOADED', 'CLOSED', 'MEMORY', 'TIMEOUT', 'BUSY'];

    private Connection $connection;
    private ?Keeper $keeper;
    /** @var array<string, mixed> */
    public readonly array $options;

    /** @param array<string, mixed> $options hold for all calls that do not bring their own */
    public function __construct(?string $url = null, array $options = [])
    {
        $this->connection = new Connection($url);
        $this->options = self::complete($options);
        $this->keeper = $this->options['renew'] && Keeper::possible() ? new Keeper($url) : null;
    }

    /**
     * @internal
     * @param array<string, mixed> $options
     * @return array<string, mixed>
     */
    public static function complete(array $options): array
    {
        $o = $options + self::DEFAULTS + ['dump' => Json::dump(...), 'load' => Json::load(...)];
        $wrong = array_diff_key($o, self::DEFAULTS, ['dump' => 1, 'load' => 1, 'arguments' => 1]);
        if ($wrong) {
            throw new \InvalidArgumentException('there is no option ' . implode(', ', array_keys($wrong)));
        }
        $o['scope'] = self::checkScope($o['scope']);
        foreach (['ttl' => 1, 'lease' => 1, 'wait' => 0, 'deadline' => 0] as $name => $least) {
            $o[$name] = self::milliseconds($name, $o[$name], $least);
        }
        if (!in_array($o['mode'], ['strict', 'loose'], true)) {
            throw new \InvalidArgumentException("mode is 'strict' or 'loose'");
        }
        if ($o['fail_open'] && $o['mode'] === 'strict') {
            throw new \InvalidArgumentException("fail_open needs mode 'loose': strict work never runs without its record");
        }
        return $o;
    }

    /** What PHP would make another number of is refused before anything is sent: a result that is kept for no time does not protect. */
    private static function milliseconds(string $name, mixed $value, int $least): int
    {
        if (!is_int($value) && !(is_float($value) && $value < 1e15) || !($value >= $least)) { // not NAN either
            throw new \InvalidArgumentException("$name is a number of milliseconds, $least or more, not " . self::shown($value));
        }
        return (int)round($value);
    }

    private static function shown(mixed $value): string
    {
        return is_scalar($value) || $value === null ? var_export($value, true) : 'a value of type ' . get_debug_type($value);
    }

    /** @internal true and an array have a text, too: everybody would share that scope. */
    public static function checkScope(mixed $scope): string
    {
        if (!is_string($scope) && !is_int($scope) && !$scope instanceof \Stringable) {
            throw new \InvalidArgumentException('scope is text, not ' . self::shown($scope));
        }
        return (string)$scope;
    }

    /**
     * Run `work` at most once for the key; every caller gets its result, as it is read from JSON. `work` gets the claim.
     *
     * @param callable(Claim): mixed $work
     * @param array<string, mixed> $options
     */
    public function once(string $key, callable $work, array $options = []): mixed
    {
        $o = $options === [] ? $this->options : self::complete($options + $this->options);
        try {
            $got = $this->claim($key, $o);
        } catch (Unavailable $e) {
            if (!$o['fail_open']) {
                throw $e;
            }
            error_log("idem: running without protection (fail_open): {$e->getMessage()}");
            return $work(new Claim($o['scope'], $key, 0, $o));
        }
        return $got instanceof Claim ? $this->work($got, $work) : $got->value($key, $o);
    }

    /** A one-time token for the subject. */
    public function issue(string $subject, int $ttlMs = 300000): string
    {
        return $this->ask(['ISSUE', $subject, 'TTL', self::milliseconds('ttl', $ttlMs, 1)], $this->options['deadline'])[1];
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
        return hash('sha256', Json::canonical($arguments));
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
        $end = Connection::now() + ($deadlineMs + $waitMs) / 1000;
        $sent = false;
        for ($pause = 20; ; $pause = min($pause * 2, 1000)) {
            try {
                $left = min($end - Connection::now(), Connection::REPLY_SECONDS + $waitMs / 1000);
                $reply = (array)$this->connection->call($args, max(0.001, $left));
                if ($args[0] === 'BEGIN' || $reply[0] !== 'busy') { // it is an answer to BEGIN alone
                    return $reply;
                }
                throw new Refused('BUSY', 'a transaction holds the record in the database');
            } catch (Broken $e) {
                $sent = $sent || $e->sent;
            } catch (Refused $e) {
                if (!in_array($e->word, self::TRANSIENT, true)) {
                    throw $e;
                }
                $sent = $sent || $e->word === 'LOST';
            }
            $delay = $pause * (0.5 + random_int(0, 1000) / 1000);
            if (Connection::now() + $delay / 1000 > $end) {
                throw $sent ? new OutcomeUnknown("no reply in time, and it may have been stored: {$e->getMessage()}", 0, $e)
                    : new Unavailable($e instanceof Refused ? "the server refused it until the deadline: {$e->getMessage()}"
                        : (str_contains($e->getMessage(), Connection::STRANGE) // something was reached
                        ? "{$e->getMessage()} give the address of its socket or its RESP port" : "the server cannot be reached: {$e->getMessage()}; is idem serve running at this address?"), 0, $e);
            }
            usleep((int)($delay * 1000));
        }
    }

    /**
     * For middleware; `once` is made of it. A claim is renewed until it is finished, released or abandoned.
     *
     * @param array<string, mixed> $o complete options
     */
    public function claim(string $key, array $o): Claim|Stored
    {
        $args = ['BEGIN', $o['scope'], $key, strtoupper($o['mode']), 'LEASE', max(1, $o['lease']), 'TTL', max(1, $o['ttl']), 'NONCE',
            bin2hex(random_bytes(8))];
        if (array_key_exists('arguments', $o)) {
            array_push($args, 'FP', self::fingerprint($o['arguments']));
        }
        if ($o['token']) {
            $args[] = 'TOKEN';
        }
        $asked = Connection::now();
        try {
            $answer = $this->ask($o['wait'] > 0 ? [...$args, 'WAIT', $o['wait']] : $args, $o['deadline'], $o['wait']);
        } catch (Error $e) {
            throw $e;
        } catch (\Throwable $e) { // a signal's handler has thrown it: nobody will do the work
            $this->giveBack($args);
            throw $e;
        }
        if ($answer[0] === 'started') {
            if (Connection::now() - $asked > $o['lease'] / 3000) { // it has waited: how much of the lease is left is not known
                $asked = Connection::now();
                try {
                    $renewed = $this->ask(['RENEW', $o['scope'], $key, $answer[1], max(1, $o['lease'])], $o['deadline'], 0);
                } catch (Error $e) {
                    throw new OutcomeUnknown("{$o['scope']}/$key was claimed and could not be renewed: {$e->getMessage()}", 0, $e);
                }
                if ($renewed[0] !== 'ok') {
                    return $this->claim($key, $o);
                }
            }
            $ends = $asked + $o['lease'] / 1000;
            $claim = new Claim($o['scope'], $key, $answer[1], $o, $ends, $this->keeper);
            $this->keeper?->watch($claim, $ends);
            return $claim;
        }
        return match ($answer[0]) {
            'replay' => new Stored($answer[1], $answer[2], $answer[4]),
            'duplicate' => throw new TokenUsed('the token was used before'),
            'unknown' => throw new TokenUnknown("there is no such token for {$o['scope']}"),
            default => throw self::refusal($answer[0], $o['scope'], $key, (int)($answer[1] ?? 0)),
        };
    }

    /** @param list<string|int> $begin */
    private function giveBack(array $begin): void
    {
        try {
            $answer = $this->ask($begin, self::GIVE_BACK_MS);
            $answer[0] === 'started' && $this->ask(['RELEASE', $begin[1], $begin[2], $answer[1]], self::GIVE_BACK_MS);
        } catch (\Throwable) { // it stays claimed until its lease is over
        }
    }

    /** @internal */
    public static function refusal(string $verdict, string $scope, string $key, int $retryAfterMs): Error
    {
        $where = "$scope/$key";
        $word = fn (string $text): string => preg_match('~^[\w%+=:,./@-]+$~D', $text) ? $text : "'" . str_replace("'", "'\\''", $text) . "'";
        return match ($verdict) {
            'busy' => new InProgress("$where is being executed", $retryAfterMs),
            'mismatch' => new Mismatch("$where was used before with other arguments; a retry must pass the first arguments; "
                . "other work needs another key"),
            'doubt' => new OutcomeUnknown("nobody knows whether $where was executed: find out, then settle it "
                . "(idem doubts lists it; idem settle {$word($scope)} {$word($key)} --as …)"),
            default => new OutcomeUnknown("unexpected verdict $verdict for $where"),
        };
    }

    /** Record the outcome, 'SUCCEEDED' or 'FAILED'. A result of null is recorded as one that was not kept. */
    public function finish(Claim $claim, string $outcome, ?string $result, string $kind = 'raw'): void
    {
        $args = ['FINISH', $claim->scope, $claim->key, $claim->fence, $outcome];
        array_push($args, $result ?? '', 'KIND', $kind, ...($result === null ? ['NOREPLAY'] : []));
        try {
            $verdict = $this->end($claim, $args)[0];
        } catch (Unavailable | Refused $e) {
            if ($e instanceof Refused && $result !== null) {
                $this->finish($claim, $outcome, null, $kind);
                return;
            }
            throw new OutcomeUnknown("the work was done, and its result could not be recorded: {$e->getMessage()}", 0, $e);
        }
        if ($verdict !== 'ok') {
            throw new LeaseLost("somebody else decided about $claim meanwhile ($verdict)");
        }
    }

    /** Give the key back: the request was not executed. */
    public function release(Claim $claim): void
    {
        $this->end($claim, ['RELEASE', $claim->scope, $claim->key, $claim->fence]);
    }

    /**
     * @param list<string|int> $args
     * @return list<mixed>
     */
    private function end(Claim $claim, array $args): array
    {
        $this->keeper?->done($claim, true);
        try {
            return $this->ask($args, $claim->options['deadline']);
        } catch (\Throwable $e) {
            $this->abandon($claim);
            throw $e;
        }
    }

    /** The outcome is unknown: the claim stays until its lease is over. */
    public function abandon(Claim $claim): void
    {
        $this->keeper?->done($claim, false);
    }

    private function work(Claim $claim, callable $work): mixed
    {
        try {
            $value = $work($claim);
            if ($value instanceof \Generator) {
                throw new \TypeError('the work returned a generator, which has not run: its outcome cannot be recorded');
            }
        } catch (\Throwable $e) {
            $this->conclude($claim, $e);
            throw $e;
        }
        try {
            $result = $claim->options['dump']($value);
        } catch (\Throwable $e) { // the work is done all the same
            $this->finish($claim, 'SUCCEEDED', null);
            throw new Done("the work of $claim was done; its result cannot be written: {$e->getMessage()}", 0, $e);
        }
        $this->finish($claim, 'SUCCEEDED', $result);
        return $claim->options['load']($result); // as every repeat gets it
    }

    /** The work says that it has certainly not happened. What another call inside of it was told is about that call only. */
    public static function isNotExecuted(\Throwable $e): bool
    {
        return $e instanceof NotExecuted && !($e instanceof Mismatch || $e instanceof TokenUnknown || $e instanceof Unavailable
            || $e instanceof Refused);
    }

    private function conclude(Claim $claim, \Throwable $error): void
    {
        if ($error instanceof OutcomeUnknown) {
            $this->abandon($claim);
            return;
        }
        try {
            if ($claim->options['mode'] === 'loose' || self::isNotExecuted($error)) {
                $this->release($claim);
            } else {
                $this->finish($claim, 'FAILED', Json::failure($error));
            }
        } catch (Error $e) {
            error_log("idem: the outcome of $claim could not be recorded: {$e->getMessage()}");
        }
    }
}
