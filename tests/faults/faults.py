#!/usr/bin/python3
"""Let every allocation and every system call of `idem serve` fail once: tests/faults/faults.py [KIND...]

  KIND          alloc, error, interrupted, short; all of them if none is named
  --start       let the calls fail while the server starts, not while it answers
  --points N    N points of each kind, spread over all of them; without it all
  --first N, --last N    only these points: a slice of a long run
  --verbose     print each point, and what is wrong at once

faults.c is loaded into the server. A story of RESP and HTTP requests is told again and again with new keys; the first time its
first call fails, then its second one, and so on until a story has fewer calls. The client sends again what was cut off or got
an error, with the same nonce, as any client should. In the end every verdict must be right: one start for each key, one result
for everybody, a token redeemed once, a lock held by one. A BEGIN whose error says that nothing was stored holds nothing. The server must be alive and work without a restart. Whatever was
acknowledged must be there after the restart in the end.
"""
import argparse
import base64
import http.client
import json
import mmap
import os
import re
import struct
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests/support"))

from lib import Error, Resp, Server, folder, free_port, wait_until, IDEM, Process  # noqa: E402

KINDS = {"alloc": 1, "error": 2, "interrupted": 3, "short": 4}
ALL_KINDS = {**KINDS, "module": 5, "module-short": 6, "setup": 7, "own": 8}  # the first two: of nginx's module (module.c)
TRANSIENT = {"UNAVAILABLE", "LOST", "OVERLOADED", "FULL", "CLOSED", "MEMORY", "TIMEOUT"}
NOT_STORED = TRANSIENT - {"LOST", "TIMEOUT"}
SILENCE = 60  # seconds: no call may keep a reply away for longer
PATIENCE = 90  # seconds until a request must have its answer


class Broken(Exception):
    """A promise that was not kept."""


class Fault:
    """The file that faults.c shares with us: kind, left, seen, fired, own. alone: not with the programs that the program runs."""

    def __init__(self, where, alone=False):
        self.path = os.path.join(where, "faults")
        with open(self.path, "wb") as f:
            f.write(bytes(64))
        self.file = open(self.path, "r+b")
        self.map = mmap.mmap(self.file.fileno(), 64)
        self.env = {"LD_PRELOAD": os.path.join(ROOT, "build/tests/faults.so"), "IDEM_FAULTS": self.path,
                    **({"IDEM_FAULTS_ALONE": "1"} if alone else {})}

    def arm(self, kind, left, own=False):
        """own: only calls that the program itself makes, not those of its libraries."""
        self.map[4:52] = struct.pack("<iq32si", left, 0, b"", own)
        self.map[0:4] = struct.pack("<i", ALL_KINDS[kind])

    def disarm(self):
        """The name of the call that failed, or None."""
        self.map[0:4] = struct.pack("<i", 0)
        return self.fired()

    def fired(self):
        return self.map[16:48].split(b"\0")[0].decode() or None

    def seen(self):
        return struct.unpack("<q", self.map[8:16])[0]


class Client:
    """Sends again what was cut off or got an error that may pass."""

    def __init__(self, server):
        self.server, self.resp_line, self.http_line, self.errors = server, None, None, 0
        self.headers = {}

    def connect(self):
        return self.server.client(timeout=SILENCE)

    def connect_http(self):
        return http.client.HTTPConnection("127.0.0.1", self.server.http, timeout=SILENCE)

    def close(self):
        for line in (self.resp_line, self.http_line):
            if line:
                line.close()
        self.resp_line = self.http_line = None

    def resp(self, *args, fine=()):
        """The reply; an error if its word is in fine."""
        end, unknown = time.monotonic() + PATIENCE, False
        while time.monotonic() < end:
            try:
                self.resp_line = self.resp_line or self.connect()
                said = self.resp_line(*args)
                if not isinstance(said, Error) or said.word in fine:
                    return said
                unknown = unknown or said.word not in NOT_STORED
                if args[0] == "BEGIN" and not unknown:
                    self.must_not_hold(args[1], args[2], args[args.index("NONCE") + 1] if "NONCE" in args else None, str(said))
                if said.word not in TRANSIENT and "max number of clients" not in str(said):  # no memory for a connection
                    raise Broken("%s: %s" % (" ".join(map(str, args)), said))
            except TimeoutError:
                raise Broken("RESP %s: no reply for %d s" % (args, SILENCE))
            except (OSError, EOFError):
                self.resp_line, unknown = None, True
            self.again()
        raise TimeoutError("RESP %s" % (args,))

    def must_not_hold(self, scope, key, nonce, said):
        """A BEGIN with this nonce got an error that says that nothing was stored."""
        with self.connect() as line:
            found = line("BEGIN", scope, key, "NONCE", "%016x" % 0xffff, "LEASE", 1)
            while isinstance(found, Error):
                found = line("BEGIN", scope, key, "NONCE", "%016x" % 0xffff, "LEASE", 1)
            if found[0] == "started":
                line("RELEASE", scope, key, found[1])
            elif nonce and line("BEGIN", scope, key, "NONCE", nonce)[0] == "started":
                raise Broken("BEGIN %s %s: stored, and the reply was: %s" % (scope, key, said))

    def http(self, method, path, fine=(), headers=None, **fields):
        """The body of the answer; of an error if its status is in fine."""
        end, unknown = time.monotonic() + PATIENCE, False
        while time.monotonic() < end:
            try:
                self.http_line = self.http_line or self.connect_http()
                body = json.dumps(fields) if fields else None
                self.http_line.request(method, path, body, {**({"Content-Type": "application/json"} if body else {}), **self.headers, **(headers or {})})
                answer = self.http_line.getresponse()
                data = answer.read()
                self.cookie = answer.headers["Set-Cookie"]
                if answer.status < 400 or answer.status in (404, 409, 422, *fine):
                    return read_json(data) if data[:1] in b"{[" else data.decode(errors="replace")
                if answer.status not in (500, 503, 504, 507, 429):
                    raise Broken("%s %s: %d %r" % (method, path, answer.status, data))
                unknown = unknown or read_json(data).get("class") != "not executed"
                if path.endswith("/begin") and not unknown:
                    self.must_not_hold(*path.split("/")[3:5], fields["nonce"], data.decode())
            except TimeoutError:
                raise Broken("HTTP %s %s: no reply for %d s" % (method, path, SILENCE))
            except (OSError, http.client.HTTPException):
                self.http_line, unknown = None, True
            self.again()
        raise TimeoutError("HTTP %s %s" % (method, path))

    def again(self):
        self.errors += 1
        time.sleep(0.01)


def read_json(data):
    try:
        return json.loads(data)
    except ValueError:
        raise Broken("a reply that is not JSON: %r" % data)


def must(what, said, wanted):
    if said != wanted:
        raise Broken("%s: %r, not %r" % (what, said, wanted))


def story(client, n):
    """Requests with keys of their own, on both protocols. Returns what was acknowledged: key -> result."""
    key, other, result = "k%d" % n, "h%d" % n, "result %d" % n
    a, b = "%016x" % (2 * n + 1), "%016x" % (2 * n + 2)
    began = client.resp("BEGIN", "s", key, "NONCE", a, "LEASE", 600000)
    must("BEGIN", began[0], "started")
    must("BEGIN of another caller", client.resp("BEGIN", "s", key, "NONCE", b)[0], "busy")
    must("BEGIN sent again", client.resp("BEGIN", "s", key, "NONCE", a, "LEASE", 600000)[:2], began[:2])
    must("FINISH", client.resp("FINISH", "s", key, began[1], "SUCCEEDED", result)[0], "ok")
    replay = client.resp("BEGIN", "s", key, "NONCE", b)
    must("replay", (replay[0], replay[4]), ("replay", result))
    said = client.http("POST", "/v1/records/s/%s/begin" % key, nonce=b)
    must("replay over HTTP", (said["verdict"], said.get("result")), ("replay", result))

    began = client.http("POST", "/v1/records/s/%s/begin" % other, nonce=a, lease_ms=600000)
    must("begin over HTTP", began["verdict"], "started")
    must("begin of another caller", client.http("POST", "/v1/records/s/%s/begin" % other, nonce=b)["verdict"], "busy")
    said = client.http("POST", "/v1/records/s/%s/finish" % other, fence=began["fence"], outcome="succeeded", result_base64=base64.b64encode(result.encode()).decode())
    must("finish over HTTP", said["verdict"], "ok")
    replay = client.resp("BEGIN", "s", other, "NONCE", b)
    must("replay of HTTP", (replay[0], replay[4]), ("replay", result))

    token = "t%d" % n
    if client.resp("ISSUE", "who", "ID", token)[0] not in ("issued", "duplicate"):
        raise Broken("ISSUE")
    must("REDEEM", client.resp("REDEEM", token, "who", "NONCE", a)[0], "redeemed")
    must("REDEEM of another caller", client.resp("REDEEM", token, "who", "NONCE", b)[0], "duplicate")
    must("redeem over HTTP", client.http("POST", "/v1/tokens/%s/redeem" % token, subject="who", nonce=b)["verdict"], "duplicate")

    held = client.resp("LOCK", "l%d" % n, "me", 600000)
    must("LOCK", held[0], "started")
    must("LOCK of another owner", client.resp("LOCK", "l%d" % n, "you", 600000)[0], "busy")
    said = client.resp("UNLOCK", "l%d" % n, held[1])[0]
    if said not in ("ok", "stale"):  # stale: it was done, and its reply was lost
        raise Broken("UNLOCK: %s" % said)
    must("LOCK when it is free", client.http("PUT", "/v1/locks/l%d" % n, owner="you", lease_ms=600000)["verdict"], "started")
    must("SCAN", client.resp("SCAN", "0", "SCOPE", "s", "ID", key)[0], "records")
    must("GET", client.http("GET", "/v1/records/s/" + key)["verdict"], "record")
    client.resp("INFO")
    client.http("GET", "/metrics")
    return {key: result, other: result}


def must_have(client, acknowledged):
    for key, result in acknowledged.items():
        said = client.resp("BEGIN", "s", key)
        must("after a restart, BEGIN " + key, (said[0], said[-1] if said[0] == "replay" else None), ("replay", result))


class Programme:
    """own: only calls of idem's own code fail."""

    def __init__(self, where, verbose=False, own=False):
        self.where, self.fault, self.verbose, self.own = where, Fault(where), verbose, own
        self.server = self.client = None
        self.number, self.points, self.printed = 0, 0, 0
        self.acknowledged, self.flaws = {}, []
        self.calls = {}

    def up(self):
        self.server = Server(self.where, http=True, env=self.fault.env)
        self.client = Client(self.server)

    def story(self):
        return story(self.client, self.number)

    def down(self):
        """Stop it as an operator does; it must end in order."""
        self.client.close()
        code = self.server.stop()
        if code != 0:
            self.flaws.append("the server ended with %s: %s" % (code, self.server.output()[-1500:]))

    def tell(self, kind, left):
        """A story in which one call fails. The call's name, or None if it has fewer calls."""
        self.number += 1
        name = "%s %d" % (kind, left)
        self.fault.arm(kind, left, self.own)
        try:
            self.acknowledged.update(self.story())
        except Broken as broken:
            self.flaws.append("%s (%s): %s" % (name, self.fault.disarm(), broken))
        except TimeoutError as what:
            self.flaws.append("%s (%s): %s never worked again: %s" % (name, self.fault.disarm(), what, self.server.output()[-1500:]))
        fired = self.fault.disarm()
        if self.server.process.poll() is not None:
            self.flaws.append("%s (%s): the server died (%s): %s" % (name, fired, self.server.process.returncode, self.server.output()[-1500:]))
            self.up()
        if self.verbose:
            for flaw in self.flaws[self.printed:]:
                print("FLAW", flaw, flush=True)
            self.printed = len(self.flaws)
            print(name, fired, "errors %d" % self.client.errors, getattr((getattr(self, "parts", None) or [None])[0], "__name__", ""), flush=True)
        if fired:
            self.points += 1
            self.calls[fired] = self.calls.get(fired, 0) + 1
        return fired

    def count(self, kind):
        """How many calls of this kind a story has."""
        self.number += 1
        self.fault.arm(kind, 1 << 30, self.own)
        self.story()
        self.fault.disarm()
        return self.fault.seen()

    def enumerate(self, kind, points=0, first=1, last=1 << 30):
        """All points, or so many of them, spread over all; or a slice."""
        most = max(self.count(kind) for _ in range(1 if points else 3))
        step = max(1, most // points) if points else 1
        for left in range(first, min(most + 20, last + 1), step):
            if not self.tell(kind, left) and left > most:
                break

    def finish(self):
        """Everything that was acknowledged is there after a restart."""
        self.down()
        self.up()
        try:
            must_have(self.client, self.acknowledged)
        except (Broken, TimeoutError) as broken:
            self.flaws.append(str(broken))
        self.down()


def answers(socket):
    try:
        with Resp(socket, 10) as line:
            said = line("PING")
        return said == "PONG" or said.word == "NOAUTH"
    except (OSError, EOFError):
        return False


def start_once(where, fault, kind, left, flags=(), own=False):
    """Start a server while one call fails. The call's name, and what is wrong or None."""
    argv = [IDEM, "serve", "--store", "journal:" + os.path.join(where, "journal"), "--socket", os.path.join(where, "s"),
            "--http", "127.0.0.1:%d" % free_port(), *flags]
    fault.arm(kind, left, own)
    process = Process(argv, env=fault.env)
    ended = lambda: process.process.poll() is not None  # noqa: E731
    # The failing write may be the line of the log.
    silent = lambda: fault.fired() == "write" and answers(os.path.join(where, "s"))  # noqa: E731
    settled = wait_until(lambda: ended() or re.search(r'event(=|":")ready', process.output()) or silent(), 120)
    fired, alone = fault.disarm(), ended()
    deaf = settled and not alone and not answers(os.path.join(where, "s"))
    code, said = process.stop(), process.output()
    if not settled:
        return fired, "neither ready nor ended: " + said[-800:]
    if deaf:
        return fired, "ready, but it does not answer: " + said[-800:]
    if alone and (code <= 0 or not said.strip()) or not alone and code != 0:
        return fired, "exit %s: %s" % (code, said[-800:])
    return fired, None


def start_failing(where, kind, points, flags=(), own=False):
    """The server starts while one call fails: it gets ready, or ends with an error that says why. Returns the number of points and what was wrong."""
    fault, flaws, done = Fault(where), [], 0
    start_once(where, fault, kind, 1 << 30, flags, own)
    most = fault.seen()
    for left in range(1, most + 1, max(1, most // points) if points else 1):
        fired, flaw = start_once(where, fault, kind, left, flags, own)
        done += bool(fired)
        if flaw:
            flaws.append("start, %s %d (%s): %s" % (kind, left, fired, flaw))
    return done, flaws


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=list(KINDS))
    parser.add_argument("--start", action="store_true")
    parser.add_argument("--points", type=int, default=0)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--last", type=int, default=1 << 30)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    subprocess.run(["make", "-s", "build/idem", "build/tests/faults.so"], cwd=ROOT, check=True)
    flaws = []
    for kind in args.kinds or KINDS:
        with folder() as where:
            if args.start:
                done, wrong = start_failing(where, kind, args.points)
                print("%s: %d points while it starts, %d flaws" % (kind, done, len(wrong)), flush=True)
                flaws += wrong
                continue
            programme = Programme(where, args.verbose)
            programme.up()
            programme.enumerate(kind, args.points, args.first, args.last)
            programme.finish()
            print("%s: %d points, %d flaws; %s" % (kind, programme.points, len(programme.flaws),
                                                                 " ".join("%s %d" % pair for pair in sorted(programme.calls.items()))), flush=True)
            flaws += programme.flaws
    for flaw in flaws:
        print(flaw)
    return 1 if flaws else 0


if __name__ == "__main__":
    sys.exit(main())
