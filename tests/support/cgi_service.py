"""Services that speak FastCGI, SCGI or uwsgi: small, in threads of the test, each with a list of what it executed.

What it answers is chosen by the request's X-Way:
  (nothing)   a whole answer with Content-Length
  open        a whole answer without Content-Length; FastCGI ends it with END_REQUEST
  cut         half of an answer without Content-Length, then the connection is closed
  half        half of an answer with Content-Length, then the connection is closed
  nothing     the request is executed and the connection closed
X-Nothing: NAME  only the service of this name behaves like "nothing"
"""
import socket
import struct

from lib import serve_each


def _exactly(f, n):
    data = f.read(n)
    if len(data) < n:
        raise EOFError
    return data


def _fastcgi(f):
    params, body = b"", b""
    while True:
        _, kind, _, length, padding, _ = struct.unpack("!BBHHBB", _exactly(f, 8))
        data = _exactly(f, length)
        _exactly(f, padding)
        if kind == 4:
            params += data
        elif kind == 5:
            body += data
            if length == 0:
                break
    env, at = {}, 0
    while at < len(params):
        sizes = []
        for _ in range(2):
            n = params[at]
            if n & 0x80:
                n = struct.unpack("!I", params[at:at + 4])[0] & 0x7FFFFFFF
                at += 3
            at += 1
            sizes.append(n)
        name = params[at:at + sizes[0]]
        value = params[at + sizes[0]:at + sum(sizes)]
        at += sum(sizes)
        env[name.decode()] = value.decode("latin-1")
    return env


def _scgi(f):
    size = b""
    while not size.endswith(b":"):
        size += _exactly(f, 1)
    parts = _exactly(f, int(size[:-1])).split(b"\0")
    _exactly(f, 1)
    env = {parts[i].decode(): parts[i + 1].decode("latin-1") for i in range(0, len(parts) - 1, 2)}
    _exactly(f, int(env["CONTENT_LENGTH"] or 0))
    return env


def _uwsgi(f):
    _, size, _ = struct.unpack("<BHB", _exactly(f, 4))
    data, at, words = _exactly(f, size), 0, []
    while at < size:
        n = struct.unpack("<H", data[at:at + 2])[0]
        words.append(data[at + 2:at + 2 + n].decode("latin-1"))
        at += 2 + n
    env = dict(zip(words[::2], words[1::2]))
    _exactly(f, int(env.get("CONTENT_LENGTH") or 0))
    return env


class CgiService:
    def __init__(self, protocol, name="one"):
        self.protocol, self.name, self.keys = protocol, name, []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        serve_each(self.socket, self._serve)

    def executions(self, key):
        return self.keys.count(key)

    def _serve(self, c):
        with c, c.makefile("rb") as f:
            try:
                env = {"fastcgi": _fastcgi, "scgi": _scgi, "uwsgi": _uwsgi}[self.protocol](f)
                self.keys.append(env.get("HTTP_IDEMPOTENCY_KEY"))
                way = "nothing" if env.get("HTTP_X_NOTHING") == self.name else env.get("HTTP_X_WAY", "")
                if way != "nothing":
                    c.sendall(self._answer(way))
            except (EOFError, OSError):
                pass

    def _answer(self, way):
        body = b'{"by":"%s","paid":true}' % self.name.encode()
        head = b"Status: 201 Created\r\nContent-Type: application/json\r\n"
        if way in ("", "half"):
            head += b"Content-Length: %d\r\n" % len(body)
        text = head + b"\r\n" + (body[:len(body) // 2] if way in ("cut", "half") else body)
        if self.protocol != "fastcgi":
            return (b"HTTP/1.1 201 Created\r\n" if self.protocol == "uwsgi" else b"") + text
        out = struct.pack("!BBHHBB", 1, 6, 1, len(text), 0, 0) + text
        if way in ("cut", "half"):
            return out
        return out + struct.pack("!BBHHBB", 1, 6, 1, 0, 0, 0) + struct.pack("!BBHHBB", 1, 3, 1, 8, 0, 0) + bytes(8)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
