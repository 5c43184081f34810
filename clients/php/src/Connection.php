<?php
declare(strict_types=1);

namespace Idem;

/** The Redis protocol as idem speaks it, on one connection: one command at a time. */
final class Connection
{
    private const CONNECT_SECONDS = 2.0;
    public const REPLY_SECONDS = 5.0;

    /** @var resource|null */
    private $stream = null;
    private string $target;
    /** @var list<string> */
    private array $auth = [];
    private ?string $path = null;
    private int $pid = 0;
    private float $end = 0.0;

    /** idem://[name:secret@]host:port or idem+unix:/path */
    public function __construct(?string $url = null)
    {
        $url ??= getenv('IDEM_SERVER') ?: 'idem://127.0.0.1:6390';
        $secret = getenv('IDEM_AUTH') ?: '';
        if (str_starts_with($url, 'idem+unix:')) {
            $this->path = substr($url, strlen('idem+unix:'));
            $this->target = 'unix://' . $this->path;
        } else {
            $parts = parse_url($url);
            if ($parts === false || ($parts['scheme'] ?? '') !== 'idem') {
                throw new \InvalidArgumentException('an address is idem://host:port or idem+unix:/path');
            }
            $this->target = 'tcp://' . ($parts['host'] ?? '127.0.0.1') . ':' . ($parts['port'] ?? 6390);
            if (isset($parts['user'])) {
                $secret = rawurldecode($parts['user']) . (isset($parts['pass']) ? ':' . rawurldecode($parts['pass']) : '');
            }
        }
        if ($secret !== '') {
            $this->auth = ['AUTH', ...explode(':', $secret, 2)];
        }
    }

    /**
     * One command and its reply; waits at most so many seconds.
     *
     * @param list<string|int> $args
     */
    public function call(array $args, float $seconds): mixed
    {
        if ($this->pid !== getmypid()) {
            $this->stream = null; // a child process has a connection of its own
            $this->pid = (int)getmypid();
        }
        if ($this->stream !== null && !$this->isSilent()) {
            $this->close();
        }
        $this->stream ?? $this->open($seconds);
        try {
            $answer = $this->exchange($args, $seconds);
        } catch (\Throwable $e) {
            $this->close();
            throw new Broken($e->getMessage(), true);
        }
        if ($answer instanceof Refused) {
            throw $answer;
        }
        return $answer;
    }

    /** Where nothing was asked, there is nothing to read: what is there is the end, because the server went away. */
    private function isSilent(): bool
    {
        $read = [$this->stream];
        $none = null;
        return @stream_select($read, $none, $none, 0) === 0;
    }

    public function close(): void
    {
        if ($this->stream !== null && $this->pid === getmypid()) {
            fclose($this->stream);
        }
        $this->stream = null;
    }

    private function open(float $seconds): void
    {
        if ($this->path !== null && $this->auth && function_exists('posix_geteuid')) {
            // Do not send a secret to a socket that somebody else made.
            $owner = @fileowner($this->path);
            if ($owner !== 0 && $owner !== posix_geteuid()) {
                throw new Broken("{$this->path} does not exist or belongs to another user", false);
            }
        }
        $stream = @stream_socket_client($this->target, $code, $text, min(self::CONNECT_SECONDS, $seconds),
            STREAM_CLIENT_CONNECT, stream_context_create(['socket' => ['tcp_nodelay' => true]]));
        if ($stream === false) {
            throw new Broken($text ?: 'cannot connect', false);
        }
        $this->stream = $stream;
        if ($this->auth) {
            try {
                $answer = $this->exchange($this->auth, $seconds);
            } catch (\Throwable $e) {
                $this->close();
                throw new Broken($e->getMessage(), false);
            }
            if ($answer instanceof Refused) {
                $this->close();
                throw $answer;
            }
        }
    }

    /** @param list<string|int> $args */
    private function exchange(array $args, float $seconds): mixed
    {
        $out = '*' . count($args) . "\r\n";
        foreach ($args as $arg) {
            $out .= '$' . strlen((string)$arg) . "\r\n$arg\r\n";
        }
        $this->end = microtime(true) + $seconds;
        $this->limit();
        for ($sent = 0; $sent < strlen($out); $sent += $n) {
            $n = @fwrite($this->stream, $sent ? substr($out, $sent) : $out);
            if ($n === false || $n === 0) {
                throw new \RuntimeException('the server closed the connection');
            }
        }
        return $this->read();
    }

    private function limit(): void
    {
        $left = max(0.001, $this->end - microtime(true));
        stream_set_timeout($this->stream, (int)$left, (int)(fmod($left, 1) * 1e6));
    }

    private function read(): mixed
    {
        $this->limit();
        $line = fgets($this->stream);
        if ($line === false || !str_ends_with($line, "\r\n")) {
            throw new \RuntimeException('no reply: the connection was closed, or it took too long');
        }
        $text = substr($line, 1, -2);
        switch ($line[0]) {
            case '+':
                return $text;
            case '-':
                return new Refused(...(explode(' ', $text, 2) + [1 => '']));
            case ':':
                return (int)$text;
            case '$':
                return $text === '-1' ? null : $this->bytes((int)$text);
            case '*':
                $items = [];
                for ($i = 0; $i < (int)$text; $i++) {
                    $items[] = $this->read();
                }
                return $items;
            default:
                throw new \RuntimeException('unexpected reply: is this an idem server?');
        }
    }

    private function bytes(int $len): string
    {
        $data = '';
        while (strlen($data) < $len + 2) {
            $this->limit();
            $more = fread($this->stream, $len + 2 - strlen($data));
            if ($more === false || $more === '') {
                throw new \RuntimeException('the server closed the connection');
            }
            $data .= $more;
        }
        return substr($data, 0, $len);
    }
}
