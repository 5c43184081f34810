"""Run work once: with threads and sockets, or with asyncio."""
import asyncio
import contextlib
import contextvars
import functools
import heapq
import inspect
import itertools
import logging
import os
import threading
import time

from . import claim as flow
from .claim import NOTHING, Claim, Options, Replayed, Send
from .errors import OutcomeUnknown, TokenUnknown, TokenUsed, Unavailable
from .wire import Address, AsyncPool, Pool

log = logging.getLogger("idem")
_current = contextvars.ContextVar("idem_claim", default=None)


def current() -> Claim:
    """The claim of the work that runs here: its fence, and whether its lease was lost."""
    claim = _current.get()
    if claim is None:
        raise RuntimeError("no work of idem runs here")
    return claim


class Keeper:
    """One thread that renews the leases of all claims, each every third of it."""

    def __init__(self, run):
        self.run, self.lock = run, threading.Condition()
        self.due, self.count, self.thread, self.pid = [], itertools.count(), None, 0

    def watch(self, claim):
        with self.lock:
            if self.pid != os.getpid() or not self.thread.is_alive():
                self.due, self.pid = [], os.getpid()
                self.thread = threading.Thread(target=self.work, name="idem-keeper", daemon=True)
                self.thread.start()
            claim.marks["kept"] = True
            self.plan(claim)

    def plan(self, claim):
        heapq.heappush(self.due, (time.monotonic() + claim.options.lease / 3, next(self.count), claim))
        if self.due[0][2] is claim:
            self.lock.notify()

    def work(self):
        while True:
            with self.lock:
                while not self.due or self.due[0][0] > time.monotonic():
                    self.lock.wait(self.due[0][0] - time.monotonic() if self.due else None)
                claim = heapq.heappop(self.due)[2]
            if claim.marks["kept"]:
                # A slow renewal must not hold up the others'.
                threading.Thread(target=self.renew, args=(claim,), daemon=True).start()

    def renew(self, claim):
        try:
            good = self.run(flow.renew(claim))
        except Exception as e:  # no answer before the lease was over
            log.warning("the lease of %s/%s could not be renewed: %s", claim.scope, claim.key, e)
            good = False
        with self.lock:
            if good and claim.marks["kept"]:
                self.plan(claim)
            elif claim.marks["kept"]:
                claim.lost.set()


class _Base:
    def __init__(self, url=None, **options):
        self.address = Address(url)
        self.options = Options().but(**options)

    def _named(self, function, key, args, kwargs):
        """The key and the arguments of a decorated function's call."""
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        if callable(key):
            return str(key(*args, **kwargs)), bound.arguments
        return (key or "").format(**bound.arguments), bound.arguments

    def _run_open(self, options, error):
        if not options.fail_open:
            raise error
        log.warning("running without protection (fail_open): %s", error)


class Client(_Base):
    """A client for threads. Share one; it is safe to use from many threads and after a fork.

        client = idem.Client("idem://127.0.0.1:6390", scope="shop")
        order = client.once("order-7", lambda: place_order(cart))
    """

    def __init__(self, url=None, **options):
        super().__init__(url, **options)
        self._pool = Pool(self.address)
        self._keeper = Keeper(self._run)

    def _run(self, steps):
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Send):
                        answer = self._pool.call(step.args, step.wait)
                    else:
                        answer = time.sleep(step.seconds)
                except Exception as e:
                    step = steps.throw(e)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    @contextlib.contextmanager
    def begin(self, key, *, arguments=NOTHING, **options):
        """Claim a key and do the work in the block; `claim.result` becomes everybody's answer.

            with client.begin("order-7", arguments=cart) as claim:
                claim.result = place_order(cart)

        An exception in the block is recorded (strict) or releases the claim (loose). Where the key is done already, or
        somebody else is at it, the block does not run: the matching error is raised, `Replay` with the stored value.
        """
        options = self.options.but(**options)
        got = self._run(flow.begin(key, options, arguments))
        if isinstance(got, Replayed):
            raise Replay(got.value)
        with self._working(got) as claim:
            yield claim

    @contextlib.contextmanager
    def _working(self, claim):
        claim.lost, claim.result = threading.Event(), None
        self._keeper.watch(claim)
        token, error = _current.set(claim), None
        try:
            yield claim
        except BaseException as e:
            error = e
            raise
        finally:
            _current.reset(token)
            claim.marks["kept"] = False
            self._conclude(claim, error)

    def _conclude(self, claim, error):
        try:
            outcome, result = flow.outcome_of(error, claim.result, claim)
        except Exception:  # the result cannot be written: the work is done all the same
            self._run(flow.finish(claim, "SUCCEEDED", None))
            raise
        if outcome is NOTHING:
            return
        try:
            self._run(flow.finish(claim, outcome, result))
        except Exception as e:
            if error is None:
                raise
            log.error("the outcome of %s/%s could not be recorded: %s", claim.scope, claim.key, e)

    def once(self, key=None, work=None, *, arguments=NOTHING, **options):
        """Run `work` at most once for the key; every caller gets its result.

        Without `work` it is a decorator: `key` is a format of the function's parameters or a function of them, and the
        arguments make the fingerprint.

            @client.once("order-{order_id}", scope="orders")
            def place_order(order_id, cart): ...
        """
        if work is None:
            return self._decorate(key, options)
        options = self.options.but(**options)
        try:
            got = self._run(flow.begin(key, options, arguments))
        except Unavailable as e:
            self._run_open(options, e)
            return work()
        if isinstance(got, Replayed):
            return got.value
        with self._working(got) as claim:
            claim.result = work()
        return claim.result

    def _decorate(self, key, options):
        def decorate(function):
            @functools.wraps(function)
            def call(*args, **kwargs):
                name, arguments = self._named(function, key, args, kwargs)
                return self.once(name, lambda: function(*args, **kwargs), arguments=arguments, **options)
            return call
        return decorate

    def issue(self, subject, ttl=300.0):
        """A one-time token for the subject."""
        return self._run(flow.ask(["ISSUE", subject, "TTL", flow.ms(ttl)], self.options.deadline))[1].decode()

    def redeem(self, token, subject):
        """Use a token up. Raises TokenUsed or TokenUnknown."""
        _judge(self._run(flow.ask(_redeem(token, subject), self.options.deadline)))

    def close(self):
        self._pool.close()


class Replay(Exception):
    """`begin` found the key done: `value` is the stored result."""

    def __init__(self, value):
        super().__init__("done before")
        self.value = value


def _redeem(token, subject):
    return ["REDEEM", token, subject, "NONCE", os.urandom(8).hex()]


def _judge(answer):
    if answer[0] == b"duplicate":
        raise TokenUsed("the token was used before")
    if answer[0] != b"redeemed":
        raise TokenUnknown("there is no such token for this subject")


class AsyncClient(_Base):
    """The same for asyncio.

        client = idem.AsyncClient(scope="shop")
        order = await client.once("order-7", lambda: place_order(cart))
    """

    def __init__(self, url=None, **options):
        super().__init__(url, **options)
        self._pool = AsyncPool(self.address)

    async def _run(self, steps):
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Send):
                        answer = await self._pool.call(step.args, step.wait)
                    else:
                        answer = await asyncio.sleep(step.seconds)
                except Exception as e:
                    step = steps.throw(e)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    async def _keep(self, claim, task):
        """Renew until cancelled; a lost lease cancels the work."""
        while True:
            await asyncio.sleep(claim.options.lease / 3)
            try:
                good = await self._run(flow.renew(claim))
            except Exception as e:
                log.warning("the lease of %s/%s could not be renewed: %s", claim.scope, claim.key, e)
                good = False
            if not good:
                claim.lost.set()
                task.cancel()
                return

    async def once(self, key, work, *, arguments=NOTHING, **options):
        """Run the coroutine function `work` at most once for the key. If the lease is lost, the work is cancelled."""
        options = self.options.but(**options)
        try:
            got = await self._run(flow.begin(key, options, arguments))
        except Unavailable as e:
            self._run_open(options, e)
            return await work()
        if isinstance(got, Replayed):
            return got.value
        return await self._work(got, work)

    async def _work(self, claim, work):
        claim.lost, error, value = threading.Event(), None, None
        token = _current.set(claim)
        task = asyncio.ensure_future(work())
        _current.reset(token)
        keeper = asyncio.ensure_future(self._keep(claim, task))
        try:
            value = await task
        except asyncio.CancelledError as e:
            if not claim.lost.is_set():
                task.cancel()
            error = OutcomeUnknown("the lease of %s/%s was lost" % (claim.scope, claim.key)) if claim.lost.is_set() else e
        except Exception as e:
            error = e
        finally:
            keeper.cancel()
        await self._conclude(claim, error, value)
        if error is not None:
            raise error
        return value

    async def _conclude(self, claim, error, value):
        try:
            outcome, result = flow.outcome_of(error, value, claim)
        except Exception:
            await self._run(flow.finish(claim, "SUCCEEDED", None))
            raise
        if outcome is NOTHING:
            return
        try:
            await self._run(flow.finish(claim, outcome, result))
        except Exception as e:
            if error is None:
                raise
            log.error("the outcome of %s/%s could not be recorded: %s", claim.scope, claim.key, e)

    def decorate(self, key, **options):
        """As Client.once without work, for coroutine functions."""
        def wrap(function):
            @functools.wraps(function)
            async def call(*args, **kwargs):
                name, arguments = self._named(function, key, args, kwargs)
                return await self.once(name, lambda: function(*args, **kwargs), arguments=arguments, **options)
            return call
        return wrap

    async def issue(self, subject, ttl=300.0):
        return (await self._run(flow.ask(["ISSUE", subject, "TTL", flow.ms(ttl)], self.options.deadline)))[1].decode()

    async def redeem(self, token, subject):
        _judge(await self._run(flow.ask(_redeem(token, subject), self.options.deadline)))

    def close(self):
        self._pool.close()


@functools.lru_cache(maxsize=None)
def default_client():
    """The client of IDEM_SERVER and IDEM_AUTH."""
    return Client()


@functools.lru_cache(maxsize=None)
def default_async_client():
    return AsyncClient()


def once(key, **options):
    """A decorator with the default client, for functions and coroutine functions.

        @idem.once("order-{order_id}", scope="orders")
        def place_order(order_id, cart): ...
    """
    def decorate(function):
        if inspect.iscoroutinefunction(function):
            return default_async_client().decorate(key, **options)(function)
        return default_client().once(key, **options)(function)
    return decorate


def begin(key, **options):
    """Client.begin of the default client."""
    return default_client().begin(key, **options)
