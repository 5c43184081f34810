"""The application of clients/conformance/README.md: python app.py wsgi|asgi PORT FOLDER URL."""
import asyncio
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import idem  # noqa: E402
import idem.asgi  # noqa: E402
import idem.wsgi  # noqa: E402

KIND, PORT, FOLDER, URL = sys.argv[1:]
TEXT = [("Content-Type", "text/plain; charset=utf-8")]


def service(path, body):
    """Status, headers and body."""
    with open(os.path.join(FOLDER, "effects"), "a") as f:
        f.write(path + "\n")
    path = path[len("/required"):] if path.startswith("/required/") else path
    if path == "/orders":
        headers = [("Content-Type", "application/json"), ("Location", "/orders/7"), ("X-Two", "a"), ("X-Two", "b"), ("Set-Cookie", "secret=1")]
        return 201, headers, '{"order":7,"got":"%s","名":"书"}'.encode() % body
    if path == "/throws":
        raise ArithmeticError("the service failed")
    if path == "/unknown":
        raise idem.OutcomeUnknown("the bank did not respond")
    if path == "/refused":
        raise idem.NotExecuted("the bank was not asked")
    if path == "/said":  # as behind a framework that makes a 500 of every exception
        idem.current().say(idem.NotExecuted("the bank was not asked"))
        return 500, TEXT, b"status 500"
    if path == "/large":
        return 200, TEXT, bytes(3 << 20)
    if path == "/large-failure":
        return 500, TEXT, bytes(3 << 20)
    if path == "/redirect":
        return 302, [("Location", "/elsewhere")], b""
    if path == "/nothing":
        return 204, [], b""
    status = {"/missing": 404, "/limited": 429}.get(path, 200)
    return status, TEXT, {"/slow": b"slow", "/missing": b"no such order"}.get(path, b"fine")


def wsgi_app(environ, start_response):
    path, length = environ["PATH_INFO"], int(environ.get("CONTENT_LENGTH") or 0)
    try:
        body = environ["wsgi.input"].read(length)
    except OSError:
        body = b""
    status, headers, body = service(path, body) if len(body) == length else (400, TEXT, b"half")
    if path.endswith("/slow"):
        time.sleep(3)
    write = start_response("%d X" % status, headers)
    if path.endswith("/orders"):
        write(body[:5])
        return iter([body[5:10], body[10:]])
    return [body]


async def asgi_app(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body")
    status, headers, answer = service(scope["path"], body) if message["type"] == "http.request" else (400, TEXT, b"half")
    if scope["path"].endswith("/slow"):
        await asyncio.sleep(3)
    await send({"type": "http.response.start", "status": status, "headers": [(k.encode(), v.encode()) for k, v in headers]})
    await send({"type": "http.response.body", "body": answer[:10], "more_body": True})
    await send({"type": "http.response.body", "body": answer[10:]})


def main():
    kind, client, app, tenant = ((idem.wsgi, idem.Client, wsgi_app, lambda environ: environ.get("HTTP_X_TENANT")) if KIND == "wsgi" else
                                 (idem.asgi, idem.AsyncClient, asgi_app, lambda scope: idem.asgi.header(scope, "X-Tenant")))
    plain = kind.Middleware(app, client(URL, deadline=2.0))
    strict = kind.Middleware(app, client(URL, deadline=2.0, wait=60.0, mode="loose"), required=True, max_body=1000, scope=tenant)
    if KIND == "wsgi":
        from werkzeug.serving import run_simple
        run_simple("127.0.0.1", int(PORT), lambda e, s: (strict if e["PATH_INFO"].startswith("/required/") else plain)(e, s), threaded=True)
    else:
        import uvicorn

        async def both(scope, receive, send):
            await (strict if scope.get("path", "").startswith("/required/") else plain)(scope, receive, send)
        uvicorn.run(both, host="127.0.0.1", port=int(PORT), log_level="warning", lifespan="off")


main()
