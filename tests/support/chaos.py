"""A TCP proxy on loopback that does to a connection what networks do.

    chaos = Chaos(server_port, replies=resp_replies)
    chaos.cut_at(3)      the third reply from now never arrives: the line is cut
    chaos.cut_at(1, then="refuse")   and nobody is there afterwards
    chaos.swallow()      requests get through and take effect, replies do not
    chaos.blackhole()    nothing gets through, in either direction
    chaos.delay(0.2)     every reply comes that much later
    chaos.refuse()       nobody listens any more
    chaos.heal()         all is well again; whatever was held back is lost

`replies` cuts what the server sends into replies, so that they can be counted:
resp_replies (Redis), frame_replies (ZooKeeper), or chunk_replies (what came in
one piece, good enough for HTTP). chaos.cuts counts what was really cut.
"""
import select
import socket
import threading
import time

from lib import free_port


def resp_end(data, at=0):
    """Where the reply that starts at `at` ends, or -1 if it is not all here."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return -1
    mark, rest = data[at:at + 1], data[at + 1:line]
    if mark == b"$" and int(rest) >= 0:
        end = line + 2 + int(rest) + 2
        return end if end <= len(data) else -1
    at = line + 2
    if mark == b"*" and int(rest) > 0:
        for _ in range(int(rest)):
            at = resp_end(data, at)
            if at < 0:
                return -1
    return at


def resp_replies(data):
    end = resp_end(data)
    return end if end > 0 else 0


def frame_replies(data):
    if len(data) < 4:
        return 0
    end = 4 + int.from_bytes(data[:4], "big")
    return end if end <= len(data) else 0


def chunk_replies(data):
    return len(data)


class Chaos:
    def __init__(self, port, replies=chunk_replies):
        self.target = port
        self.replies = replies
        self.lock = threading.Lock()
        self.mode, self.left, self.wait, self.then = "fine", 0, 0.0, "fine"
        self.cuts = self.swallowed = 0
        self.pairs = set()
        self.over = False
        # Not one that the kernel gives to whoever connects: it is left and taken again.
        self.port = free_port()
        self.listener = None
        self.listen()

    # ---- what tests say

    def cut_at(self, reply, then="fine"):
        self.then = then
        self.set("cut", reply)

    def swallow(self):
        self.set("swallow")

    def blackhole(self):
        self.set("blackhole")

    def refuse(self):
        self.set("refuse")
        self.hush()

    def delay(self, seconds):
        self.set("delay", wait=seconds)

    def heal(self):
        """Connections that lost something are of no use any more: close them."""
        with self.lock:
            broken = self.mode in ("swallow", "blackhole")
        self.set("fine")
        if broken:
            self.close_pairs()
        if not self.listener:
            self.listen()

    def stop(self):
        self.over = True
        self.hush()
        self.close_pairs()

    # ---- how it is done

    def set(self, mode, left=0, wait=0.0):
        with self.lock:
            self.mode, self.left, self.wait = mode, left, wait

    def close_pairs(self):
        with self.lock:
            pairs, self.pairs = self.pairs, set()
        for pair in pairs:
            self.close(pair)

    @staticmethod
    def close(pair):
        for end in pair:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def listen(self):
        self.listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        threading.Thread(target=self.accept, args=(self.listener,), daemon=True).start()

    def hush(self):
        listener, self.listener = self.listener, None
        if listener:
            listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
            listener.close()

    def accept(self, listener):
        while not self.over:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (client, server)
            with self.lock:
                self.pairs.add(pair)
            threading.Thread(target=self.carry, args=(pair,), daemon=True).start()

    def carry(self, pair):
        client, server = pair
        held = b""
        try:
            while not self.over:
                ready, _, _ = select.select([client, server], [], [], 1)
                if client in ready:
                    data = client.recv(65536)
                    if not data:
                        break
                    if self.mode != "blackhole":
                        server.sendall(data)
                if server in ready:
                    data = server.recv(65536)
                    if not data:
                        break
                    held = self.answer(client, held + data)
                    if held is None:
                        break
        except OSError:
            pass
        self.close(pair)
        client.close()
        server.close()
        with self.lock:
            self.pairs.discard(pair)

    def answer(self, client, data):
        """Pass replies on; what is left over, or None if the line is cut."""
        while data:
            end = self.replies(data)
            if end == 0:
                return data
            with self.lock:
                mode, wait = self.mode, self.wait
                if mode == "cut":
                    self.left -= 1
                    if self.left == 0:
                        self.mode = self.then
                        self.cuts += 1
                        if self.then == "refuse":
                            self.hush()
                        return None
                self.swallowed += mode in ("swallow", "blackhole")
            if mode in ("fine", "cut", "delay"):
                time.sleep(wait)
                client.sendall(data[:end])
            data = data[end:]
        return data
