"""Servers on loopback that give wrong replies.

A Liar is a proxy that sometimes answers a request itself, with a wrong reply, and does not pass the request on.

    liar = Liar(server_port, Resp, [b":7\\r\\n", ...], every=5)

Every fifth request gets the next of the wrong replies. So an error that says "nothing was done" is true, and a reply that is
not a reply to this request is one that a real server cannot be made to give. liar.told counts them.

A ZooKeeperLiar does the same to the requests of the kinds that the test names. A ScriptedRedis is no proxy: all of its replies
are those of the test.
"""
import contextlib
import socket
import threading
import time

from chaos import frame_replies, resp_end
from lib import free_port, serve_each


class Resp:
    """How Redis talks."""
    whole = staticmethod(lambda data: max(resp_end(data), 0))  # the length of the first request or reply, 0: not all of it is here
    endless = staticmethod(lambda request: b"SUBSCRIBE" in request.upper())

    @staticmethod
    def reply(text):
        return text


class Http:
    """How etcd talks."""
    endless = staticmethod(lambda request: request.startswith(b"POST /v3/watch"))

    @staticmethod
    def whole(data):
        head = data.find(b"\r\n\r\n") + 4
        if head < 4:
            return 0
        names = dict(line.lower().split(b": ", 1) for line in data[:head - 4].split(b"\r\n")[1:])
        if names.get(b"transfer-encoding") == b"chunked":
            end = data.find(b"\r\n0\r\n\r\n", head - 2)
            return end + 7 if end >= 0 else 0
        end = head + int(names.get(b"content-length", 0))
        return end if end <= len(data) else 0

    @staticmethod
    def reply(text):
        status, _, body = text.partition(b" ")
        return b"HTTP/1.1 %s Wrong\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


class Liar:
    def __init__(self, port, talk, replies, every=5):
        self.target, self.talk, self.replies, self.every = port, talk, replies, every
        self.seen = self.told = 0
        self.lock = threading.Lock()
        self.port = free_port()
        self.listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        threading.Thread(target=self.accept, daemon=True).start()

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.carry, args=(client,), daemon=True).start()

    def wrong(self):
        """The wrong reply to this request, or None."""
        with self.lock:
            self.seen += 1
            if self.seen % self.every:
                return None
            self.told += 1
            return self.talk.reply(self.replies[(self.told - 1) % len(self.replies)])

    def carry(self, client):
        with client, socket.create_connection(("127.0.0.1", self.target), 5) as server:
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                while self.answer(client, server):
                    pass
            except OSError:
                pass

    def take(self, end, held):
        """The first message, and what came after it."""
        while not (size := self.talk.whole(held)):
            more = end.recv(65536)
            if not more:
                raise OSError
            held += more
        return held[:size], held[size:]

    def answer(self, client, server):
        held = b""
        while True:
            request, held = self.take(client, held)
            if self.talk.endless(request):
                server.sendall(request + held)
                threading.Thread(target=self.pump, args=(client, server), daemon=True).start()
                self.pump(server, client)
                return False
            reply = self.wrong()
            if reply is None:
                server.sendall(request)
                reply, _ = self.take(server, b"")
            client.sendall(reply)

    @staticmethod
    def pump(source, to):
        try:
            while data := source.recv(65536):
                to.sendall(data)
        except OSError:
            pass
        for end in (source, to):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class ZooKeeperLiar:
    """liar.errors = {GET: -5} makes each reply to GET the error of that number (-5: "marshalling error"); {GET: [None, -5]} that to the
    second GET only. Replies come in the order of the requests, with messages in between that nobody asked for; so the server gets
    a harmless request instead, and the reply to that becomes the error."""
    CREATE, EXISTS, GET, SET, LIST, SYNC, MULTI = 1, 3, 4, 5, 8, 9, 14
    WATCH = "an EXISTS that also sets a watch"

    def __init__(self, port):
        self.target, self.errors, self.told = port, {}, 0
        self.port = free_port()
        self.listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        serve_each(self.listener, self.carry)

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def carry(self, client):
        wrong = {}  # the number of a request: its error
        with client, socket.create_connection(("127.0.0.1", self.target), 5) as server:
            server.settimeout(None)
            threading.Thread(target=self.pump, args=(server, client, self.reply, wrong), daemon=True).start()
            self.pump(client, server, self.request, wrong)

    def request(self, frame, wrong):
        kind = int.from_bytes(frame[4:8], "big", signed=True)
        error = self.errors.get(self.WATCH if kind == self.EXISTS and frame[-1] else kind)
        if isinstance(error, list):
            error = error.pop(0) if error else None
        if error is None:
            return frame
        self.told += 1
        wrong[frame[:4]] = error
        return frame[:4] + b"\0\0\0%c\0\0\0\1/\0" % self.EXISTS

    @staticmethod
    def reply(frame, wrong):
        error = wrong.pop(frame[:4], None)
        return frame if error is None else frame[:12] + error.to_bytes(4, "big", signed=True)

    @staticmethod
    def pump(source, to, change, wrong):
        held, first = b"", True  # the first message, which begins the session, has no number
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                held += data
                while size := frame_replies(held):
                    frame, held = held[4:size], held[size:]
                    frame, first = frame if first else change(frame, wrong), False
                    to.sendall(len(frame).to_bytes(4, "big") + frame)
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def bulk(text):
    """A RESP string."""
    return b"$%d\r\n%s\r\n" % (len(text), text.encode())


def array(*elements):
    return b"*%d\r\n%s" % (len(elements), b"".join(elements))


class ScriptedRedis:
    """A Redis that gives the replies of the test: to each command, by its first word, a reply or a function of the command's words
    that returns one. What the test does not name gets the reply of a good and empty Redis. .asked has the commands."""
    facts = {"redis_version": "7.0.15", "run_id": "0123456789abcdef", "maxmemory_policy": "noeviction", "aof_enabled": "1", "role": "master"}

    def __init__(self, **replies):
        self.replies = {"INFO": self.info(), "CONFIG": array(bulk("appendfsync"), bulk("always")), "TIME": self.time, "SCRIPT": bulk("0" * 40),
                        "GET": b"$-1\r\n", "SET": b"$-1\r\n", "EVALSHA": array(b":1\r\n"), "SPUBLISH": b":0\r\n", **replies}
        self.asked = []
        self.port = free_port()
        self.url = "redis://127.0.0.1:%d" % self.port
        self.listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        serve_each(self.listener, self.serve)

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    @classmethod
    def info(cls, **facts):
        return bulk("".join("%s:%s\r\n" % fact for fact in {**cls.facts, **facts}.items()))

    @staticmethod
    def time(words, ahead=0):
        return array(bulk("%d" % (time.time() + ahead)), bulk("0"))

    def serve(self, client):
        held = b""
        with client, contextlib.suppress(OSError):
            while True:
                while not (size := Resp.whole(held)):
                    data = client.recv(65536)
                    if not data:
                        return
                    held += data
                words, held = held[:size].split(b"\r\n")[2::2], held[size:]
                self.asked.append(words)
                reply = self.replies.get(words[0].decode(), b"-ERR unknown command\r\n")
                client.sendall(reply(words) if callable(reply) else reply)
