"""The Redis protocol as idem speaks it, and connections that speak it."""
import asyncio
import os
import select
import socket
import stat
import struct
import time
from typing import Any, List, Optional
from urllib.parse import unquote, urlsplit

from .errors import Refused

CONNECT_SECONDS = 2.0
REPLY_SECONDS = 5.0
IDLE_MAX = 16
LINE_MAX = 65536


class Broken(Exception):
    """The connection failed. `sent`: the server may have got the command."""

    def __init__(self, cause, sent):
        super().__init__(str(cause) or type(cause).__name__)
        self.sent = sent


class Address:
    """idem://[name:secret@]host:port or idem+unix:/path"""

    def __init__(self, url: Optional[str] = None):
        url = url or os.environ.get("IDEM_SERVER") or "idem://127.0.0.1:6390"
        self.path: Optional[str] = None
        self.host, self.port = "", 0
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


def encode(args) -> bytes:
    out = [b"*%d\r\n" % len(args)]
    for a in args:
        a = a if isinstance(a, bytes) else str(a).encode()
        out.append(b"$%d\r\n%s\r\n" % (len(a), a))
    return b"".join(out)


def parse():
    """Read one reply: a generator that yields None for a line, or how many bytes it wants."""
    line = yield None
    mark, value = line[:1], line[1:-2]
    if mark == b"+":
        return value
    if mark == b"-":
        return Refused(*(value.decode(errors="replace") + " ").split(" ", 1))
    if mark not in (b"*", b"$", b":") or not value.lstrip(b"-").isdigit():
        raise OSError("unexpected reply: is this an idem server?")
    number = int(value)
    if mark == b":":
        return number
    if mark == b"$":
        return None if number < 0 else (yield number + 2)[:-2]
    items = []
    for _ in range(number):
        items.append((yield from parse()))
    return items


def fed(parser, data):
    """Give the parser what it asked for: (True, the reply) or (False, what it wants next)."""
    if not data or not data.endswith(b"\r\n"):
        raise OSError("no reply: the server closed the connection, or it took too long")
    try:
        return False, parser.send(data)
    except StopIteration as end:
        return True, end.value


def is_silent(fd: int) -> bool:
    """As Connection.is_alive, for a socket that belongs to asyncio."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return not poll.poll(0)


class Connection:
    """One command at a time. The kernel watches the time of a read: Python would ask it twice for that."""

    def __init__(self, address: Address, seconds: float):
        address.check_owner()
        self.limit = 0.0
        if address.path:
            self.socket = socket.socket(socket.AF_UNIX)
        else:
            self.socket = socket.create_connection((address.host, address.port), min(CONNECT_SECONDS, seconds))
        self.file = self.socket.makefile("rb")
        try:
            if address.path:
                self.socket.settimeout(min(CONNECT_SECONDS, seconds))
                self.socket.connect(address.path)
            else:
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.settimeout(None)
            answer = self.call(address.auth, seconds) if address.auth else None
            if isinstance(answer, Refused):
                raise answer
        except BaseException:
            self.close()
            raise

    def call(self, args: List[Any], seconds: float) -> Any:
        if seconds != self.limit:
            self.limit, time_ = seconds, struct.pack("ll", int(seconds), max(1, int(seconds % 1 * 1e6)))
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time_)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, time_)
        end = time.monotonic() + seconds
        self.socket.sendall(encode(args))
        parser = parse()
        done, value = False, next(parser)
        while not done:
            done, value = fed(parser, self.file.readline(LINE_MAX) if value is None else self.file.read(value))
            if time.monotonic() > end and not done:
                raise OSError("no reply in time")
        return value

    def is_alive(self) -> bool:
        """Where nothing was asked there is nothing to read: what is there is the end, because the server went away."""
        try:
            self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError as e:
            return isinstance(e, BlockingIOError)
        return False

    def close(self):
        self.file.close()
        self.socket.close()


class Pool:
    """Connections that are kept; each serves one call at a time. A child process starts with none."""

    def __init__(self, address: Address):
        self.address, self.pid = address, os.getpid()
        self.idle: List[Connection] = []

    def take(self, seconds: float) -> Connection:
        if self.pid != os.getpid():
            self.idle, self.pid = [], os.getpid()
        while True:
            try:
                connection = self.idle.pop()
            except IndexError:
                return Connection(self.address, seconds)
            if connection.is_alive():
                return connection
            connection.close()

    def call(self, args: List[Any], seconds: float) -> Any:
        """One command and its reply; waits at most so long."""
        try:
            connection = self.take(seconds)
        except OSError as e:
            raise Broken(e, sent=False) from e
        try:
            answer = connection.call(args, seconds)
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
    """The same for asyncio. Its connections belong to the event loop that made them."""

    def __init__(self, address: Address):
        self.address = address
        self.idle: List[Any] = []
        self.loop: Any = None

    async def take(self, seconds: float):
        if self.loop is not asyncio.get_running_loop():
            self.idle, self.loop = [], asyncio.get_running_loop()
        while self.idle:
            reader, writer = self.idle.pop()
            if not reader.at_eof() and not writer.is_closing() and is_silent(writer.get_extra_info("socket").fileno()):
                return reader, writer
            writer.close()
        self.address.check_owner()
        open_ = (asyncio.open_unix_connection(self.address.path) if self.address.path
                 else asyncio.open_connection(self.address.host, self.address.port))
        reader, writer = await asyncio.wait_for(open_, min(CONNECT_SECONDS, seconds))
        try:
            answer = await self.exchange(reader, writer, self.address.auth, seconds) if self.address.auth else None
            if isinstance(answer, Refused):
                raise answer
        except BaseException:
            writer.close()
            raise
        return reader, writer

    @staticmethod
    async def exchange(reader, writer, args, seconds):
        async def read():
            writer.write(encode(args))
            parser = parse()
            done, value = False, next(parser)
            while not done:
                done, value = fed(parser, await (reader.readline() if value is None else reader.readexactly(value)))
            return value
        return await asyncio.wait_for(read(), seconds)

    async def call(self, args: List[Any], seconds: float) -> Any:
        try:
            reader, writer = await self.take(seconds)
        except (OSError, EOFError, asyncio.TimeoutError) as e:
            raise Broken(e, sent=False) from e
        try:
            answer = await self.exchange(reader, writer, args, seconds)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError) as e:
            writer.close()
            self.close()
            raise Broken(e, sent=True) from e
        except BaseException:
            writer.close()
            raise
        if len(self.idle) < IDLE_MAX:
            self.idle.append((reader, writer))
        else:
            writer.close()
        if isinstance(answer, Refused):
            raise answer
        return answer

    def close(self):
        idle, self.idle = self.idle, []
        for _, writer in idle:
            writer.close()
