"""The Python client beyond the conformance scenarios: decorators, asyncio, WSGI and ASGI, transactions, and the code of its page.
Waits more than it works."""
import asyncio
import concurrent.futures
import contextlib
import datetime
import functools
import io
import json
import multiprocessing
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zipfile

import psycopg
import pytest

from chaos import Chaos, resp_replies
from lib import IDEM, ROOT, Process, Server, folder, free_port, wait_until
import servers
import transactions
from middleware import (App, Play, scenario_id, test_a_client_that_goes_away_does_not_stop_the_work, test_a_request_whose_body_ends_early_does_not_run,  # noqa: F401
                        test_an_upload_that_ends_early_can_be_sent_again, test_an_answer_without_content_is_replayed, test_another_boundary_of_a_form_is_the_same_request,
                        test_middleware_answers_as_the_gateway_does)
from test_stores_sql import idem as idem_command
from test_stores_sql import mariadb, postgres  # noqa: F401 (fixtures)

PACKAGE = os.path.join(ROOT, "clients/python")
sys.path.insert(0, PACKAGE)
import idem  # noqa: E402
import idem.sql  # noqa: E402
import idem.wsgi  # noqa: E402


@pytest.fixture(scope="module")
def server():
    with folder() as where:
        server = Server(where, listen=True)
        server.url = "idem://127.0.0.1:%d" % server.port
        yield server
        server.stop()


@pytest.fixture
def client(server):
    client = idem.Client(server.url, scope="python-%d" % time.monotonic_ns())
    yield client
    client.close()


@pytest.mark.parametrize("kind", ["threads", "unix", "asyncio"])
def test_a_server_that_went_away_while_a_connection_was_idle_is_not_an_unknown_outcome(kind):
    async def asked(url, away):
        client = idem.AsyncClient(url, deadline=1.0)

        async def one():
            return 1

        await client.once("warm", one)
        away()
        with pytest.raises(idem.Unavailable):
            await client.once("k", one)
        client.close()

    with folder() as where, Server(where, listen=True) as server:
        url = "idem+unix:" + server.socket if kind == "unix" else "idem://127.0.0.1:%d" % server.port
        if kind == "asyncio":
            asyncio.run(asked(url, server.kill))
            return
        client = idem.Client(url, deadline=1.0)
        client.once("warm", lambda: 1)
        server.kill()
        with pytest.raises(idem.Unavailable):
            client.once("k", lambda: 1)


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_work_is_told_by_the_end_of_its_lease_that_the_server_hangs(kind):
    """The reply time-out is 5 s: it must not be waited for when the lease is over before."""
    async def work(url, hang):
        client = idem.AsyncClient(url, deadline=1.0)
        started = []

        async def wait():
            started.append(time.monotonic())
            hang()
            await asyncio.sleep(60)

        with pytest.raises(idem.LeaseLost):
            await client.once("k", wait, lease=1.5)
        client.close()
        return time.monotonic() - started[0]

    with folder() as where, Server(where, listen=True) as server:
        url = "idem://127.0.0.1:%d" % server.port
        try:
            if kind == "asyncio":
                took = asyncio.run(work(url, lambda: server.send(signal.SIGSTOP)))
            else:
                with pytest.raises(idem.OutcomeUnknown):
                    with idem.Client(url, deadline=1.0).begin("k", lease=1.5) as claim:
                        server.send(signal.SIGSTOP)
                        began = time.monotonic()
                        assert claim.lost.wait(60)
                        took = time.monotonic() - began
                        claim.check()
        finally:
            server.send(signal.SIGCONT)
    assert took < 4.5


class Cart:
    """Its text is another one in the next process."""


def test_a_decorated_function_runs_once_for_its_key(client):
    runs = []

    @client.once("order-{order_id}")
    def place(order_id, item="book", *, day=None):
        """Place it."""
        runs.append(order_id)
        return {"order": order_id, "fence": idem.current().fence}

    day = datetime.date(2026, 11, 16)
    assert place(7) == place(7) == place(order_id=7, item="book") and runs == [7]
    assert place(8, day=day) == place(8, "book", day=day) and runs == [7, 8]
    assert place.__name__ == "place" and place.__doc__ == "Place it."
    with pytest.raises(idem.Mismatch):
        place(7, "pen")
    with pytest.raises(ValueError, match="order_id"):
        place(None)
    with pytest.raises(TypeError, match="arguments="):
        place(9, Cart())
    with pytest.raises(RuntimeError):
        idem.current()
    assert runs == [7, 8]


def test_a_method_is_the_same_on_another_object_and_arguments_can_be_chosen(client):
    class Shop:
        runs = 0

        @client.once(lambda self, order, when: "order-%d" % order, arguments=lambda self, order, when: [order])
        def place(self, order, when):
            Shop.runs += 1
            return when

        @client.once("all-{order}")
        def all(self, order):
            Shop.runs += 1

    assert Shop().place(1, "now") == Shop().place(1, "later") == "now"
    Shop().all(1), Shop().all(1)
    assert Shop.runs == 2


def test_what_cannot_be_kept_is_refused_when_it_is_decorated(client):
    async def coroutine():
        pass

    def generator():
        yield 1

    def plain():
        pass

    for decorated, decorator in ((coroutine, client.once("k")), (generator, client.once("k")), (plain, idem.AsyncClient().once("k"))):
        with pytest.raises(TypeError):
            decorator(decorated)
    for wrong in ({"mode": "careless"}, {"fail_open": True}, {"no_such_option": 1}):
        with pytest.raises((TypeError, ValueError)):
            client.once("k", plain, **wrong)


def test_what_has_no_name_can_be_decorated(client, server):
    """A functools.partial and an object with __call__, for threads and for asyncio."""
    class Place:
        def __call__(self, order):
            return "ran %s" % order

    class PlaceLater:
        async def __call__(self, order):
            return "ran %s" % order

    async def later(word, order):
        return word % order

    async def both():
        return [await other.once("later-{order}")(work)(7) for work in (functools.partial(later, "ran %s"), PlaceLater())]

    other = idem.AsyncClient(server.url, scope=client.options.scope)
    for n, work in enumerate((functools.partial(lambda word, order: word % order, "ran %s"), Place())):
        call = client.once("%d-{order}" % n)(work)
        assert [call(7), call(7)] == ["ran 7"] * 2
        with pytest.raises(ValueError, match="the key names {id}, but the function .*has order"):
            client.once("{id}")(work)
        with pytest.raises(ValueError, match="the key of .* is empty"):
            client.once("{order}")(work)("")
        with pytest.raises(TypeError, match="is not a coroutine function"):
            other.once("k")(work)
    assert asyncio.run(both()) == ["ran 7"] * 2
    for work in (functools.partial(later, "%s"), PlaceLater()):
        with pytest.raises(TypeError, match="is a coroutine function"):
            client.once("k")(work)


def test_the_result_of_the_work_is_not_taken_for_the_work(client):
    """once(key, place()) has run it without protection already: nothing is stored for the key."""
    for wrong in ({"order": 7}, None, 7, "text"):
        with pytest.raises(TypeError, match=r"once\(key, lambda: place\(\)\)"):
            client.once("k", wrong)
        with pytest.raises(TypeError, match="must be a function"):
            idem.AsyncClient().once("k", wrong)
        with pytest.raises(TypeError, match="must be a function"):
            idem.sql.once(None, "k", wrong, arguments=None)
    assert client.once("k", lambda: "ran") == "ran"


@pytest.mark.parametrize("name,wrong", [("ttl", 0), ("ttl", 0.0001), ("ttl", -5), ("ttl", "24h"), ("ttl", True), ("ttl", float("nan")), ("ttl", float("inf")),
                                        ("lease", 0), ("lease", -1), ("lease", "30s"), ("wait", -1), ("wait", "5s"), ("deadline", "5s"), ("deadline", -1)])
def test_a_time_that_is_none_is_refused(client, name, wrong):
    """A result that is kept for no time does not protect; and nothing was sent."""
    for call in (lambda: client.once("k", list, **{name: wrong}), lambda: client.once("k", **{name: wrong}), lambda: idem.Client(**{name: wrong}),
                 lambda: client.begin("k", **{name: wrong}).__enter__(), lambda: idem.AsyncClient().once("k", list, **{name: wrong}),
                 lambda: idem.sql.once(None, "k", list, arguments=None, **{name: wrong})):
        with pytest.raises((TypeError, ValueError), match="%s is a number of seconds .*, not %s" % (name, re.escape(repr(wrong)))):
            call()
    if name == "ttl":
        with pytest.raises((TypeError, ValueError), match="ttl is a number of seconds"):
            client.issue("ann", wrong)


def test_a_scope_is_text_and_methods_are_written_in_capitals(client):
    """A function's own text is another scope in the next process; a method in small letters is never guarded."""
    with pytest.raises(TypeError, match="scope is text"):
        client.once("k", list, scope=lambda request: "ann")
    with pytest.raises(ValueError, match="'POST', not 'post'"):
        idem.wsgi.Middleware(None, client, methods=["post"])


def test_a_key_that_names_no_parameter_is_refused_when_it_is_decorated(client):
    def place(order_id, width=3):
        return order_id

    for wrong, named in (("order-{oid}", "{oid}"), ("order-{}", "{}"), ("{oid.item[0]}", "{oid.item[0]}"), ("{order_id:{wide}}", "{wide}")):
        with pytest.raises(ValueError, match=re.escape("the key names %s, but the function place has order_id, width" % named)):
            client.once(wrong)(place)
    assert client.once("{order_id:>{width}}-{order_id!r}")(place)(7) == 7


def test_the_errors_say_what_to_do(client):
    with pytest.raises(idem.Done, match="cannot be written"):
        client.once("odd", object)
    with pytest.raises(idem.ResultNotKept, match="was not kept: it was too large, or could not be written"):
        client.once("odd", list)
    with pytest.raises(KeyboardInterrupt):
        with client.begin("left 'it", lease=0.001):
            raise KeyboardInterrupt
    with pytest.raises(idem.OutcomeUnknown, match=re.escape("""find out, then settle it (idem doubts lists it; idem settle %s 'left '"'"'it' --as""" % client.options.scope)):
        time.sleep(0.05)  # longer than its lease
        client.once("left 'it", list)


def test_a_result_that_cannot_be_written_or_read_is_done_all_the_same(client):
    with pytest.raises(idem.Done, match="cannot be written"):
        client.once("k", Cart)
    with pytest.raises(idem.ResultNotKept):
        client.once("k", Cart)
    assert client.once("text", lambda: "x", dump=str.encode, load=bytes.decode) == "x"
    with pytest.raises(idem.Done, match="cannot be read"):
        client.once("text", lambda: "x")


def test_an_error_whose_text_is_no_utf8_is_recorded(client):
    def work():
        raise OSError(b"caf\xe9".decode(errors="surrogateescape"))

    with pytest.raises(OSError, match="caf"):
        client.once("surrogate", work)
    with pytest.raises(idem.Failed, match="caf"):
        client.once("surrogate", lambda: 1)


@pytest.mark.parametrize("key", [None, True, {}, 1.5])
def test_a_missing_key_is_not_a_key_that_everybody_shares(client, key):
    with pytest.raises(TypeError, match="key"):
        client.once(key, lambda: 1)


def test_a_block_can_be_the_work(client):
    with client.begin("k", arguments=[1]) as claim:
        assert idem.current() is claim and claim.fence > 0
        claim.check()
        claim.result = {"order": 7}
    with pytest.raises(idem.Replay) as told:
        with client.begin("k", arguments=[1]):
            raise AssertionError("it ran")
    assert told.value.value == {"order": 7} and isinstance(told.value, idem.Done)
    with pytest.raises(KeyError):
        with client.begin("fails"):
            raise KeyError("x")
    with pytest.raises(idem.Failed) as told:
        with client.begin("fails"):
            raise AssertionError("it ran")
    assert told.value.type == "KeyError"
    with pytest.raises(KeyboardInterrupt):
        with client.begin("stopped"):
            raise KeyboardInterrupt
    with pytest.raises(idem.InProgress) as told:
        client.once("stopped", lambda: 1)
    assert told.value.retry_after > 0


def test_the_same_with_asyncio(server, client):
    runs = []

    async def main():
        there = idem.AsyncClient(server.url, scope=client.options.scope)

        @there.once("order-{order}", wait=60)
        async def place(order):
            runs.append(order)
            await asyncio.sleep(0.05)
            return {"order": order, "fence": idem.current().fence}

        answers = await asyncio.gather(*(place(7) for _ in range(50)))
        assert all(a == answers[0] for a in answers)
        async with there.begin("block") as claim:
            assert idem.current() is claim
            claim.result = 5
        with pytest.raises(idem.Replay):
            async with there.begin("block"):
                raise AssertionError("it ran")
        with pytest.raises(ValueError):
            await there.once("fails", fails)
        with pytest.raises(idem.Failed):
            await there.once("fails", fails)
        task = asyncio.ensure_future(there.once("cancelled", forever))
        while "forever" not in runs:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        token = await there.issue("ann")
        await there.redeem(token, "ann")
        with pytest.raises(idem.TokenUsed):
            await there.redeem(token, "ann")
        there.close()

    async def fails():
        raise ValueError("no")

    async def forever():
        runs.append("forever")
        await asyncio.sleep(600)

    asyncio.run(main())
    assert runs == [7, "forever"]
    assert client.once("block", lambda: 6) == 5
    with pytest.raises(idem.InProgress):  # whoever was cancelled does not know
        client.once("cancelled", lambda: 1)


def test_module_functions_use_the_server_of_the_environment(server):
    code = """
import asyncio, idem
@idem.once("f-{n}")
def f(n): return n + 1
@idem.once("g-{n}")
async def g(n): return n + 2
assert f(1) == f(1) == 2 and asyncio.run(g(1)) == asyncio.run(g(1)) == 3
with idem.begin("b") as claim: claim.result = 4
async def main():
    try:
        async with idem.begin("b"): pass
    except idem.Replay as e:
        return e.value
assert asyncio.run(main()) == 4
"""
    subprocess.run(["/usr/bin/python3", "-W", "error", "-c", code], check=True, timeout=60,
                   env={**os.environ, "PYTHONPATH": PACKAGE, "IDEM_SERVER": server.url})


def test_a_child_process_has_connections_and_a_keeper_of_its_own(client):
    client.once("parent", lambda: 1)
    with client.begin("held", lease=60):
        child = os.fork()
        if child == 0:
            try:
                os._exit(client.once("child", lambda: time.sleep(3) or 7, lease=2, deadline=20) != 7)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    assert client.once("child", lambda: 8) == 7


def test_a_child_process_has_nonces_of_its_own(client):
    """A BEGIN with the parent's nonce would be taken for the parent's own, sent again, and both would run."""
    client.once("parent", lambda: 1)
    child = os.fork()
    if child == 0:
        with client.begin("both", lease=60):
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(idem.InProgress):
        client.once("both", lambda: 1)


def test_two_processes_of_one_snapshot_have_different_nonces():
    idem.claim.nonce()
    before = list(idem.claim._nonces)
    made = idem.claim.nonce()
    idem.claim._nonces[:] = before
    assert idem.claim.nonce() != made and re.fullmatch("[0-9a-f]{16}", made)


def is_free(client, key):
    """Nobody holds the key: a call of its own runs."""
    try:
        return client.once(key, lambda: "free", arguments=[1]) == "free"
    except idem.InProgress:
        return False


def test_a_cancelled_caller_leaves_no_claim_behind(client):
    """Cancelled after BEGIN was sent and before its reply was read. The server gets it, and the work never runs."""
    async def main(url, hang, wake):
        there = idem.AsyncClient(url, scope=client.options.scope)
        hang()
        task = asyncio.ensure_future(there.once("k", forever, arguments=[1]))
        await asyncio.sleep(0.3)
        asked = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - asked < 10  # the caller does not wait for the server
        wake()
        await asyncio.get_running_loop().run_in_executor(None, lambda: wait_until(lambda: is_free(other, "k"), 20))

    async def forever():
        raise AssertionError("it ran")

    with folder() as where, Server(where, listen=True) as server:
        url = "idem://127.0.0.1:%d" % server.port
        other = idem.Client(url, scope=client.options.scope)
        try:
            asyncio.run(main(url, lambda: server.send(signal.SIGSTOP), lambda: server.send(signal.SIGCONT)))
        finally:
            server.send(signal.SIGCONT)
        assert is_free(other, "k")


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_an_interrupted_program_gives_the_key_back(server, client, kind):
    """The interruption comes while the reply to BEGIN is under way, and the program ends."""
    code = """
import asyncio, os, signal, sys, threading, time, idem
async def main():
    there = idem.AsyncClient(sys.argv[1], scope=sys.argv[2])
    async def work(): print("it ran")
    await asyncio.wait_for(there.once("k", work, arguments=[1]), 0.5)
if sys.argv[3] == "asyncio":
    asyncio.run(main())
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with SIGINT ignored
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
idem.Client(sys.argv[1], scope=sys.argv[2]).once("k", lambda: print("it ran"), arguments=[1])
"""
    slow = Chaos(server.port, resp_replies)
    slow.delay(1.5)  # after the interruption, and in time for giving back, which may take 3 seconds
    try:
        done = subprocess.run(["/usr/bin/python3", "-c", code, "idem://127.0.0.1:%d" % slow.port, client.options.scope, kind],
                              capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": PACKAGE})
    finally:
        slow.stop()
    assert ("TimeoutError" if kind == "asyncio" else "KeyboardInterrupt") in done.stderr and done.stdout == "", done
    assert is_free(client, "k")


def test_a_result_is_recorded_although_its_caller_is_cancelled(server, client):
    """Cancelled while FINISH is under way to a server that cannot be reached."""
    async def main():
        there, done = idem.AsyncClient("idem://127.0.0.1:%d" % slow.port, scope=client.options.scope), asyncio.Event()

        async def work():
            slow.blackhole()
            done.set()
            return 7

        task = asyncio.ensure_future(there.once("k", work))
        await done.wait()
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        slow.heal()
        await asyncio.sleep(0.1)
        while True:
            with contextlib.suppress(idem.InProgress):
                return await there.once("k", work)
            await asyncio.sleep(0.05)

    slow = Chaos(server.port, resp_replies)
    try:
        assert asyncio.run(asyncio.wait_for(main(), 60)) == 7
    finally:
        slow.stop()


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


async def coroutine():
    return 1


def generator():
    yield 1


@pytest.mark.parametrize("work", [coroutine, generator], ids=["coroutine", "generator"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_work_that_has_not_run_is_not_recorded_as_done(client, work):
    with pytest.raises(TypeError, match="has not run"):
        client.once("k", work)
    with pytest.raises(idem.Failed, match="has not run"):
        client.once("k", lambda: 1)


def test_an_error_without_a_text_is_recorded(client):
    def work():
        raise Unspeakable

    with pytest.raises(Unspeakable):
        client.once("k", work)
    with pytest.raises(idem.Failed) as told:
        client.once("k", lambda: 1)
    assert told.value.type == "Unspeakable"


def test_asyncio_speaks_tls(client):
    async def call(url, deadline):
        return await idem.AsyncClient(url, deadline=deadline).once("k", lambda: 5)

    with folder() as where:
        ca, cert, key = servers.authority(where, "ours")
        with Server(where, "--tls-cert", cert, "--tls-key", key, listen=True) as server:
            url = "idems://127.0.0.1:%d" % server.port
            assert [asyncio.run(call(url + "?ca=" + ca, 30)) for _ in range(2)] == [5, 5]
            with pytest.raises(idem.Unavailable):
                asyncio.run(call(url, 0.5))
    for wrong in ("idems://host?cafile=x", "idem://host?ca=x", "redis://host"):
        with pytest.raises(ValueError):
            idem.Client(wrong)


def test_asyncio_takes_plain_functions_too(server, client):
    there = idem.AsyncClient(server.url, scope=client.options.scope)
    assert [asyncio.run(there.once("k", lambda: 5)) for _ in range(2)] == [5, 5]


def test_claims_go_on_in_the_workers_of_a_server_that_forks(server, client):
    """multiprocessing and preforking servers: a client that was used before the fork, in a parent with threads and a held claim."""
    with client.begin("parent", lease=1.5) as claim:
        with concurrent.futures.ProcessPoolExecutor(4, multiprocessing.get_context("fork"), initializer=worker_client, initargs=(client,)) as pool:
            answers = list(pool.map(worker_call, range(40)))
        assert answers == [i % 10 for i in range(40)]
        time.sleep(2)  # longer than its lease
        claim.check()
    assert client.once("worker-3", lambda: "again", wait=60) == 3


def worker_client(client):
    global inherited
    inherited = client


def worker_call(i):
    return inherited.once("worker-%d" % (i % 10), lambda: time.sleep(0.05) or i % 10, wait=60)


def test_many_threads_share_a_client(client):
    answers = []
    threads = [threading.Thread(target=lambda i=i: answers.append(client.once("k-%d" % (i % 5), lambda: i % 5, wait=60)))
               for i in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(answers) == sorted(i % 5 for i in range(40))
    assert wait_until(lambda: not client._keeper.due)


# psycopg2 and Django differ from psycopg in how a transaction begins, fails and ends.
DATABASES = [(driver, scenario) for driver in ("psycopg", "psycopg2", "django", "pymysql") for scenario in transactions.SCENARIOS
             if driver in ("psycopg", "pymysql") or "caller" in scenario["name"] or "failure" in scenario["name"]]


@pytest.mark.parametrize("driver,scenario", DATABASES, ids=lambda v: v if isinstance(v, str) else scenario_id(v))
def test_work_in_the_callers_own_transaction(driver, scenario, request):
    database = request.getfixturevalue("mariadb" if driver == "pymysql" else "postgres")
    idem_command("store", "init", database.url)
    transactions.play(["/usr/bin/python3", os.path.join(PACKAGE, "tests/driver.py"), driver], database, scenario)


def test_a_stored_failure_is_told_after_a_commit(postgres):
    """On a server with a synchronous standby only a commit shows that the standby has what was read."""
    idem_command("store", "init", postgres.url)
    said = []

    class Loud(psycopg.Cursor):
        def execute(self, query, *args, **more):
            said.append(query)
            return super().execute(query, *args, **more)
    url = "host=127.0.0.1 port=%d user=idem password=secret dbname=postgres" % postgres.port
    with psycopg.connect(url, autocommit=True, cursor_factory=Loud) as db:
        with pytest.raises(ZeroDivisionError):
            idem.sql.once(db, "told", lambda: 1 / 0, arguments=None, scope="failures")
        said.clear()
        with pytest.raises(idem.Failed):
            idem.sql.once(db, "told", list, arguments=None, scope="failures")
        assert said[-1] == "commit" and "rollback" not in said, said


def test_a_connection_that_is_not_known_is_refused():
    with pytest.raises(TypeError, match="psycopg"):
        idem.sql.once(sqlite3.connect(":memory:"), "k", list, arguments=None)


@pytest.fixture(scope="module", params=["wsgi", "asgi"])
def app(request):
    with folder() as where:
        app = App(where, ["/usr/bin/python3", os.path.join(PACKAGE, "tests/app.py"), request.param])
        yield app
        app.close()


def test_behind_a_framework_that_makes_a_500_of_everything_the_service_says_so(app):
    play = Play(app)
    assert [play.send({"path": "/said", "key": "k"}).status for _ in range(2)] == [503, 503]
    assert play.ran("/said") == 2


@pytest.mark.parametrize("length", ["x", "-5"])
@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=b", "text/plain"])
def test_a_length_that_is_no_number_claims_nothing(client, kind, length):
    """The claim would be renewed for as long as the process lives."""
    ran, told = [], []
    app = idem.wsgi.Middleware(lambda environ, start: ran.append(start("200 OK", [])) or [b""], client, scope=lambda environ: client.options.scope)
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": "odd", "CONTENT_TYPE": kind, "CONTENT_LENGTH": length,
               "wsgi.input": io.BytesIO(b"some bytes")}
    app(environ, lambda status, headers: told.append(status))
    assert told == ["400 Bad Request"] and not ran
    assert is_free(client, "odd")


PAGE = """
import asyncio, os, psycopg
DATABASE = "host=127.0.0.1 port=%(postgres)d user=idem password=secret dbname=postgres"
with psycopg.connect(DATABASE) as db:
    db.execute("create table orders (item text, count int)")
runs = []
def place_order(cart):
    runs.append(cart)
    return {"order": len(runs), "count": cart["count"]}
%(code)s
assert order == {"order": 3, "count": 2} and len(runs) == 4, runs
def fails(key, error):
    def bank(cart):
        raise error
    try:
        client.once(key, lambda: pay(bank, cart))
    except Exception as e:
        return type(e)
assert [fails("slow", TimeoutError()) for _ in range(2)] == [idem.OutcomeUnknown, idem.InProgress]
assert [fails("no", Declined()) for _ in range(2)] == [Declined, idem.Failed]
assert [fails("away", ConnectionRefusedError()) for _ in range(2)] == [idem.NotExecuted] * 2
assert client.once("away", lambda: pay(lambda cart: 1, cart)) == 1
assert client.once("order-7", lambda: 1, arguments=cart) == {"order": 1, "count": 2}
assert asyncio.run(main()) == client.once("order-10", list, arguments={"order_id": 10, "cart": cart}) == {"order": 5, "count": 2}
assert client.once("order-11", list) == {"order": 6, "count": 2} and len(runs) == 6, runs
with psycopg.connect(DATABASE, autocommit=True) as db:
    assert idem.sql.once(db, "order-9", lambda: 1, scope="shop", arguments=cart) == paid == {"order": 9, "count": 2}
    assert db.execute("select count(*) from orders").fetchone() == (1,)
assert answer.status == 201 and answer.json()["order"] == "placed book", answer
test_an_order_is_placed_once()
print("the page works")
"""
SERVICE = """
import os, sys
def place_order(cart):
    with open(sys.argv[2], "a") as f:
        f.write("placed\\n")
    if cart["item"] == "nothing":
        raise idem.NotExecuted("the bank was not asked")
    return "placed " + cart["item"]
"""
DJANGO = """
import json
from django.conf import settings
from django.http import JsonResponse
from django.urls import path
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"])
def orders(request):
    return JsonResponse({"order": place_order(json.loads(request.body)), "fence": request.META["idem.claim"].fence}, status=201)
urlpatterns = [path("orders", orders)]
"""
RUN = {"flask": "import werkzeug.serving; werkzeug.serving.run_simple('127.0.0.1', int(sys.argv[1]), app, threaded=True)",
       "django": "import werkzeug.serving; werkzeug.serving.run_simple('127.0.0.1', int(sys.argv[1]), application, threaded=True)",
       "fastapi": "import uvicorn; uvicorn.run(app, host='127.0.0.1', port=int(sys.argv[1]), log_level='warning')"}


def blocks(page):
    with open(os.path.join(PACKAGE, page), encoding="utf-8") as f:
        return re.findall(r"```python\n(.*?)```", f.read(), re.S)


def framework_of(code):
    return next((name for name in RUN if "from %s" % name in code or "import %s" % name in code), None)


def start_service(where, framework, server):
    code, = [c for c in blocks("README.md") if framework_of(c) == framework]
    port, effects = free_port(), os.path.join(where, "effects-" + framework)
    program = os.path.join(where, framework + "_service.py")
    with open(program, "w", encoding="utf-8") as f:
        f.write(SERVICE + (DJANGO if framework == "django" else "") + code.replace("127.0.0.1:6390", "127.0.0.1:%d" % server.port) + "\n" + RUN[framework])
    process = Process(["/usr/bin/python3", program, str(port), effects], ready=port, env={**os.environ, "PYTHONPATH": PACKAGE})
    return process, port, effects


def lines(path):
    if not os.path.exists(path):
        return 0
    with open(path) as f:
        return len(f.readlines())


@pytest.mark.parametrize("framework", sorted(RUN))
def test_the_services_of_the_page_work(server, framework):
    def ask(key, item="book", tenant=framework):
        asked = urllib.request.Request("http://127.0.0.1:%d/orders" % port, json.dumps({"item": item}).encode(),
                                       {"Idempotency-Key": key, "X-Tenant": tenant, "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=120) as answer:
                return answer.status, answer.headers["Idempotent-Replayed"], answer.read()
        except urllib.error.HTTPError as e:
            return e.code, e.headers["Idempotent-Replayed"], e.read()

    with folder() as where:
        process, port, effects = start_service(where, framework, server)
        try:
            first, again = ask("o-7"), ask("o-7")
            assert first[:2] == (201, None) and again == (201, "true", first[2]) and lines(effects) == 1
            assert json.loads(first[2])["order"] == "placed book" and json.loads(first[2])["fence"] > 0
            assert ask("o-7", "pen")[0] == 422
            assert ask("o-7", tenant="")[0] == 500 and lines(effects) == 2  # not guarded: the service has no claim to name
            assert ask("o-7", tenant="bob-" + framework)[0] == 201 and lines(effects) == 3
            if framework != "django":  # what its views raise is a 500, and the page says so
                assert [ask("nothing", "nothing")[0] for _ in range(2)] == [503, 503] and lines(effects) == 5
        finally:
            process.stop()


def test_the_code_of_the_page_works(server, postgres):  # noqa: F811
    code = blocks("README.md")
    assert code == blocks("README.zh-CN.md")
    code = [c for c in code if framework_of(c) is None]
    assert len(code) == 9
    idem_command("store", "init", postgres.url)
    postgres.sql("drop table if exists orders")
    with folder() as where:
        service, port, _ = start_service(where, "flask", server)
        try:
            page = PAGE % {"postgres": postgres.port, "code": "".join(code)}
            page = page.replace("127.0.0.1:6390", "127.0.0.1:%d" % server.port).replace("127.0.0.1:8080", "127.0.0.1:%d" % port)
            done = subprocess.run(["/usr/bin/python3", "-W", "error::RuntimeWarning", "-"], input=page, capture_output=True, text=True, timeout=120,
                                  env={**os.environ, "PYTHONPATH": PACKAGE, "PATH": os.path.dirname(IDEM) + ":" + os.environ["PATH"]})
        finally:
            service.stop()
    assert done.returncode == 0 and "the page works" in done.stdout, done.stdout + done.stderr


def test_the_package_can_be_built_and_is_complete():
    """As pip does it: with the build backend that pyproject.toml names."""
    with folder() as where:
        subprocess.run(["cp", "-r", PACKAGE, where + "/source"], check=True)
        done = subprocess.run(["/usr/bin/python3", "-c", "import setuptools.build_meta as b; print(b.build_wheel('..'))"], cwd=where + "/source",
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        with zipfile.ZipFile(os.path.join(where, done.stdout.split()[-1])) as wheel:
            names = set(wheel.namelist())
            metadata = wheel.read(next(n for n in names if n.endswith("/METADATA"))).decode()
    assert {"idem/" + n for n in os.listdir(os.path.join(PACKAGE, "idem")) if n.endswith((".py", ".typed"))} <= names
    assert "Name: idem-client\n" in metadata and "Requires-Dist" not in metadata and any(n.endswith("/LICENSE") for n in names)


def test_the_types_say_what_the_client_does():
    with folder() as where:
        def mypy(*argv):
            done = subprocess.run(["/usr/bin/python3", "-m", "mypy", "--cache-dir", where, "--python-version", "3.9", *argv], cwd=PACKAGE,
                                  capture_output=True, text=True, timeout=300, env={**os.environ, "MYPYPATH": PACKAGE})
            assert done.returncode == 0, done.stdout + done.stderr
        mypy("idem")
        mypy("--strict", "--follow-imports", "silent", "tests/typed.py")
