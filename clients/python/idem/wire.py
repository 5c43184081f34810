"""The Redis protocol as idem speaks it, and connections that speak it."""
import asyncio
import os
import socket
import stat
from urllib.parse import unquote, urlsplit

from .errors import Refused

CONNECT_SECONDS = 2.0
REPLY_SECONDS = 5.0
IDLE_MAX = 16


class Broken(Exception):
    """The connection failed. `sent`: the server may have got the command."""

    def __init__(self, cause, sent):
        super().__init__(str(cause))
        self.sent = sent


class Address:
    """idem://[name:secret@]host:port or idem+unix:/path"""

    def __init__(self, url=None):
        url = url or os.environ.get("IDEM_SERVER") or "idem://127.0.0.1:6390"
        self.path = self.host = self.port = None
        auth = os.environ.get("IDEM_AUTH", "")
        if url.startswith("idem+unix:"):
            self.path = url[len("idem+unix:"):]
        elif url.startswith("idem://"):
            parts = urlsplit(url)
            self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 6390
            if parts.username is not None:
                auth = ":".join(unquote(p) for p in (parts.username, parts.password) if p is not None)
        else:
            raise ValueError("an address is idem://host:port or idem+unix:/path, not %r" % url.split("@")[-1])
        self.auth = ["AUTH", *auth.split(":", 1)] if auth else None

    def check_owner(self):
        """Do not send a secret to a socket that somebody else made."""
        if self.path and self.auth and os.stat(self.path).st_uid not in (0, os.geteuid()):
            raise OSError("%s belongs to another user: no secret is sent to it" % self.path)
        if self.path and not stat.S_ISSOCK(os.stat(self.path).st_mode):
            raise OSError("%s is not a socket" % self.path)


def encode(args):
    out = [b"*%d\r\n" % len(args)]
    for a in args:
        a = a if isinstance(a, bytes) else str(a).encode()
        out.append(b"$%d\r\n%s\r\n" % (len(a), a))
    return b"".join(out)


def parse():
    """Read one reply: a generator that yields None for a line, or how many bytes it wants."""
    line = yield None
    mark, value = line[:1], line[1:-2]
    if mark == b"*":
        items = []
        for _ in range(int(value)):
            items.append((yield from parse()))
        return items
    if mark == b"$":
        return None if value == b"-1" else (yield int(value) + 2)[:-2]
    if mark == b":":
        return int(value)
    if mark == b"+":
        return value
    if mark == b"-":
        return Refused(*(value.decode(errors="replace") + " ").split(" ", 1))
    raise OSError("unexpected reply: is this an idem server?")


class Connection:
    """One command at a time."""

    def __init__(self, address):
        address.check_owner()
        if address.path:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(CONNECT_SECONDS)
            self.socket.connect(address.path)
        else:
            self.socket = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")
        if address.auth:
            answer = self.call(address.auth)
            if isinstance(answer, Refused):
                self.close()
                raise answer

    def call(self, args, wait=0.0):
        self.socket.settimeout(REPLY_SECONDS + wait)
        self.socket.sendall(encode(args))
        parser = parse()
        want = next(parser)
        while True:
            data = self.file.readline() if want is None else self.file.read(want)
            if not data.endswith(b"\r\n"):
                raise OSError("the server closed the connection")
            try:
                want = parser.send(data)
            except StopIteration as end:
                return end.value

    def close(self):
        self.file.close()
        self.socket.close()


class Pool:
    """Connections that are kept; each serves one call at a time. A child process starts with none."""

    def __init__(self, address):
        self.address, self.idle, self.pid = address, [], os.getpid()

    def take(self):
        if self.pid != os.getpid():
            self.idle, self.pid = [], os.getpid()
        try:
            return self.idle.pop(), True
        except IndexError:
            return Connection(self.address), False

    def call(self, args, wait=0.0):
        try:
            connection, _ = self.take()
        except OSError as e:
            raise Broken(e, sent=False) from e
        try:
            answer = connection.call(args, wait)
        except OSError as e:
            connection.close()
            # The others of the pool are of the same age and likely broken too.
            self.close()
            raise Broken(e, sent=True) from e
        except BaseException:
            connection.close()
            raise
        if len(self.idle) < IDLE_MAX:
            self.idle.append(connection)
        else:
            connection.close()
        if isinstance(answer, Refused):
            raise answer
        return answer

    def close(self):
        idle, self.idle = self.idle, []
        for connection in idle:
            connection.close()


class AsyncPool:
    """The same for asyncio. It belongs to the event loop that uses it first."""

    def __init__(self, address):
        self.address, self.idle, self.loop = address, [], None

    async def connect(self):
        self.address.check_owner()
        open_ = (asyncio.open_unix_connection(self.address.path) if self.address.path
                 else asyncio.open_connection(self.address.host, self.address.port))
        reader, writer = await asyncio.wait_for(open_, CONNECT_SECONDS)
        if self.address.auth:
            answer = await asyncio.wait_for(self.exchange(reader, writer, self.address.auth), REPLY_SECONDS)
            if isinstance(answer, Refused):
                writer.close()
                raise answer
        return reader, writer

    @staticmethod
    async def exchange(reader, writer, args):
        writer.write(encode(args))
        parser = parse()
        want = next(parser)
        while True:
            data = await (reader.readline() if want is None else reader.readexactly(want))
            if not data.endswith(b"\r\n"):
                raise OSError("the server closed the connection")
            try:
                want = parser.send(data)
            except StopIteration as end:
                return end.value

    async def call(self, args, wait=0.0):
        if self.loop is not asyncio.get_running_loop():
            self.idle, self.loop = [], asyncio.get_running_loop()
        try:
            reader, writer = self.idle.pop() if self.idle else await self.connect()
        except (OSError, asyncio.TimeoutError) as e:
            raise Broken(e, sent=False) from e
        try:
            answer = await asyncio.wait_for(self.exchange(reader, writer, args), REPLY_SECONDS + wait)
        except (OSError, EOFError, asyncio.TimeoutError) as e:
            writer.close()
            self.close()
            raise Broken(e, sent=True) from e
        except BaseException:
            writer.close()
            raise
        self.idle.append((reader, writer))
        if isinstance(answer, Refused):
            raise answer
        return answer

    def close(self):
        idle, self.idle = self.idle, []
        for _, writer in idle:
            writer.close()
