"""Messages consumed once: real brokers, consumers killed at random, brokers restarted. What counts is the
ledger that the handlers wrote, which nothing but idem keeps free of repeats."""
import collections
import contextlib
import http.server
import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time

import pika
import pytest
import redis

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import chaos
import servers
from lib import IDEM, ROOT, SOAK, Process, folder, free_port, open_files, patient, wait_until

MESSAGES = 20000 if SOAK else 500


class Ledger:
    """An HTTP endpoint that writes down every message it was handed. With `idempotent` it skips a key that it
    has, as a sink must that loose mode hands a message twice."""

    def __init__(self, idempotent=False):
        self.effects = collections.Counter()
        self.lock = threading.Lock()
        self.status = {}
        self.hangs_up = set()  # done, but the answer never comes
        ledger = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.headers["Idempotency-Key"] == '"%s"' % body["id"]
                assert int(self.headers["Idem-Fence"]) > 0
                status = ledger.status.get(body["id"], 200)
                status = status.pop(0) if isinstance(status, list) else status
                with ledger.lock:
                    if status < 300 and not (idempotent and ledger.effects[body["id"]]):
                        ledger.effects[body["id"]] += 1
                if body["id"] in ledger.hangs_up:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_):
                pass  # consumers are killed here

        self.server = Server(("127.0.0.1", 0), Handler)
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
        wait_until(self.answers)

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

    def restart(self):
        """It goes away and comes back with what it had."""
        self.ask("down")
        time.sleep(1)
        self.ask("up")

    def stop(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module", params=["rabbitmq", "redis"])  # Kafka: test_consume_kafka.py
def broker(request):
    broker = Rabbit() if request.param == "rabbitmq" else Stream()
    yield broker
    broker.stop()


def consume(broker, store, *flags, lease="5s"):
    return [IDEM, "consume", broker.source, "--store", store, "--lease", lease, "--concurrency", "8", *flags]


def run_until_idle(broker, store, *flags, idle="4s", **named):
    done = subprocess.run(consume(broker, store, "--until-idle", idle, "--json", *flags, **named), cwd=ROOT, timeout=300,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def some_messages(count, prefix):
    """30 % stand there twice or more, mixed."""
    rng = random.Random(prefix)
    ids = ["%s-%d" % (prefix, i) for i in range(count)]
    all_of_them = ids + [rng.choice(ids) for _ in range(int(count * 0.45))]
    rng.shuffle(all_of_them)
    return ids, [{"id": i, "text": "order " + i} for i in all_of_them]


def test_every_message_is_handled_once_although_published_twice(broker):
    ids, messages = some_messages(200, "plain")
    ledger = Ledger()
    broker.publish(messages)
    with folder() as f:
        stats = run_until_idle(broker, "journal:" + f, "--to", ledger.url, idle="2500ms")
    assert ledger.effects == collections.Counter(ids)
    assert stats["handled"] == len(ids) and stats["duplicates"] >= len(messages) - len(ids)
    ledger.close()


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
        done = subprocess.run(consume(broker, "journal:" + f + "/j", "--until-idle", "2500ms", "--", "sh", f + "/handle.sh"),
                              cwd=ROOT, timeout=60, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, done.stderr
        ran = sorted(open(log).read().split("\n"))
    assert ran == ["", "c-fail 1", "c-fine 1", "c-poison 1"]
    letters = dict(broker.letters("orders.dead"))
    assert letters["c-fail"] == "the command exited with 1"
    assert letters["c-poison"] == "the command exited with 65"
    assert "c-fine" not in letters


def test_loose_tries_again_and_gives_up_at_the_limit(broker):
    ledger = Ledger()
    ledger.status = {"l-later": [503, 500, 200], "l-never": 500, "l-bad": 400}
    broker.publish([{"id": i} for i in ("l-later", "l-never", "l-bad")])
    with folder() as f:
        stats = run_until_idle(broker, "journal:" + f, "--to", ledger.url, "--loose", "--backoff", "20ms",
                               "--attempts", "4", idle="2500ms")
    assert ledger.effects == {"l-later": 1}
    assert stats["retries"] == 2 + 3
    assert sorted(i for i, _ in broker.letters("orders.dead") if i.startswith("l-")) == ["l-bad", "l-never"]
    ledger.close()


def test_one_identity_with_two_contents_goes_to_the_dead_letters(broker):
    ledger = Ledger()
    broker.publish([{"id": "m", "amount": 1}])
    with folder() as f:
        run_until_idle(broker, "journal:" + f, "--to", ledger.url, idle="2500ms")
        broker.publish([{"id": "m", "amount": 2}])
        run_until_idle(broker, "journal:" + f, "--to", ledger.url, idle="2500ms")
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
    assert ledger.effects == collections.Counter(["h-gone", *("h-%d" % i for i in range(5))])
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
        argv = consume(broker, "journal:" + f, "--identity", "header:colour", "--until-idle", "2500ms", "--", "sh", "-c",
                       "exit 65")
        assert subprocess.run(argv, cwd=ROOT, timeout=60, stderr=subprocess.DEVNULL).returncode == 0
    assert "kept" in dict(broker.letters("orders.dead"))
    assert broker.letter_headers["colour"] == "blue"
    assert broker.letter_headers["content-type"] == "application/json"


def test_a_message_without_an_identity_is_a_dead_letter_and_told(broker):
    reason = "the message has no identity (header nothing): give messages an id, or choose another identity"
    broker.publish([{"id": "nobody-%d" % i} for i in range(3)])
    with folder() as f:
        argv = consume(broker, "journal:" + f, "--identity", "header:nothing", "--until-idle", "2500ms", "--", "false")
        done = subprocess.run(argv, cwd=ROOT, timeout=60, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0
    letters = dict(broker.letters("orders.dead"))
    assert [letters["nobody-%d" % i] for i in range(3)] == [reason] * 3
    assert done.stderr.count("a message goes to orders.dead: " + reason) == 1


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
        argv = consume(broker, "journal:" + f, "--concurrency", "1", "--prefetch", "1", "--until-idle", "2500ms", "--json",
                       "--", "sleep", "7")
        argv[2] += "&heartbeat=2"
        done = subprocess.run(argv, cwd=ROOT, timeout=60, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    stats = json.loads(done.stdout.splitlines()[-1])
    assert stats["handled"] == 2 and stats["reconnects"] == 0, done.stdout + done.stderr


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_an_entry_in_hand_is_not_delivered_again_however_long_it_takes(broker):
    """Each takes longer than an entry may stay unacknowledged before it is claimed; the last ones wait for it too."""
    broker.publish([{"id": "long-%d" % i} for i in range(2)])
    with folder() as f:
        argv = consume(broker, "journal:" + f, "--concurrency", "1", "--until-idle", "2500ms", "--json", "--", "sleep", "6")
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
    assert ledger.effects == collections.Counter(ids)
    ledger.close()


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
        done = subprocess.run(argv, cwd=ROOT, timeout=300, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        with contextlib.closing(sqlite3.connect(database)) as db:
            effects = collections.Counter(row[0] for row in db.execute("select id from effect"))
    assert effects == collections.Counter(ids)


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
            run_until_idle(broker, "journal:" + f, "--to", ledger.url, idle="3s")
        assert line.cuts > 0
    finally:
        line.stop()
    assert ledger.effects == collections.Counter(ids)
    ledger.close()


def test_sigterm_finishes_what_is_being_handled_and_puts_back_the_rest(broker):
    ids, messages = some_messages(300, "term")
    ledger = Ledger()
    broker.publish(messages)
    with folder() as f:
        with Process(consume(broker, "journal:" + f, "--to", ledger.url)) as consumer:
            wait_until(lambda: len(ledger.effects) > 20)
            assert consumer.stop() == 0
        run_until_idle(broker, "journal:" + f, "--to", ledger.url)
    assert ledger.effects == collections.Counter(ids)
    ledger.close()


@pytest.mark.parametrize("argv, text", [
    (["ftp://x", "--to", "http://127.0.0.1/"], "names no broker"),
    (["amqp://127.0.0.1", "--to", "http://127.0.0.1/"], "name the queue"),
    (["amqp://127.0.0.1?queue=q", "--to", "gopher:"], "no place to deliver"),
    (["amqp://127.0.0.1?queue=q"], "what shall handle"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--", "cat"], "not both"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--identity", "smell"], "is no identity"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--concurrency", "5000"], "out of range"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--consumer", "a/b"], "no slash"),
    (["amqp://127.0.0.1?queue=q", "--to", "http://x/", "--lease", "30d"], "lease"),
])
def test_bad_input_is_told(argv, text):
    done = subprocess.run([IDEM, "consume", "--store", "memory:", *argv], cwd=ROOT, timeout=60, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode != 0 and text in done.stdout


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
