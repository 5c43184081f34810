"""Run work once: with threads and sockets, or with asyncio."""
import asyncio
import contextlib
import contextvars
import functools
import inspect
import os
import re
import string
import threading
import time
import weakref
from typing import Any, AsyncIterator, Awaitable, Callable, Iterator, Optional, Set, TypeVar, Union, overload

from . import claim as flow
from .claim import NOTHING, Claim, Options, Stored, log
from .errors import LeaseLost, Replay, Unavailable
from .wire import Address, AsyncPool, Pool

T = TypeVar("T")
pause: Any = time.sleep
F = TypeVar("F", bound=Callable[..., Any])
Key = Union[str, Callable[..., Any]]
_current: "contextvars.ContextVar[Optional[Claim]]" = contextvars.ContextVar("idem_claim", default=None)


def current() -> Claim:
    """The claim of the work that runs here: its fence, and whether its lease was lost."""
    claim = _current.get()
    if claim is None:
        raise RuntimeError("no work of idem runs here")
    return claim


@contextlib.contextmanager
def entered(claim: Claim) -> Iterator[Claim]:
    """Make it the current one."""
    token = _current.set(claim)
    try:
        yield claim
    finally:
        _current.reset(token)


class _NoWork:
    """The type of `work` in a decorator: nothing that a caller could pass. None is what a function without a result returns."""


class Keeper:
    """One thread that renews the leases of all claims, each every third of it."""

    def __init__(self, run):
        self.run = run
        self.reset()
        reset = weakref.WeakMethod(self.reset)
        os.register_at_fork(after_in_child=lambda: (reset() or bool)())

    def reset(self):
        self.lock, self.due, self.thread, self.wakes, self.used = threading.Lock(), {}, None, 0.0, True  # type: Any, Any, Any, float, bool
        self.turn = threading.Condition(self.lock)

    def watch(self, claim: Claim) -> None:
        at = time.monotonic() + claim.options.lease / 3
        with self.lock:
            self.due[claim], self.used = at, True
            if self.thread is None or not self.thread.is_alive():
                self.wakes = at
                self.thread = threading.Thread(target=self.work, name="idem-keeper", daemon=True)
                self.thread.start()
            elif at < self.wakes:
                self.turn.notify()

    def forget(self, claim: Claim) -> None:
        with self.lock:
            self.due.pop(claim, None)

    def work(self):
        with self.lock:
            while True:
                now = time.monotonic()
                for claim in [c for c, at in self.due.items() if at <= now]:
                    if claim.ends <= now:  # whatever a renewal still waits for
                        del self.due[claim]
                        claim.lose()
                    else:
                        self.due[claim] = claim.ends
                        # A slow renewal must not hold up the others'.
                        threading.Thread(target=self.renew, args=(claim,), daemon=True).start()
                # While claims come and go it looks once a second, instead of being woken for each of them.
                self.wakes = min([now + (1.0 if self.used else 3600.0), *self.due.values()])
                self.used = False
                self.turn.wait(self.wakes - now)

    def renew(self, claim: Claim) -> None:
        good = self.run(flow.renew(claim))
        with self.lock:
            if claim not in self.due:
                return
            if good:
                self.due[claim] = time.monotonic() + claim.options.lease / 3
            else:
                del self.due[claim]
                claim.lose()
            self.turn.notify()


class _KeyFormat(string.Formatter):
    @classmethod
    def check(cls, key, parameters, function):
        """What the key names has to be a parameter: told when the function is decorated, not by its first call."""
        for _, field, spec, _ in cls().parse(key):
            if field is None:
                continue
            if re.split(r"[.\[]", field)[0] not in parameters:
                raise ValueError("the key names {%s}, but the function %s has %s" % (field, function, ", ".join(parameters) or "no parameters"))
            cls.check(spec, parameters, function)

    def get_field(self, field_name, args, kwargs):
        value, first = super().get_field(field_name, args, kwargs)
        if value is None:
            raise ValueError("the key needs %s, which is None: a missing key must not become one that everybody shares" % field_name)
        return value, first


def _name(function) -> str:
    """A functools.partial and an object with __call__ have no name."""
    return getattr(function, "__name__", None) or repr(function)


def _is(kind, function) -> bool:
    """kind: a test of inspect for functions. An object with __call__ is what that is."""
    return kind(function) or kind(getattr(type(function), "__call__", None))


class _Base:
    def __init__(self, url: Optional[str] = None, **options: Any):
        self.address = Address(url)
        self.options = Options().but(**options)

    @staticmethod
    def _namer(function, key, arguments):
        """A function that makes the key and the arguments of a call of the decorated one."""
        if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
            raise TypeError("%s is a generator: what it yields cannot be kept as a result" % _name(function))
        signature = inspect.signature(function)
        if not callable(key):
            _KeyFormat.check(key, signature.parameters, _name(function))
        bound_to = next(iter(signature.parameters), None)

        def name(args, kwargs):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            made = key(*args, **kwargs) if callable(key) else _KeyFormat().format(key, **bound.arguments)
            if made is None or made == "":
                raise ValueError("the key of %s is empty" % _name(function))
            if arguments is not NOTHING:
                return str(made), arguments(*args, **kwargs)
            # An object's own text is another one in the next process: a method's `self` is no part of what was asked.
            return str(made), {k: v for k, v in bound.arguments.items() if k != bound_to or k not in ("self", "cls")}
        return name

    @staticmethod
    def _open(options: Options, error: Unavailable) -> None:
        if not options.fail_open:
            raise error
        log.warning("running without protection (fail_open): %s", error)


class Client(_Base):
    """A client for threads. Share one; it is safe to use from many threads and after a fork.

        client = idem.Client("idem://127.0.0.1:6390", scope="shop")
        order = client.once("order-7", lambda: place_order(cart))
    """

    def __init__(self, url: Optional[str] = None, **options: Any):
        super().__init__(url, **options)
        self._pool = Pool(self.address)
        self._keeper = Keeper(self._run)

    def _run(self, steps: Any) -> Any:
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._pool.call(*step) if step[0] else pause(step[1])
                except BaseException as e:
                    step = steps.throw(e)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    @overload
    def once(self, key: str, work: Callable[[], T], *, arguments: Any = ..., **options: Any) -> T: ...

    @overload
    def once(self, key: Key, work: "_NoWork" = ..., *, arguments: Callable[..., Any] = ..., **options: Any) -> Callable[[F], F]: ...

    def once(self, key, work=NOTHING, *, arguments=NOTHING, **options):
        """Run `work` at most once for the key; every caller gets its result.

        Without `work` it is a decorator: `key` is a format of the function's parameters or a function of them. The arguments
        make the fingerprint; `arguments`, a function of the parameters too, chooses what does.

            @client.once("order-{order_id}", scope="orders")
            def place_order(order_id, cart): ...
        """
        options = self.options.but(**options)
        if work is NOTHING:
            return functools.partial(self._decorate, key, arguments, options)
        flow.check_work(work)
        return self._once(key, work, arguments, options)

    def _once(self, key, work, arguments, options):
        try:
            got = self.claim(key, arguments, options)
        except Unavailable as e:
            self._open(options, e)
            return work()
        if isinstance(got, Stored):
            return got.value(options, key)
        with self._working(got):
            got.result = flow.ran(work())
        return got.result

    def _decorate(self, key, arguments, options, function):
        if _is(inspect.iscoroutinefunction, function):
            raise TypeError("%s is a coroutine function: use AsyncClient" % _name(function))
        name = self._namer(function, key, arguments)

        @functools.wraps(function)
        def call(*args, **kwargs):
            made, given = name(args, kwargs)
            return self._once(made, lambda: function(*args, **kwargs), given, options)
        return call

    @contextlib.contextmanager
    def begin(self, key: str, *, arguments: Any = NOTHING, **options: Any) -> Iterator[Claim]:
        """Claim a key and do the work in the block; `claim.result` becomes everybody's answer.

            with client.begin("order-7", arguments=cart) as claim:
                claim.result = place_order(cart)

        An exception in the block is recorded (strict) or releases the claim (loose). Where the key is done already, or
        somebody else is at it, the block does not run: the matching error is raised, `Replay` with the stored value.
        """
        made = self.options.but(**options)
        got = self.claim(key, arguments, made)
        if isinstance(got, Stored):
            raise Replay(got.value(made, key))
        with self._working(got):
            yield got

    @contextlib.contextmanager
    def _working(self, claim: Claim) -> Iterator[None]:
        error: Optional[BaseException] = None
        token = _current.set(claim)
        try:
            yield
        except BaseException as e:
            error = e
            raise
        finally:
            _current.reset(token)
            self._keeper.forget(claim)
            self._run(flow.conclude(claim, error))

    def claim(self, key: str, arguments: Any, options: Options) -> Union[Claim, Stored]:
        """For middleware; `once` is made of it. A claim is renewed until it is finished, released or abandoned."""
        got = self._run(flow.begin(key, options, arguments))
        if isinstance(got, Claim):
            self._keeper.watch(got)
        return got

    def finish(self, claim: Claim, outcome: str, result: Optional[bytes], kind: str) -> None:
        """outcome: "SUCCEEDED" or "FAILED"; kind: "raw" or "http" (docs/results.md)."""
        self._keeper.forget(claim)
        self._run(flow.finish(claim, outcome, result, kind))

    def release(self, claim: Claim) -> None:
        """Give the key back: the request was not executed."""
        self._keeper.forget(claim)
        self._run(flow.release(claim))

    def abandon(self, claim: Claim) -> None:
        """The outcome is unknown: the claim stays until its lease is over."""
        self._keeper.forget(claim)

    def issue(self, subject: str, ttl: float = 300.0) -> str:
        """A one-time token for the subject."""
        return self._run(flow.issue(subject, ttl, self.options.deadline))

    def redeem(self, token: str, subject: str) -> None:
        """Use a token up. Raises TokenUsed or TokenUnknown."""
        self._run(flow.redeem(token, subject, self.options.deadline))

    def close(self) -> None:
        self._pool.close()


class AsyncClient(_Base):
    """The same for asyncio. If the lease is lost, the work is cancelled, and the caller gets LeaseLost.

        client = idem.AsyncClient(scope="shop")
        order = await client.once("order-7", lambda: place_order(cart))
    """

    def __init__(self, url: Optional[str] = None, **options: Any):
        super().__init__(url, **options)
        self._pool = AsyncPool(self.address)
        self._tasks: Set[Any] = set()

    async def _run(self, steps: Any) -> Any:
        try:
            step = next(steps)
            while True:
                try:
                    answer = await (self._pool.call(*step) if step[0] else asyncio.sleep(step[1]))
                except BaseException as e:
                    step = steps.throw(e)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    @overload
    def once(self, key: str, work: Callable[[], Awaitable[T]], *, arguments: Any = ..., **options: Any) -> Awaitable[T]: ...

    @overload
    def once(self, key: Key, work: "_NoWork" = ..., *, arguments: Callable[..., Any] = ..., **options: Any) -> Callable[[F], F]: ...

    def once(self, key, work=NOTHING, *, arguments=NOTHING, **options):
        """As Client.once; `work` is a coroutine function, and so is what is decorated."""
        options = self.options.but(**options)
        if work is NOTHING:
            return functools.partial(self._decorate, key, arguments, options)
        flow.check_work(work)
        return self._once(key, work, arguments, options)

    async def _once(self, key, work, arguments, options):
        try:
            got = await self.claim(key, arguments, options)
        except Unavailable as e:
            self._open(options, e)
            return await self._ran(work())
        if isinstance(got, Stored):
            return got.value(options, key)
        async with self._working(got):
            got.result = await self._ran(work())
        return got.result

    @staticmethod
    async def _ran(value: Any) -> Any:
        return flow.ran(await value if inspect.isawaitable(value) else value)

    def _background(self, steps: Any) -> "asyncio.Task[Any]":
        task = asyncio.ensure_future(self._run(steps))
        self._tasks.add(task)  # the loop would forget it
        task.add_done_callback(self._tasks.discard)
        return task

    async def claim(self, key: str, arguments: Any, options: Options) -> Union[Claim, Stored]:
        """For middleware; `once` is made of it. A caller who is cancelled leaves no claim behind."""
        def give_back(asked):
            if not asked.cancelled() and not asked.exception() and isinstance(asked.result(), Claim):
                self._background(flow.release(asked.result()))

        asked = self._background(flow.begin(key, options, arguments))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(give_back)
            raise

    def _decorate(self, key, arguments, options, function):
        if not _is(inspect.iscoroutinefunction, function):
            raise TypeError("%s is not a coroutine function: use Client" % _name(function))
        name = self._namer(function, key, arguments)

        @functools.wraps(function)
        async def call(*args, **kwargs):
            made, given = name(args, kwargs)
            return await self._once(made, lambda: function(*args, **kwargs), given, options)
        return call

    @contextlib.asynccontextmanager
    async def begin(self, key: str, *, arguments: Any = NOTHING, **options: Any) -> AsyncIterator[Claim]:
        """As Client.begin: `async with`."""
        made = self.options.but(**options)
        got = await self.claim(key, arguments, made)
        if isinstance(got, Stored):
            raise Replay(got.value(made, key))
        async with self._working(got):
            yield got

    @contextlib.asynccontextmanager
    async def _working(self, claim: Claim) -> AsyncIterator[None]:
        task: Any = asyncio.current_task()
        keeper = self.keep(claim, task.cancel)
        error: Optional[BaseException] = None
        try:
            with entered(claim):
                yield
        except BaseException as e:
            error = e
        keeper.cancel()
        if claim.over:
            if hasattr(task, "uncancel"):
                task.uncancel()  # it was the keeper who cancelled
            if isinstance(error, asyncio.CancelledError):
                error = LeaseLost("the lease of %s was lost" % claim)
        recorded = self._background(flow.conclude(claim, error))
        try:
            await asyncio.shield(recorded)  # also if the caller is cancelled now
        except asyncio.CancelledError:
            if not claim.over:
                raise
            await recorded
        if error is not None:
            raise error

    def keep(self, claim: Claim, lost: Callable[[], Any] = bool) -> "asyncio.Task[None]":
        """Renew until this is cancelled, and tell when the lease is lost. For middleware."""
        async def renewing():
            good = True
            while good:
                await asyncio.sleep(claim.options.lease / 3)
                try:  # the lease ends by its own clock, whatever a renewal still waits for
                    good = await asyncio.wait_for(self._run(flow.renew(claim)), claim.ends - time.monotonic())
                except asyncio.TimeoutError:
                    good = False
            claim.lose()
            lost()
        return asyncio.ensure_future(renewing())

    async def issue(self, subject: str, ttl: float = 300.0) -> str:
        return await self._run(flow.issue(subject, ttl, self.options.deadline))

    async def redeem(self, token: str, subject: str) -> None:
        await self._run(flow.redeem(token, subject, self.options.deadline))

    def close(self) -> None:
        self._pool.close()


@functools.lru_cache(maxsize=None)
def default_client() -> Client:
    """The client of IDEM_SERVER and IDEM_AUTH."""
    return Client()


@functools.lru_cache(maxsize=None)
def default_async_client() -> AsyncClient:
    return AsyncClient()


def once(key: Key, *, arguments: Any = NOTHING, **options: Any) -> Callable[[F], F]:
    """A decorator with the default client, for functions and coroutine functions.

        @idem.once("order-{order_id}", scope="orders")
        def place_order(order_id, cart): ...
    """
    def decorate(function):
        client = default_async_client() if inspect.iscoroutinefunction(function) else default_client()
        return client.once(key, arguments=arguments, **options)(function)
    return decorate


def begin(key: str, **options: Any) -> Any:
    """Client.begin of the default client; AsyncClient.begin where an event loop runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return default_client().begin(key, **options)
    return default_async_client().begin(key, **options)
