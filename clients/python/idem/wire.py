"""The Redis protocol as idem speaks it, and connections that speak it."""
import asyncio
import contextlib
import os
import re
import select
import socket
import ssl
import stat
import struct
import sys
import threading
import time
from typing import Any, List, Optional, Tuple
from urllib.parse import parse_qsl, unquote

from .errors import Refused

CONNECT_SECONDS = 2.0
REPLY_SECONDS = 5.0
IDLE_MAX = 16
LINE_MAX = 65536
ESTABLISHED = b"\x01"  # what Linux says first in TCP_INFO
URL = re.compile(r"(?:idem\+unix:(/?[^/?][^?]*)|(idems?)://(?:([^?]*)@)?(\[[^]?]+]|[^][:/?@,]+)(?::([0-9]{1,5}))?(?:/[^?@]*)?)(?:\?(.*))?", re.S)
STRANGE = "unexpected reply: is this an idem server?"


class Broken(Exception):
    """The connection failed. `sent`: the server may have got the command. `address`: of the server, if there was no connection."""

    def __init__(self, cause, sent, address=None):
        super().__init__(("%s: " % address if address else "") + (str(cause) or type(cause).__name__))
        self.sent = sent


class LookUp(threading.Thread):
    """The system's look-up of a name has no time limit: this thread does it, for all callers that wait meanwhile."""

    def __init__(self, host: str):
        super().__init__(name="idem-lookup", daemon=True)
        self.host, self.found, self.error = host, [], None  # type: str, List[str], Any

    def run(self):
        try:
            found = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
            self.found = list(dict.fromkeys(str(one[4][0]) for one in found))
        except (OSError, UnicodeError) as e:
            self.error = e


def parts_of(text: str) -> Tuple[Optional[str], ...]:
    """What the command line takes for --server: unix:PATH, /PATH, HOST:PORT, or a URL, whose parts these are."""
    url = text
    if text.startswith(("unix:", "/")):
        url = "idem+unix:" + text[5 if text[0] == "u" else 0:]
    elif "://" not in text and not text.startswith("idem+unix:") and re.fullmatch("([^?]*@)?[^/?@]*:[0-9]+", text):
        url = "idem://" + ("127.0.0.1" if text[0] == ":" and "@" not in text else "") + text
    found = URL.fullmatch(url)
    if not found or not 0 < int(found[5] or 6390) < 65536:
        http = text.startswith("http")
        raise ValueError('"%s" is %s: give unix:PATH, HOST:PORT or idems://HOST:PORT' % (  # without the secret
            text.split("@")[-1], "the HTTP address of a server; clients need its socket or its RESP port" if http else "not an address"))
    return found.groups()


class Address:
    """unix:PATH, HOST:PORT, idem://[name:secret@]host:port, idems://host:port?ca=FILE&cert=FILE&key=FILE (TLS) or idem+unix:/path"""

    def __init__(self, url: Optional[str] = None):
        path, scheme, user, host, port, query = parts_of(url or os.environ.get("IDEM_SERVER") or "idem://127.0.0.1:6390")
        self.path, self.tls = path, None  # type: Any, Any
        self.host, self.port = (host or "").strip("[]"), int(port or 6390)
        self.asked: Optional[LookUp] = None
        auth = unquote(user) if user else os.environ.get("IDEM_AUTH", "")
        self._secure(scheme == "idems", dict(parse_qsl(query or "", keep_blank_values=True)))
        self.auth = ["AUTH", *auth.split(":", 1)] if auth else None

    def __str__(self) -> str:
        return self.path or "%s:%d" % (self.host, self.port)

    def _secure(self, tls: bool, files) -> None:
        """ca: who may have signed the server's certificate, instead of those that this machine trusts. cert, key: our own one."""
        wrong = set(files) - ({"ca", "cert", "key"} if tls else set())
        if wrong:
            raise ValueError("the address has an unknown option: %s" % ", ".join(sorted(wrong)))
        if tls:
            self.tls = ssl.create_default_context(cafile=files.get("ca"))
            self.tls.minimum_version = ssl.TLSVersion.TLSv1_2
            if "cert" in files:
                self.tls.load_cert_chain(files["cert"], files.get("key"))

    def find(self, seconds: float) -> List[str]:
        """The IP addresses of the host."""
        if ":" in self.host or self.host.replace(".", "").isdigit():
            return [self.host]
        asked = self.asked
        if asked is None or not asked.is_alive():  # as it is in a child process
            asked = LookUp(self.host)
            asked.start()
            self.asked = asked
        asked.join(seconds)
        if not asked.found:
            raise OSError("looking up %s: %s" % (self.host, "no reply in time" if asked.is_alive() else asked.error))
        return asked.found

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
        out.append(b"$%d\r\n%b\r\n" % (len(a), a))
    return b"".join(out)


def parse(data, at=0):
    """One reply: its value and where it ends; None if it is not all here."""
    line = data.find(b"\r\n", at)
    if line < 0:
        if len(data) - at > LINE_MAX:
            raise OSError(STRANGE)
        return None
    mark, text, end = data[at], bytes(data[at + 1:line]), line + 2
    if mark == 43:  # +
        return text, end
    if mark == 45:  # -
        word, _, said = text.decode(errors="replace").partition(" ")
        # A server that has as many clients as it takes will have room again: for the caller it is away.
        return Refused("OVERLOADED" if word == "ERR" and said.startswith("max number of clients") else word, said), end
    if mark not in b"*$:" or not text.lstrip(b"-").isdigit():
        raise OSError(STRANGE)
    number = int(text)
    if mark == 58:  # :
        return number, end
    if mark == 36:  # $
        if number < 0:
            return None, end
        return (bytes(data[end:end + number]), end + number + 2) if len(data) >= end + number + 2 else None
    items = []
    for _ in range(number):
        item = parse(data, end)
        if item is None:
            return None
        items.append(item[0])
        end = item[1]
    return items, end


class Reply:
    """The bytes of one reply, as they come."""

    def __init__(self):
        self.data, self.value = b"", None  # type: Any, Any

    def add(self, more) -> bool:
        """True: it is complete."""
        if not more:
            raise OSError("the server closed the connection")
        if not self.data:
            self.data = more
        else:
            self.data = bytearray(self.data) if isinstance(self.data, bytes) else self.data
            self.data += more
        found = parse(self.data)
        if found is None:
            return False
        self.value, end = found
        if end != len(self.data):  # it must not be taken for the answer to the next command
            raise OSError(STRANGE)
        return True


def is_silent(fd: int) -> bool:
    """There is nothing to read, not even the end."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return not poll.poll(0)


class Connection:
    """One command at a time. Without TLS the kernel watches the time of a read: Python would ask it twice for that."""

    def __init__(self, address: Address, seconds: float):
        address.check_owner()
        self.limit, self.tls, within = 0.0, address.tls, min(CONNECT_SECONDS, seconds)
        self.states = sys.platform == "linux" and not address.path
        if address.path:
            self.socket = socket.socket(socket.AF_UNIX)
        else:
            self.socket = self.connected(address.find(within), address.port, within)
        try:
            if address.path:
                self.socket.settimeout(within)
                self.socket.connect(address.path)
            else:
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls:
                self.socket = self.tls.wrap_socket(self.socket, server_hostname=address.host)
            else:
                self.socket.settimeout(None)
            # A server that has too many clients says so and closes: then it must not have been sent the caller's command.
            answer = self.call(address.auth or ["PING"], seconds)
            if isinstance(answer, Refused):
                raise answer
        except BaseException:
            self.close()
            raise

    @staticmethod
    def connected(hosts: List[str], port: int, seconds: float) -> socket.socket:
        for host in hosts[:-1]:
            with contextlib.suppress(OSError):
                return socket.create_connection((host, port), seconds)
        return socket.create_connection((hosts[-1], port), seconds)

    def call(self, args: List[Any], seconds: float) -> Any:
        if self.tls:
            self.socket.settimeout(seconds)
        elif seconds != self.limit:
            self.limit, time_ = seconds, struct.pack("ll", int(seconds), max(1, int(seconds % 1 * 1e6)))
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time_)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, time_)
        end, reply = time.monotonic() + seconds, Reply()
        try:
            self.socket.sendall(encode(args))
            while not reply.add(self.socket.recv(65536)):
                if time.monotonic() > end:
                    raise TimeoutError
        except (BlockingIOError, TimeoutError):
            raise OSError("no reply in time") from None
        return reply.value

    def is_alive(self) -> bool:
        """Where nothing was asked there is nothing to read: what is there is the end, because the server went away."""
        if self.states:  # does not let the other threads run first, as poll and recv do
            return self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == ESTABLISHED
        return is_silent(self.socket.fileno())

    def close(self):
        self.socket.close()


class Pool:
    """Connections that are kept; each serves one call at a time. A child process starts with none."""

    def __init__(self, address: Address):
        self.address, self.pid = address, os.getpid()
        self.idle: List[Connection] = []

    def take(self, seconds: float, look: bool) -> Connection:
        if self.pid != os.getpid():
            self.idle, self.pid = [], os.getpid()
        while True:
            try:
                connection = self.idle.pop()
            except IndexError:
                return Connection(self.address, seconds)
            if not look or connection.is_alive():
                return connection
            connection.close()

    def call(self, args: List[Any], seconds: float) -> Any:
        """One command and its reply; waits at most so long."""
        try:
            # Whether FINISH was sent makes no difference: its outcome is unknown until there is an answer.
            connection = self.take(seconds, args[0] != "FINISH")
        except OSError as e:
            raise Broken(e, False, self.address) from e
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

    async def take(self, seconds: float, look: bool):
        if self.loop is not asyncio.get_running_loop():
            self.idle, self.loop = [], asyncio.get_running_loop()
        while self.idle:
            reader, writer = self.idle.pop()
            if not reader.at_eof() and not writer.is_closing() and (not look or is_silent(writer.get_extra_info("socket").fileno())):
                return reader, writer
            writer.close()
        self.address.check_owner()
        open_ = (asyncio.open_unix_connection(self.address.path) if self.address.path
                 else asyncio.open_connection(self.address.host, self.address.port, ssl=self.address.tls))
        reader, writer = await asyncio.wait_for(open_, min(CONNECT_SECONDS, seconds))
        try:
            answer = await self.exchange(reader, writer, self.address.auth or ["PING"], seconds)
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
            while not reply.add(await reader.read(65536)):
                pass
        reply = Reply()
        await asyncio.wait_for(read(), seconds)
        return reply.value

    async def call(self, args: List[Any], seconds: float) -> Any:
        try:
            reader, writer = await self.take(seconds, args[0] != "FINISH")
        except (OSError, asyncio.TimeoutError) as e:
            raise Broken(e, False, self.address) from e
        try:
            answer = await self.exchange(reader, writer, args, seconds)
        except (OSError, asyncio.TimeoutError) as e:
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
