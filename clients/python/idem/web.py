"""What the middleware of idem.wsgi and idem.asgi have in common: the gateway's keys, statuses, problems and stored answers."""
import contextlib
import hashlib
import json
import math
import os
from typing import Any, Callable, Collection, List, NamedTuple, Optional, Tuple, Union

from .claim import Claim, Options, Stored, log
from .errors import Error, InProgress, Mismatch, NotExecuted, OutcomeUnknown, Refused, is_not_executed

Headers = List[Tuple[str, str]]
LOOK_MAX = 65536
CONTROL = set(map(chr, range(32))) - set("\t\r\n")
# What problem types begin with. The default is a name without a page.
PROBLEMS = os.environ.get("IDEM_PROBLEM_BASE") or "urn:idem:problems/"
NOT_STORED = {"content-length", "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
              "proxy-authenticate", "proxy-authorization", "date", "set-cookie", "www-authenticate"}
KNOWN = {  # name: status, class, retryable, title, detail
    "key-missing": (400, "not executed", False, "An idempotency key is needed",
                    "Send a key (by default the header Idempotency-Key) that is unique for this request, for instance a UUID, and the same key again with every retry of it."),
    "key-malformed": (400, "not executed", False, "The idempotency key is malformed", "Send the key as a quoted string of printable ASCII, at most 255 bytes, for instance \"order-7\"."),
    "in-progress": (409, "in progress", True, "The first request with this key is still running",
                    "Send the same request again after a while: it will not run twice."),
    "mismatch": (422, "not executed", False, "This key was used for a different request",
                 "This key was used for a request with another method, path, query or body. If this is a retry, send exactly the "
                 "first request again: with a new key it could run twice. Use a new key only for a new request."),
    "outcome-unknown": (409, "outcome unknown", False, "It is not known whether this request was done",
                        "The first request with this key was started and its outcome was lost. It will not be run again."),
    "settled": (409, "failed for good", False, "This request was settled as failed", "It was declared failed and will not be run."),
    "failed": (409, "failed for good", False, "This request failed before and will not be run again",
               "The service answered the first request with an error. It will not be run again."),
    "not-replayable": (410, "done", False, "It was done, but its response was not kept",
                       "The request was done before. Its response was too large to keep."),
    "not-executed": (503, "not executed", True, "This attempt was not executed",
                     "idem could not record this attempt, so it was not executed. An earlier one with the same key may have been: keep the key."),
    "body-too-large": (413, "not executed", False, "The request's body is too large",
                       "The body is over the limit for requests with an idempotency key: send a smaller one."),
    "scope-missing": (400, "not executed", False, "The request does not say who sends it",
                      "A key belongs to the caller who uses it. What names the caller here is missing or empty."),
    "scope-refused": (403, "not executed", False, "The caller's name cannot be used",
                      "The value that names the caller is too long, or holds bytes that it must not."),
}


class Answer(NamedTuple):
    status: int
    headers: Headers
    body: bytes

    def sent(self) -> Headers:
        """The headers with the length of the body."""
        length = [] if self.status in (204, 304) else [("Content-Length", str(len(self.body)))]
        return [(k, v) for k, v in self.headers if k.lower() not in ("content-length", "transfer-encoding")] + length

    def stored(self) -> bytes:
        """As docs/results.md says: without headers of one connection, and those that only the first caller may see."""
        lines = ["%s: %s" % (k, v) for k, v in self.headers if k.lower() not in NOT_STORED and not set("\r\n\0") & set(v)]
        return "\n".join([str(self.status), *lines, "", ""]).encode("latin-1", "replace") + self.body


def replayed(data: bytes) -> Answer:
    head, body = data.split(b"\n\n", 1) if b"\n\n" in data else (data.rstrip(b"\n"), b"")
    status, *lines = head.decode("latin-1").split("\n")
    headers = [(k, v.lstrip(" ")) for k, _, v in (line.partition(":") for line in lines)]
    return Answer(int(status), headers + [("Idempotent-Replayed", "true")], body)


def settled(result: bytes) -> Answer:
    """A success that was recorded without an HTTP answer: an operator settled it, or a service finished it itself."""
    kind = "application/octet-stream"
    if len(result) <= LOOK_MAX:
        with contextlib.suppress(ValueError, RecursionError):
            text = result.decode()
            kind = "text/plain; charset=utf-8" if not CONTROL & set(text) else kind
            if result[:1] in (b"{", b"["):
                json.loads(text)
                kind = "application/json"
    headers = [("Content-Type", kind)] if result else []
    return Answer(200 if result else 204, headers + [("Idempotent-Replayed", "true")], result)


def problem(name: str, status: int = 0, detail: str = "", retry_after: int = 0) -> Answer:
    usual, kind, retryable, title, text = KNOWN[name]
    told = {"type": PROBLEMS + name, "title": title, "status": status or usual, "detail": detail or text, "retryable": retryable,
            "class": kind, "documentation": PROBLEMS + name}
    headers = [("Content-Type", "application/problem+json"), ("Link", '<%s>; rel="describedby"' % told["type"]),
               ("Cache-Control", "no-store")]
    return Answer(status or usual, headers + ([("Retry-After", str(retry_after))] if retry_after else []), json.dumps(told).encode() + b"\n")


def parse_key(text: str) -> str:
    """The key; or ValueError with a sentence for the client. "abc" as the IETF draft writes it, or bare; both name the same key."""
    text = text.strip(" \t")
    key = quoted(text) if text.startswith('"') else text
    if not key:
        raise ValueError("The key is empty: send a value that is unique for this request, for instance a UUID.")
    if len(key) > 255:
        raise ValueError("The key is longer than 255 bytes: send a shorter one, for instance a UUID.")
    if key != key.strip(" "):
        raise ValueError("The key begins or ends with a space: remove the space.")
    if not text.startswith('"') and any(not "!" <= c <= "~" or c in '",' for c in key):
        raise ValueError("The key has a character that needs quotes, or that is not ASCII: send printable ASCII, in double quotes if it has a space, comma or quote.")
    return key


def quoted(text: str) -> str:
    key, i = "", 1
    while i < len(text) and text[i] != '"':
        if not " " <= text[i] <= "~":
            raise ValueError("The key has a character that is not printable ASCII: send another key, for instance a UUID.")
        if text[i] == "\\":
            i += 1
            if text[i:i + 1] not in ('"', "\\"):
                raise ValueError('The key has an escape that is neither \\" nor \\\\.')
        key += text[i]
        i += 1
    if i >= len(text):
        raise ValueError("The key's closing quote is missing: add it, or send the key without quotes.")
    if i + 1 != len(text):
        raise ValueError("Something follows the key's closing quote: remove it.")
    return key


class Guard:
    """The decisions of a middleware. It does no I/O."""

    def __init__(self, options: Options, scope: Optional[Callable[[Any], Optional[str]]], required: bool, methods: Collection[str],
                 max_body: int):
        for method in methods:
            if method != method.upper():  # a request would never match it, and pass unguarded
                raise ValueError("methods are written in capitals: %r, not %r" % (method.upper(), method))
        self.options, self.scope, self.required, self.methods, self.max_body = options, scope, required, methods, max_body

    def admit(self, method: str, keys: List[str], request: Any, authorization: Optional[bytes]) -> Union[None, Answer, Tuple[str, Options]]:
        """None: it passes unguarded. Otherwise an answer, or the key and the options to claim it with."""
        if method not in self.methods or not keys and not self.required:
            return None
        if not keys:
            return problem("key-missing")
        try:
            if len(keys) > 1:
                raise ValueError("The key was sent twice.")
            key = parse_key(keys[0])
        except ValueError as e:
            return problem("key-malformed", detail=str(e))
        if self.scope is not None:
            who = self.scope(request)
        elif authorization is not None:
            who = "caller-" + hashlib.sha256(authorization).hexdigest()[:40]
        else:
            who = "anonymous"
        if who:
            return key, self.options.but(scope=who)
        return problem("scope-missing") if self.required else None

    @staticmethod
    def asked(method: str, target: str, body: Optional[bytes]) -> List[str]:
        """What the fingerprint is made of. None: a multipart body, of which a browser sends another one at every try."""
        return [method, target, "" if body is None else hashlib.sha256(body).hexdigest()]

    @staticmethod
    def refused(e: Error) -> Answer:
        """The answer to what BEGIN raised."""
        if isinstance(e, Mismatch):
            return problem("mismatch")
        if isinstance(e, InProgress):
            return problem("in-progress", retry_after=max(1, math.ceil(e.retry_after)))
        if isinstance(e, NotExecuted):
            log.warning("a request was not executed: %s", e)
            if isinstance(e, Refused) and e.word == "ERR":
                return problem("scope-refused")  # the key was checked: what is left is the scope
            return problem("not-executed", retry_after=1)
        return problem("outcome-unknown")

    @staticmethod
    def replay(found: Stored) -> Answer:
        if found.result is not None and found.kind == "http":
            return replayed(found.result)
        if found.state == "failed":
            return problem("failed" if found.kind == "http" else "settled")
        return problem("not-replayable") if found.result is None else settled(found.result)

    @staticmethod
    def failed(error: Exception) -> Answer:
        log.exception("the service failed; that is recorded as its answer", exc_info=error)
        return Answer(500, [("Content-Type", "text/plain; charset=utf-8")], b"status 500\n")

    @staticmethod
    def undone(error: object) -> Tuple[Optional[str], Answer]:
        """The service says that it has certainly not happened, or that it does not know."""
        if isinstance(error, NotExecuted):
            return "release", problem("not-executed", retry_after=1)
        return None, problem("outcome-unknown", 504, "The service does not know whether the request was done.")

    def outcome(self, claim: Claim, answer: Union[Answer, Exception], cut: bool) -> Tuple[Optional[str], Answer]:
        """What to record ("SUCCEEDED", "FAILED", "release" or None: the claim stays), and what to send. `cut`: the body ended early."""
        said = claim.said or answer
        if isinstance(said, OutcomeUnknown) or is_not_executed(said):
            return self.undone(said)
        done = answer if isinstance(answer, Answer) else self.failed(answer)
        # What a service says about half an upload is no answer to the whole one. A 5xx may come after an effect.
        if done.status in (425, 429) or self.options.mode == "loose" and done.status >= 400 or cut and 400 <= done.status < 500:
            return "release", done
        return "FAILED" if done.status >= 400 else "SUCCEEDED", done

    @staticmethod
    def unrecorded(claim: Claim, error: Error) -> Answer:
        log.error("the answer to %s could not be recorded: %s", claim, error)
        return problem("outcome-unknown", 504,
                       "The request was executed and its answer could not be recorded. Do not repeat it with another key.")
