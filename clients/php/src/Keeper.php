<?php
declare(strict_types=1);

namespace Idem;

/**
 * Renews leases every third of them, in a child process: PHP has no threads. One child serves all claims of a client; it ends
 * with its parent. Without pcntl (a web server's PHP) there is none, and a lease has to be longer than the work.
 */
final class Keeper
{
    private const NAP_US = 20000;

    /** @var resource|null */
    private $pipe = null;
    private int $pid = 0;
    /** @var array<int, true> */
    private array $lost = [];
    /** @var \WeakMap<Claim, int> */
    private \WeakMap $numbers;
    private int $count = 0;

    public function __construct(private readonly ?string $url)
    {
        $this->numbers = new \WeakMap();
    }

    public static function possible(): bool
    {
        return PHP_SAPI === 'cli' && function_exists('pcntl_fork');
    }

    public function watch(Claim $claim): void
    {
        if ($this->pid !== getmypid()) {
            $this->start();
        }
        $this->numbers[$claim] = ++$this->count;
        $this->say(['watch', $this->count, $claim->scope, $claim->key, $claim->fence, $claim->options['lease']]);
    }

    public function done(Claim $claim): void
    {
        $this->say(['done', $this->numbers[$claim]]);
    }

    public function lost(Claim $claim): bool
    {
        $read = [$this->pipe];
        $none = null;
        while ($this->pipe && @stream_select($read, $none, $none, 0) > 0 && ($line = fgets($this->pipe)) !== false) {
            $this->lost[(int)$line] = true;
            $read = [$this->pipe];
        }
        return isset($this->lost[$this->numbers[$claim]]);
    }

    /** @param list<mixed> $words */
    private function say(array $words): void
    {
        if ($this->pipe) {
            @fwrite($this->pipe, json_encode($words, JSON_INVALID_UTF8_SUBSTITUTE) . "\n");
        }
    }

    private function start(): void
    {
        $pair = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        $child = $pair ? pcntl_fork() : -1;
        if ($child === 0) {
            fclose($pair[0]);
            $this->serve($pair[1]);
            // Leave at once: destructors and shutdown functions are the parent's.
            posix_kill((int)getmypid(), SIGKILL);
        }
        $this->pid = (int)getmypid();
        $this->pipe = $pair ? $pair[0] : null;
        if ($pair) {
            fclose($pair[1]);
        }
    }

    /** @param resource $pipe */
    private function serve($pipe): void
    {
        pcntl_signal(SIGINT, SIG_IGN); // the parent decides
        $client = new Client($this->url, ['renew' => false]);
        $due = [];
        while (true) {
            $next = $due ? max(0.0, min(array_column($due, 'at')) - microtime(true)) : 3600.0;
            $read = [$pipe];
            $none = null;
            if (@stream_select($read, $none, $none, (int)$next, (int)(fmod($next, 1) * 1e6)) > 0) {
                // Most claims are short: many messages at a time cost the parent less than to wake this process for each.
                usleep(self::NAP_US);
                do {
                    $line = fgets($pipe);
                    if ($line === false) {
                        return;
                    }
                    $words = json_decode($line, true);
                    if ($words[0] === 'watch') {
                        [, $number, $scope, $key, $fence, $lease] = $words;
                        $now = microtime(true);
                        $due[$number] = ['scope' => $scope, 'key' => $key, 'fence' => $fence, 'lease' => $lease,
                            'at' => $now + $lease / 3000, 'ends' => $now + $lease / 1000];
                    } else {
                        unset($due[$words[1]]);
                    }
                    $read = [$pipe];
                } while (@stream_select($read, $none, $none, 0) > 0);
            }
            foreach ($due as $number => $claim) {
                if ($claim['at'] > microtime(true)) {
                    continue;
                }
                $asked = microtime(true);
                try {
                    $answer = $client->ask(['RENEW', $claim['scope'], $claim['key'], $claim['fence'], $claim['lease']],
                        (int)max(0, ($claim['ends'] - $asked) * 1000));
                    $good = $answer[0] === 'ok';
                } catch (\Throwable) {
                    $good = false; // no answer before the lease was over
                }
                if ($good) {
                    $due[$number] = ['at' => $asked + $claim['lease'] / 3000, 'ends' => $asked + $claim['lease'] / 1000] + $claim;
                } else {
                    unset($due[$number]);
                    @fwrite($pipe, "$number\n");
                }
            }
        }
    }
}
