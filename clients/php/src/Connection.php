<?php
declare(strict_types=1);

namespace Idem;

/** The Redis protocol as idem speaks it, on one connection: one command at a time. */
final class Connection
{
    private const CONNECT_SECONDS = 2.0;
    public const REPLY_SECONDS = 5.0;

    private const URL = '~^(?:idem\+unix:(/?[^/?][^?]*)|(idems?)://(?:([^?]*)@)?(\[[^]?]+]|[^][:/?@,]+)(?::([0-9]{1,5}))?(?:/[^?@]*)?)(?:\?(.*))?$~Ds';

    public const STRANGE = 'unexpected reply: is this an idem server?';

    /** @var resource|null */
    private $stream = null;
    private string $target;
    /** @var array<string, array<string, mixed>> */
    private array $context = ['socket' => ['tcp_nodelay' => true]];
    /** @var list<string> */
    private array $auth = [];
    private ?string $path = null;
    private int $pid = 0;
    private float $end = 0.0;

    /** unix:PATH, HOST:PORT, idem://[name:secret@]host:port, idems://host:port?ca=FILE&cert=FILE&key=FILE (TLS) or idem+unix:/path */
    public function __construct(?string $url = null)
    {
        [$this->path, $scheme, $user, $host, $port, $query] = self::partsOf($url ?? (getenv('IDEM_SERVER') ?: 'idem://127.0.0.1:6390'));
        $this->target = $this->path !== null ? "unix://$this->path" : ($scheme === 'idem' ? 'tcp' : 'tls') . "://$host:" . ($port ?? 6390);
        $this->secure($scheme === 'idems', trim($host ?? '', '[]'), $query ?? '');
        $secret = $user !== null && $user !== '' ? rawurldecode($user) : (getenv('IDEM_AUTH') ?: '');
        if ($secret !== '') {
            $this->auth = ['AUTH', ...explode(':', $secret, 2)];
        }
    }

    /**
     * What the command line takes for --server: unix:PATH, /PATH, HOST:PORT, or a URL, whose parts these are.
     *
     * @return list<string|null>
     */
    private static function partsOf(string $text): array
    {
        $url = $text;
        if (preg_match('~^(unix:|/)~', $text)) {
            $url = 'idem+unix:' . preg_replace('~^unix:~', '', $text);
        } elseif (!preg_match('~://|^idem\+unix:~', $text) && preg_match('~^([^?]*@)?[^/?@]*:[0-9]+$~D', $text)) {
            $url = 'idem://' . (preg_match('~^:[^@]*$~D', $text) ? '127.0.0.1' : '') . $text;
        }
        if (preg_match(self::URL, $url, $found, PREG_UNMATCHED_AS_NULL) && ($port = (int)($found[5] ?? 6390)) > 0 && $port < 65536) {
            return array_slice($found, 1);
        }
        throw new \InvalidArgumentException(sprintf('"%s" is %s: give unix:PATH, HOST:PORT or idems://HOST:PORT', // without the secret
            substr((string)strrchr("@$text", '@'), 1),
            str_starts_with($text, 'http') ? "the HTTP address of a server; clients need its socket or its RESP port" : 'not an address'));
    }

    /** ca: who may have signed the server's certificate, instead of those that this machine trusts. cert, key: our own one. */
    private function secure(bool $tls, string $host, string $query): void
    {
        parse_str($query, $files);
        $names = $tls ? ['ca' => 'cafile', 'cert' => 'local_cert', 'key' => 'local_pk'] : [];
        if ($wrong = array_diff_key($files, $names)) {
            throw new \InvalidArgumentException('the address has an unknown option: ' . implode(', ', array_keys($wrong)));
        }
        foreach ($files as $name => $file) {
            $this->context['ssl'][$names[$name]] = is_readable($file) ? $file : throw new \InvalidArgumentException("$file cannot be read");
        }
        if ($tls) {
            $this->context['ssl'] = ($this->context['ssl'] ?? []) + ['verify_peer' => true, 'verify_peer_name' => true, 'peer_name' => $host,
                'capture_peer_cert' => true,
                'crypto_method' => STREAM_CRYPTO_METHOD_TLSv1_2_CLIENT | STREAM_CRYPTO_METHOD_TLSv1_3_CLIENT];
        }
    }

    /** Seconds on a clock that nobody sets. */
    public static function now(): float
    {
        return hrtime(true) / 1e9;
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
        // Whether FINISH was sent makes no difference: its outcome is unknown until there is an answer.
        if ($this->stream !== null && $args[0] !== 'FINISH' && !$this->isSilent()) {
            $this->close();
        }
        $this->stream ?? $this->open($seconds);
        return $this->exchange($args, $seconds, true);
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
            STREAM_CLIENT_CONNECT, stream_context_create($this->context));
        if ($stream === false) {
            throw new Broken("$this->target: " . ($text ?: error_get_last()['message'] ?? 'cannot connect'), false);
        }
        if (isset($this->context['ssl']) && !self::isFor($stream, $this->context['ssl']['peer_name'])) {
            fclose($stream);
            throw new Broken('the certificate of the server is for another host', false);
        }
        $this->stream = $stream;
        // A server that has too many clients says so and closes: then it must not have been sent the caller's command.
        try {
            $this->exchange($this->auth ?: ['PING'], $seconds, false);
        } catch (Refused $e) {
            $this->close();
            throw $e;
        }
    }

    /**
     * Whether the certificate's list of names has this host. PHP 8.4 also accepts one whose common name fits, whatever its list says.
     *
     * @param resource $stream
     */
    private static function isFor($stream, string $host): bool
    {
        $certificate = openssl_x509_parse(stream_context_get_options($stream)['ssl']['peer_certificate']);
        $list = $certificate['extensions']['subjectAltName'] ?? null;
        if ($list === null) {
            return true; // PHP has compared the common name
        }
        foreach (explode(',', $list) as $entry) {
            [$kind, $name] = explode(':', trim($entry), 2) + [1 => ''];
            if ($kind === 'IP Address' && ($address = @inet_pton($name)) !== false && $address === @inet_pton($host)) {
                return true;
            }
            $rest = strstr($host, '.');
            if ($kind === 'DNS' && (strcasecmp($name, $host) === 0 ||
                ($rest !== false && !filter_var($host, FILTER_VALIDATE_IP) && strcasecmp($name, '*' . $rest) === 0))) {
                return true;
            }
        }
        return false;
    }

    /** @param list<string|int> $args */
    private function exchange(array $args, float $seconds, bool $sent): mixed
    {
        $out = '*' . count($args) . "\r\n";
        foreach ($args as $arg) {
            $out .= '$' . strlen((string)$arg) . "\r\n$arg\r\n";
        }
        $this->end = self::now() + $seconds;
        $answer = null;
        try {
            $this->limit();
            for ($at = 0; $at < strlen($out); $at += $n) {
                $n = @fwrite($this->stream, $at ? substr($out, $at) : $out);
                if ($n === false || $n === 0) {
                    throw new \UnexpectedValueException('the server closed the connection');
                }
            }
            $answer = $this->read();
        } catch (\UnexpectedValueException $e) {
            throw new Broken($e->getMessage(), $sent);
        } finally {
            $answer ?? $this->close(); // whatever was thrown: the next command must not get this reply
        }
        return $answer instanceof Refused ? throw $answer : $answer;
    }

    private function limit(): void
    {
        $left = max(0.001, $this->end - self::now());
        stream_set_timeout($this->stream, (int)$left, (int)(fmod($left, 1) * 1e6));
    }

    private function read(): mixed
    {
        $data = '';
        do {
            $data === '' || $this->limit();
            $more = fread($this->stream, 65536);
            if ($more === false || $more === '') {
                throw new \UnexpectedValueException('no reply: the connection was closed, or it took too long');
            }
            $data .= $more;
            $at = 0;
            $answer = self::parse($data, $at);
        } while ($at < 0);
        // What nobody asked for must not be taken for the answer to the next command.
        return $at === strlen($data) ? $answer : throw new \UnexpectedValueException(self::STRANGE);
    }

    /** The reply at $at, which moves to its end; -1: it is not all here. */
    private static function parse(string $data, int &$at): mixed
    {
        $line = strpos($data, "\r\n", $at);
        if ($line === false) {
            $at = -1;
            return null;
        }
        $mark = $data[$at];
        $text = substr($data, $at + 1, $line - $at - 1);
        $at = $line + 2;
        switch ($mark) {
            case '+':
                return $text;
            case '-':
                [$word, $said] = explode(' ', $text, 2) + [1 => ''];
                // A server that has as many clients as it takes will have room again: for the caller it is away.
                return new Refused($word === 'ERR' && str_starts_with($said, 'max number of clients') ? 'OVERLOADED' : $word, $said);
            case ':':
                return (int)$text;
            case '$':
                if ($text === '-1') {
                    return null;
                }
                $from = $at;
                $at = strlen($data) >= $from + $text + 2 ? $from + $text + 2 : -1;
                return substr($data, $from, (int)$text);
            case '*':
                for ($items = []; count($items) < (int)$text && $at >= 0;) {
                    $items[] = self::parse($data, $at);
                }
                return $items;
            default:
                throw new \UnexpectedValueException(self::STRANGE);
        }
    }
}
