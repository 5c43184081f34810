"""What a call says to the server and what the answers mean, without any I/O.

The functions that talk are generators: they yield Send and Sleep, and a client runs them with sockets and threads, or with
asyncio. So there is one place where the contract of clients/README.md is kept.
"""
import hashlib
import json
import os
import random
import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional

from .errors import (Failed, InProgress, LeaseLost, Mismatch, NotExecuted, OutcomeUnknown, Refused, ResultNotKept, TokenUnknown,
                     TokenUsed, Unavailable)
from .wire import Broken

NOTHING = object()  # no arguments were given: None is an argument
TRANSIENT = {"UNAVAILABLE", "LOST", "OVERLOADED", "CLOSED", "MEMORY", "TIMEOUT"}


@dataclass(frozen=True)
class Options:
    scope: str = "default"
    mode: str = "strict"
    ttl: float = 86400.0
    lease: float = 30.0
    wait: float = 0.0
    deadline: float = 30.0
    token: bool = False
    fail_open: bool = False
    dump: Callable[[Any], bytes] = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    load: Callable[[bytes], Any] = json.loads

    def but(self, **changes):
        made = replace(self, **{k: v for k, v in changes.items() if v is not None})
        if made.mode not in ("strict", "loose"):
            raise ValueError('mode is "strict" or "loose", not %r' % made.mode)
        if made.fail_open and made.mode == "strict":
            raise ValueError("fail_open needs mode=\"loose\": strict work never runs without its record")
        return made


@dataclass
class Send:
    args: list
    wait: float = 0.0


@dataclass
class Sleep:
    seconds: float


@dataclass
class Claim:
    """Work that is yours to do. `fence` grows with every execution of a key: hand it to what the work changes."""

    scope: str
    key: str
    fence: int
    options: Options
    ends: float = 0.0  # of the lease, on time.monotonic()
    lost: Any = None  # an Event that is set when the lease is lost
    marks: dict = field(default_factory=dict)

    def check(self):
        """Raise LeaseLost if the claim has ended meanwhile."""
        if self.lost is not None and self.lost.is_set():
            raise LeaseLost("the lease of %s/%s is over" % (self.scope, self.key))


class Replayed:
    def __init__(self, value):
        self.value = value


def canonical(value) -> str:
    """JSON that two languages write alike: see clients/README.md."""
    if isinstance(value, dict):
        members = sorted(((str(k), v) for k, v in value.items()), key=lambda m: m[0].encode("utf-8", "surrogatepass"))
        return "{" + ",".join(canonical(k) + ":" + canonical(v) for k, v in members) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(canonical, value)) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)


def fingerprint(arguments) -> str:
    """64 hex digits over what was asked."""
    return hashlib.sha256(canonical(arguments).encode("utf-8", "surrogatepass")).hexdigest()


def ask(args, deadline, wait=0.0):
    """Send until there is an answer. The same command again is safe: it carries a nonce or a fence."""
    end = time.monotonic() + deadline + wait
    sent, pause, cause = False, 0.02, None
    while True:
        try:
            return (yield Send(args, wait))
        except Broken as e:
            sent, cause = sent or e.sent, e
        except Refused as e:
            if e.word not in TRANSIENT:
                raise
            sent, cause = sent or e.word == "LOST", e
        delay = pause * random.uniform(0.5, 1.5)
        if time.monotonic() + delay > end:
            if sent:
                raise OutcomeUnknown("no answer in time, and it may have been stored: %s" % cause) from cause
            raise Unavailable("the server cannot be reached: %s" % cause) from cause
        yield Sleep(delay)
        pause = min(pause * 2, 1.0)


def ms(seconds):
    return max(1, int(seconds * 1000))


def begin(key, options, arguments):
    """A Claim, or what was Replayed; everything else is raised."""
    args = ["BEGIN", options.scope, key, options.mode.upper(), "LEASE", ms(options.lease), "TTL", ms(options.ttl), "NONCE",
            os.urandom(8).hex()]
    args += ["FP", fingerprint(arguments)] if arguments is not NOTHING else []
    args += ["WAIT", ms(options.wait)] if options.wait else []
    args += ["TOKEN"] if options.token else []
    started = time.monotonic()
    verdict, *values = yield from ask(args, options.deadline, options.wait)
    where = "%s/%s" % (options.scope, key)
    if verdict == b"started":
        return Claim(options.scope, key, values[0], options, started + options.lease)
    if verdict == b"replay":
        return replayed(values, options, where)
    if verdict == b"busy":
        raise InProgress("%s is being executed" % where, values[0] / 1000)
    if verdict == b"doubt":
        raise OutcomeUnknown("nobody knows whether %s was executed: settle it" % where)
    if verdict == b"mismatch":
        raise Mismatch("%s was used before with other arguments" % where)
    if verdict == b"duplicate":
        raise TokenUsed("the token was used before")
    if verdict == b"unknown":
        raise TokenUnknown("there is no such token for %s" % options.scope)
    raise OutcomeUnknown("unexpected verdict %r for %s" % (verdict, where))


def replayed(values, options, where):
    state, _, _, result = values
    if state == b"failed":
        raise failure(result)
    if result is None:
        raise ResultNotKept("%s was done; its result was too large to keep" % where)
    return Replayed(options.load(result))


def failure(result):
    try:
        told = json.loads(result)
        return Failed(told["error"], told["message"])
    except (TypeError, ValueError, KeyError):
        return Failed(None, (result or b"").decode(errors="replace"))


def finish(claim, outcome, result):
    """Record the outcome; None: release the claim. A result of None is recorded as too large to keep."""
    if outcome is None:
        args = ["RELEASE", claim.scope, claim.key, claim.fence]
    else:
        args = ["FINISH", claim.scope, claim.key, claim.fence, outcome]
        args += [b"", "NOREPLAY"] if result is None else [result]
    try:
        verdict, *_ = yield from ask(args, claim.options.deadline)
    except Unavailable as e:
        raise OutcomeUnknown("the work was done, and its result could not be recorded: %s" % e) from e
    except Refused:
        if outcome is None or not result:
            raise
        yield from finish(claim, outcome, None)
        return
    if verdict == b"ok" or outcome is None:
        return
    raise LeaseLost("somebody else decided about %s/%s meanwhile (%s)" % (claim.scope, claim.key, verdict.decode()))


def renew(claim):
    """True: the lease goes on. False: it is lost for good."""
    asked = time.monotonic()
    verdict, *_ = yield from ask(["RENEW", claim.scope, claim.key, claim.fence, ms(claim.options.lease)],
                                 max(0.0, claim.ends - asked))
    if verdict == b"ok":
        claim.ends = asked + claim.options.lease
    return verdict == b"ok"


def told(error: BaseException) -> bytes:
    return json.dumps({"error": type(error).__name__, "message": str(error)}, ensure_ascii=False).encode()


def outcome_of(error: Optional[BaseException], value, claim):
    """What to record: (outcome, result), or None where the claim has to stay."""
    if error is None:
        return "SUCCEEDED", claim.options.dump(value)
    if isinstance(error, NotExecuted):
        return None, b""
    if isinstance(error, OutcomeUnknown) or not isinstance(error, Exception):
        return NOTHING, b""  # unknown, or the program is being stopped
    if claim.options.mode == "loose":
        return None, b""
    return "FAILED", told(error)
