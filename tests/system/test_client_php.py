"""The PHP client beyond the conformance scenarios: values, PSR-15, transactions, and the code of its page."""
import json
import os
import re
import signal
import subprocess

import pytest

import transactions
from chaos import Chaos, resp_replies
from lib import IDEM, ROOT, Server, folder, wait_until
from middleware import (App, scenario_id, test_a_client_that_goes_away_does_not_stop_the_work, test_a_request_whose_body_ends_early_does_not_run,  # noqa: F401
                        test_an_upload_that_ends_early_can_be_sent_again, test_an_answer_without_content_is_replayed, test_another_boundary_of_a_form_is_the_same_request,
                        test_middleware_answers_as_the_gateway_does)
from test_stores_sql import idem, mariadb, postgres  # noqa: F401 (fixtures)

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


@pytest.mark.parametrize("database", ["postgres", "mariadb"])
@pytest.mark.parametrize("scenario", transactions.SCENARIOS, ids=scenario_id)
def test_work_in_the_callers_own_transaction(database, scenario, request):
    server = request.getfixturevalue(database)
    idem("store", "init", server.url)
    transactions.play(["php", os.path.join(ROOT, "clients/php/tests/driver.php")], server, scenario)


@pytest.fixture(scope="module")
def app():
    with folder() as where:
        app = App(where, ["php", os.path.join(ROOT, "clients/php/tests/app.php")])
        yield app
        app.close()


def test_the_first_caller_gets_what_a_repeat_gets(server):
    php("""
        final class Cart { public function __construct(public string $item, private int $secret = 1) {} }
        enum Size: string { case Small = 's'; }
        $client = new Idem\\Client($argv[1], ['scope' => 'php-values']);
        foreach ([1, 1.5, 2.0, 'x', null, true, [], [1, [2]], ['a' => ['b' => null]]] as $i => $value) {
            equal($client->once("k$i", fn () => $value), $value);
            equal($client->once("k$i", fn () => 'another'), $value);
        }
        equal($client->once('object', fn () => new Cart('book')), ['item' => 'book']);
        equal($client->once('own', fn () => new Cart('pen'), ['dump' => 'serialize', 'load' => 'unserialize']), new Cart('pen'));
        equal($client->once('own', fn () => 1, ['dump' => 'serialize', 'load' => 'unserialize']), new Cart('pen'));
        fails(Idem\\Done::class, fn () => $client->once('own', fn () => 1));
        fails(Idem\\Done::class, fn () => $client->once('unwritable', fn () => NAN));
        fails(Idem\\ResultNotKept::class, fn () => $client->once('unwritable', fn () => 1));

        $asked = [new Cart('book'), Size::Small, new DateTimeImmutable('2026-11-16T00:00:00Z'), (object)[]];
        equal(Idem\\Client::fingerprint($asked), Idem\\Client::fingerprint([['item' => 'book'], 's', '2026-11-16T00:00:00.000+00:00', new stdClass()]));
        fails(InvalidArgumentException::class, fn () => Idem\\Client::fingerprint([fn () => 1]));
        foreach ([['mode' => 'careless'], ['fail_open' => true], ['no_such_option' => 1]] as $wrong)
            fails(InvalidArgumentException::class, fn () => $client->once('k', fn () => 1, $wrong));
        """, server.url)


def test_mistakes_that_would_remove_the_protection_are_refused(server):
    """Before anything is sent: the work has run already, or its result would be kept for no time, or for everybody."""
    php("""
        require 'Nyholm/Psr7/autoload.php';
        $client = new Idem\\Client($argv[1], ['scope' => 'php-mistakes']);
        $says = fn (string $text, callable $call) => str_contains($m = fails(InvalidArgumentException::class, $call)->getMessage(), $text) ?: throw new LogicException($m);
        foreach ([['order' => 7], null, 7, 'a text'] as $result)
            fails(TypeError::class, fn () => $client->once('k', $result));
        $times = ['ttl' => ['24h', '86400', 0, 0.4, -1, NAN, INF, null, true, []], 'lease' => ['30s', 0, -1, null], 'wait' => ['5s', -1, null], 'deadline' => ['5s', -1, null]];
        $db = (new ReflectionClass(PDO::class))->newInstanceWithoutConstructor(); // it is not asked
        foreach ($times as $name => $values)
            foreach ($values as $wrong) {
                $text = "$name is a number of milliseconds, " . (in_array($name, ['ttl', 'lease']) ? 1 : 0) . ' or more, not ';
                $says($text, fn () => $client->once('k', fn () => 'ran', [$name => $wrong]));
                $says($text, fn () => new Idem\\Client($argv[1], [$name => $wrong]));
                $says($text, fn () => Idem\\PdoOnce::once($db, 'k', fn () => 'ran', [$name => $wrong, 'arguments' => 1]));
            }
        $says("not '24h'", fn () => $client->once('k', fn () => 'ran', ['ttl' => '24h']));
        $says('ttl is a number', fn () => $client->issue('ann', 0));
        foreach ([null, [], true, new stdClass()] as $wrong)
            $says('scope is text', fn () => $client->once('k', fn () => 'ran', ['scope' => $wrong]));
        $f = new Nyholm\\Psr7\\Factory\\Psr17Factory();
        $says('in capitals: POST, not post', fn () => new Idem\\Middleware($client, $f, $f, ['methods' => ['post']]));
        $handler = new class implements Psr\\Http\\Server\\RequestHandlerInterface {
            public function handle(Psr\\Http\\Message\\ServerRequestInterface $request): Psr\\Http\\Message\\ResponseInterface { return new Nyholm\\Psr7\\Response(201); }
        };
        $send = fn (mixed $who) => (new Idem\\Middleware($client, $f, $f, ['scope' => fn () => $who]))->process(
            $f->createServerRequest('POST', '/x')->withHeader('Idempotency-Key', 'k'), $handler);
        $says('scope is text', fn () => $send(true));
        equal([$send('0')->getHeaderLine('Idempotent-Replayed'), $send('0')->getHeaderLine('Idempotent-Replayed'), $send(null)->getHeaderLine('Idempotent-Replayed')], ['', 'true', '']);
        equal($client->once('k', fn () => 'first', ['ttl' => 24 * 3.6e6, 'scope' => 7]), 'first');
        """, server.url)


def test_the_errors_say_what_to_do(server):
    php("""
        $client = new Idem\\Client($argv[1], ['scope' => 'php-says', 'renew' => false]);
        fails(Idem\\Done::class, fn () => $client->once('odd', fn () => NAN));
        equal(fails(Idem\\ResultNotKept::class, fn () => $client->once('odd', fn () => 1))->getMessage(),
            'php-says/odd was done; its result was not kept: it was too large, or could not be written');
        fails(Idem\\OutcomeUnknown::class, fn () => $client->once("it's", fn () => throw new Idem\\OutcomeUnknown('left'), ['lease' => 1]));
        usleep(50000);
        equal(fails(Idem\\OutcomeUnknown::class, fn () => $client->once("it's", fn () => 1))->getMessage(),
            "nobody knows whether php-says/it's was executed: find out, then settle it (idem doubts lists it; idem settle php-says 'it'\\\\''s' --as …)");
        """, server.url)


def test_a_file_that_arrived_in_part_does_not_run(server):
    """PHP reads an upload before the program starts, and says in the file's error that it ended early."""
    php("""
require 'Nyholm/Psr7/autoload.php';
$f = new Nyholm\\Psr7\\Factory\\Psr17Factory();
$handler = new class implements Psr\\Http\\Server\\RequestHandlerInterface {
    public int $runs = 0;
    public function handle(Psr\\Http\\Message\\ServerRequestInterface $request): Psr\\Http\\Message\\ResponseInterface {
        $this->runs++;
        return new Nyholm\\Psr7\\Response(200, [], 'fine');
    }
};
$middleware = new Idem\\Middleware(new Idem\\Client($argv[1]), $f, $f);
$send = fn (int $error) => $middleware->process($f->createServerRequest('POST', '/upload')->withHeader('Idempotency-Key', 'partial')
    ->withHeader('Content-Type', 'multipart/form-data; boundary=b')
    ->withUploadedFiles(['docs' => [$f->createUploadedFile($f->createStream('x'), 1, $error)]]), $handler)->getStatusCode();
equal([$send(UPLOAD_ERR_PARTIAL), $handler->runs], [400, 0]);
equal([$send(UPLOAD_ERR_OK), $send(UPLOAD_ERR_OK), $handler->runs], [200, 200, 1]);
""", server.url)


def test_claims_inside_of_claims_are_both_kept(server):
    php("""
        $client = new Idem\\Client($argv[1], ['scope' => 'php-nested', 'lease' => 2000]);
        equal($client->once('outer', fn ($outer) => $client->once('inner', function ($inner) use ($outer) {
            sleep(3);
            equal([$inner->lost(), $outer->lost()], [false, false]);
            return 1;
        }) + 1), 2);
        $web = new Idem\\Client($argv[1], ['scope' => 'php-nested', 'lease' => 300, 'renew' => false]);
        fails(Idem\\LeaseLost::class, fn () => $web->once('web', function ($claim) { usleep(400000); $claim->check(); }));
        """, server.url)


def test_work_is_told_that_nobody_renews_its_lease_any_more(server):
    """By its own clock: here the process that renews was killed. Keys are bytes, and those that are no UTF-8 are renewed, too."""
    php("""
        $client = new Idem\\Client($argv[1], ['scope' => 'php-clock', 'lease' => 1500]);
        equal($client->once("caf\\xe9 \\xff", function ($claim) { sleep(3); return $claim->lost(); }), false);
        fails(Idem\\LeaseLost::class, fn () => $client->once('killed', function ($claim) {
            $me = getmypid();
            foreach (explode(' ', trim(file_get_contents("/proc/$me/task/$me/children"))) as $child) posix_kill((int)$child, SIGKILL);
            for ($end = hrtime(true) + 20e9; !$claim->lost() && hrtime(true) < $end;) usleep(10000);
            $claim->check();
        }));
        """, server.url)


def test_a_result_that_could_not_be_recorded_is_not_kept_claimed(server):
    """The process lives on: it must not go on renewing the lease."""
    network = Chaos(server.port, resp_replies)
    try:
        process = start("""
            $client = new Idem\\Client($argv[1], ['scope' => 'php-unrecorded', 'lease' => 1500, 'deadline' => 500]);
            fails(Idem\\OutcomeUnknown::class, fn () => $client->once('k', function () { echo "works\\n"; fgets(fopen($GLOBALS['argv'][2], 'r')); return 1; }));
            $other = new Idem\\Client($argv[3], ['scope' => 'php-unrecorded']);
            for ($end = hrtime(true) + 30e9; hrtime(true) < $end; usleep(50000)) {
                try { $other->once('k', fn () => throw new LogicException('it ran again')); }
                catch (Idem\\InProgress) { continue; }
                catch (Idem\\OutcomeUnknown) { echo 'in doubt'; exit; }
            }
            """, "idem://127.0.0.1:%d" % network.port, fifo(server), server.url)
        assert process.stdout.readline() == "works\n"
        network.refuse()
        network.close_pairs()
        with open(fifo(server), "w") as f:
            f.write("go on\n")
        out, err = process.communicate(timeout=90)
        assert out == "in doubt", out + err
    finally:
        network.stop()


def fifo(server):
    path = os.path.join(os.path.dirname(server.socket), "fifo")
    if not os.path.exists(path):
        os.mkfifo(path)
    return path


def test_a_caller_who_is_interrupted_while_it_asks_leaves_no_claim_behind(server):
    """A signal's handler throws while the reply to BEGIN is under way."""
    slow = Chaos(server.port, resp_replies)
    slow.delay(1.0)
    try:
        php("""
            final class Stopped extends Exception {}
            pcntl_async_signals(true);
            pcntl_signal(SIGALRM, fn () => throw new Stopped());
            $client = new Idem\\Client($argv[1], ['scope' => 'php-stopped']);
            $client->issue('warm');
            pcntl_alarm(1);
            usleep(300000);
            fails(Stopped::class, fn () => $client->once('k', fn () => throw new LogicException('it ran')));
            equal((new Idem\\Client($argv[2], ['scope' => 'php-stopped']))->once('k', fn () => 'free'), 'free');
            """, "idem://127.0.0.1:%d" % slow.port, server.url)
    finally:
        slow.stop()


def test_work_that_has_not_run_is_not_recorded_as_done(server):
    php("""
        $client = new Idem\\Client($argv[1], ['scope' => 'php-lazy']);
        fails(TypeError::class, fn () => $client->once('k', function () { yield 1; }));
        fails(Idem\\Failed::class, fn () => $client->once('k', fn () => 1));
        """, server.url)


def test_clients_that_come_and_go_leave_no_processes(server):
    """And a child process that the program forks has a connection and a keeper of its own."""
    php("""
        $me = getmypid();
        for ($i = 0; $i < 5; $i++) {
            $client = new Idem\\Client($argv[1], ['scope' => 'php-forks', 'lease' => 1500]);
            equal($client->once("k$i", function ($claim) use ($client, $i) {
                if (($child = pcntl_fork()) === 0) {
                    $good = $client->once("child$i", function ($claim) { usleep($claim->key === 'child0' ? 3000000 : 0); return $claim->lost(); }) === false;
                    posix_kill(getmypid(), $good ? SIGTERM : SIGKILL); // without what belongs to the parent
                }
                pcntl_waitpid($child, $status);
                return [pcntl_wtermsig($status), $claim->lost()];
            }), [SIGTERM, false]);
            unset($client);
            equal(trim(file_get_contents("/proc/$me/task/$me/children")), '');
        }
        """, server.url)


def blocks(page):
    with open(os.path.join(ROOT, "clients/php", page), encoding="utf-8") as f:
        return re.findall(r"```php\n(.*?)```", f.read(), re.S)


PAGE = """
require 'Nyholm/Psr7/autoload.php';
function place_order(array $cart): array
{
    static $runs = 0;
    return ['order' => ++$runs, 'count' => $cart['count']];
}
[, $dsn, $user, $password] = $argv;
(new PDO($dsn, $user, $password))->exec('create table orders (item text, count int)');
%s
equal([$order['order'], $order['count'], $order['fence'] > 0], [2, 2, true]);
equal($client->once('order-7', fn () => 1, ['arguments' => $cart]), ['order' => 1, 'count' => 2]);
$again = $guard->process($request, new Orders());
equal([$response->getStatusCode(), (string)$response->getBody()], [201, '{"order":3,"count":2}']);
equal([$again->getHeaderLine('Idempotent-Replayed'), (string)$again->getBody()], ['true', '{"order":3,"count":2}']);
equal(Idem\\PdoOnce::once($db, 'order-9', fn () => 1, ['scope' => 'shop', 'arguments' => $cart]), $paid);
equal((int)$db->query('select count(*) from orders')->fetchColumn(), 1);
equal([$answer->status, json_decode($answer->body)->got], [201, json_encode($cart)]);
function thrown(Idem\\Client $client, string $key, string $bank, array $cart): string
{
    try {
        $client->once($key, fn () => pay($bank, $cart));
    } catch (Exception $e) {
        return $e::class;
    }
}
$deaf = stream_socket_server('tcp://127.0.0.1:0');
$silent = 'http://' . stream_socket_get_name($deaf, false);
equal([thrown($client, 'slow', $silent, $cart), thrown($client, 'slow', $silent, $cart)], [Idem\\OutcomeUnknown::class, Idem\\InProgress::class]);
equal([thrown($client, 'away', 'http://127.0.0.1:1', $cart), thrown($client, 'away', 'http://127.0.0.1:1', $cart)], array_fill(0, 2, Idem\\NotExecuted::class));
equal($client->once('away', fn () => 1), 1);
proc_close($server);
rmdir($folder);
echo "the page works";
"""


def test_the_code_of_the_page_works(server, app, postgres):  # noqa: F811
    code = blocks("README.md")
    assert code == blocks("README.zh-CN.md") and len(code) == 11
    code = "".join(code).replace("require 'clients/php/src/autoload.php';", "").replace("127.0.0.1:6390", "127.0.0.1:%d" % server.port)
    idem("store", "init", postgres.url)
    postgres.sql("drop table if exists orders")
    out = php(PAGE % code.replace("127.0.0.1:8080", "127.0.0.1:%d" % app.port), "pgsql:host=127.0.0.1;port=%d;dbname=postgres" % postgres.port,
              "idem", "secret", PATH=os.path.dirname(IDEM) + ":" + os.environ["PATH"])
    assert out == "the page works", out


def test_composer_finds_every_class():
    """As Composer does it: one class a file under src, but for the errors, which are listed."""
    with open(os.path.join(ROOT, "clients/php/composer.json")) as f:
        package = json.load(f)
    assert set(package["require"]) == {"php"} and package["autoload"] == {"psr-4": {"Idem\\": "src/"}, "classmap": ["src/errors.php"]}
    for name in set(os.listdir(SRC)) - {"errors.php", "autoload.php"}:
        with open(os.path.join(SRC, name)) as f:
            found = re.findall(r"^(?:final |abstract )*(?:class|interface|enum) (\w+)", f.read(), re.M)
        assert found == [name[:-4]], name
