<?php
// The conformance driver of the PHP client: see clients/conformance/README.md. Every command has a process of its own.
declare(strict_types=1);

require __DIR__ . '/../src/autoload.php';

const CLASSES = [Idem\Done::class => 'done', Idem\NotExecuted::class => 'not_executed', Idem\InProgress::class => 'in_progress',
    Idem\OutcomeUnknown::class => 'unknown'];

function work(array $steps, Idem\Claim $claim, ?PDO $db): mixed
{
    foreach ($steps as $step) {
        if (property_exists($step, 'sql')) {
            $db->exec($step->sql);
        } elseif (property_exists($step, 'append')) {
            file_put_contents($step->append, "{$claim->fence}\n", FILE_APPEND);
        } elseif (property_exists($step, 'sleep_ms')) {
            usleep($step->sleep_ms * 1000);
        } elseif (property_exists($step, 'await_loss_ms')) {
            for ($end = microtime(true) + $step->await_loss_ms / 1000; !$claim->lost() && microtime(true) < $end;) {
                usleep(20000);
            }
            file_put_contents($step->file, $claim->lost() ? "lost\n" : "kept\n", FILE_APPEND);
        } elseif (property_exists($step, 'die')) {
            posix_kill(posix_getppid(), SIGKILL); // the driver, as one process would
            posix_kill(getmypid(), SIGKILL);
        } elseif (property_exists($step, 'return')) {
            return $step->return;
        } elseif (property_exists($step, 'return_text')) {
            return str_repeat('x', $step->return_text);
        } elseif (property_exists($step, 'raise')) {
            [$name, $message] = $step->raise;
            class_exists($name) || eval("class $name extends RuntimeException {}");
            throw new $name($message);
        } elseif (property_exists($step, 'redeem')) {
            (new Idem\Client($GLOBALS['argv'][1]))->redeem($step->redeem, $claim->scope);
        } elseif (property_exists($step, 'not_executed')) {
            throw new Idem\NotExecuted('nothing happened');
        } elseif (property_exists($step, 'unknown')) {
            throw new Idem\OutcomeUnknown('who knows');
        }
    }
    return null;
}

function told(Throwable $e): array
{
    $name = (new ReflectionClass($e))->getShortName();
    $answer = ['class' => 'error', 'error' => $name, 'type' => $name, 'message' => $e->getMessage()];
    foreach (CLASSES as $kind => $class) {
        $answer['class'] = $e instanceof $kind ? $class : $answer['class'];
    }
    if (Idem\PdoOnce::isUndone($e)) {
        $answer['deadlock'] = true;
    }
    return $e instanceof Idem\Failed ? ['type' => $e->type, 'message' => $e->text] + $answer : $answer;
}

/** @param callable(string, callable, array): mixed $call */
function answer(stdClass $command, callable $call, ?PDO $db = null): array
{
    $options = ['load' => json_decode(...), 'scope' => $command->scope, 'token' => $command->token ?? false];
    foreach ((array)($command->options ?? []) as $name => $value) {
        $options[preg_replace('/_ms$/', '', $name)] = $value;
    }
    if (property_exists($command, 'arguments')) {
        $options['arguments'] = $command->arguments;
    }
    $ran = false;
    try {
        $value = $call($command->key, function ($claim) use ($command, $db, &$ran) {
            $ran = true;
            return work($command->work, $claim, $db);
        }, $options);
        return ['class' => 'done', 'value' => $value, 'ran' => $ran];
    } catch (Throwable $e) {
        return told($e) + ['ran' => $ran];
    }
}

/** `end` says how the caller's own transaction ends; without it the transaction is the helper's. */
function transaction(stdClass $command): array
{
    $u = parse_url($command->database);
    $maria = $u['scheme'] === 'mysql';
    $name = substr($u['path'], 1);
    $db = new PDO(($maria ? 'mysql:charset=utf8mb4;' : 'pgsql:') . "host={$u['host']};port={$u['port']};dbname=$name", $u['user'], $u['pass']);
    if (isset($command->end)) {
        $maria && $db->exec('set transaction isolation level read committed');
        $db->beginTransaction();
    }
    $answer = answer($command, fn (...$args) => Idem\PdoOnce::once($db, ...$args), $db);
    if (isset($command->end)) {
        $command->end === 'commit' ? $db->commit() : $db->rollBack();
    }
    return $answer;
}

function perform(Idem\Client $client, stdClass $command): array
{
    try {
        switch ($command->op) {
            case 'once':
                return answer($command, $client->once(...));
            case 'transaction':
                return transaction($command);
            case 'issue':
                return ['class' => 'done', 'value' => $client->issue($command->subject)];
            case 'redeem':
                $client->redeem($command->token, $command->subject);
                return ['class' => 'done', 'value' => 'redeemed'];
            default:
                return ['class' => 'done', 'value' => Idem\Client::fingerprint($command->arguments)];
        }
    } catch (Throwable $e) {
        return told($e);
    }
}

$client = new Idem\Client($argv[1] ?: null);
while (($line = fgets(STDIN)) !== false) {
    $command = json_decode($line, false, 512, JSON_THROW_ON_ERROR);
    while (pcntl_waitpid(-1, $status, WNOHANG) > 0);
    if (pcntl_fork() === 0) {
        $answer = ['id' => $command->id] + perform($client, $command);
        fwrite(STDOUT, json_encode($answer, JSON_UNESCAPED_UNICODE | JSON_PRESERVE_ZERO_FRACTION) . "\n");
        fflush(STDOUT);
        posix_kill(getmypid(), SIGKILL); // without the parent's destructors
    }
}
while (pcntl_waitpid(-1, $status) > 0);
