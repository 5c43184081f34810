#!/usr/bin/python3
"""A service that is not idempotent: every request it executes is a line in a ledger, synced before the answer.

  ledger.py PORT FILE

What it answers is chosen by the request, so that a test says it in one place:
  X-Code: 500          this status (201 otherwise)
  X-Sleep: 0.5         answer later
  X-Size: 100000       a body of so many bytes
  X-Way: chunked | close | trailers | nothing | half-header | half-body | half-chunk | bad-chunk | garbage | continue |
         early-close | two-lengths | odd | cookie | no-content | redirect | accel:/path | reset | bytes:HEX | open:HEX | file:PATH
  X-Finish: SOCKET     finish the record itself, over the engine's socket, before it answers
"""
import base64
import json
import os
import socket
import struct
import sys
import threading
import time

lock = threading.Lock()
count = 0


def execute(ledger, request):
    global count
    with lock:
        count += 1
        n = count
        line = json.dumps({**request, "n": n}).encode() + b"\n"
        os.write(ledger, line)
        os.fsync(ledger)
    return n


def read_request(f):
    line = f.readline()
    if not line:
        return None
    method, path, _ = line.decode("latin-1").split(" ", 2)
    headers, raw = {}, []
    while True:
        line = f.readline()
        if line in (b"\r\n", b"\n", b""):
            break
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
        raw.append(name)
    if "chunked" in headers.get("transfer-encoding", ""):
        body = b""
        while True:
            size = int(f.readline().split(b";")[0], 16)
            body += f.read(size)
            f.readline()
            if size == 0:
                break
    else:
        body = f.read(int(headers.get("content-length") or 0))
    return method, path, headers, raw, body


def finish(path, headers, n):
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    result = b"201\nContent-Type: application/json\nX-By: service\n\n{\"by\":\"service\",\"n\":%d}" % n
    args = [b"FINISH", headers["idem-scope"].encode("latin-1"), headers["idem-id"].encode("latin-1"),
            headers["idem-fence"].encode(), b"SUCCEEDED", result, b"KIND", b"http"]
    s.sendall(b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a) for a in args))
    s.recv(1000)
    s.close()


def answer(c, headers, n):
    """False: the connection is done."""
    way = headers.get("x-way", "")
    code = int(headers.get("x-code") or 201)
    size = headers.get("x-size")
    body = b'{"order":%d}' % n if size is None else (b"%09d\n" % n * (int(size) // 10 + 1))[:int(size)]
    head = "HTTP/1.1 %d Fine\r\nContent-Type: application/json\r\nLocation: /orders/%d\r\n" % (code, n)
    head = (head + "X-Order: %d\r\n" % n).encode()
    length = b"Content-Length: %d\r\n" % len(body)
    if way == "chunked" or way == "trailers":
        trailer = b"X-Trailer: late\r\n" if way == "trailers" else b""
        parts = [body[i:i + 7000] for i in range(0, len(body), 7000)]
        c.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts)
                  + b"0\r\n" + trailer + b"\r\n")
    elif way == "close":
        c.sendall(head + b"Connection: close\r\n\r\n" + body)
        return False
    elif way == "nothing":
        return False
    elif way == "reset":
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False
    elif way == "half-header":
        c.sendall(head[:-20])
        return False
    elif way == "half-body":
        c.sendall(head + length + b"\r\n" + body[:len(body) // 2])
        return False
    elif way == "half-chunk":
        c.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s" % (len(body), body[:len(body) // 2]))
        return False
    elif way == "bad-chunk":
        c.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\nzz\r\nabcd\r\n0\r\n\r\n")
        return False
    elif way == "garbage":
        c.sendall(b"\x00\x01\x02 this is no HTTP\r\n\r\n")
        return False
    elif way == "continue":
        c.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" + head + length + b"\r\n" + body)
    elif way == "early-close":
        c.sendall(head + length + b"\r\n" + body)
        return False
    elif way == "two-lengths":
        c.sendall(head + b"Content-Length: 3\r\nContent-Length: 9\r\n\r\n" + body)
        return False
    elif way == "odd":
        c.sendall(head + b"X-Odd: a\xff\xfe\x80\tb\r\nX-Empty:\r\n" + length + b"\r\n" + body)
    elif way == "cookie":
        c.sendall(head + b"Set-Cookie: s=%d\r\nWWW-Authenticate: Basic\r\nETag: \"e%d\"\r\nCache-Control: public\r\n"
                  b"X-Twice: 1\r\nX-Twice: 2\r\nConnection: keep-alive\r\nKeep-Alive: timeout=9\r\n" % (n, n)
                  + length + b"\r\n" + body)
    elif way == "no-content":
        c.sendall(b"HTTP/1.1 204 No Content\r\nX-Order: %d\r\n\r\n" % n)
    elif way == "no-content-but-bytes":  # what the protocol forbids; the bytes come a moment later
        c.sendall(b"HTTP/1.1 204 No Content\r\n" + length + b"\r\n")
        time.sleep(0.002)
        c.sendall(body)
    elif way == "redirect":
        c.sendall(b"HTTP/1.1 303 See Other\r\nLocation: http://elsewhere.example/%d\r\nContent-Length: 0\r\n\r\n" % n)
    elif way.startswith("accel:"):
        c.sendall(head + b"X-Accel-Redirect: %s\r\n" % way[6:].encode() + length + b"\r\n" + body)
    elif way.startswith("bytes:"):
        c.sendall(bytes.fromhex(way[6:]))
        return False
    elif way.startswith("open:"):  # the connection stays
        c.sendall(bytes.fromhex(way[5:]))
    elif way.startswith("file:"):
        with open(way[5:], "rb") as f:
            c.sendall(f.read())
    else:
        c.sendall(head + length + b"\r\n" + (b"" if headers.get(":method") == "HEAD" else body))
    return True


def events(c, until):
    """The others come when the client has the first, or does not get it."""
    c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: 0\n\n")
    end = time.monotonic() + 6
    while not os.path.exists(until) and time.monotonic() < end:
        time.sleep(0.01)
    c.sendall(b"data: 1\n\ndata: 2\n\n")


def upgrade(c, f):
    c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: any\r\nConnection: Upgrade\r\n\r\n")
    while True:
        data = f.read1(1000)
        if not data:
            return
        c.sendall(data.upper())


def serve(c, ledger):
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    f = c.makefile("rb")
    try:
        while True:
            got = read_request(f)
            if got is None:
                break
            method, path, headers, raw, body = got
            headers[":method"] = method
            if method == "GET" and path == "/events":
                events(c, headers["x-until"])
                break
            if "upgrade" in headers:
                upgrade(c, f)
                break
            n = execute(ledger, {
                "key": headers.get("idempotency-key"), "token": headers.get("token"), "method": method, "path": path,
                "body": base64.b64encode(body).decode() if len(body) < 5000 else len(body),
                "idem": {h: v for h, v in headers.items() if h.startswith("idem-")}, "names": raw,
                "headers": {h: v for h, v in headers.items() if h in ("host", "x-probe", "expect", "idem-token", "traceparent")}})
            time.sleep(float(headers.get("x-sleep") or 0))
            while headers.get("x-until") and not os.path.exists(headers["x-until"]):
                time.sleep(0.01)
            if headers.get("x-finish"):
                finish(headers["x-finish"], headers, n)
            if not answer(c, headers, n):
                break
    except (OSError, ValueError):
        pass
    finally:
        f.close()
        c.close()


def main():
    ledger = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", int(sys.argv[1])))
    s.listen(2048)
    while True:
        c, _ = s.accept()
        threading.Thread(target=serve, args=(c, ledger), daemon=True).start()


main()
