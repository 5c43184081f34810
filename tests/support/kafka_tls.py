"""TLS and a login in front of librdkafka's mock cluster, which has neither.

    with Secured(mock_port, authority, password="s3cret") as front: ... front.port

A client learns from the broker where the broker is: answers that name the mock's port name this one instead. With a
password, a client has to log in first (SASL PLAIN)."""
import select
import socket
import ssl
import struct

from lib import serve_each

HOST = b"127.0.0.1"
VERSIONS, HANDSHAKE = b"\0\x12", b"\0\x11"  # the numbers of requests


def framed(data):
    return struct.pack(">i", len(data)) + data


def frames(buffer):
    """The whole ones; they leave the buffer."""
    while len(buffer) >= 4 and len(buffer) >= 4 + struct.unpack(">i", buffer[:4])[0]:
        end = 4 + struct.unpack(">i", buffer[:4])[0]
        yield bytes(buffer[4:end])
        del buffer[:end]


def with_handshake(frame, version):
    """The versions that the broker has, and version 0 of the handshake of a login."""
    if frame[4:6] != b"\0\0":  # it does not know this version of the question
        return frame
    if version == b"\0\3":
        count = frame[6]
        return frame[:6] + bytes([count + 1]) + HANDSHAKE + b"\0\0\0\0\0" + frame[7:]
    count = struct.unpack(">i", frame[6:10])[0]
    return frame[:6] + struct.pack(">i", count + 1) + HANDSHAKE + b"\0\0\0\0" + frame[10:]


class Secured:
    def __init__(self, mock, ca, cert, key, user="ann", password=None):
        self.mock, self.login = mock, b"\0%s\0%s" % (user.encode(), password.encode()) if password else None
        self.logins = []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(cert, key)
        self.context.load_verify_locations(ca)
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        serve_each(self.listener, self.serve)

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def serve(self, raw):
        try:
            with self.context.wrap_socket(raw, server_side=True) as client, \
                    socket.create_connection(("127.0.0.1", self.mock)) as broker:
                self.pump(client, broker)
        except OSError:
            pass

    def pump(self, client, broker):
        asked, told, known, versions = bytearray(), bytearray(), self.login is None, set()
        while True:
            ready = [client] if client.pending() else select.select([client, broker], [], [], 600)[0]
            for end, buffer in ((client, asked), (broker, told)):
                if end in ready:
                    data = end.recv(65536)
                    if not data:
                        return
                    buffer += data
            for frame in frames(asked):
                kind, version, number = frame[:2], frame[2:4], frame[4:8]
                if kind == VERSIONS and len(frame) > 8:
                    versions.add((number, version))
                if known or kind == VERSIONS:
                    broker.sendall(framed(frame))
                elif kind == HANDSHAKE and b"PLAIN" in frame:
                    client.sendall(framed(number + b"\0\0" + b"\0\0\0\1\0\5PLAIN"))
                else:
                    self.logins.append(frame)
                    if frame != self.login:
                        return
                    known = True
                    client.sendall(framed(b""))
            for frame in frames(told):
                for version in (b"\0\3", b"\0\0"):
                    if self.login and (frame[:4], version) in versions:
                        frame = with_handshake(frame, version)
                for length in (b"\0\x09", b"\x0a"):  # of a string, in old and new versions of the protocol
                    name = length + HOST
                    frame = frame.replace(name + struct.pack(">i", self.mock), name + struct.pack(">i", self.port))
                client.sendall(framed(frame))
