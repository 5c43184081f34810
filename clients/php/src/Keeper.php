<?php
declare(strict_types=1);

namespace Idem;

/**
 * Renews leases every third of them, in a child process: PHP has no threads. One child serves all claims of a client; it ends
 * with its parent. Without pcntl (a web server's PHP) there is none, and a lease has to be longer than the work.
 *
 * The parent writes "watch NUMBER SCOPE KEY FENCE LEASE ENDS" and "done NUMBER", the child "NUMBER ENDS": until when the lease lasts on
 * Connection::now(), 0 if it is lost. So the parent knows by its own clock when a lease is over, also if the child is gone.
 */
final class Keeper
{
    private const NAP_US = 20000;
    private const PATIENCE_US = 200000;

    /** @var resource|null */
    private $pipe = null;
    private int $pid = 0;
    private int $child = 0;
    /** @var array<int, float> */
    private array $ends = [];
    /** @var \WeakMap<Claim, int> */
    private \WeakMap $numbers;
    private int $count = 0;
    private string $later = ''; // what the child need not hear at once

    public function __construct(private readonly ?string $url)
    {
        $this->numbers = new \WeakMap();
    }

    public function __destruct()
    {
        if ($this->child > 0 && $this->pid === getmypid()) {
            posix_kill($this->child, SIGKILL);
            pcntl_waitpid($this->child, $status);
        }
    }

    public static function possible(): bool
    {
        return PHP_SAPI === 'cli' && function_exists('pcntl_fork');
    }

    public function watch(Claim $claim, float $ends): void
    {
        if ($this->pid !== getmypid()) {
            $this->start();
        }
        $this->numbers[$claim] = ++$this->count;
        $this->ends[$this->count] = $ends;
        $this->say(sprintf("watch %d %s %s %d %d %.6f\n", $this->count, bin2hex($claim->scope), bin2hex($claim->key), $claim->fence,
            $claim->options['lease'], $ends));
    }

    /** Renew it no more. Where its record is finished, a renewal that comes too late changes nothing. */
    public function done(Claim $claim, bool $finished): void
    {
        $number = $this->numbers[$claim];
        unset($this->ends[$number]);
        $this->later .= "done $number\n";
        if (!$finished) {
            $this->say('');
        }
    }

    public function lost(Claim $claim): bool
    {
        $number = $this->numbers[$claim];
        $this->listen(0);
        if (($this->ends[$number] ?? INF) <= Connection::now()) {
            $this->listen(self::PATIENCE_US); // the child may have had no room to say more
        }
        return ($this->ends[$number] ?? INF) <= Connection::now();
    }

    private function listen(int $patience): void
    {
        $none = null;
        while ($this->pipe && $this->pid === getmypid()) {
            $read = [$this->pipe];
            if (!@stream_select($read, $none, $none, 0, $patience)) {
                return;
            }
            $line = fgets($this->pipe);
            if ($line === false) { // the child is gone: what is known counts
                $this->pipe = null;
                return;
            }
            [$number, $ends] = explode(' ', $line);
            if (isset($this->ends[(int)$number])) {
                $this->ends[(int)$number] = (float)$ends;
            }
            $patience = 0;
        }
    }

    private function say(string $words): void
    {
        $words = $this->later . $words;
        $this->later = '';
        if ($this->pipe && $this->pid === getmypid()) {
            @fwrite($this->pipe, $words);
        }
    }

    private function start(): void
    {
        $pair = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0) ?: [null, null];
        $child = $pair[0] ? pcntl_fork() : -1;
        if ($child === 0) {
            fclose($pair[0]);
            $this->serve($pair[1]);
            // Leave at once: destructors and shutdown functions are the parent's.
            posix_kill((int)getmypid(), SIGKILL);
        }
        $this->pid = (int)getmypid();
        $this->child = $child;
        $this->pipe = $child > 0 ? $pair[0] : null;
        $this->ends = [];
        $this->later = '';
    }

    /** @param resource $pipe */
    private function serve($pipe): void
    {
        pcntl_signal(SIGINT, SIG_IGN); // the parent decides
        $client = new Client($this->url, ['renew' => false]);
        $due = $news = [];
        while (true) {
            $next = $due ? max(0.0, min(array_column($due, 'at')) - Connection::now()) : 3600.0;
            [$read, $write, $none] = [[$pipe], $news ? [$pipe] : [], null];
            if (!@stream_select($read, $write, $none, (int)$next, (int)(fmod($next, 1) * 1e6))) {
                $read = $write = [];
            }
            if ($read && !self::hear($pipe, $due)) {
                return;
            }
            if ($write) {
                foreach ($news as $number => $ends) {
                    @fwrite($pipe, sprintf("%d %.6f\n", $number, $ends));
                }
                $news = [];
            }
            foreach (array_filter($due, fn ($claim) => $claim['at'] <= Connection::now()) as $number => $claim) {
                $due[$number] = self::renewed($client, $claim, min(array_column($due, 'ends')));
                $news[$number] = $due[$number]['ends'];
                if ($due[$number]['ends'] === 0.0) {
                    unset($due[$number]);
                }
            }
        }
    }

    /**
     * @param resource $pipe
     * @param array<int, array<string, mixed>> $due
     */
    private static function hear($pipe, array &$due): bool
    {
        // Most claims are short: many messages at a time cost the parent less than to wake this process for each.
        usleep(self::NAP_US);
        do {
            $line = fgets($pipe);
            if ($line === false) {
                return false;
            }
            [$word, $number, $scope, $key, $fence, $lease, $ends] = explode(' ', trim($line)) + array_fill(0, 7, '');
            if ($word === 'done') {
                unset($due[$number]);
            } else {
                $due[$number] = ['command' => ['RENEW', hex2bin($scope), hex2bin($key), $fence, $lease], 'lease' => (int)$lease / 1000,
                    'at' => (float)$ends - (int)$lease / 1500, 'ends' => (float)$ends];
            }
            [$read, $none] = [[$pipe], null];
        } while (@stream_select($read, $none, $none, 0) > 0);
        return true;
    }

    /**
     * The claim with the new end of its lease, 0 if it is lost. Nothing is waited for longer than until the first lease of any claim is over.
     *
     * @param array<string, mixed> $claim
     * @return array<string, mixed>
     */
    private static function renewed(Client $client, array $claim, float $until): array
    {
        $asked = Connection::now();
        try {
            $good = $client->ask($claim['command'], (int)max(0, ($until - $asked) * 1000))[0] === 'ok';
        } catch (Unavailable | OutcomeUnknown) { // no reply in time: again, if there is time
            $now = Connection::now();
            return $now < $claim['ends'] ? ['at' => min($now + 0.1, $claim['ends'])] + $claim : ['ends' => 0.0] + $claim;
        } catch (\Throwable) {
            $good = false;
        }
        return ($good ? ['at' => $asked + $claim['lease'] / 3, 'ends' => $asked + $claim['lease']] : ['ends' => 0.0]) + $claim;
    }
}
