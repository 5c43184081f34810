"""Idempotency-Key for an ASGI application: FastAPI, Starlette, Django and others."""
import asyncio
from typing import Any, Awaitable, Callable, Collection, Dict, List, Optional, Union
from urllib.parse import quote

from . import claim as flow
from .claim import Claim
from .client import AsyncClient, entered
from .errors import Error
from .web import Answer, Guard, problem

Scope = Dict[str, Any]


def header(scope: Scope, name: str) -> Optional[str]:
    """A header of the request, for a scope function."""
    return next((v.decode("latin-1") for k, v in scope["headers"] if k.lower() == name.lower().encode()), None)


class Again:
    """The body, and then nothing: the work is not told that its client went away. `cut`: it went away while it sent."""

    def __init__(self, receive: Any, body: Optional[bytes]):
        self.receive, self.body, self.ended, self.cut = receive, body, False, False

    async def __call__(self) -> Any:
        if self.body is not None:
            given, self.body, self.ended = self.body, None, True
            return {"type": "http.request", "body": given, "more_body": False}
        if self.ended:
            await asyncio.get_running_loop().create_future()
        message = await self.receive()
        self.ended, self.cut = not message.get("more_body", False), message["type"] != "http.request"
        return message


class Middleware:
    """Guards the requests of an application with the statuses and problems of the gateway (docs/gateway.md).

        app.add_middleware(idem.asgi.Middleware, client=client)

    scope: a function of the ASGI scope that says who asks; without one it is a digest of the Authorization header. A request for
    which it gives nothing is not guarded. The answer of a guarded request is held until it is recorded. scope["idem.claim"] is the
    claim, and idem.current() too. A client that goes away does not stop the work.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], client: AsyncClient, *, scope: Optional[Callable[[Scope], Optional[str]]] = None,
                 required: bool = False, methods: Collection[str] = ("POST", "PATCH"), max_body: int = 1 << 20):
        self.app, self.client = app, client
        self.guard = Guard(client.options, scope, required, methods, max_body)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        keys = [v.decode("latin-1") for k, v in scope["headers"] if k.lower() == b"idempotency-key"]
        credential = next((v for k, v in scope["headers"] if k.lower() == b"authorization"), None)
        found = self.guard.admit(scope["method"], keys, scope, credential)
        if found is None:
            return await self.app(scope, receive, send)
        if not isinstance(found, Answer):
            # Of its own, so that a server that cancels this one does not stop the work in the middle.
            found = await asyncio.shield(asyncio.ensure_future(self._guarded(scope, receive, *found)))
        if found is None:
            return None
        headers = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in found.sent()]
        await send({"type": "http.response.start", "status": found.status, "headers": headers})
        await send({"type": "http.response.body", "body": found.body})

    async def _guarded(self, scope, receive, key, options) -> Optional[Answer]:
        body: Any = None
        if not (header(scope, "content-type") or "").lower().startswith("multipart/"):
            body, more = b"", True
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    return None  # the client went away, and nothing was begun
                body, more = body + message.get("body", b""), message.get("more_body", False)
                if len(body) > self.guard.max_body:
                    return problem("body-too-large")
        try:
            got = await self.client.claim(key, self.guard.asked(scope["method"], self._target(scope), body), options)
        except Error as e:
            return self.guard.refused(e)
        return await self._run(got, scope, Again(receive, body)) if isinstance(got, Claim) else self.guard.replay(got)

    @staticmethod
    def _target(scope) -> str:
        path = (scope.get("raw_path") or quote(scope["path"], safe="/:@!$&'()*+,;=~").encode()).split(b"?")[0]
        query = scope.get("query_string") or b""
        return (path + (b"?" + query if query else b"")).decode("latin-1")

    async def _run(self, claim: Claim, scope, receive) -> Answer:
        scope = {**scope, "idem.claim": claim, "extensions": {}}
        keeper = self.client.keep(claim)
        made: Union[Answer, Exception]
        try:
            with entered(claim):
                made = await self._collect(scope, receive)
        except Exception as e:
            made = e
        finally:
            keeper.cancel()
        outcome, answer = self.guard.outcome(claim, made, receive.cut)
        try:
            if outcome == "release":
                await self.client._run(flow.release(claim))
            elif outcome is not None:
                await self.client._run(flow.finish(claim, outcome, answer.stored(), "http"))
        except Error as e:
            return self.guard.unrecorded(claim, e)
        return answer

    async def _collect(self, scope, receive) -> Answer:
        head: List[Any] = []
        parts: List[bytes] = []

        async def send(message):
            if message["type"] == "http.response.start":
                head[:] = [message["status"], [(k.decode("latin-1"), v.decode("latin-1")) for k, v in message.get("headers", ())]]
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self.app(scope, receive, send)
        status, headers = head
        return Answer(status, headers, b"".join(parts))
