#!/usr/bin/python3
"""Let calls of `idem serve` fail while operators work with it: tests/faults/operators.py [KIND...]

  KIND          alloc, error, interrupted, short; all of them if none is named
  --points N    N points of each kind, spread over all of them; without it all
  --stop        let the calls fail while the server stops, with clients that wait
  --start       let the calls fail while the server starts
  --verbose     print each point, and what is wrong at once

The server has what an installation with several operators has: TLS with client certificates, credentials, a second person, an audit trail, quotas,
notifications of doubts, the console and the playground. Only calls of idem's own code fail (`own` in faults.c), as libraries are
tested by others and have many. The rules are those of faults.py: after an error the operators ask again, and in the end everything is
done once. A list is complete or an error. What the second operator has not approved was not done.
"""
import argparse
import base64
import http.client
import json
import os
import re
import signal
import ssl
import struct
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests/support"), os.path.join(ROOT, "tests/faults")]

import faults  # noqa: E402
import servers  # noqa: E402
from faults import KINDS, SILENCE, TRANSIENT, Broken, must, start_failing  # noqa: E402
from lib import Error, Resp, Server, connect, folder, wait_until  # noqa: E402

SECRETS = {"ops": "ops-secret-123456", "boss": "boss-secret-123456", "shop": "shop-secret-123456"}
CREDENTIALS = "ops %(ops)s operate\nboss %(boss)s operate\nshop %(shop)s use shop\ndesk cert:desk.example view\n" % SECRETS
ROUTES = [{"route": "/orders", "scope": "shop"}]
# struct idem__figures in src/base/figures.h, with one route.
FIGURES = b"idem-figures".ljust(24, b"\0") + struct.pack("<QQ", 40 + 64 * 760, 1) + b"other".ljust(64 * 760, b"\0")
PROM = 'idem_consume_messages_total{scope="shop",what="handled"} 41\n'


class Files:
    """What the server reads: certificates, credentials, reports of a gateway and of a consumer."""

    def __init__(self, where):
        self.ca, self.cert, self.key = servers.authority(where, "ours")
        self.desk = servers.certificate(where + "/ours-ca", where + "/desk", "desk.example")
        self.other = servers.certificate(where + "/ours-ca", where + "/other", "other.example")
        self.credentials, self.routes, self.consumers = where + "/credentials", where + "/routes", where + "/consumers"
        os.mkdir(self.consumers)
        with open(where + "/figures", "wb") as f:
            f.write(FIGURES)
        for path, text in ((self.credentials, CREDENTIALS), (self.routes, json.dumps(ROUTES)), (self.consumers + "/shop.prom", PROM),
                           (where + "/seal", "%064x\n" % 7)):
            with open(path, "w") as f:
                f.write(text)
            os.chmod(path, 0o600)
        self.unreadable = []  # what a list may also be: a file that cannot be read is left out
        self.metrics = self.info = None  # the names of all figures, once they are known
        self.flags = ["--credentials", self.credentials, "--tls-cert", self.cert, "--tls-key", self.key, "--tls-client-ca", self.ca,
                      "--second-person", "--require-reason", "--console", "--gateway-routes", self.routes, "--gateway-figures", where + "/figures", "--consumers", self.consumers,
                      "--on-doubt", "cat >> %s/told" % where, "--on-doubt-every", "100ms", "--scope-records", "1000000",
                      "--scope-rate", "1000000", "--audit", where + "/audit", "--log-format", "json", "--seal-key", where + "/seal",
                      "--epoch-file", where + "/epoch"]


class Person(faults.Client):
    """An operator with a secret; the desk has its certificate only."""

    def __init__(self, server, files, name):
        super().__init__(server)
        self.name, self.context = name, ssl.create_default_context(cafile=files.ca)
        self.context.load_cert_chain(*(files.desk if name == "desk" else files.other))
        if name in SECRETS:
            self.headers = {"Authorization": "Bearer %s:%s" % (name, SECRETS[name])}

    def connect(self):
        line = Resp.__new__(Resp)
        line.socket = self.context.wrap_socket(connect(self.server.port, SILENCE), server_hostname="127.0.0.1")
        line.file = line.socket.makefile("rb")
        said = line("AUTH", self.name, SECRETS[self.name]) if self.name in SECRETS else "OK"
        if isinstance(said, Error):
            line.close()
            if said.word not in TRANSIENT and "max number of clients" not in str(said):
                raise Broken("AUTH: %s" % said)
            raise EOFError(str(said))
        return line

    def connect_http(self):
        return http.client.HTTPSConnection("127.0.0.1", self.server.http, timeout=SILENCE, context=self.context)

    def until(self, what, *args, **more):
        """Ask until it says yes; for what another thread of the server notices."""
        end = time.monotonic() + faults.PATIENCE
        while not what(said := self.http(*args, **more)):
            if time.monotonic() > end:
                raise Broken("%s never was right: %r" % (args, said))
            time.sleep(0.01)
        return said


def record(person, id):
    said = person.http("GET", "/v1/records/shop/" + id)
    return said.get("record", {}) if said["verdict"] == "record" else {"state": "absent"}


def doubts(person):
    """The ids of all doubts, by as many SCANs as it takes."""
    cursor, found = "0", []
    while cursor != "0" or not found:
        said = person.resp("SCAN", cursor, "SCOPE", "shop", "DOUBT", "COUNT", "1000")
        found, cursor = found + [dict(zip(r[::2], r[1::2]))["id"] for r in said[2:]], said[1]
        if cursor == "0":
            break
    return found


def two_agree(ask, done):
    """Two operators ask for the same until it is done. ask(first) is one of them; before both have asked, nothing is done."""
    end, first = time.monotonic() + faults.PATIENCE, True
    must("done before anybody asked", done(), False)
    ask(first)
    must("done by one operator", done(), False)
    while not done():
        if time.monotonic() > end:
            raise Broken("two operators never agreed")
        first = not first
        ask(first)


def a_doubt_is_settled(people, n):
    """A doubt, seen by the desk, and settled by two operators, one over RESP and one over HTTP."""
    ops, boss, desk = people
    key, result = "d%d" % n, "paid %d" % n
    began = ops.resp("BEGIN", "shop", key, "NONCE", "%016x" % n, "LEASE", 1)
    if began[0] not in ("started", "doubt"):
        raise Broken("BEGIN: %s" % began)
    must("after the lease", wait_until(lambda: ops.resp("BEGIN", "shop", key)[0] == "doubt", 60), True)
    desk.until(lambda said: key in [r["id"] for r in said["records"]], "GET", "/v1/doubts")
    must("SCAN of doubts", key in doubts(desk), True)
    fence = record(ops, key)["fence"]
    must("a shop may not settle", ops.http("POST", "/v1/records/shop/%s/settle" % key, fine=(403,), outcome="succeeded", result=result, fence=fence,
                                           reason="bank", headers={"Authorization": "Bearer shop:" + SECRETS["shop"]})["status"], 403)

    def ask(first):
        if first:
            return ops.resp("SETTLE", "shop", key, "REASON", "bank", "AS", "SUCCEEDED", result, "FENCE", fence, fine=("NOPERM",))
        return boss.http("POST", "/v1/records/shop/%s/settle" % key, fine=(403,), outcome="succeeded", result=result, fence=fence, reason="bank")
    two_agree(ask, lambda: record(ops, key)["state"] == "succeeded")
    must("result", record(ops, key)["result"], result)
    must("the desk sees no result", record(desk, key).get("result"), None)
    return {key: result}


def a_record_is_forgotten(people, n):
    ops, boss, desk = people
    key = "f%d" % n
    began = ops.resp("BEGIN", "shop", key, "NONCE", "%016x" % n, "LEASE", 600000)
    must("FINISH", ops.resp("FINISH", "shop", key, began[1], "SUCCEEDED", "x")[0], "ok")
    ask = lambda first: (ops if first else boss).http("DELETE", "/v1/records/shop/%s?reason=drill&fence=%d" % (key, began[1]), fine=(403,))  # noqa: E731
    two_agree(ask, lambda: record(ops, key)["state"] != "succeeded")
    said = desk.http("GET", "/v1/audit?scope=shop&id=" + key)
    if not all(e["scope"] == "shop" and e["id"] == key and e["verb"] == "forget" for e in said["entries"]):
        raise Broken("another record's entries: %r" % said)
    desk.resp("AUDIT", "SCOPE", "shop", "COUNT", "3")


def metrics_are_whole(people, n):
    ops = people[0]
    metrics = set(re.findall(r"^# TYPE (\S+)", ops.http("GET", "/metrics"), re.M))
    ops.files.metrics = ops.files.metrics or metrics
    must("missing metrics", ops.files.metrics - metrics, set())


def figures_over_resp_are_whole(people, n):
    ops = people[0]
    names = set(re.findall(r"^(\w+):", ops.resp("INFO"), re.M))
    ops.files.info = ops.files.info or names
    must("missing lines of INFO", ops.files.info - names - ({"route_0"} if ops.files.unreadable else set()), set())


def segments_are_listed(people, n):
    ops, boss, desk = people
    must("ids of a segment", len(set(ops.http("GET", "/v1/ids/segment:orders?count=3")["ids"])), 3)
    must("segments", "orders" in [s["name"] for s in desk.http("GET", "/v1/segments")["segments"]], True)


def a_session(people, n):
    """Log in, look, give the secret again, log out."""
    ops, boss, desk = people
    page = {"X-Idem-Console": "1", "Authorization": ""}
    browser = Person(ops.server, ops.files, "browser")
    try:
        said = browser.http("POST", "/v1/session", headers=page, name="boss", secret=SECRETS["boss"])
        must("login", said["name"], "boss")
        with_cookie = {"X-Idem-Console": "1", "Cookie": browser.cookie.split(";")[0]}
        must("session", browser.http("GET", "/v1/session", headers=with_cookie)["name"], "boss")
        revealed = browser.http("POST", "/v1/records/shop/nothing%d/reveal" % n, headers=with_cookie, reason="look")
        must("revealed", revealed["verdict"], "absent")
        sure = {**with_cookie, "X-Idem-Secret": base64.b64encode(SECRETS["boss"].encode()).decode()}
        said = browser.http("POST", "/v1/records/shop/p%d/forget" % n, fine=(403,), headers=sure, reason="drill", fence=1)
        must("a second person", said["status"], 403)
        must("proposals", "p%d" % n in [p["id"] for p in desk.http("GET", "/v1/proposals")["proposals"]], True)
        said = ops.http("POST", "/v1/records/shop/p%d/forget" % n, fine=(403,), reason="drill", fence=1)
        if said.get("verdict") not in ("absent", "stale") and said.get("status") != 403:
            raise Broken("forget: %r" % said)
        must("logout", browser.http("DELETE", "/v1/session", headers=with_cookie, fine=(401,)) .get("name", ""), "")
    finally:
        browser.close()


def a_wait_is_cancelled(people, n):
    ops, boss, desk = people
    name = "w%d" % n
    must("LOCK", ops.resp("LOCK", name, "me", 600000)[0], "started")
    try:
        with boss.connect() as line:
            line.send("LOCK", name, "you", 600000, "WAIT", 600000, "TAG", 7)
            desk.until(lambda said: name in [w["id"] for w in said["waiters"]] or fails(line), "GET", "/v1/waiters")
            line.send("CANCEL", "7")
            said = [line.read(), line.read()]
            if "OK" in said and not any(s[:4] == ["tag", 7, "error", "CLOSED"] for s in said if isinstance(s, list)):
                raise Broken("CANCEL: %r" % said)
    except (OSError, EOFError):
        pass  # this connection had the fault


def fails(line):
    """Has the server answered the wait already, or closed the connection?"""
    line.socket.setblocking(False)
    try:
        line.socket.read(1)
        raise EOFError
    except ssl.SSLWantReadError:
        return False
    finally:
        line.socket.settimeout(SILENCE)


def events_come(people, n):
    desk = people[2]
    end = time.monotonic() + faults.PATIENCE
    while time.monotonic() < end:
        line = desk.connect_http()
        try:
            line.request("GET", "/v1/events")
            answer = line.getresponse()
            if answer.status == 200 and answer.fp.readline().strip():
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            line.close()
        time.sleep(0.01)
    raise Broken("no events")


# Each list has what is there, or is an error; so has every other answer.
ANSWERS = [
    ("routes", lambda ops, desk: desk.http("GET", "/v1/routes")["routes"] == ROUTES),
    ("figures of routes", lambda ops, desk: [r["route"] for r in desk.http("GET", "/v1/routes")["figures"]] in (["other"], *ops.files.unreadable)),
    ("consumers", lambda ops, desk: [(c["scope"], c["handled"]) for c in desk.http("GET", "/v1/consumers")["consumers"]] in ([("shop", 41)], *ops.files.unreadable)),
    ("ids over RESP", lambda ops, desk: len(ops.resp("ID", "snowflake", "5")) == 6),
    ("an id explained", lambda ops, desk: ops.http("GET", "/v1/ids/uuid7/" + ops.http("GET", "/v1/ids/uuid7")["ids"][0])["version"] == 7),
    ("tokens over RESP", lambda ops, desk: len(ops.resp("ISSUE", "shop", "COUNT", 5)) == 6),
    ("tokens", lambda ops, desk: len(ops.http("POST", "/v1/tokens", subject="shop", count=5)["tokens"]) == 5),
    ("records", lambda ops, desk: len(ops.http("GET", "/v1/records?scope=shop&count=2")["records"]) >= 1),
    ("figures", lambda ops, desk: desk.http("GET", "/v1/stats?seconds=5")["verdict"] == "stats"),
    ("description", lambda ops, desk: "/v1/doubts" in ops.http("GET", "/openapi.json")["paths"]),
    ("page of a problem", lambda ops, desk: "<h1>" in ops.http("GET", "/problems/over-quota", headers={"Accept-Language": "zh"})),
    ("console", lambda ops, desk: len(ops.http("GET", "/console")) > 100),
    ("ready", lambda ops, desk: ops.http("GET", "/readyz")["status"] == "ready"),
    ("health", lambda ops, desk: ops.http("GET", "/healthz")["status"] == "ok"),
    ("schemes", lambda ops, desk: len(ops.http("GET", "/v1/play")["schemes"]) == 11),
    ("unprotected", lambda ops, desk: ops.http("POST", "/v1/play/unique/double", protected=False)["wrong"]),
    ("HELLO", lambda ops, desk: ops.resp("HELLO", "2", "AUTH", "ops", SECRETS["ops"])[1] == "idem"),
    ("PING", lambda ops, desk: [ops.resp("PING"), ops.resp("PING", "x"), ops.resp("ECHO", "x")] == ["PONG", "x", "x"]),
    ("COMMAND", lambda ops, desk: len(ops.resp("COMMAND")) == ops.resp("COMMAND", "COUNT")),
    ("CLIENT", lambda ops, desk: ops.resp("CLIENT", "INFO").startswith("id=") and ops.resp("CLIENT", "SETNAME", "x") == "OK"),
    ("CONFIG", lambda ops, desk: ops.resp("CONFIG", "GET", "appendonly") == ["appendonly", "yes"]),
    ("an unknown command", lambda ops, desk: ops.resp("NOTHING", fine=("ERR",)).word == "ERR"),
]


def answers(name, right):
    def part(people, n):
        must(name, right(people[0], people[2]), True)
    part.__name__ = name
    return part


PARTS = [a_doubt_is_settled, a_record_is_forgotten, metrics_are_whole, figures_over_resp_are_whole, segments_are_listed, a_session, a_wait_is_cancelled, events_come,
         *(answers(*one) for one in ANSWERS)]
# The playground reports that something went wrong only if it could do everything.
SCHEMES = [answers("%s %s" % (scheme, action), lambda ops, desk, path="/v1/play/%s/%s" % (scheme, action): not ops.http(
    "POST", path, protected=True)["wrong"]) for scheme, action in (
        ("token", "reload"), ("optimistic", "double"), ("pessimistic", "storm"), ("dedup", "kill"), ("state", "late"), ("lock", "pause"),
        ("seq", "storm"), ("doubt", "query"), ("message", "double"), ("strict", "fail"))]


class Operators(faults.Programme):
    def __init__(self, where, verbose=False, parts=PARTS):
        super().__init__(where, verbose, own=True)
        self.files, self.parts, self.logged = Files(where), parts, 0

    def up(self):
        self.server = Server(self.where, *self.files.flags, listen=True, http=True, env=self.fault.env)
        self.logged = 0
        self.people = [Person(self.server, self.files, name) for name in ("ops", "boss", "desk")]
        self.client = self.people[0]
        self.client.files = self.files
        must("ready", wait_until(lambda: '"ready"' in self.log(), 60), True)

    def down(self):
        for person in self.people[1:]:
            person.close()
        super().down()

    def log(self):
        """What it has logged since we looked last."""
        with open(self.server.log.name, errors="replace") as f:
            f.seek(self.logged)
            said = f.read()
        self.logged += len(said.encode())
        return said

    def story(self):
        acknowledged = {}
        for part in self.parts:
            acknowledged.update(part(self.people, self.number) or {})
        if not self.parts or len(self.parts) > 1:
            self.reread()
        return acknowledged

    def tell(self, kind, left):
        self.files.unreadable = [[]] if kind in ("error", "short", "interrupted") else []
        return super().tell(kind, left)

    def each_part(self, kinds, points):
        """So many points of each kind in each part, which is told alone. Without a part, the server rereads its files."""
        for part in [*PARTS, *SCHEMES, None]:
            self.parts = [part] if part else []
            for kind in kinds:
                self.enumerate(kind, 8 if part is events_come else points)  # a stream that ended counts until the next row, a second later

    def reread(self):
        """SIGHUP: it reads its files, or says that it keeps what it has. A line of its log may be the write that fails."""
        self.log()
        said = []
        self.server.send(signal.SIGHUP)

        def both():
            said.append(self.log())
            lines = "".join(said).count('"event":"reread')
            return lines >= 2 or lines == 1 and self.fault.fired() == "write" or self.server.process.poll() is not None
        must("SIGHUP", wait_until(both, 60), True)
        must("a credential after SIGHUP", self.people[1].resp("PING"), "PONG")

    def finish(self):
        """What was settled is there after a restart."""
        self.down()
        self.up()
        for key, result in self.acknowledged.items():
            found = record(self.people[0], key)
            if (found["state"], found.get("result")) != ("succeeded", result):
                self.flaws.append("after a restart, %s: %r" % (key, found))
        self.down()


def stop_once(where, files, fault, kind, left):
    """A server with clients that wait gets SIGTERM, and one call fails meanwhile. The call's name, and what is wrong or None."""
    server = Server(where, *files.flags, "--drain-timeout", "5s", listen=True, http=True, env=fault.env)
    ops, boss = Person(server, files, "ops"), Person(server, files, "boss")
    line, stream, waiter = boss.connect(), boss.connect_http(), boss.connect_http()
    ops.resp("LOCK", "held", "me", 600000)
    line.send("LOCK", "held", "you", 600000, "WAIT", 600000)
    for connection, method, path in ((stream, "GET", "/v1/events"), (waiter, "PUT", "/v1/locks/held")):
        body = json.dumps({"owner": "them", "lease_ms": 1000, "wait_ms": 600000}) if method == "PUT" else None
        connection.request(method, path, body, {**boss.headers, "Content-Type": "application/json"} if body else boss.headers)
    ops.until(lambda said: said["count"] == 2, "GET", "/v1/waiters")
    fault.arm(kind, left, True)
    server.send(signal.SIGTERM)
    try:
        said = line.read()
        wrong = None if isinstance(said, Error) or said[0] == "busy" else "the wait ended with %r" % (said,)
    except (OSError, EOFError):
        wrong = None  # closed
    try:
        answer = waiter.getresponse()
        said = json.loads(answer.read())
        if said.get("verdict", "busy") != "busy":
            wrong = "the wait over HTTP ended with %r" % said
    except (OSError, http.client.HTTPException):
        pass
    for one in (ops, boss, line, stream, waiter):
        one.close()
    try:
        code = server.wait(60)
    except subprocess.TimeoutExpired:
        wrong = "it did not end within a minute"
    code = server.stop()
    fired = fault.disarm()
    if code == -signal.SIGSEGV and os.environ.get("IDEM_COVERAGE") and '"event":"stopped"' in server.output():
        return fired, wrong  # libgcov, when main had returned and an allocation for the counters failed
    if code != 0 or "Sanitizer" in server.output():
        wrong = "exit %s: %s" % (code, server.output()[-800:])
    return fired, wrong


def stop_failing(where, kind, points):
    fault, files, flaws, done = faults.Fault(where), Files(where), [], 0
    stop_once(where, files, fault, kind, 1 << 30)
    most = fault.seen()
    for left in range(1, most + 1, max(1, most // points) if points else 1):
        fired, flaw = stop_once(where, files, fault, kind, left)
        done += bool(fired)
        if flaw:
            flaws.append("stop, %s %d (%s): %s" % (kind, left, fired, flaw))
    return done, flaws


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []])
    parser.add_argument("--points", type=int, default=0)
    parser.add_argument("--stop", action="store_true")
    parser.add_argument("--start", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    subprocess.run(["make", "-s", "build/idem", "build/tests/faults.so"], cwd=ROOT, check=True)
    flaws = []
    for kind in args.kinds or KINDS:
        with folder() as where:
            if args.stop or args.start:
                done, wrong = stop_failing(where, kind, args.points) if args.stop else start_failing(where, kind, args.points, Files(where).flags, own=True)
                print("%s: %d points, %d flaws" % (kind, done, len(wrong)), flush=True)
                flaws += wrong
                continue
            programme = Operators(where, args.verbose)
            programme.up()
            programme.each_part([kind], args.points)
            programme.finish()
            print("%s: %d points, %d flaws; %s" % (kind, programme.points, len(programme.flaws), programme.calls), flush=True)
            flaws += programme.flaws
    for flaw in flaws:
        print(flaw)
    return 1 if flaws else 0


if __name__ == "__main__":
    sys.exit(main())
