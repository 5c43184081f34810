<?php
// bench.php idem|redis PORT SECONDS PROCESSES: calls a second.
declare(strict_types=1);

require __DIR__ . '/../../clients/php/src/autoload.php';

[, $what, $port, $seconds, $callers] = $argv;

/** How many calls one process made. */
function calls(string $what, int $port, float $seconds): int
{
    $name = bin2hex(random_bytes(6));
    if ($what === 'idem') {
        $client = new Idem\Client("idem://127.0.0.1:$port", ['scope' => 'bench']);
        $call = fn (string $key) => $client->once($key, fn () => ['order' => 7]);
    } else {
        $redis = new Redis();
        $redis->connect('127.0.0.1', $port);
        $call = fn (string $key) => $redis->set($key, 'claimed', ['nx', 'px' => 86400000]) && $redis->set($key, '{"order":7}', ['px' => 86400000]);
    }
    for ($i = 0, $end = microtime(true) + $seconds; microtime(true) < $end; $i++) {
        $call("$name-$i");
    }
    return $i;
}

$pipes = [];
$begin = microtime(true);
for ($i = 0; $i < (int)$callers; $i++) {
    $pair = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    if (pcntl_fork() === 0) {
        fwrite($pair[0], calls($what, (int)$port, (float)$seconds) . "\n");
        exit;
    }
    $pipes[] = $pair[1];
}
$sum = 0;
foreach ($pipes as $pipe) {
    $sum += (int)fgets($pipe);
}
echo $sum / (microtime(true) - $begin), "\n";
