"""Messages consumed once: real brokers, consumers killed at random, brokers restarted. What counts is the
ledger that the handlers wrote, which nothing but idem keeps free of repeats. Waits more than it works."""
import collections
import contextlib
import http.server
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pika
import psycopg
import pytest
import redis

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "faults")]
import chaos
import consumers
import servers
from gateway import Gateway
from liar import Liar
from liar import Resp as Talk
from lib import IDEM, ROOT, SOAK, Process, folder, free_port, open_files, patient, runs, wait_until

MESSAGES = 20000 if SOAK else 500


class Ledger:
    """An HTTP endpoint that writes down every message it was handed. With `idempotent` it skips a key that it
    has, as a sink must that loose mode hands a message twice."""

    def __init__(self, idempotent=False, port=0):
        self.effects = collections.Counter()
        self.lock = threading.Lock()
        self.status = {}
        self.answers = {}  # headers and body of an answer
        self.hangs_up = set()  # done, but the answer never comes
        self.wrong = []  # messages that came without their key
        ledger = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.headers["Idempotency-Key"] != '"%s"' % body["id"]:
                    ledger.wrong.append((body["id"], self.headers["Idempotency-Key"]))
                assert not ledger.wrong and int(self.headers["Idem-Fence"]) > 0
                status = ledger.status.get(body["id"], 200)
                status = status.pop(0) if isinstance(status, list) else status
                with ledger.lock:
                    if status < 300 and not (idempotent and ledger.effects[body["id"]]):
                        ledger.effects[body["id"]] += 1
                if body["id"] in ledger.hangs_up:
                    self.close_connection = True
                    return
                head, text = ledger.answers.get(body["id"], ({}, b""))
                self.send_response(status)
                for name, value in head.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_):
                pass  # consumers are killed here

        self.server = Server(("127.0.0.1", port), Handler)
        self.url = "http://127.0.0.1:%d/" % self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Rabbit:
    """A queue, and what lies in its letter boxes."""

    def __init__(self):
        self.server = servers.RabbitMQ()
        self.source = self.server.url + "?queue=orders"
        self.channel().queue_declare("orders", durable=True)

    def channel(self):
        for _ in range(600):
            try:
                self.connection = pika.BlockingConnection(pika.URLParameters(self.server.url + "/%2F"))
                return self.connection.channel()
            except pika.exceptions.AMQPError:
                time.sleep(0.1)
        raise AssertionError("RabbitMQ does not answer")

    @property
    def process(self):
        return self

    def send(self, number):
        os.killpg(self.server.process.pid, number)

    def publish(self, messages, **headers):
        channel = self.channel()
        channel.confirm_delivery()
        for m in messages:
            channel.basic_publish("", "orders", json.dumps(m).encode(), pika.BasicProperties(
                message_id=m["id"], delivery_mode=2, headers=headers, content_type="application/json"))
        self.connection.close()

    def letters(self, queue):
        channel, found = self.channel(), []
        while True:
            try:
                method, properties, body = channel.basic_get(queue, auto_ack=True)
            except pika.exceptions.ChannelClosedByBroker:
                method = None  # nobody has made it yet
            if method is None:
                self.connection.close()
                return found
            self.letter_headers = {**properties.headers, "content-type": properties.content_type}
            found.append((json.loads(body)["id"], properties.headers["x-idem-reason"]))

    def make_full(self, queue):
        channel = self.channel()
        channel.queue_declare(queue, durable=True, arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
        for _ in range(4):
            channel.basic_publish("", queue, b"{}")

    def make_room(self, queue):
        self.channel().queue_purge(queue)

    def left(self):
        """How many messages are not acknowledged, whether delivered or not."""
        return self.server.messages("orders")

    def left_behind(self):
        """The same, quickly, when no consumer runs."""
        count = self.channel().queue_declare("orders", passive=True).method.message_count
        self.connection.close()
        return count

    def restart(self):
        self.server.send(15)
        self.server.process.wait(120)
        self.server.start()

    def stop(self):
        self.server.stop()


class Stream:
    def __init__(self):
        self.folder = folder()
        self.data = self.folder.__enter__()
        self.port = free_port()
        self.start()
        self.source = "redis-stream://127.0.0.1:%d?stream=orders&group=g&claim_ms=1500" % self.port

    def start(self):
        self.process = Process(["redis-server", "--port", str(self.port), "--dir", self.data, "--appendonly", "yes",
                                "--appendfsync", "always", "--save", "", "--bind", "127.0.0.1"], ready=self.port)
        self.client = redis.Redis(port=self.port)
        assert wait_until(self.answers)

    def answers(self):
        with contextlib.suppress(redis.exceptions.RedisError):
            return self.client.ping()

    def publish(self, messages, **headers):
        pipe = self.client.pipeline(transaction=False)
        for m in messages:
            pipe.xadd("orders", {"id": m["id"], "body": json.dumps(m), "content-type": "application/json", **headers})
        pipe.execute()

    def letters(self, name):
        found = [{k.decode(): v.decode() for k, v in fields.items()} for _, fields in self.client.xrange(name)]
        self.letter_headers = found[-1] if found else None
        return [(f["id"], f["idem-reason"]) for f in found]

    def make_full(self, stream):
        self.client.set(stream, "no stream, so nothing can be added")

    def make_room(self, stream):
        self.client.delete(stream)

    def left(self):
        groups = self.client.xinfo_groups("orders") if self.client.exists("orders") else None
        return groups[0]["pending"] + groups[0]["lag"] if groups else None

    left_behind = left

    def restart(self):
        self.process.stop()
        self.start()

    def stop(self):
        self.process.stop()
        self.folder.__exit__(None, None, None)


class Kafka:
    """librdkafka's mock cluster in a process of its own (no Kafka server can be installed from Debian). A member of
    the group that was killed is missed when its session times out; until then a new one gets nothing."""

    def __init__(self):
        subprocess.run(["make", "-s", "build/tests/tools/kafka_mock"], cwd=ROOT, check=True)
        self.process = subprocess.Popen([ROOT + "/build/tests/tools/kafka_mock"], text=True, bufsize=1 << 20,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.source = "kafka://%s?topic=orders&group=g&session_ms=4000" % self.process.stdout.readline().strip()

    def ask(self, *fields):
        self.process.stdin.write("\t".join(fields) + "\n")
        if fields[0] == "send":
            return None
        self.process.stdin.flush()
        return list(iter(self.process.stdout.readline, ".\n"))

    def publish(self, messages, **headers):
        headers = [word for item in {"content-type": "application/json", **headers}.items() for word in item]
        for m in messages:
            self.ask("send", "orders", json.dumps(m), "id", m["id"], *headers)
        self.ask("flush")

    def letters(self, topic):
        found = []
        for line in self.ask("read", topic):
            body, *words = line.rstrip("\n").split("\t")
            self.letter_headers = dict(zip(words[::2], words[1::2]))
            found.append((json.loads(body)["id"], self.letter_headers["idem-reason"]))
        return found

    def left_behind(self):
        return None  # the mock does not tell

    def restart(self):
        """It goes away and comes back with what it had."""
        self.ask("down")
        time.sleep(1)
        self.ask("up")

    def stop(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def brokers():
    """Those that run; each starts once, whatever the order of the tests."""
    running = {}
    yield running
    for broker in running.values():
        broker.stop()


@pytest.fixture(scope="module", params=["rabbitmq", "redis"])  # Kafka: test_consume_kafka.py
def broker(request, brokers):
    if request.param not in brokers:
        brokers[request.param] = Rabbit() if request.param == "rabbitmq" else Stream()
    return brokers[request.param]


def consume(broker, store, *flags, lease="5s"):
    return [IDEM, "consume", broker.source, "--store", store, "--lease", lease, "--concurrency", "8", *flags]


def until_nothing_is_left(broker, argv, **named):
    """Run consumers that end when they are idle, until the broker has nothing left: what was not acknowledged comes again
    at the broker's own time. What each printed last. Kafka's mock does not tell: there one runs, and its own word counts."""
    printed, end = [], time.monotonic() + 240
    while True:
        done = subprocess.run(argv, cwd=ROOT, timeout=300, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **named)
        assert done.returncode == 0, done.stdout + done.stderr
        printed.append(done.stdout.splitlines()[-1])
        left = broker.left_behind()
        if not left:
            return printed
        assert time.monotonic() < end, "%d messages are left: %s" % (left, done.stderr[-2000:])


def run_until_idle(broker, store, *flags, preexec_fn=None, **named):
    """What the consumers counted together."""
    idle = "5s" if isinstance(broker, Kafka) else "1s"
    printed = until_nothing_is_left(broker, consume(broker, store, "--until-idle", idle, "--json", *flags, **named), preexec_fn=preexec_fn)
    counted = collections.Counter()
    for line in printed:
        counted.update({name: count for name, count in json.loads(line).items() if isinstance(count, int)})
    return counted


@pytest.fixture(autouse=True)
def nothing_left(request):
    """What one test leaves at the broker is not there in the next one."""
    if "broker" in request.fixturenames:
        broker = request.getfixturevalue("broker")
        if broker.left_behind():
            run_until_idle(broker, "memory:", "--", "true")


def some_messages(count, prefix):
    """30 % stand there twice or more, mixed."""
    rng = random.Random(prefix)
    ids = ["%s-%d" % (prefix, i) for i in range(count)]
    all_of_them = ids + [rng.choice(ids) for _ in range(int(count * 0.45))]
    rng.shuffle(all_of_them)
    return ids, [{"id": i, "text": "order " + i} for i in all_of_them]


def assert_once(effects, ids):
    """Every id has had its effect, and once. What is not so is told."""
    missing = sorted(set(ids) - {i for i, n in effects.items() if n})
    extra = {i: n for i, n in effects.items() if n > (i in set(ids))}
    assert not missing and not extra, "missing: %s, more often than once or not ours: %s" % (missing[:20], extra)


def test_every_message_is_handled_once_although_published_twice(broker):
    ids, messages = some_messages(200, "plain")
    ledger = Ledger()
    broker.publish(messages)
    with folder() as f:
        stats = run_until_idle(broker, "journal:" + f, "--to", ledger.url)
    assert_once(ledger.effects, ids)
    assert stats["handled"] == len(ids) and stats["duplicates"] >= len(messages) - len(ids)
    ledger.close()


def test_how_far_a_consumer_is_behind_is_a_metric(broker):
    """Its handler stands at a gate with the first message: the broker keeps the others."""
    with folder() as f:
        metrics = f + "/metrics.prom"
        argv = consume(broker, "journal:" + f + "/j", "--metrics", metrics, "--prefetch", "1", "--",
                       "sh", "-c", 'until test -e "$0/gate"; do sleep 0.1; done', f)
        argv[argv.index("--concurrency") + 1] = "1"
        broker.publish([{"id": "lag-%d" % i} for i in range(20)])

        def lag():
            with open(metrics) as text:
                found = re.search(r'^idem_consume_lag_messages{scope="orders/\w+"} (\d+)$', text.read(), re.M)
            return int(found.group(1)) if found else None
        with Process(argv) as consumer:
            assert wait_until(lambda: os.path.exists(metrics) and lag() is not None and 18 <= lag() <= 20, 60)
            open(f + "/gate", "w").close()
            assert wait_until(lambda: lag() == 0, 60)
            assert consumer.stop() == 0
        with open(metrics) as file:
            text = file.read()
    subprocess.run(["promtool", "check", "metrics"], input=text, text=True, check=True)
    told = dict(zip(re.findall(r"^# TYPE (.*)$", text, re.M), re.findall(r"^# HELP \w+ (.*)$", text, re.M)))
    with open(ROOT + "/docs/metrics.md") as page:
        rows = re.findall(r"^\| `(idem_consume_\w+)` \| (\w+) \| [^|]+ \| (.+) \|$", page.read(), re.M)
    assert told == {name + " " + kind: help for name, kind, help in rows}


def test_a_command_gets_the_message_and_its_exit_status_decides(broker):
    broker.publish([{"id": "c-%s" % w, "do": w} for w in ("fine", "fail", "poison")])
    script = r'''
read -r line; echo "$IDEM_ID $IDEM_ATTEMPT" >> "$LOG"
case $IDEM_ID in *fine) exit 0;; *poison) exit 65;; *) exit 1;; esac
'''
    with folder() as f:
        log = f + "/log"
        open(f + "/handle.sh", "w").write(script)
        os.environ["LOG"] = log
        run_until_idle(broker, "journal:" + f + "/j", "--", "sh", f + "/handle.sh")
        ran = sorted(open(log).read().split("\n"))
    assert ran == ["", "c-fail 1", "c-fine 1", "c-poison 1"]
    letters = dict(broker.letters("orders.dead"))
    assert letters["c-fail"] == "the command exited with 1"
    assert letters["c-poison"] == "the command exited with 65"
    assert "c-fine" not in letters


def test_a_command_ends_with_a_consumer_that_is_killed(broker):
    broker.publish([{"id": "orphan"}])
    with folder() as f:
        script = 'echo $$ > "$0/pid.new" && mv "$0/pid.new" "$0/pid"; sleep 2; echo "$IDEM_ID" > "$0/done"'
        with Process(consume(broker, "journal:" + f + "/j", "--", "sh", "-c", script, f)) as consumer:
            assert wait_until(lambda: os.path.exists(f + "/pid"))
            command = int(open(f + "/pid").read())
            os.kill(consumer.pid, signal.SIGKILL)
            consumer.wait()
            assert wait_until(lambda: not runs(command), 30)
        assert not os.path.exists(f + "/done")
        assert wait_until(lambda: run_until_idle(broker, "journal:" + f + "/k", "--", "true")["handled"], 60)


def test_a_command_past_its_time_ends_with_what_it_started(broker):
    broker.publish([{"id": "slow"}])
    with folder() as f:
        script = 'sleep 100 & echo $! > "$0/pid"; wait'
        run_until_idle(broker, "journal:" + f + "/j", "--timeout", "500ms", "--", "sh", "-c", script, f)
        assert wait_until(lambda: not runs(int(open(f + "/pid").read())), 30)
    assert dict(broker.letters("orders.doubt"))["slow"] == "the command took too long"


def test_a_command_is_run_once_by_a_consumer_that_was_started_with_its_children_ignored(broker):
    """Some supervisors start programs with SIGCHLD ignored; children then leave nothing to wait for."""
    broker.publish([{"id": "child-%d" % i} for i in range(3)])
    with folder() as f:
        got = run_until_idle(broker, "journal:" + f + "/j", "--", "sh", "-c", 'echo "$IDEM_ID" >> "$0/ran"', f, 
                             preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        with open(f + "/ran") as ran:
            assert sorted(ran.read().split()) == ["child-0", "child-1", "child-2"]
    assert got["handled"] == 3


def problem(kind, retryable=False, **head):
    return ({"Content-Type": "application/problem+json", **head},
            json.dumps({"type": "https://shop.example/problems/x", "title": "t", "retryable": retryable,
                        "class": kind}).encode())


def test_an_answer_says_whether_it_was_done_failed_or_unknown(broker):
    """The class of a problem comes before its status, which says too little: docs/messages.md has the table."""
    ledger = Ledger()
    ledger.status = {"h-cut": 504, "h-doubt": 409, "h-waits": [409, 409, 409, 200], "h-later": [503, 502, 504, 200],
                     "h-mismatch": 422, "h-duplicate": 409, "h-large": 410, "h-settled": 409,
                     "h-502": 502, "h-504": 504, "h-408": 408, "h-524": 524, "h-500": 500}
    ledger.answers = {"h-cut": problem("outcome unknown"), "h-doubt": problem("outcome unknown"),
                      "h-waits": problem("in progress", True, **{"Retry-After": "1"}),
                      "h-later": problem("not executed", True, **{"Retry-After": "1"}),
                      "h-mismatch": problem("not executed"), "h-duplicate": problem("done"), "h-large": problem("done"),
                      "h-settled": problem("failed for good")}
    broker.publish([{"id": i} for i in ledger.status])
    with folder() as f:
        run_until_idle(broker, "journal:" + f, "--to", ledger.url, "--attempts", "2", "--backoff", "10ms")
    assert {i for i, _ in broker.letters("orders.doubt") if i.startswith("h-")} == {
        "h-cut", "h-doubt", "h-502", "h-504", "h-408", "h-524"}
    assert {i for i, _ in broker.letters("orders.dead") if i.startswith("h-")} == {"h-mismatch", "h-settled", "h-500"}
    assert ledger.effects == {"h-waits": 1, "h-later": 1}
    ledger.close()


def test_what_a_gateway_does_not_know_is_in_doubt_and_not_failed(broker):
    """The service has done it and is cut off before its answer: handled again from the dead letters, it would be done twice."""
    ledger = Ledger()
    ledger.hangs_up = {"g-cut"}
    broker.publish([{"id": "g-cut"}, {"id": "g-fine"}])
    with folder() as f, Gateway(f, upstream=ledger.server.server_port) as gateway:
        run_until_idle(broker, "journal:" + f + "/j", "--to", "http://127.0.0.1:%d/" % gateway.port)
    assert [i for i, _ in broker.letters("orders.doubt") if i.startswith("g-")] == ["g-cut"]
    assert [i for i, _ in broker.letters("orders.dead") if i.startswith("g-")] == []
    assert ledger.effects == {"g-cut": 1, "g-fine": 1}
    ledger.close()


def test_loose_tries_again_and_gives_up_at_the_limit(broker):
    ledger = Ledger()
    ledger.status = {"l-later": [503, 500, 200], "l-never": 500, "l-bad": 400}
    broker.publish([{"id": i} for i in ("l-later", "l-never", "l-bad")])
    with folder() as f:
        stats = run_until_idle(broker, "journal:" + f, "--to", ledger.url, "--loose", "--backoff", "20ms",
                               "--attempts", "4")
    assert ledger.effects == {"l-later": 1}
    assert stats["retries"] == 2 + 3
    assert sorted(i for i, _ in broker.letters("orders.dead") if i.startswith("l-")) == ["l-bad", "l-never"]
    ledger.close()


def test_one_identity_with_two_contents_goes_to_the_dead_letters(broker):
    ledger = Ledger()
    broker.publish([{"id": "m", "amount": 1}])
    with folder() as f:
        run_until_idle(broker, "journal:" + f, "--to", ledger.url)
        broker.publish([{"id": "m", "amount": 2}])
        run_until_idle(broker, "journal:" + f, "--to", ledger.url)
    assert ledger.effects == {"m": 1}
    assert "different" in dict(broker.letters("orders.dead"))["m"]
    ledger.close()


def test_an_endpoint_that_hangs_up_is_not_asked_twice(broker):
    """On a connection that had been used before, where HTTP clients like to send again by themselves."""
    ledger = Ledger()
    ledger.hangs_up = {"h-gone"}
    broker.publish([{"id": "h-%d" % i} for i in range(5)])
    with folder() as f:
        argv = consume(broker, "journal:" + f, "--to", ledger.url, "--concurrency", "1")
        with Process(argv) as consumer:
            assert wait_until(lambda: len(ledger.effects) == 5)
            broker.publish([{"id": "h-gone"}])
            assert wait_until(lambda: any(i == "h-gone" for i, _ in broker.letters("orders.doubt")))
            assert consumer.stop() == 0
    assert_once(ledger.effects, ["h-gone", *("h-%d" % i for i in range(5))])
    ledger.close()


def test_a_command_that_does_not_read_its_message_leaves_nothing_behind(broker):
    broker.publish([{"id": "big-%d" % i, "text": "x" * 200000} for i in range(60)])
    with folder() as f:
        with Process(consume(broker, "journal:" + f, "--metrics", f + "/metrics", "--", "true")) as consumer:
            assert wait_until(lambda: os.path.exists(f + "/metrics") and
                              'what="handled"} 60' in open(f + "/metrics").read())
            files = open_files(consumer.pid)
            assert consumer.stop() == 0
    assert sum(name.startswith("pipe:") for name in files) < 3, files


def test_a_letter_keeps_what_the_message_came_with(broker):
    broker.publish([{"id": "kept"}], colour="blue")
    with folder() as f:
        run_until_idle(broker, "journal:" + f, "--identity", "header:colour", "--", "sh", "-c", "exit 65")
    assert "kept" in dict(broker.letters("orders.dead"))
    assert broker.letter_headers["colour"] == "blue"
    assert broker.letter_headers["content-type"] == "application/json"


def test_a_rabbitmq_that_is_not_there_is_named():
    port = free_port()
    with folder() as f:
        done = subprocess.run([IDEM, "consume", "amqp://guest:guest@127.0.0.1:%d/?queue=orders" % port, "--store", "journal:" + f,
                               "--until-idle", "1s", "--", "true"], timeout=60, capture_output=True, text=True)
    assert done.returncode == 20
    assert "rabbitmq 127.0.0.1:%d: cannot connect" % port in done.stderr, done.stderr
    assert "is the broker running at this host and port?" in done.stderr, done.stderr


def test_a_message_without_an_identity_is_a_dead_letter_and_told(broker):
    reason = "the message has no identity (header nothing): give messages an id, or choose another identity"
    broker.publish([{"id": "nobody-%d" % i} for i in range(3)])
    with folder() as f:
        argv = consume(broker, "journal:" + f, "--identity", "header:nothing", "--until-idle", "4s", "--", "false")
        done = subprocess.run(argv, cwd=ROOT, timeout=60, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0
    letters = dict(broker.letters("orders.dead"))
    assert [letters["nobody-%d" % i] for i in range(3)] == [reason] * 3
    assert len(re.findall(r'a message (with the id "nobody-\d"|at \S+) goes to orders\.dead: ' + re.escape(reason), done.stderr)) == 1, done.stderr


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_a_letter_for_a_queue_that_was_deleted_is_not_lost(broker):
    with folder() as f:
        with Process(consume(broker, "journal:" + f, "--", "sh", "-c", "exit 65")) as consumer:
            broker.publish([{"id": "d-first"}])
            assert wait_until(lambda: "d-first" in dict(broker.letters("orders.dead")))
            broker.channel().queue_delete("orders.dead")
            broker.publish([{"id": "d-second"}])
            assert wait_until(lambda: "refused a letter" in consumer.output())
            assert wait_until(lambda: "d-second" in dict(broker.letters("orders.dead")))
            assert consumer.stop() == 0


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_a_slow_handler_does_not_cost_the_connection(broker):
    """It has all that it may have, and takes several times as long as a heartbeat may be late."""
    broker.publish([{"id": "slow-1"}, {"id": "slow-2"}])
    with folder() as f:
        argv = consume(broker, "journal:" + f, "--concurrency", "1", "--prefetch", "1", "--until-idle", "4s", "--json",
                       "--", "sleep", "7")
        argv[2] += "&heartbeat=2"
        done = subprocess.run(argv, cwd=ROOT, timeout=60, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    stats = json.loads(done.stdout.splitlines()[-1])
    assert stats["handled"] == 2 and stats["reconnects"] == 0, done.stdout + done.stderr


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_letters_far_apart_cost_no_connection(broker):
    """Nobody looks after the letters' own connection in between, for longer than a heartbeat may be late."""
    with folder() as f:
        argv = consume(broker, "journal:" + f, "--json", "--", "sh", "-c", "exit 65")
        argv[2] += "&heartbeat=2"
        with Process(argv) as consumer:
            for name in ("far-1", "far-2"):
                broker.publish([{"id": name}])
                assert wait_until(lambda: name in dict(broker.letters("orders.dead")))
                time.sleep(8)
            assert consumer.stop() == 0
            assert json.loads(consumer.output().splitlines()[-1])["reconnects"] == 0, consumer.output()


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_a_queue_that_is_deleted_and_made_again_is_consumed_again(broker):
    broker.channel().queue_declare("fickle", durable=True)
    with folder() as f:
        argv = consume(broker, "journal:" + f, "--", "sh", "-c", 'echo "did $IDEM_ID"')
        argv[2] = argv[2].replace("queue=orders", "queue=fickle")
        with Process(argv) as consumer:
            for name in ("before", "after"):
                channel = broker.channel()
                channel.queue_declare("fickle", durable=True)
                channel.basic_publish("", "fickle", b"x", pika.BasicProperties(message_id=name))
                assert wait_until(lambda: "did " + name in consumer.output()), consumer.output()
                channel.queue_delete("fickle")
                assert wait_until(lambda: "the queue was deleted" in consumer.output()), consumer.output()
            assert consumer.stop() == 0


class Small(int):
    """A header's number in one byte, as some clients write it and pika does not."""


@pytest.fixture
def small_numbers(monkeypatch):
    encode = pika.data.encode_value

    def with_small(pieces, value):
        if not isinstance(value, Small):
            return encode(pieces, value)
        pieces.append(b"b" + value.to_bytes(1, "big"))
        return 2

    monkeypatch.setattr(pika.data, "encode_value", with_small)


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_a_letter_has_every_property_that_the_message_had(broker, small_numbers):
    """In a queue for letters that somebody made his own way. It does not expire there, nor go where the message
    once was copied to."""
    channel = broker.channel()
    channel.queue_declare("whole", durable=True)
    channel.queue_declare("whole.dead", durable=True, arguments={"x-max-length": 1000})
    channel.queue_declare("whole.copies", durable=True)
    kept = {"content_type": "text/x", "content_encoding": "gzip", "correlation_id": "c", "reply_to": "r", "type": "t",
            "app_id": "a", "priority": 3, "timestamp": 123, "message_id": "whole-1"}
    headers = {"small": Small(5), "flag": True, "list": [1, "two"], "table": {"a": 1}}
    channel.basic_publish("", "whole", b"\0body", pika.BasicProperties(
        user_id="guest", expiration="600000", headers={**headers, "CC": ["whole.copies"], "x-idem-reason": "old"}, **kept))
    with folder() as f:
        argv = consume(broker, "journal:" + f, "--identity", "header:small", "--until-idle", "4s", "--", "sh", "-c",
                       'echo "id $IDEM_ID"; exit 65')
        argv[2] = argv[2].replace("queue=orders", "queue=whole")
        done = subprocess.run(argv, cwd=ROOT, timeout=60, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and "id 5" in done.stdout, done.stdout
    _, properties, body = channel.basic_get("whole.dead", auto_ack=True)
    assert body == b"\0body" and {name: getattr(properties, name) for name in kept} == kept
    assert properties.headers == {**headers, "x-idem-reason": "the command exited with 65"}
    assert (properties.expiration, properties.delivery_mode) == (None, 2)
    assert channel.queue_declare("whole.copies", passive=True).method.message_count == 1


def redis_letters(broker, stream, *flags):
    """Have the entries of a stream handled by a command that prints them; the letters, and what was printed."""
    with folder() as f:
        argv = consume(broker, "journal:" + f, "--until-idle", "4s", *flags)
        argv[2] = argv[2].replace("stream=orders", "stream=" + stream)
        done = subprocess.run(argv, cwd=ROOT, timeout=60, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    return [fields for _, fields in broker.client.xrange(stream + ".dead")], done.stdout


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_an_entry_of_many_fields_is_handed_over_whole_and_so_is_its_letter(broker):
    fields = {"field-%d" % i: str(i) for i in range(100)}
    broker.client.xadd("wide", {**fields, "id": "w-1", "body": "THE BODY"})
    broker.client.xadd("wide", {**fields, "id": "w-2"})
    letters, printed = redis_letters(broker, "wide", "--concurrency", "1", "--", "sh", "-c", "cat; echo; exit 65")
    first, second = printed.splitlines()
    assert first == "THE BODY" and json.loads(second) == {**fields, "id": "w-2"}
    assert [letter[b"id"] for letter in letters] == [b"w-1", b"w-2"]
    for letter in letters:
        assert {name: letter[name.encode()].decode() for name in fields} == fields
    assert letters[0][b"body"] == b"THE BODY"


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_an_entry_that_json_has_no_words_for_is_a_dead_letter(broker):
    broker.client.xadd("bytes", {"id": "b-1", "picture": b"\xff\xfe"})
    (letter,), printed = redis_letters(broker, "bytes", "--", "cat")
    assert printed == "" and letter[b"picture"] == b"\xff\xfe" and b"body" not in letter
    assert b"is not UTF-8" in letter[b"idem-reason"]


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_letter_that_cannot_be_written_is_not_lost(broker):
    broker.client.set("taken", "no stream")
    broker.publish([{"id": "taken-1"}])
    with folder() as f:
        with Process(consume(broker, "journal:" + f, "--dead-letter", "taken", "--", "sh", "-c", "exit 65")) as consumer:
            assert wait_until(lambda: "WRONGTYPE" in consumer.output())
            broker.client.delete("taken")
            assert wait_until(lambda: "taken-1" in dict(broker.letters("taken")))
            assert consumer.stop() == 0


def test_a_letter_that_nobody_takes_holds_up_no_other_message(broker):
    broker.make_full("full")
    broker.publish([{"id": "stuck-%d" % i} for i in range(3)] + [{"id": "fine-%d" % i} for i in range(100)])
    with folder() as f:
        with Process(consume(broker, "journal:" + f, "--dead-letter", "full", "--", "sh", "-c",
                             'case "$IDEM_ID" in stuck-*) exit 65;; esac')) as consumer:
            assert wait_until(lambda: broker.left() == 3, 120), consumer.output()[-2000:]
            told = consumer.output().count("\n")
            time.sleep(3)
            assert consumer.output().count("\n") - told < 40, consumer.output()[-2000:]
            broker.make_room("full")
            assert wait_until(lambda: broker.left() == 0, 120), consumer.output()[-2000:]
            assert consumer.stop() == 0
    assert {"stuck-0", "stuck-1", "stuck-2"} <= dict(broker.letters("full")).keys()


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_every_consumer_handles_a_message_once_although_they_share_a_store(broker):
    broker.client.xadd("shared", {"id": "m", "body": "x"})
    broker.client.xadd("shared", {"id": "m", "body": "x"})
    with folder() as f:
        for flags, scope in (("g1", "shared/g1"), ("g2", "shared/g2"), ("g3 --consumer audit", "shared/audit"),
                             ("g4 --consumer audit", None)):
            group, *flags = flags.split()
            argv = consume(broker, "journal:" + f, "--until-idle", "3s", *flags, "--", "sh", "-c", 'echo "$IDEM_SCOPE"')
            argv[2] = argv[2].replace("stream=orders&group=g", "stream=shared&group=" + group)
            done = subprocess.run(argv, cwd=ROOT, timeout=60, text=True, stdout=subprocess.PIPE)
            assert done.returncode == 0 and done.stdout.split() == ([scope] if scope else [])


def test_an_endpoint_that_is_away_is_waited_for(broker):
    port = free_port()
    broker.publish([{"id": "away-%d" % i} for i in range(20)])
    with folder() as f:
        argv = consume(broker, "journal:" + f, "--to", "http://127.0.0.1:%d/" % port, "--attempts", "1", "--backoff", "1ms",
                       "--json")
        with Process(argv) as consumer:
            assert wait_until(lambda: "messages wait, they cannot be handled now" in consumer.output())
            time.sleep(1)
            ledger = Ledger(port=port)
            assert wait_until(lambda: len(ledger.effects) == 20, 30)
            assert consumer.stop() == 0
            stats = json.loads(consumer.output().splitlines()[-1])
    assert set(ledger.effects.values()) == {1} and stats["dead_letters"] == 0 and stats["handled"] == 20
    ledger.close()


def test_a_command_that_is_not_there_is_waited_for(broker):
    broker.publish([{"id": "missing"}])
    with folder() as f:
        command = f + "/handle"
        with Process(consume(broker, "journal:" + f + "/j", "--attempts", "1", "--backoff", "1ms", "--", command)) as consumer:
            assert wait_until(lambda: "cannot run %s: No such file" % command in consumer.output())
            with open(command + ".new", "w") as script:
                script.write('#!/bin/sh\necho "did $IDEM_ID"\n')
            os.chmod(command + ".new", 0o755)
            os.rename(command + ".new", command)
            assert wait_until(lambda: "did missing" in consumer.output())
            assert consumer.stop() == 0
            assert "dead letters 0" in consumer.output()


def test_a_try_after_a_crash_is_told_that_it_is_the_second(broker):
    broker.publish([{"id": "again"}])
    with folder() as f:
        open(f + "/hold", "w").close()
        script = 'echo "try $IDEM_ATTEMPT"; test $IDEM_ATTEMPT = 2 || while test -e %s/hold; do sleep 0.2; done' % f
        argv = consume(broker, "journal:" + f + "/j", "--loose", "--", "sh", "-c", script, lease="4s")
        with Process(argv) as consumer:
            assert wait_until(lambda: "try 1" in consumer.output(), 30)
            consumer.kill()
        with Process(argv) as consumer:
            assert wait_until(lambda: "try 2" in consumer.output(), 30)
            assert consumer.stop() == 0


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_an_entry_in_hand_is_not_delivered_again_however_long_it_takes(broker):
    """Each takes longer than an entry may stay unacknowledged before it is claimed; the last ones wait for it too."""
    broker.publish([{"id": "long-%d" % i} for i in range(2)])
    with folder() as f:
        argv = consume(broker, "journal:" + f, "--concurrency", "1", "--until-idle", "4s", "--json", "--", "sleep", "6")
        argv[2] = argv[2].replace("claim_ms=1500", "claim_ms=4000")
        done = subprocess.run(argv, cwd=ROOT, timeout=60, text=True, stdout=subprocess.PIPE)
    stats = json.loads(done.stdout.splitlines()[-1])
    assert (stats["received"], stats["handled"], stats["duplicates"]) == (2, 2, 0)


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_consumers_that_were_killed_leave_no_names_in_the_group(broker):
    ledger = Ledger()
    with folder() as f:
        for handled in range(3):
            with Process(consume(broker, "journal:" + f, "--to", ledger.url)) as consumer:
                broker.publish([{"id": "name-%d" % handled}])
                assert wait_until(lambda: len(ledger.effects) > handled)
                consumer.kill()
    assert [c["name"] for c in broker.client.xinfo_consumers("orders", "g")] == [b"idem"]
    ledger.close()


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_store_in_trouble_is_told_and_the_message_waits_for_it(broker):
    ledger, store = Ledger(), servers.Redis()
    try:
        with Process(consume(broker, patient(store.url), "--to", ledger.url)) as consumer:
            broker.publish([{"id": "s-1"}])
            assert wait_until(lambda: ledger.effects["s-1"])
            store.kill()
            broker.publish([{"id": "s-2"}])
            assert wait_until(lambda: "the store is in trouble" in consumer.output())
            assert consumer.output().count("the store is in trouble") == 1
            store.start()
            assert wait_until(lambda: ledger.effects["s-2"])
            assert consumer.stop() == 0
    finally:
        store.stop()
        ledger.close()


def kill_and_restart(broker, argv, progress, rng):
    """kill -9 at random; once in between, the broker goes down and comes back. How many were killed."""
    slow = isinstance(broker, Kafka)  # a life begins when the group has let it in
    lives = (8 if slow else 200) if SOAK else (1 if slow else 8)
    for life in range(lives):
        before = progress()
        with Process(argv) as consumer:
            if slow:
                wait_until(lambda: progress() > before or consumer.process.poll() is not None, 10)
            time.sleep(rng.uniform(0.05, 0.7))
            if life == lives // 2:
                broker.restart()
            consumer.kill()
    return lives


def test_strict_never_handles_twice_and_names_every_doubt(broker):
    ids, messages = some_messages(MESSAGES, "strict")
    rng = random.Random(7)
    ledger = Ledger()
    broker.publish(messages)
    with folder() as f:
        store = "journal:" + f
        kill_and_restart(broker, consume(broker, store, "--to", ledger.url, lease="1s"),
                         lambda: len(ledger.effects), rng)
        run_until_idle(broker, store, "--to", ledger.url, lease="1s")
    doubts = {i for i, _ in broker.letters("orders.doubt")}
    assert set(ledger.effects.values()) == {1}
    missing = set(ids) - set(ledger.effects)
    assert missing <= doubts, missing - doubts
    ledger.close()


def test_loose_with_an_idempotent_sink_handles_every_message(broker):
    ids, messages = some_messages(MESSAGES, "loose")
    rng = random.Random(8)
    ledger = Ledger(idempotent=True)
    broker.publish(messages)
    with folder() as f:
        store = "journal:" + f
        kill_and_restart(broker, consume(broker, store, "--to", ledger.url, "--loose", lease="1s"),
                         lambda: len(ledger.effects), rng)
        run_until_idle(broker, store, "--to", ledger.url, "--loose", lease="1s")
    assert_once(ledger.effects, ids)
    ledger.close()


def test_a_broker_that_stands_still_is_not_idle(broker):
    check_a_broker_that_stands_still(broker)


def check_a_broker_that_stands_still(broker):
    """For longer than an idle consumer goes on: what waits there meanwhile is handled before the consumer ends."""
    broker.publish([{"id": "still-1"}, {"id": "still-2"}])
    with folder() as f:
        script = 'echo "$IDEM_ID" >> "$0/ran"; until test -e "$0/gate"; do sleep 0.1; done'
        argv = consume(broker, "journal:" + f + "/j", "--prefetch", "1", "--until-idle", "3s", "--", "sh", "-c", script, f)
        argv[argv.index("--concurrency") + 1] = "1"
        with Process(argv) as consumer:
            assert wait_until(lambda: os.path.exists(f + "/ran"))
            broker.process.send(signal.SIGSTOP)
            open(f + "/gate", "w").close()
            time.sleep(4)
            broker.process.send(signal.SIGCONT)
            assert consumer.wait() == 0, consumer.output()
        with open(f + "/ran") as ran:
            assert ran.read().split() == ["still-1", "still-2"]
    assert broker.left() == 0


def rows(database):
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as db:
        return db.execute("select count(*) from effect").fetchone()[0]


def test_in_one_transaction_every_effect_is_there_exactly_once(broker):
    ids, messages = some_messages(MESSAGES, "sql")
    rng = random.Random(9)
    broker.publish(messages)
    with folder() as f:
        database = f + "/shop.db"
        subprocess.run([IDEM, "store", "init", "sqlite:" + database], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        with contextlib.closing(sqlite3.connect(database)) as db:
            db.execute("create table effect (id text)")
            db.commit()
        argv = [os.path.join(os.path.dirname(IDEM), "examples/consume_sql"), broker.source, database]
        kill_and_restart(broker, argv, lambda: rows(database), rng)
        until_nothing_is_left(broker, argv)
        with contextlib.closing(sqlite3.connect(database)) as db:
            effects = collections.Counter(row[0] for row in db.execute("select id from effect"))
    assert_once(effects, ids)


def test_a_connection_that_is_cut_again_and_again_repeats_nothing(broker):
    ids, messages = some_messages(MESSAGES if SOAK else 300, "cut")
    ledger = Ledger()
    broker.publish(messages)
    port = broker.server.port if isinstance(broker, Rabbit) else broker.port
    line = chaos.Chaos(port)
    try:
        with folder() as f:
            argv = consume(broker, "journal:" + f, "--to", ledger.url)
            argv[2] = argv[2].replace(":%d" % port, ":%d" % line.port)
            with Process(argv) as consumer:
                for n in (3, 20, 7, 40, 11) * (10 if SOAK else 1):
                    before = line.cuts
                    line.cut_at(n)
                    wait_until(lambda: line.cuts > before, 60 if before == 0 else 0.4)  # later ones may find nothing to do
                line.heal()
                wait_until(lambda: len(ledger.effects) == len(ids), 120)
                assert consumer.stop() == 0
            run_until_idle(broker, "journal:" + f, "--to", ledger.url)
        assert line.cuts > 0
    finally:
        line.stop()
    assert_once(ledger.effects, ids)
    ledger.close()


def test_sigterm_finishes_what_is_being_handled_and_puts_back_the_rest(broker):
    ids, messages = some_messages(300, "term")
    ledger = Ledger()
    broker.publish(messages)
    with folder() as f:
        with Process(consume(broker, "journal:" + f, "--to", ledger.url)) as consumer:
            assert wait_until(lambda: len(ledger.effects) > 20)
            assert consumer.stop() == 0
        run_until_idle(broker, "journal:" + f, "--to", ledger.url)
    assert_once(ledger.effects, ids)
    ledger.close()


def test_a_stop_puts_back_at_once_what_nobody_has_begun(broker):
    """Although what is being handled takes long, and several times as long as a heartbeat may be late."""
    ids = ["stop-%d" % i for i in range(30)]
    store = servers.Redis()
    with folder() as f:
        script = 'echo $IDEM_ID >> %s/log; test $IDEM_ID != stop-0 || until test -e %s/gate; do sleep 0.1; done' % (f, f)
        argv = consume(broker, store.url, "--json", "--", "sh", "-c", script)
        argv[2] += "&heartbeat=2" if isinstance(broker, Rabbit) else ""
        argv[argv.index("--concurrency") + 1] = "1"
        done = lambda: open(f + "/log").read().split() if os.path.exists(f + "/log") else []
        broker.publish([{"id": i} for i in ids])
        try:
            with Process(argv) as first:
                assert wait_until(lambda: "stop-0" in done())
                first.process.terminate()
                with Process(argv) as second:
                    assert wait_until(lambda: set(ids) == set(done()), 30), done()
                    time.sleep(8)
                    assert first.process.poll() is None
                    open(f + "/gate", "w").close()
                    assert first.process.wait(20) == 0
                    assert second.stop() == 0
                    outputs = [json.loads(p.output().splitlines()[-1]) for p in (first, second)]
                assert "acknowledged when the broker delivers them again" not in first.output()
        finally:
            store.stop()
        assert sorted(done()) == sorted(ids)
    assert [o["reconnects"] for o in outputs] == [0, 0] and outputs[0]["handled"] >= 1, outputs


@pytest.mark.parametrize("shared", ["Redis", "Idem"])
def test_two_consumers_handle_each_message_once_between_them(broker, shared):
    """Duplicates that the test before left in the queue are new to this store: they do not count."""
    ids, messages = some_messages(400, "both-" + shared)
    ledger, store = Ledger(), getattr(servers, shared)()
    ours = lambda: collections.Counter({i: n for i, n in dict(ledger.effects).items() if i.startswith("both-" + shared)})
    try:
        with Process(consume(broker, store.url, "--to", ledger.url, "--json")) as first:
            broker.publish(messages[:200])
            assert wait_until(lambda: len(ledger.effects) > 20, 30)
            with Process(consume(broker, store.url, "--to", ledger.url, "--json")) as second:
                broker.publish(messages[200:])
                assert wait_until(lambda: len(ours()) == len(ids), 60), ledger.effects
                assert [p.stop() for p in (first, second)] == [0, 0]
                outputs = [json.loads(p.output().splitlines()[-1]) for p in (first, second)]
    finally:
        store.stop()
    assert_once(ours(), ids)
    assert sum(o["handled"] for o in outputs) == ledger.effects.total() and sum(o["reconnects"] for o in outputs) == 0, outputs
    ledger.close()


WRONG_REPLIES = [b":7\r\n", b"$-1\r\n", b"*0\r\n", b"+OK\r\n", b"*1\r\n:1\r\n", b"*2\r\n:1\r\n:2\r\n", b"-ERR not now\r\n", b"-NOGROUP not now\r\n", b"?\r\n",
                 b"*1\r\n*2\r\n$6\r\norders\r\n:3\r\n", b"*1\r\n*2\r\n$6\r\norders\r\n*2\r\n:1\r\n*2\r\n$3\r\n9-9\r\n*-1\r\n"]


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_wrong_replies_of_a_stream_repeat_and_lose_nothing(broker):
    ids = ["lie-%d" % i for i in range(60)]
    ledger, liar = Ledger(), Liar(broker.port, Talk, WRONG_REPLIES, every=4)
    source = broker.source.replace(":%d?" % broker.port, ":%d?" % liar.port).replace("claim_ms=1500", "claim_ms=50")
    with folder() as f, Process([IDEM, "consume", source, "--store", "journal:" + f, "--prefetch", "4", "--to", ledger.url]) as consumer:
        broker.publish([{"id": i} for i in ids])
        assert wait_until(lambda: liar.told > 2 * len(WRONG_REPLIES) and broker.left() == 0, 120), (liar.told, consumer.output()[-2000:])
        assert consumer.stop() == 0
    liar.stop()
    assert_once(ledger.effects, ids)
    ledger.close()


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_group_that_is_deleted_is_made_again(broker):
    ledger = Ledger()
    with folder() as f, Process(consume(broker, "journal:" + f, "--to", ledger.url)) as consumer:
        broker.publish([{"id": "group-1"}])
        assert wait_until(lambda: ledger.effects["group-1"]), consumer.output()
        broker.client.xgroup_destroy("orders", "g")
        broker.publish([{"id": "group-2"}])
        assert wait_until(lambda: ledger.effects["group-2"]) and wait_until(lambda: broker.left() == 0), consumer.output()
        assert consumer.stop() == 0
    assert ledger.effects["group-1"] == ledger.effects["group-2"] == 1
    ledger.close()


def test_a_stream_with_a_user_and_in_another_database():
    broker = Stream()
    try:
        broker.client.acl_setuser("ann", enabled=True, passwords=["+s3cret"], keys=["*"], commands=["+@all"])
        broker.client.config_set("requirepass", "main")
        broker.client = redis.Redis(port=broker.port, password="main", db=3)
        broker.publish([{"id": "in-3"}])
        for user, told in (("ann:s3cret@", None), (":main@", None), ("ann:guess@", "WRONGPASS"), (":guess@", "WRONGPASS"), ("", "NOAUTH")):
            url = broker.source.replace("127.0.0.1:%d" % broker.port, "%s127.0.0.1:%d/3" % (user, broker.port))
            done = subprocess.run([IDEM, "consume", url, "--store", "memory:", "--until-idle", "200ms", "--json", "--", "true"], cwd=ROOT,
                                  timeout=60, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert (done.returncode == 0) == (told is None) and (told or "received") in done.stdout, (user, done.stdout)
            assert "s3cret" not in done.stderr and "guess" not in done.stdout + done.stderr
        wrong = broker.source.replace(":%d?" % broker.port, ":%d/99?" % broker.port).replace("//", "//:main@")
        assert "out of range" in subprocess.run([IDEM, "consume", wrong, "--store", "memory:", "--until-idle", "1ms", "--", "true"], cwd=ROOT,
                                                timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
        assert broker.left() == 0
    finally:
        broker.stop()


def test_a_call_of_the_consumer_that_fails_repeats_and_loses_nothing(broker):
    """Some points here; all of them in make soak and scripts/coverage."""
    all_points = SOAK or os.environ.get("IDEM_COVERAGE")
    ledger = Ledger() if isinstance(broker, Stream) else None
    subprocess.run(["make", "-s", "build/tests/faults.so"], cwd=ROOT, check=True)
    done, flaws = consumers.try_broker(broker, consumers.OWN_KINDS, 0 if all_points else 2, ledger)
    print("%d points" % done)
    assert not flaws, "\n".join(flaws)
    assert done > 4
    if ledger:
        ledger.close()


def test_a_broker_that_never_answers_is_an_error_when_time_is_up():
    for source in ("amqp://127.0.0.1:%d?queue=q", "redis-stream://127.0.0.1:%d?stream=s&group=g"):
        done = subprocess.run([IDEM, "consume", source % free_port(), "--store", "memory:", "--until-idle", "300ms", "--json", "--",
                               "true"], cwd=ROOT, timeout=30, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert done.returncode == 20 and '"error":"unavailable"' in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("argv, text", [
    (["ftp://x", "--to", "http://127.0.0.1/"], "is not the URL of a broker"),
    (["amqp://127.0.0.1", "--to", "http://127.0.0.1/"], "does not name its queue"),
    (["amqp://127.0.0.1?queue=q", "--to", "gopher:"], "is not a URL"),
    (["amqp://127.0.0.1?queue=q"], "no handler is given"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--", "cat"], "not both"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--identity", "smell"], "is not an identity"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--concurrency", "5000"], "out of range"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--consumer", "a/b"], "no slash"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--lease", "30d"], "lease"),
    (["amqp://127.0.0.1?queue=q&colour=blue", "--to", "http://x/"], 'no option "colour", only queue, heartbeat'),
    (["amqp://127.0.0.1?queue=q&heartbeat=soon", "--to", "http://x/"], "heartbeat=soon"),
    (["amqp://127.0.0.1?queue=q&heartbeat=", "--to", "http://x/"], 'option "heartbeat" needs a value'),
    (["amqp://127.0.0.1?queue=q&heartbeat", "--to", "http://x/"], 'option "heartbeat" needs a value'),
    (["redis-stream://127.0.0.1?stream=s&group=g&claim_ms=0", "--to", "http://x/"], "claim_ms=0"),
    (["redis-stream://127.0.0.1?stream=s&group=g&member=%zz", "--to", "http://x/"], 'option "member" needs a value'),
    (["redis-stream://127.0.0.1?stream=s&group=g&body=" + "b" * 200, "--to", "http://x/"], "body= in the source's URL"),
    (["redis-stream://127.0.0.1/shop?stream=s&group=g", "--to", "http://x/"], "a database is a number"),
    (["kafka://127.0.0.1?topic=t&group=g&session_ms=-1", "--to", "http://x/"], "session_ms=-1"),
    (["kafka://127.0.0.1?topic=t&group=g&sasl=PLAIN", "--to", "http://x/"], "needs a user and a password"),
    (["kafka://127.0.0.1/x?topic=t&group=g", "--to", "http://x/"], "there is no path"),
    (["amqp://127.0.0.1?queue=q&ca=/x", "--to", "http://x/"], "amqps://"),
    (["amqps://127.0.0.1?queue=q&cert=/x", "--to", "http://x/"], "belong together"),
    (["nats://127.0.0.1?stream=s", "--to", "http://x/"], "does not name its durable"),
    (["nats://127.0.0.1?stream=s&durable=d&ack_ms=5", "--to", "http://x/"], "ack_ms=5"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://"], "is not a URL"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--concurrency", "4294967297"], "out of range"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--attempts", "0"], "at least 1"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--timeout", "0"], "at least 1"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--dead-letter", "q"], "the messages come from there"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--doubt", "d" * 300], "1 to 219 bytes"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--metrics", "/no/such/folder/m"], "cannot write --metrics"),
])
def test_bad_input_is_told(argv, text):
    done = subprocess.run([IDEM, "consume", "--store", "memory:", *argv], cwd=ROOT, timeout=60, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 2 and text in done.stdout


def test_the_outbox_example_is_sql_that_runs_twice():
    server = servers.Postgres()
    try:
        for _ in range(2):
            done = subprocess.run([server.bin + "psql", "-qAt", "-v", "ON_ERROR_STOP=1", server.url, "-f",
                                   os.path.join(ROOT, "examples/outbox.sql")], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            assert done.returncode == 0, done.stdout
        assert server.sql("select count(*) from orders") == "1"
        assert server.sql("select count(*), count(sent) from outbox") == "1|1"
    finally:
        server.stop()


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_what_commits_with_its_message_in_the_outbox_is_consumed_once(broker):
    """The example's own statements. The relay dies twice after it has sent and before it has marked."""
    with open(os.path.join(ROOT, "examples/outbox.sql")) as f:
        text = f.read()
    select = re.search(r"^select id, .*?;$", text, re.M | re.S).group(0)
    mark = re.search(r"^update outbox .*?;$", text, re.M | re.S).group(0).replace(
        "array['0190c6a0-0000-7000-8000-000000000001']::uuid[]", "%s")
    server, ledger = servers.Postgres(), Ledger()
    made = [subprocess.run([IDEM, "id", "uuid7"], text=True, stdout=subprocess.PIPE, check=True).stdout.strip() for _ in range(10)]
    try:
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(text[:text.index("-- The service")])
            for i in made:
                order = text[text.index("begin;"):text.index("-- The relay")].replace("0190c6a0-0000-7000-8000-000000000001", i)
                db.execute(order.replace('{"order": ', '{"id": "%s", "order": ' % i))
        for dies in (True, True, False):
            with psycopg.connect(server.url) as db:
                unsent = db.execute(select).fetchall()
                broker.publish([{**body, "id": str(i)} for i, _, body in unsent])
                assert sorted(str(i) for i, _, _ in unsent) == sorted(made)
                if dies:
                    db.rollback()
                else:
                    db.execute(mark, [[i for i, _, _ in unsent]])
        assert server.sql("select count(*) from outbox where sent is null") == "0"
        with folder() as f:
            stats = run_until_idle(broker, "journal:" + f, "--to", ledger.url)
    finally:
        server.stop()
    assert_once(ledger.effects, made)
    assert stats["duplicates"] == 20
    ledger.close()
