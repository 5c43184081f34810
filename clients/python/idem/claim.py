"""What a call says to the server and what the answers mean, without any I/O.

The functions that talk are generators: they yield a command and how long its reply may take, or None and how long to sleep. A client runs
them with sockets and threads, or with asyncio. So there is one place where the contract of clients/README.md is kept.
"""
import contextlib
import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import json
import logging
import math
import numbers
import os
import random
import shlex
import struct
import threading
import time
import types
import uuid
from typing import Any, Callable, List, Optional

from .errors import (Done, Error, Failed, InProgress, LeaseLost, Mismatch, OutcomeUnknown, Refused, ResultNotKept, TokenUnknown,
                     TokenUsed, Unavailable, is_not_executed)
from .wire import REPLY_SECONDS, STRANGE, Broken

log = logging.getLogger("idem")
NOTHING: Any = object()  # no arguments, or no work, were given: None is an argument, and by mistake the work
GIVE_BACK_SECONDS = 3.0
LAZY = (types.GeneratorType, types.AsyncGeneratorType, types.CoroutineType)
TRANSIENT = {"UNAVAILABLE", "LOST", "OVERLOADED", "CLOSED", "MEMORY", "TIMEOUT", "BUSY"}
HELD = "a transaction holds the record in the database"


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def write_json(value: Any) -> bytes:
    return _json.encode(value).encode()


@dataclasses.dataclass(frozen=True)
class Options:
    scope: str = "default"
    mode: str = "strict"
    ttl: float = 86400.0
    lease: float = 30.0
    wait: float = 0.0
    deadline: float = 30.0
    token: bool = False
    fail_open: bool = False
    dump: Callable[[Any], bytes] = write_json
    load: Callable[[bytes], Any] = json.loads

    def __post_init__(self) -> None:
        """What the server would take for another time, or for everybody's scope, is refused before anything is sent."""
        for name, least in (("ttl", 0.001), ("lease", 0.001), ("wait", 0.0), ("deadline", 0.0)):
            check_seconds(name, getattr(self, name), least)
        if isinstance(self.scope, bool) or not isinstance(self.scope, (str, bytes, int, uuid.UUID)):
            raise TypeError("scope is text, not %r" % (self.scope,))
        if self.mode not in ("strict", "loose"):
            raise ValueError('mode is "strict" or "loose", not %r' % self.mode)
        if self.fail_open and self.mode == "strict":
            raise ValueError("fail_open needs mode=\"loose\": strict work never runs without its record")

    def but(self, **changes: Any) -> "Options":
        if not changes:
            return self
        return dataclasses.replace(self, **{k: v for k, v in changes.items() if v is not None})


def check_seconds(name: str, value: Any, least: float = 0.001) -> None:
    """A time in seconds. Less than a millisecond is a mistake: the key would be forgotten at once, and a repeat would run the work again."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not value >= least or math.isinf(value) and name != "deadline":
        what = "above 0 (at least 0.001)" if least else "of at least 0"
        raise (ValueError if is_number else TypeError)("%s is a number of seconds %s, not %r" % (name, what, value))


def check_work(work: Any) -> None:
    """once(key, place()) has run the work already, without protection."""
    if not callable(work):
        raise TypeError("work must be a function, not %s: write once(key, lambda: place()), not once(key, place())" % type(work).__name__)


class Claim:
    """Work that is yours to do. `fence` grows with every execution of a key: hand it to what the work changes."""

    def __init__(self, key: str, options: Options, fence: int, ends: float = math.inf):
        self.scope, self.key, self.fence, self.options = options.scope, key, fence, options
        self.ends = ends  # of the lease, on time.monotonic()
        self.result: Any = None  # what `begin` records when its block is left
        self.over = False  # the lease is lost
        self.said: Optional[Error] = None

    def __str__(self) -> str:
        return "%s/%s" % (self.scope, self.key)

    @functools.cached_property
    def lost(self) -> threading.Event:
        """Set when the lease is lost."""
        return self.__dict__.setdefault("_lost", threading.Event())

    def lose(self) -> None:
        self.over = True
        self.lost.set()

    def check(self) -> None:
        """Raise LeaseLost if the claim has ended meanwhile."""
        if self.over or time.monotonic() >= self.ends:
            raise LeaseLost("the lease of %s is over" % self)

    def say(self, error: Error) -> None:
        """In a request behind the middleware: NotExecuted or OutcomeUnknown, where the framework makes a 500 of what is raised."""
        self.said = error


class Stored:
    """What was done before."""

    def __init__(self, state: str, kind: str, result: Optional[bytes]):
        self.state, self.kind, self.result = state, kind, result

    def value(self, options: Options, key: str) -> Any:
        where = "%s/%s" % (options.scope, key)
        if self.state == "failed":
            raise self.failure()
        if self.result is None:
            raise ResultNotKept("%s was done; its result was not kept: it was too large, or could not be written" % where)
        try:
            return options.load(self.result)
        except Exception as e:
            raise Done("%s was done; its result cannot be read: %s" % (where, e)) from e

    def failure(self) -> Failed:
        try:
            said = json.loads(self.result or b"")
            return Failed(said["error"], said["message"])
        except (TypeError, ValueError, KeyError):
            return Failed(None, (self.result or b"").decode(errors="replace"))


def canonical(value: Any) -> str:
    """JSON that two languages write alike: see clients/README.md."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        members = sorted(((str(k), v) for k, v in value.items()), key=lambda m: m[0].encode("utf-8", "surrogatepass"))
        return "{" + ",".join(canonical(k) + ":" + canonical(v) for k, v in members) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, enum.Enum):
        return canonical(value.value)
    if isinstance(value, (datetime.date, datetime.time, decimal.Decimal, uuid.UUID, os.PathLike)):
        value = str(value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError as e:  # the text of another object is not the same in the next process
        raise TypeError("%s: say with arguments=... what makes the request the same one" % e) from None


def fingerprint(arguments: Any) -> str:
    """64 hex digits over what was asked."""
    return hashlib.sha256(canonical(arguments).encode("utf-8", "surrogatepass")).hexdigest()


def ask(args, deadline, wait=0.0):
    """Send until there is an answer. The same command again is safe: it carries a nonce or a fence. "busy" is an answer to BEGIN alone; to
    the others it says that a transaction holds the record in the database for a moment."""
    end = time.monotonic() + deadline + wait
    sent, pause, cause = False, 0.02, None
    while True:
        try:
            reply = yield args, min(max(0.001, end - time.monotonic()), REPLY_SECONDS + wait)
            if reply[0] != b"busy" or args[0] == "BEGIN":
                return reply
            raise Refused("BUSY", HELD)
        except Broken as e:
            sent, cause = sent or e.sent, e
        except Refused as e:
            if e.word not in TRANSIENT:
                raise
            sent, cause = sent or e.word == "LOST", e
        delay = pause * random.uniform(0.5, 1.5)
        if time.monotonic() + delay > end:
            if sent:
                raise OutcomeUnknown("no reply in time, and it may have been stored: %s" % cause) from cause
            if isinstance(cause, Refused):
                raise Unavailable("the server refused it until the deadline: %s" % cause) from cause
            if STRANGE in str(cause):  # something was reached
                raise Unavailable("%s give the address of its socket or its RESP port" % cause) from cause
            raise Unavailable("the server cannot be reached: %s; is idem serve running at this address?" % cause) from cause
        yield None, delay
        pause = min(pause * 2, 1.0)


def ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))


_nonces: List[int] = []
os.register_at_fork(after_in_child=_nonces.clear)  # two processes must not have the same ones


def nonce() -> str:
    """Random numbers are made many at once: for each call of the system's generator the other threads would run first. The time is added
    because two machines may be restored from one snapshot, with the same numbers."""
    while True:
        try:
            return "%016x" % (_nonces.pop() ^ time.time_ns())
        except IndexError:
            _nonces.extend(struct.unpack("256Q", os.urandom(8 * 256)))


def begin(key, options, arguments):
    """A Claim, or what is Stored; everything else is raised."""
    if not isinstance(key, (str, bytes, int)) or isinstance(key, bool):  # a missing one must not become one that everybody shares
        raise TypeError("a key is text, not %r" % (key,))
    args = ["BEGIN", options.scope, key, options.mode.upper(), "LEASE", ms(options.lease), "TTL", ms(options.ttl), "NONCE", nonce()]
    args += ["FP", fingerprint(arguments)] if arguments is not NOTHING else []
    args += ["TOKEN"] if options.token else []
    asked = time.monotonic()
    try:
        verdict, *values = yield from ask(args + (["WAIT", ms(options.wait)] if options.wait else []), options.deadline, options.wait)
    except (Error, GeneratorExit):
        raise
    except BaseException:  # cancelled or interrupted: nobody will do the work
        with contextlib.suppress(Exception):
            verdict, *values = yield from ask(args, GIVE_BACK_SECONDS)
            if verdict == b"started":
                yield from release(Claim(key, options.but(deadline=GIVE_BACK_SECONDS), values[0]))
        raise
    if verdict == b"started":
        claim = Claim(key, options, values[0], asked + options.lease)
        if time.monotonic() - asked > options.lease / 3:  # it has waited: how much of the lease is left is not known
            claim.ends = time.monotonic() + options.deadline
            if not (yield from renew(claim)):
                return (yield from begin(key, options, arguments))
        return claim
    if verdict == b"replay":
        return Stored(values[0].decode(), values[1].decode(), values[3])
    if verdict == b"duplicate":
        raise TokenUsed("the token was used before")
    if verdict == b"unknown":
        raise TokenUnknown("there is no such token for %s" % options.scope)
    raise refusal(verdict.decode(), options.scope, key, values[0] / 1000 if values and verdict == b"busy" else 0.1)


def refusal(verdict: str, scope: Any, key: Any, retry_after: float) -> Error:
    scope, key = (x.decode(errors="replace") if isinstance(x, bytes) else str(x) for x in (scope, key))
    where = "%s/%s" % (scope, key)
    if verdict == "busy":
        return InProgress("%s is being executed" % where, retry_after)
    if verdict == "mismatch":
        return Mismatch("%s was used before with other arguments; a retry must pass the first arguments; other work needs another key" % where)
    if verdict == "doubt":
        return OutcomeUnknown("nobody knows whether %s was executed: find out, then settle it (idem doubts lists it; idem settle %s %s --as …)"
                              % (where, shlex.quote(scope), shlex.quote(key)))
    return OutcomeUnknown("unexpected verdict %s for %s" % (verdict, where))


def finish(claim, outcome, result, kind="raw"):
    """Record the outcome. A result of None is recorded as one that was not kept."""
    args = ["FINISH", claim.scope, claim.key, claim.fence, outcome]
    args += [b"" if result is None else result, "KIND", kind] + (["NOREPLAY"] if result is None else [])
    try:
        verdict, *_ = yield from ask(args, claim.options.deadline)
    except (Unavailable, Refused) as e:
        if isinstance(e, Refused) and result is not None:
            yield from finish(claim, outcome, None, kind)
            return
        raise OutcomeUnknown("the work was done, and its result could not be recorded: %s" % e) from e
    if verdict != b"ok":
        raise stale(claim, verdict.decode())


def stale(claim, verdict: str) -> LeaseLost:
    return LeaseLost("somebody else decided about %s meanwhile (%s)" % (claim, verdict))


def release(claim):
    """Give the key back: the request was not executed."""
    yield from ask(["RELEASE", claim.scope, claim.key, claim.fence], claim.options.deadline)


def renew(claim):
    """True: the lease goes on. False: it is lost for good."""
    asked = time.monotonic()
    try:
        verdict, *_ = yield from ask(["RENEW", claim.scope, claim.key, claim.fence, ms(claim.options.lease)],
                                     max(0.0, claim.ends - asked))
    except Error as e:  # no answer before the lease was over
        log.warning("the lease of %s could not be renewed: %s", claim, e)
        return False
    if verdict == b"ok":
        claim.ends = asked + claim.options.lease
    return verdict == b"ok"


def ran(value: Any) -> Any:
    """What the work returned, if that is a result."""
    if isinstance(value, LAZY):
        raise TypeError("the work returned a %s, which has not run: its outcome cannot be recorded" % type(value).__name__)
    return value


def told(error: BaseException) -> bytes:
    try:
        text = str(error).encode(errors="backslashreplace").decode()
    except Exception as e:
        text = "its text cannot be read: %s" % type(e).__name__
    return write_json({"error": type(error).__name__, "message": text})


def is_unknown(error: BaseException) -> bool:
    """The work does not know, or the program is being stopped in the middle of it."""
    return isinstance(error, OutcomeUnknown) or not isinstance(error, Exception)


def conclude(claim, error):
    """Record what the work did: claim.result, or the error it raised."""
    if error is None:
        try:
            result = claim.options.dump(claim.result)
        except Exception as e:
            yield from finish(claim, "SUCCEEDED", None)
            raise Done("the work of %s was done; its result cannot be written: %s" % (claim, e)) from e
        yield from finish(claim, "SUCCEEDED", result)
    elif not is_unknown(error):
        try:
            if claim.options.mode == "loose" or is_not_executed(error):
                yield from release(claim)
            else:
                yield from finish(claim, "FAILED", told(error))
        except Error as e:
            log.error("the outcome of %s could not be recorded: %s", claim, e)


def issue(subject, ttl, deadline):
    check_seconds("ttl", ttl)
    return (yield from ask(["ISSUE", subject, "TTL", ms(ttl)], deadline))[1].decode()


def redeem(token, subject, deadline):
    verdict, *_ = yield from ask(["REDEEM", token, subject, "NONCE", nonce()], deadline)
    if verdict == b"duplicate":
        raise TokenUsed("the token was used before")
    if verdict != b"redeemed":
        raise TokenUnknown("there is no such token for %s" % subject)
