#!/usr/bin/python3
"""Let every allocation and every system call of a command fail once: tests/faults/commands.py [KIND...]

  KIND          alloc, error, interrupted, short; all of them if none is named
  --only WORD   only commands with this word in their name
  --points N    N points of each kind for each command, spread over all of them; without it all
  --server      only through a server
  --verbose     print each point

faults.c is loaded into the command, not into the server that it asks, nor into what it runs. A command ends by itself, with the exit code and the output that it has
without the fault, or with the exit code of an error and a message. If the exit code says that nothing was stored, nothing was stored; if it says
that the command did its work, it did.
"""
import argparse
import http.server
import json
import os
import re
import subprocess
import sys
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests/support"), os.path.join(ROOT, "tests/faults")]

from faults import KINDS, Broken, Fault  # noqa: E402
from lib import IDEM, Server, folder, wait_until  # noqa: E402

LOST = 21
ERRORS = {1, 2} | set(range(20, 30))  # 2: a value, for instance a file that cannot be read
NOT_STORED = {2, 20, 22, 23, 24, 27}
NOT_STARTED = 126  # of run and lock, which give back what they took: "cannot run echo: Cannot allocate memory"
NOT_RECORDED = "its outcome could not be recorded"  # of run: the command has run, and the record stays as it was
WITHOUT_PLACE = {"journal", "help", "store", "backup", "restore", "check", "completion", "version"}


class Service(http.server.ThreadingHTTPServer):
    """Runs each key once, and shows how often it ran anything."""
    daemon_threads = True

    def __init__(self):
        self.lock, self.bodies = threading.Lock(), {}
        super().__init__(("127.0.0.1", 0), Visit)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        """A client that is gone."""


class Visit(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers["Idempotency-Key"]
        with self.server.lock:
            self.respond(201 if self.server.bodies.setdefault(key, body) == body else 422, key)

    def do_GET(self):
        self.respond(200, str(len(self.server.bodies)))

    def respond(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


class Stage:
    """A store that the commands use, directly or through a server."""

    def __init__(self, where, through):
        self.where, self.fault, self.number, self.forgotten = where, Fault(where, alone=True), 0, False
        self.server, self.service = Server(where) if through else None, None
        self.place = ["--server", "unix:" + self.server.socket] if through else ["--store", "journal:" + os.path.join(where, "journal")]

        fence = self.begun("finished")
        assert self.call("finish", "s", "finished", fence, "succeeded", "the answer").returncode == 0

    def call(self, *argv, env=None, stdin=""):
        place = [] if argv[0] in WITHOUT_PLACE and not (argv[:2] == ("store", "accept-rollback")) else self.place
        return subprocess.run([IDEM, *argv[:1], *place, *argv[1:]], input=stdin, text=True, errors="replace", timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(env or {})})

    def state(self, key, type="request"):
        scope = {"lock": "locks", "token": "ann"}.get(type, "s")
        said = self.call("get", scope, key, "--type", type, "--json")
        if said.returncode == 16:
            return "absent", None
        assert said.returncode == 0, said
        record = json.loads(said.stdout)
        return record["state"], record.get("result")

    def begun(self, key, *flags):
        said = self.call("begin", "s", key, "--json", *flags)
        assert said.returncode == 0, said
        return str(json.loads(said.stdout)["fence"])

    def url(self):
        """Of a service, for idem check."""
        self.service = self.service or Service()
        return "http://127.0.0.1:%d/" % self.service.server_address[1]

    def close(self):
        if self.server:
            assert self.server.stop() == 0
        if self.service:
            self.service.shutdown()
            self.service.server_close()


class Case:
    """A command: what must be there before it, its arguments, its exit code, and the states that a record may have after it."""

    def __init__(self, name, argv, before=None, code=0, output="", done=None, undone=None, stdin="", only=None, type="request", slow=False, own=False):
        """only: True through a server, False on a journal; type: of the record that has the states; slow: not in make check; own: only
        allocations of idem itself fail, because its library sends fewer requests without memory."""
        self.name, self.argv, self.before, self.code, self.output = name, argv, before, code, output
        self.done, self.undone, self.stdin, self.only, self.type, self.slow, self.own = done, undone, stdin, only, type, slow, own
        self.starts = "run" in name or "lock" in name  # another command

    def judge(self, stage, key, said):
        """What is wrong, or None."""
        code, text = said.returncode, said.stdout + said.stderr
        if code == NOT_STARTED and self.starts:
            state = stage.state(key, "lock" if "lock" in self.name else self.type)[0]
            return None if "cannot run " in said.stderr and state in ("free", "absent") else "exit %d, and the record is %s" % (code, state)
        if code < 0 or code not in ERRORS | {self.code}:
            return "exit %d, not %d" % (code, self.code)
        if code in ERRORS and code != self.code and not said.stderr.strip() and '"text":' not in said.stdout:
            return "exit %d without a message" % code
        if code == self.code and not re.search(self.output, said.stdout, re.M if self.own else 0) and "the output of the command: " not in said.stderr:
            return "exit %d, but not %r in the output" % (code, self.output)
        if "Sanitizer" in text or "Assertion" in text:
            return "a bug"
        if self.done is None:
            return None
        state = stage.state(key, self.type)[0]
        if code == self.code and state != self.done:
            return "exit %d, but the record is %s" % (code, state)
        undone = "executing" if NOT_RECORDED in said.stderr else self.undone
        if code in NOT_STORED and state != undone:
            return "exit %d says that nothing was stored, but the record is %s" % (code, state)
        if state not in (self.done, undone):
            return "exit %d, and the record is %s" % (code, state)
        return None


CASES = [
    Case("begin", lambda c: ["begin", "s", c.key, "--json"], output='"verdict": ?"started"', done="executing", undone="absent"),
    Case("begin with everything", lambda c: ["begin", "s", c.key, "--loose", "--payload", "-", "--lease", "1h", "--ttl", "2h", "--wait", "1s",
                                             "--nonce", "0123456789abcdef", "--subject", "me", "--print", "fence"],
         output=r"^\d+$", done="executing", undone="absent", stdin="a payload", only=True),
    Case("replay", lambda c: ["begin", "s", "finished"], code=10, output="the answer"),
    Case("replay as JSON", lambda c: ["begin", "s", "finished", "--json"], code=10, output="the answer", only=True, slow=True),
    Case("finish", lambda c: ["finish", "s", c.key, c.fence, "succeeded", "done"], before="begun", done="succeeded", undone="executing"),
    Case("finish from stdin", lambda c: ["finish", "s", c.key, c.fence, "failed", "-"], before="begun", stdin="no money",
         done="failed", undone="executing"),
    Case("finish from a file", lambda c: ["finish", "s", c.key, c.fence, "succeeded", "@" + c.file("a result"), "--json"], before="begun",
         done="succeeded", undone="executing", only=True),
    Case("release", lambda c: ["release", "s", c.key, c.fence], before="begun", done="free", undone="executing"),
    Case("renew", lambda c: ["renew", "s", c.key, c.fence, "1h"], before="begun", done="executing", undone="executing"),
    Case("settle", lambda c: ["settle", "s", c.key, "--reason", "test"], done="failed", undone="absent"),
    Case("settle a doubt", lambda c: ["settle", "s", c.key, "--as", "succeeded", "--http", "201", "--header", "A: b", "--body", "-"], before="doubt",
         done="succeeded", undone="executing", stdin="made", only=True),
    Case("settle all doubts", lambda c: ["settle", "--as", "failed", "--scope", "s", "--yes", "--json"], before="doubt",
         done="failed", undone="executing", only=True),
    Case("get", lambda c: ["get", "s", "finished"], output="the answer"),
    Case("get as JSON", lambda c: ["get", "s", "finished", "--json"], output="the answer", only=True, slow=True),
    Case("get one field", lambda c: ["get", "s", "finished", "--print", "result"], output="^the answer$", only=True, slow=True),
    Case("forget", lambda c: ["forget", "s", c.key], before="finished", done="free", undone="succeeded"),
    Case("issue", lambda c: ["issue", "ann", "--json"], output="token"),
    Case("issue two", lambda c: ["issue", "ann", "--count", "2", "--ttl", "1h"], output=r"^\S+\n\S+$", only=True, slow=True),
    Case("redeem", lambda c: ["redeem", c.token, "ann", "--next", "--json"], before="token", output='"redeemed"', done="succeeded",
         undone="issued", type="token"),
    Case("begin with a token", lambda c: ["begin", "ann", c.token, "--token"], before="token", output="started", done="executing",
         undone="issued", type="token", only=True),
    Case("scan", lambda c: ["scan", "--id", "finished"], output="finished"),
    Case("scan as JSON", lambda c: ["scan", "--json", "--id", "finished"], output="finished"),
    Case("doubts", lambda c: ["doubts"], before="doubt", output=r"k\d", only=True),
    Case("doubts as JSON", lambda c: ["doubts", "--json"], before="doubt", output=r"doubt_ms", only=True, slow=True),
    Case("find", lambda c: ["find", "finished"], output="finished"),
    Case("find as JSON", lambda c: ["find", "finished", "--json"], output="finished", only=True, slow=True),
    Case("id", lambda c: ["id", "uuid7"], output="-"),
    Case("snowflake", lambda c: ["id", "snowflake", "-n", "3"], output=r"\d{15}"),
    Case("segment", lambda c: ["id", "segment:orders", "-n", "2", "--json"], output=r"\d", only=True),
    Case("explain", lambda c: ["id", "explain", "387411238093066240", "--json"], output="worker", only=True, slow=True),
    Case("run", lambda c: ["run", "s", c.key, "--", "echo", "ran " + c.key], output="ran k", done="succeeded", undone="absent"),
    Case("run as JSON", lambda c: ["run", "s", c.key, "--json", "--", "sh", "-c", "echo ran $IDEM_ID; exit 3"], code=3, output="ran k", done="failed",
         undone="absent", only=True),
    Case("lock", lambda c: ["lock", c.key, "--", "echo", "locked"], output="locked"),
    Case("lock as JSON", lambda c: ["lock", c.key, "--owner", "me", "--json"], output="fence", done="executing",
         undone="absent", type="lock", only=True),
    Case("read lock", lambda c: ["lock", c.key, "--read", "--fair", "--wait", "1s", "--", "echo", "locked"], output="locked", only=True),
    Case("unlock", lambda c: ["unlock", c.key, c.fence, "--reason", "test"], before="locked", done="free", undone="executing", type="lock"),
    Case("audit", lambda c: ["audit"], before="forgotten", output="FORGET|forget", only=True),
    Case("audit as JSON", lambda c: ["audit", "--json"], before="forgotten", output="FORGET|forget", only=True, slow=True),
    Case("top", lambda c: ["top", "--once"], output="clients", only=True, slow=True),
    Case("top as JSON", lambda c: ["top", "--once", "--json"], output="clients", only=True, slow=True),
    Case("bench", lambda c: ["bench", "--what", "pair", "--clients", "2", "--pipeline", "2", "--time", "20ms"], output=r"pair: \d+/s", only=True, slow=True),
    Case("check", lambda c: ["check", c.stage.url(), "--body", '{"n":1}', "--header", "X-Key: {key}", "--key-header", "Idempotency-Key", "--parallel", "2",
                             "--effect-url", c.stage.url()], output="^idempotent: ", only=True, slow=True, own=True),
    Case("accept a rollback", lambda c: ["store", "accept-rollback", "--reason", "test"], code=2, only=True),
    Case("store check", lambda c: ["store", "check", c.store], output="", only=False),
    Case("store copy", lambda c: ["store", "copy", c.store, "journal:" + c.where + "/copy-of-" + c.key], output="", only=False),
    Case("store init", lambda c: ["store", "init", "sqlite:" + c.where + "/db-" + c.key, "--json"], output="", only=False, slow=True),
    Case("journal check", lambda c: ["journal", "check", c.folder], output="", only=False),
    Case("journal dump", lambda c: ["journal", "dump", c.folder], output="finished", only=False),
    Case("journal dump as JSON", lambda c: ["journal", "dump", c.folder, "--all", "--results", "--json"], output="the answer", only=False, slow=True),
    Case("backup", lambda c: ["backup", c.store, c.where + "/copy-" + c.key], output="", only=False),
    Case("restore", lambda c: ["restore", c.copy, c.where + "/restored-" + c.key, "--check", "--json"], before="copied", output="", only=False),
    Case("help", lambda c: ["help", "begin"], output="usage: idem begin", only=True),
    Case("help as JSON", lambda c: ["help", "exit-codes", "--json"], output='"help":', only=True, slow=True),
    Case("manual", lambda c: ["help", "--man", "settle"], output=r"\.TH", only=True, slow=True),
    Case("completion", lambda c: ["completion", "bash"], output="complete", only=True, slow=True),
    Case("version", lambda c: ["version", "--json"], output="version", only=True, slow=True),
]


class Context:
    """What the arguments of one run are made of."""

    def __init__(self, stage, before):
        stage.number += 1
        self.stage, self.key, self.where, self.fence = stage, "k%d" % stage.number, stage.where, ""
        self.folder = os.path.join(stage.where, "journal")
        self.store = "journal:" + self.folder
        self.record = self.key
        if before:
            getattr(self, "make_" + before)()

    def make_begun(self):
        self.fence = self.stage.begun(self.key)

    def make_finished(self):
        self.make_begun()
        assert self.stage.call("finish", "s", self.key, self.fence, "succeeded", "x").returncode == 0

    def make_doubt(self):
        """A server has watched it from the beginning, so it is in doubt as soon as its lease is over."""
        self.fence = self.stage.begun(self.key, "--lease", "1ms")
        assert wait_until(lambda: self.stage.call("begin", "s", self.key).returncode == 12)

    def make_forgotten(self):
        """One is enough: the list of what operators did must not grow."""
        if not self.stage.forgotten:
            self.stage.forgotten = True
            self.make_finished()
            assert self.stage.call("forget", "s", self.key).returncode == 0

    def make_token(self):
        self.record = self.token = self.stage.call("issue", "ann").stdout.strip()
        assert self.token

    def make_locked(self):
        self.fence = self.stage.call("lock", self.key, "--owner", "me", "--print", "fence").stdout.strip()
        assert self.fence

    def make_copied(self):
        self.copy = os.path.join(self.where, "copied")
        if not os.path.exists(self.copy):
            assert self.stage.call("backup", self.store, self.copy).returncode == 0

    def file(self, text):
        name = os.path.join(self.where, "file")
        with open(name, "w") as f:
            f.write(text)
        return name


def run_once(stage, case, kind, left):
    """The name of the call that failed, or None; how many there were; what is wrong, or None."""
    context = Context(stage, case.before)
    argv = case.argv(context)
    stage.fault.arm(kind, left, case.own)
    try:
        said = stage.call(*argv, env=stage.fault.env, stdin=case.stdin)
    except subprocess.TimeoutExpired:
        return stage.fault.disarm(), stage.fault.seen(), "it did not end within a minute"
    fired, seen = stage.fault.disarm(), stage.fault.seen()
    flaw = case.judge(stage, context.record, said)
    return fired, seen, flaw and "%s\n%s%s" % (flaw, said.stdout[-300:], said.stderr[-600:])


def run_case(stage, case, kind, points=0, verbose=False):
    """Returns the number of points and the flaws."""
    _, most, flaw = run_once(stage, case, kind, 1 << 30)
    if flaw:
        raise Broken("%s without a fault: %s" % (case.name, flaw))
    flaws, done = [], 0
    if case.own and kind != "alloc":
        return 0, []
    for left in range(1, most + 1, max(1, most // points) if points else 1):
        fired, _, flaw = run_once(stage, case, kind, left)
        done += bool(fired)
        if flaw:
            flaws.append("%s, %s %d (%s): %s" % (case.name, kind, left, fired, flaw))
        if verbose:
            print(case.name, kind, left, fired, "FLAW " + flaw if flaw else "", flush=True)
    return done, flaws


def run_all(where, kinds, points=0, only="", through=(False, True), verbose=False, slow=True):
    """All commands on a journal, and through a server. Each command has a journal of its own: what it reads must not grow."""
    done, flaws = 0, []
    for by_server in through:
        cases = [case for case in CASES if only in case.name and case.only in (None, by_server) and (slow or not case.slow)]
        for number, some in enumerate([cases] if by_server else [[case] for case in cases]):
            place = os.path.join(where, "server" if by_server else "direct%d" % number)
            os.mkdir(place)
            stage = Stage(place, by_server)
            try:
                for case in some:
                    for kind in kinds:
                        more, wrong = run_case(stage, case, kind, points, verbose)
                        done, flaws = done + more, flaws + ["%s: %s" % ("server" if by_server else "journal", w) for w in wrong]
                if stage.state("finished") != ("succeeded", "the answer"):
                    flaws.append("the finished record is %s" % (stage.state("finished"),))
            finally:
                stage.close()
    return done, flaws


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []])
    parser.add_argument("--only", default="")
    parser.add_argument("--points", type=int, default=0)
    parser.add_argument("--server", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    subprocess.run(["make", "-s", "build/idem", "build/tests/faults.so"], cwd=ROOT, check=True)
    flaws = []
    for kind in args.kinds or KINDS:
        with folder("/dev/shm") as where:
            done, wrong = run_all(where, [kind], args.points, args.only, (True,) if args.server else (False, True), args.verbose)
        print("%s: %d points, %d flaws" % (kind, done, len(wrong)), *wrong, sep="\n", flush=True)
        flaws += wrong
    return 1 if flaws else 0


if __name__ == "__main__":
    sys.exit(main())
