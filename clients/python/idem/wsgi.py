"""Idempotency-Key for a WSGI application: Flask, Django and others."""
import http
import io
import math
from typing import Any, Callable, Collection, Dict, Iterable, List, Optional, Union
from urllib.parse import quote

from .client import Client, entered
from .claim import Claim
from .errors import Error
from .web import Answer, Guard, problem

Environ = Dict[str, Any]


class Upload(io.RawIOBase):
    """The body of an upload, which only the service reads. `cut`: it ended before its announced length."""

    def __init__(self, stream: Any, length: float):
        self.stream, self.left, self.cut = stream, length, False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        wanted = int(min(len(buffer), self.left))
        self.cut = True  # until it is read
        data = self.stream.read(wanted) if wanted else b""
        if not data and wanted and self.left < math.inf:
            raise OSError("the body ended early")
        self.cut = False
        buffer[:len(data)] = data
        self.left -= len(data)
        return len(data)


class Middleware:
    """Guards the requests of an application with the statuses and problems of the gateway (docs/gateway.md).

        app.wsgi_app = idem.wsgi.Middleware(app.wsgi_app, client)

    scope: a function of the environ that says who asks; without one it is a digest of the Authorization header. A request for which
    it gives nothing is not guarded. The answer of a guarded request is held until it is recorded. environ["idem.claim"] is the claim,
    and idem.current() too.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]], client: Client, *, scope: Optional[Callable[[Environ], Optional[str]]] = None,
                 required: bool = False, methods: Collection[str] = ("POST", "PATCH"), max_body: int = 1 << 20):
        self.app, self.client = app, client
        self.guard = Guard(client.options, scope, required, methods, max_body)

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        keys = [environ["HTTP_IDEMPOTENCY_KEY"]] if "HTTP_IDEMPOTENCY_KEY" in environ else []
        credential = environ.get("HTTP_AUTHORIZATION")
        found = self.guard.admit(environ["REQUEST_METHOD"], keys, environ, None if credential is None else credential.encode("latin-1"))
        if found is None:
            return self.app(environ, start_response)
        answer = found if isinstance(found, Answer) else self._guarded(environ, *found)
        try:
            reason = http.HTTPStatus(answer.status).phrase
        except ValueError:
            reason = "Unknown"
        start_response("%d %s" % (answer.status, reason), answer.sent())
        return [answer.body]

    def _guarded(self, environ, key, options) -> Answer:
        try:
            body = self._body(environ)
        except OverflowError:
            return problem("body-too-large")
        except ValueError:
            return Answer(400, [("Content-Type", "text/plain; charset=utf-8")], b"Content-Length is not a number.\n")
        except EOFError:  # the client went away while it sent: a part of a request must not run, nor claim the key
            return Answer(400, [("Content-Type", "text/plain; charset=utf-8")], b"The body ended early.\n")
        try:
            got = self.client.claim(key, self.guard.asked(environ["REQUEST_METHOD"], self._target(environ), body), options)
        except Error as e:
            return self.guard.refused(e)
        return self._run(got, environ) if isinstance(got, Claim) else self.guard.replay(got)

    def _body(self, environ) -> Optional[bytes]:
        length, limit = environ.get("CONTENT_LENGTH") or None, self.guard.max_body
        if length is not None and not length.isdecimal():
            raise ValueError
        if environ.get("CONTENT_TYPE", "").lower().startswith("multipart/"):
            return None
        if length is None and not environ.get("wsgi.input_terminated"):
            return b""
        if length is not None and int(length) > limit:
            raise OverflowError
        body = environ["wsgi.input"].read(limit + 1 if length is None else int(length))
        if len(body) > limit:
            raise OverflowError
        if length is not None and len(body) < int(length):
            raise EOFError
        environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(body), str(len(body))
        return body

    @staticmethod
    def _target(environ) -> str:
        raw = environ.get("REQUEST_URI") or environ.get("RAW_URI") or ""
        if raw.startswith("/"):
            return raw
        path = quote((environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")).encode("latin-1"), safe="/:@!$&'()*+,;=~")
        return path + ("?" + environ["QUERY_STRING"] if environ.get("QUERY_STRING") else "")

    def _run(self, claim: Claim, environ) -> Answer:
        environ["idem.claim"] = claim
        upload = Upload(environ["wsgi.input"], int(environ.get("CONTENT_LENGTH") or 0) or math.inf)
        if environ.get("CONTENT_LENGTH") or environ.get("wsgi.input_terminated"):
            environ["wsgi.input"] = io.BufferedReader(upload)
        made: Union[Answer, Exception]
        try:
            with entered(claim):
                made = self._collect(environ)
        except Exception as e:
            made = e
        except BaseException:
            self.client.abandon(claim)
            raise
        outcome, answer = self.guard.outcome(claim, made, upload.cut)
        try:
            if outcome == "release":
                self.client.release(claim)
            elif outcome is None:
                self.client.abandon(claim)
            else:
                self.client.finish(claim, outcome, answer.stored(), "http")
        except Error as e:
            return self.guard.unrecorded(claim, e)
        return answer

    def _collect(self, environ) -> Answer:
        head: List[Any] = []
        parts: List[bytes] = []

        def start(status, headers, exc_info=None):
            head[:] = [int(status[:3]), list(headers)]
            return parts.append

        chunks = self.app(environ, start)
        try:
            parts.extend(chunks)
        finally:
            getattr(chunks, "close", bool)()
        status, headers = head
        return Answer(status, headers, b"".join(parts))
