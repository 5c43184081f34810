"""The Python client beyond the conformance scenarios."""
import asyncio
import datetime
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from lib import ROOT, Server, folder, wait_until

PACKAGE = os.path.join(ROOT, "clients/python")
sys.path.insert(0, PACKAGE)
import idem  # noqa: E402


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


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
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
        url = "idem://127.0.0.1:%d" % server.port
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


def test_a_result_that_cannot_be_written_or_read_is_done_all_the_same(client):
    with pytest.raises(idem.Done, match="cannot be written"):
        client.once("k", Cart)
    with pytest.raises(idem.ResultNotKept):
        client.once("k", Cart)
    assert client.once("text", lambda: "x", dump=str.encode, load=bytes.decode) == "x"
    with pytest.raises(idem.Done, match="cannot be read"):
        client.once("text", lambda: "x")


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
                os._exit(client.once("child", lambda: time.sleep(1.2) or 7, lease=0.6, deadline=20) != 7)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    assert client.once("child", lambda: 8) == 7


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
