"""A NATS server with JetStream, and a client of a few lines that says what tests need."""
import base64
import json
import secrets
import socket
import urllib.request

from lib import Process, folder, free_port, wait_until


class Nats:
    """A stream `orders`, and what lies in its letter boxes. `tls`: an authority, a certificate and its key."""

    def __init__(self, *, tls=None, user=None):
        self.folder = folder()
        self.data = self.folder.__enter__()
        self.port, self.monitor, self.tls, self.user = free_port(), free_port(), tls, user
        with open(self.data + "/nats.conf", "w") as f:
            f.write('listen: "127.0.0.1:%d"\nhttp: "127.0.0.1:%d"\njetstream { store_dir: "%s/js" }\n' % (
                self.port, self.monitor, self.data))
            if tls:
                f.write('tls { cert_file: "%s", key_file: "%s" }\n' % tls[1:])
            if user:
                f.write('authorization { user: "%s", password: "%s" }\n' % user)
        self.start()
        at = "%s:%s@127.0.0.1:%d" % (*user, self.port) if user else "127.0.0.1:%d" % self.port
        self.source = "nats://%s?stream=orders&durable=g&ack_ms=2000" % at

    def start(self):
        self.process = Process(["nats-server", "-c", self.data + "/nats.conf"], ready=self.port)
        if not self.tls and not self.user:
            assert wait_until(lambda: "memory" in self.ask("$JS.API.INFO")), self.process.output()[-2000:]

    def connect(self):
        self.socket = socket.create_connection(("127.0.0.1", self.port), 30)
        self.file = self.socket.makefile("rb")
        assert self.file.readline().startswith(b"INFO")
        self.answers = b"_INBOX." + secrets.token_hex(8).encode()  # of this connection and no other
        self.socket.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB %s 1\r\n' % self.answers)

    def request(self, subject, body, headers=None):
        """One request, one answer: its body."""
        if headers:
            head = b"NATS/1.0\r\n" + b"".join(b"%s: %s\r\n" % (k.encode(), v.encode()) for k, v in headers.items()) + b"\r\n"
            self.socket.sendall(b"HPUB %s %s %d %d\r\n%s%s\r\n" % (subject.encode(), self.answers, len(head), len(head) + len(body), head, body))
        else:
            self.socket.sendall(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), self.answers, len(body), body))
        while True:
            line = self.file.readline()
            words = line.split()
            if words[0] in (b"MSG", b"HMSG"):
                text = self.file.read(int(words[-1]) + 2)[:-2]
                return text if words[0] == b"MSG" else text[int(words[-2]):]
            if words[0] == b"PING":
                self.socket.sendall(b"PONG\r\n")
            assert words[0] != b"-ERR", line

    def ask(self, subject, **body):
        self.connect()
        try:
            return json.loads(self.request(subject, json.dumps(body).encode() if body else b"") or b"{}")
        finally:
            self.socket.close()

    def make_stream(self, name, *subjects):
        told = self.ask("$JS.API.STREAM.CREATE." + name, name=name, subjects=list(subjects), storage="file", num_replicas=1)
        assert "error" not in told, told

    def purge(self):
        told = self.ask("$JS.API.STREAM.PURGE.orders")
        assert told.get("success"), told

    def publish(self, messages, **headers):
        self.connect()
        for m in messages:
            told = self.request("orders.new", json.dumps(m).encode(), {"id": m["id"], "content-type": "application/json", **headers})
            assert json.loads(told).get("seq"), told
        self.socket.close()

    def letters(self, subject):
        found, stream = [], subject.replace(".", "_")
        about = self.ask("$JS.API.STREAM.INFO." + stream)
        self.connect()
        for seq in range(about.get("state", {}).get("first_seq") or 1, about.get("state", {}).get("last_seq", 0) + 1):
            told = json.loads(self.request("$JS.API.STREAM.MSG.GET." + stream, json.dumps({"seq": seq}).encode()))
            assert "message" in told, (told, seq, about)
            message = told["message"]
            lines = base64.b64decode(message["hdrs"]).decode().split("\r\n")[1:]
            self.letter_headers = dict(line.split(": ", 1) for line in lines if line)
            found.append((json.loads(base64.b64decode(message["data"]))["id"], self.letter_headers["idem-reason"]))
        self.socket.close()
        return found

    def requests(self):
        """How many messages clients have sent since it runs, requests too."""
        with urllib.request.urlopen("http://127.0.0.1:%d/varz" % self.monitor, timeout=30) as answer:
            return json.load(answer)["in_msgs"]

    def consumer(self):
        return self.ask("$JS.API.CONSUMER.INFO.orders.g")

    def left(self):
        """How many messages are not acknowledged, whether delivered or not."""
        told = self.consumer()
        return told["num_pending"] + told["num_ack_pending"] if "num_pending" in told else None

    left_behind = left

    def restart(self):
        self.process.stop()
        self.start()

    def stop(self):
        self.process.stop()
        self.folder.__exit__(None, None, None)
