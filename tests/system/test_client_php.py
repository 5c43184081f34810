"""The PHP client beyond the conformance scenarios."""
import os
import signal
import subprocess

import pytest

from lib import ROOT, Server, folder, wait_until

SRC = os.path.join(ROOT, "clients/php/src")
HEAD = """<?php
declare(strict_types=1);
error_reporting(E_ALL);
set_error_handler(function ($code, $text, $file, $line) { if (error_reporting() & $code) throw new ErrorException("$text at $file:$line"); });
require '%s/autoload.php';
function equal($got, $wanted) {
    if ($got != $wanted || gettype($got) !== gettype($wanted))
        throw new LogicException('got ' . var_export($got, true) . ', wanted ' . var_export($wanted, true));
}
function fails(string $class, callable $work): Throwable {
    try { $work(); } catch (Throwable $e) { if ($e instanceof $class) return $e; throw $e; }
    throw new LogicException("no $class was thrown");
}
""" % SRC


@pytest.fixture(scope="module")
def server():
    with folder() as where:
        server = Server(where, listen=True)
        server.url = "idem://127.0.0.1:%d" % server.port
        yield server
        server.stop()


def start(code, *args, **env):
    """A program with the client, on standard input: $argv has the arguments."""
    process = subprocess.Popen(["php", "-d", "display_errors=stderr", "--", *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env={**os.environ, **env})
    process.stdin.write(HEAD + code)
    process.stdin.close()
    process.stdin = None
    return process


def php(code, *args, **env):
    process = start(code, *args, **env)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    return out


def test_a_server_that_went_away_while_the_connection_was_idle_is_not_an_unknown_outcome():
    with folder() as where, Server(where, listen=True) as server:
        flag = os.path.join(where, "away")
        process = start("""
            $client = new Idem\\Client($argv[1], ['deadline' => 1000]);
            $client->once('warm', fn () => 1);
            echo "warm\\n";
            while (!file_exists($argv[2])) usleep(10000);
            fails(Idem\\Unavailable::class, fn () => $client->once('k', fn () => 1));
            """, "idem://127.0.0.1:%d" % server.port, flag)
        assert process.stdout.readline() == "warm\n"
        server.kill()
        open(flag, "w").close()
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, out + err


def test_work_is_told_by_the_end_of_its_lease_that_the_server_hangs():
    """The reply time-out is 5 s: it must not be waited for when the lease is over before."""
    with folder() as where, Server(where, listen=True) as server:
        flag = os.path.join(where, "hangs")
        process = start("""
            $client = new Idem\\Client($argv[1], ['deadline' => 1000]);
            fails(Idem\\LeaseLost::class, fn () => $client->once('k', function ($claim) use ($argv) {
                echo "works\\n";
                while (!file_exists($argv[2])) usleep(10000);
                $began = microtime(true);
                while (!$claim->lost()) usleep(10000);
                echo microtime(true) - $began, "\\n";
                $claim->check();
            }, ['lease' => 1500]));
            """, "idem://127.0.0.1:%d" % server.port, flag)
        assert process.stdout.readline() == "works\n"
        server.send(signal.SIGSTOP)
        open(flag, "w").close()
        try:
            out, err = process.communicate(timeout=60)
        finally:
            server.send(signal.SIGCONT)
        assert process.returncode == 0, out + err
        assert float(out) < 4.5
