<?php
declare(strict_types=1);

namespace Idem;

require_once __DIR__ . '/errors.php';

/**
 * Runs work at most once, with its record in the caller's own database transaction: both commit or neither. It needs no server, only the
 * functions that `idem store init URL` installs (docs/sql/README.md), in PostgreSQL or MariaDB.
 *
 *     $order = Idem\PdoOnce::once($pdo, 'order-7', fn () => place_order($pdo, $cart), ['scope' => 'shop', 'arguments' => $cart]);
 *
 * Where no transaction is open, the call is one of its own. Otherwise it is a part of yours: commit it, after a failure of the work too, if
 * the failure shall be kept. After a deadlock (isUndone) run the transaction again.
 */
final class PdoOnce
{
    private readonly bool $maria;
    private readonly bool $own;
    private bool $keeps = false;

    /** @param array<string, mixed> $o */
    private function __construct(private readonly \PDO $db, private readonly string $key, private readonly array $o)
    {
        if (!array_key_exists('arguments', $o)) {
            throw new \InvalidArgumentException("give 'arguments': without them a key that is used for another request is not noticed");
        }
        if ($db->getAttribute(\PDO::ATTR_ERRMODE) !== \PDO::ERRMODE_EXCEPTION) {
            throw new \InvalidArgumentException('PDO::ATTR_ERRMODE has to be PDO::ERRMODE_EXCEPTION');
        }
        $this->maria = $db->getAttribute(\PDO::ATTR_DRIVER_NAME) === 'mysql';
        $this->own = !$db->inTransaction();
    }

    /**
     * The work gets the claim.
     *
     * @param callable(Claim): mixed $work
     * @param array<string, mixed> $options
     */
    public static function once(\PDO $db, string $key, callable $work, array $options): mixed
    {
        return (new self($db, $key, Client::complete($options)))->run($work);
    }

    /** A deadlock, a serialization failure or a lost connection: the transaction has to run again. */
    public static function isUndone(\Throwable $error): bool
    {
        for ($e = $error; $e !== null; $e = $e->getPrevious()) {
            if ($e instanceof \PDOException) {
                $state = (string)($e->errorInfo[0] ?? '');
                return in_array(substr($state, 0, 2), ['40', '08'], true) || str_starts_with($state, '57P0')
                    || in_array($e->errorInfo[1] ?? 0, [1020, 1205, 1213, 2006, 2013], true);
            }
        }
        return false;
    }

    private function run(callable $work): mixed
    {
        if (!$this->own) {
            return $this->guarded($work);
        }
        if ($this->maria) {
            $this->db->exec('set transaction isolation level read committed');
        }
        $this->db->beginTransaction();
        try {
            $value = $this->guarded($work);
            $this->commit();
            return $value;
        } catch (\Throwable $e) {
            if ($this->keeps) {
                $this->commit();
            }
            throw $e;
        } finally {
            try {
                $this->db->inTransaction() && $this->db->rollBack();
            } catch (\PDOException) { // the connection is gone, and the transaction with it
            }
        }
    }

    private function commit(): void
    {
        $this->keeps = false;
        try {
            $this->db->commit();
        } catch (\PDOException $e) {
            $state = (string)($e->errorInfo[0] ?? '');
            if (self::isUndone($e) && !str_starts_with($state, '40') || $state === 'HY000') {
                throw new OutcomeUnknown("the reply to commit was lost: ask idem.get for {$this->o['scope']}/{$this->key}", 0, $e);
            }
            throw $e;
        }
    }

    private function guarded(callable $work): mixed
    {
        if (!$this->own) {
            $this->db->exec('savepoint idem_claim');
        }
        $got = $this->begin();
        if ($got instanceof Stored) {
            $this->keeps = true; // a failure is told after the commit, too: on PostgreSQL the commit waits for the standby
            return $got->value($this->key, $this->o);
        }
        $this->db->exec('savepoint idem_work');
        try {
            $value = $work($got);
            $result = $this->written($got, $value);
        } catch (\Throwable $e) {
            try {
                $this->failed($got, $e);
            } catch (\Throwable $second) { // the connection may be gone, and the claim with it
                error_log("idem: the failure of $got could not be recorded: {$second->getMessage()}");
            }
            throw $e;
        }
        $this->finish($got, 'succeeded', $result);
        return $this->o['load']($result); // as every repeat gets it
    }

    private function written(Claim $claim, mixed $value): string
    {
        try {
            return $this->o['dump']($value);
        } catch (\Throwable $e) { // it is not committed: nothing has happened
            throw new NotExecuted("the result of $claim cannot be written: {$e->getMessage()}", 0, $e);
        }
    }

    /** What certainly did not happen, or may be tried again, leaves nothing. */
    private function failed(Claim $claim, \Throwable $error): void
    {
        $unknown = $error instanceof OutcomeUnknown;
        if (self::isUndone($error)) {
            return;
        }
        if ($error instanceof NotExecuted || $this->o['mode'] === 'loose' && !$unknown) {
            $this->own || $this->db->exec('rollback to savepoint idem_claim');
            return;
        }
        $this->db->exec('rollback to savepoint idem_work');
        if (!$unknown) {
            $this->finish($claim, 'failed', Json::failure($error));
        }
        $this->keeps = true;
    }

    /** @return list<mixed> */
    private function ask(string $text, mixed ...$values): array
    {
        $statement = $this->db->prepare($text);
        $statement->execute($values);
        $row = $statement->columnCount() > 0 ? $statement->fetch(\PDO::FETCH_NUM) : [];
        $statement->closeCursor();
        return $row;
    }

    private function begin(): Claim|Stored
    {
        $o = $this->o;
        $asked = [$o['scope'], $this->key, Client::fingerprint($o['arguments']), $o['mode'], $o['lease'], $o['ttl']];
        if ($this->maria) {
            $this->ask('call idem_begin(?, ?, unhex(?), ?, ?, ?, @idem_v, @idem_f, @idem_k, @idem_r)', ...$asked);
            [$verdict, $fence, $kind, $result] = $this->ask('select @idem_v, @idem_f, @idem_k, hex(@idem_r)');
            if ($verdict === 'replay') {
                $this->ask('call idem_get(?, ?, @idem_v, @idem_s, @idem_f, @idem_k, @idem_x)', $o['scope'], $this->key);
                [$state] = $this->ask('select @idem_s');
            }
        } else {
            [$verdict, $fence, $kind, $result, $state] = $this->ask("select verdict, fence, kind, encode(result, 'hex'), state "
                . "from idem.begin(?, ?, decode(?, 'hex'), ?, ?, ?, ?)", ...$asked, ...[$o['wait']]);
        }
        return match ($verdict) {
            'started' => new Claim($o['scope'], $this->key, (int)$fence, $o),
            'replay' => new Stored($state, $kind, $result === null ? null : (string)hex2bin($result)),
            default => throw Client::refusal($verdict, $o['scope'], $this->key, 100),
        };
    }

    private function finish(Claim $claim, string $state, string $result): void
    {
        $said = [$claim->scope, $claim->key, $claim->fence, $state, bin2hex($result), $this->o['ttl']];
        if ($this->maria) {
            $this->ask("call idem_try_finish(?, ?, ?, ?, unhex(?), ?, 'raw', @idem_v)", ...$said);
            [$verdict] = $this->ask('select @idem_v');
        } else {
            [$verdict] = $this->ask("select idem.try_finish(?, ?, ?, ?, decode(?, 'hex'), ?)", ...$said);
        }
        if ($verdict !== 'ok') {
            throw new LeaseLost("somebody else decided about $claim meanwhile ($verdict)");
        }
    }
}
