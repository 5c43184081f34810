"""Many clients on several `idem serve` processes that share one store, and a
checker of what they were told.

    with engines(store.url, 2) as servers:
        crowd = Crowd(servers, threads=8)
        crowd.run(ops=4000, meanwhile=lambda: store.kill())
        crowd.check()

Every client claims ids, its own and other people's, and finishes what it was
told to do. Rules, for each id (strict, so one execution in all eternity):

    R1  at most one nonce is ever told "started", always with one fence
    R2  every replay is the result that the one who started finished with
    R3  a claim made after a finish was acknowledged is a replay
    R4  what was acknowledged is there in the end, byte for byte
    R5  if everybody was told "not stored", nothing is there in the end
    R6  nobody who was told "started" is later told that he is stale

An error is not an answer: LOST is asked again with the same nonce, as a client
would, and UNAVAILABLE means that nothing was stored, which R5 checks.
"""
import collections
import contextlib
import os
import random
import threading
import time

from lib import SOAK, Error, Resp, Server, folder, wait_until

LEASE_MS = 600000


@contextlib.contextmanager
def engines(url, count=2, flags=()):
    """So many `idem serve` on one store; or one on each of several URLs."""
    with contextlib.ExitStack() as stack:
        servers = []
        for one in [url] * count if isinstance(url, str) else url:
            where = stack.enter_context(folder())
            servers.append(stack.enter_context(Server(where, *flags, store=one)))
        yield servers


class Call(collections.namedtuple("Call", "start end who id verb nonce answer")):
    """One question and its answer; times are of one clock."""


class Client:
    """Asks one server until there is an answer that is one."""

    def __init__(self, crowd, number):
        self.crowd, self.who = crowd, number
        self.where = crowd.servers[number % len(crowd.servers)].socket
        self.resp = None
        self.random = random.Random("%s-%d" % (crowd.seed, number))

    def once(self, *words):
        try:
            if not self.resp:
                self.resp = Resp(self.where, 30)
            return self.resp(*words)
        except (OSError, EOFError):
            self.resp = None
            return Error("LOST the connection to the server")

    def ask(self, id, nonce, verb, *words):
        """Again while it is not known whether it happened; None: time is up."""
        end = time.monotonic() + self.crowd.patience
        unsure = False
        while time.monotonic() < end:
            start = time.monotonic()
            answer = self.once(verb, self.crowd.scope, id, *words)
            word = answer.word if isinstance(answer, Error) else answer[0]
            # After a LOST one, "not stored" speaks of the last try only.
            if word in ("UNAVAILABLE", "OVERLOADED") and unsure:
                word, answer = "LOST", Error("LOST and then " + str(answer))
            self.crowd.note(Call(start, time.monotonic(), self.who, id, verb, nonce, answer))
            if word != "LOST" and not (verb == "FINISH" and isinstance(answer, Error)):
                if isinstance(answer, Error):
                    time.sleep(0.005)  # whoever is refused comes again, but not at once
                return answer
            unsure = True
            time.sleep(0.02)
        return None

    def work(self, id):
        nonce = "%016x" % self.random.getrandbits(64)
        answer = self.ask(id, nonce, "BEGIN", "LEASE", LEASE_MS, "NONCE", nonce)
        if answer is None or isinstance(answer, Error) or answer[0] != "started":
            return
        if self.random.random() < self.crowd.deaths:
            return  # as one who died at work
        self.ask(id, nonce, "FINISH", answer[1], "SUCCEEDED", "done by " + nonce)

    def run(self):
        while self.crowd.go_on():
            self.work(self.crowd.some_id(self.random))


class Crowd:
    def __init__(self, servers, threads=8, scope=None, deaths=0.05, patience=40):
        self.servers = servers
        self.seed = os.environ.get("IDEM_TEST_SEED") or str(random.getrandbits(32))
        print("IDEM_TEST_SEED=" + self.seed)
        self.scope = scope or "crowd-%016x" % random.getrandbits(64)
        self.deaths, self.patience = deaths, patience
        self.lock = threading.Lock()
        self.calls, self.answers = [], 0
        self.made = 0
        self.until = self.limit = 0
        self.reach = 12  # how far back ids are asked for again
        self.fault = False
        self.clients = [Client(self, i) for i in range(threads)]
        self.threads = []

    # ---- running

    def note(self, call):
        with self.lock:
            self.calls.append(call)
            self.answers += not isinstance(call.answer, Error)

    def some_id(self, dice):
        """A new id, or one of the last few: somebody else may be at it."""
        with self.lock:
            if dice.random() < 0.5 or self.made == 0:
                self.made += 1
                return "id-%d" % self.made
            return "id-%d" % dice.randint(max(1, self.made - self.reach), self.made)

    def go_on(self):
        return (self.fault or self.answers < self.limit) and time.monotonic() < self.until

    def run(self, ops, seconds=900 if SOAK else 60, meanwhile=None):
        """Until so many answers came that are not errors, or time is up; `meanwhile` runs
        beside it, and life goes on for a while after it."""
        self.limit, self.until = self.answers + ops, time.monotonic() + seconds
        self.fault = meanwhile is not None
        self.threads = [threading.Thread(target=c.run, daemon=True) for c in self.clients]
        for thread in self.threads:
            thread.start()
        if meanwhile:
            try:
                meanwhile()
            finally:
                self.limit = max(self.limit, self.answers + 300)
                self.fault = False
        for thread in self.threads:
            thread.join(seconds + self.patience + 30)
            assert not thread.is_alive(), "a client hangs; seed " + self.seed
        return self

    # ---- figures

    def counts(self):
        """How often each answer came."""
        return collections.Counter(
            c.answer.word if isinstance(c.answer, Error) else c.answer[0] for c in self.calls)

    def longest_pause(self):
        """The longest time in which nobody anywhere got an answer that is one."""
        ends = sorted(c.end for c in self.calls if not isinstance(c.answer, Error))
        return max((b - a for a, b in zip(ends, ends[1:])), default=0)

    # ---- checking

    def flaws(self, final=True):
        by_id = collections.defaultdict(list)
        for call in self.calls:
            by_id[call.id].append(call)
        flaws = []
        for id, calls in by_id.items():
            flaws += ["%s: %s" % (id, flaw) for flaw in self.check_id(calls)]
        if final:
            flaws += self.check_end(by_id)
        return flaws

    @staticmethod
    def check_id(calls):
        good = [c for c in calls if not isinstance(c.answer, Error)]
        started = [c for c in good if c.verb == "BEGIN" and c.answer[0] == "started"]
        finished = [c for c in good if c.verb == "FINISH" and c.answer[0] == "ok"]
        if len({c.nonce for c in started}) > 1:
            yield "R1: started by %s" % sorted({c.nonce for c in started})
        if len({c.answer[1] for c in started}) > 1:
            yield "R1: fences %s" % sorted({c.answer[1] for c in started})
        for call in good:
            if call.verb == "BEGIN" and call.answer[0] == "replay":
                wanted = {"done by " + c.nonce for c in started}
                if call.answer[4] not in wanted and wanted:
                    yield "R2: replay of %r, not of %s" % (call.answer[4], wanted)
            if call.verb == "FINISH" and call.answer[0] in ("stale", "finished"):
                yield "R6: the one who started is told %s" % call.answer[0]
        if finished:
            first = min(c.end for c in finished)
            for call in good:
                if call.verb == "BEGIN" and call.start > first and call.answer[0] != "replay":
                    yield "R3: %s after it was finished" % call.answer[0]

    def check_end(self, by_id):
        """What is there in the end; an error is asked again, while there is patience."""
        resp, left = Resp(self.servers[0].socket, 60), list(by_id)
        end = time.monotonic() + self.patience
        while left:
            part, left = left[:256], left[256:]
            for id in part:
                resp.send("GET", self.scope, id)
            for id in part:
                last = resp.read()
                if isinstance(last, Error) and time.monotonic() < end:
                    left.append(id)
                    time.sleep(0.01)
                    continue
                yield from ("%s: %s" % (id, flaw) for flaw in self.check_last(by_id[id], last))

    @staticmethod
    def check_last(calls, last):
        if isinstance(last, Error):
            yield "GET: %s" % last
            return
        record = dict(zip(last[1::2], last[2::2]))
        for call in calls:
            if call.verb == "FINISH" and not isinstance(call.answer, Error) and call.answer[0] == "ok":
                if record.get("result") != "done by " + call.nonce:
                    yield "R4: acknowledged, but %s" % (last[:1] + [record.get("state"), record.get("result")])
        words = {c.answer.word if isinstance(c.answer, Error) else c.answer[0] for c in calls}
        if words <= {"UNAVAILABLE", "OVERLOADED"} and last[0] != "absent":
            yield "R5: everybody was told %s, but it is %s" % (sorted(words), record.get("state"))

    def check(self):
        flaws = self.flaws()
        assert not flaws, "%d flaws, seed %s: %s" % (len(flaws), self.seed, "\n".join(flaws[:10]))
        counts = self.counts()
        assert counts["started"] and counts["ok"] and counts["replay"], counts
        return counts


# ---- races of two engines, told step by step


def check_waiting_is_woken(one, two):
    """A duplicate that waits at one engine is woken when the first finishes at another."""
    a, b = one.client(), two.client()
    name = "wake-" + os.urandom(4).hex()
    fence = a("BEGIN", name, "x")[1]
    b.send("BEGIN", name, "x", "WAIT", 30000)
    time.sleep(0.3)
    done = time.monotonic()
    assert a("FINISH", name, "x", fence, "SUCCEEDED", "for both")[0] == "ok"
    assert b.read()[4] == "for both"
    assert time.monotonic() - done < 10  # 50 ms on an idle machine


def wake_times(one, two, rounds=30, still=0.12):
    """How long after FINISH is answered at one engine a duplicate that waits at another has its
    answer, and every second time after UNLOCK who waits for the lock: seconds, sorted."""
    a, b = one.client(), two.client()
    scope, times = "wake-" + os.urandom(4).hex(), []
    for i in range(rounds):
        if i % 2:
            fence = a("LOCK", scope, "ann", 60000)[1]
            b.send("LOCK", scope, "bob", 60000, "WAIT", 30000)
        else:
            fence = a("BEGIN", scope, i)[1]
            b.send("BEGIN", scope, i, "WAIT", 30000)
        time.sleep(still)
        answer = a("UNLOCK", scope, fence) if i % 2 else a("FINISH", scope, i, fence, "SUCCEEDED", "for both")
        start = time.monotonic()
        assert answer[0] == "ok", answer
        answer = b.read()
        times.append(time.monotonic() - start)
        assert answer[0] == ("started" if i % 2 else "replay"), answer
        if i % 2:
            assert b("UNLOCK", scope, answer[1])[0] == "ok"
    return sorted(times)


def check_locks_and_scan(one, two):
    """What one engine locked is locked for the other, and both list the same records."""
    a, b = one.client(), two.client()
    name, ids = "lock-" + os.urandom(4).hex(), {"id-%d" % i for i in range(40)}
    fence = a("LOCK", name, "ann", 60000)[1]
    assert b("LOCK", name, "bob", 60000)[0] == "busy"
    assert b("UNLOCK", name, fence + 1)[0] == "stale"
    assert b("UNLOCK", name, fence)[0] == "ok"
    assert b("LOCK", name, "bob", 500)[1] > fence
    assert wait_until(lambda: a("LOCK", name, "ann", 60000)[0] == "started")
    for id in ids:
        a("BEGIN", name, id)
    found, cursor = [], "0"
    for _ in range(10000):
        answer = b("SCAN", cursor, "SCOPE", name, "COUNT", 10)
        found += [dict(zip(r[0::2], r[1::2]))["id"] for r in answer[2:]]
        cursor = answer[1]
        if cursor == "0":
            break
    assert set(found) == ids and cursor == "0"


def check_lease_ends(one, two):
    """A lease that ended is over for every engine: strict is in doubt, loose is taken over,
    and who lost it is told so."""
    a, b = one.client(), two.client()
    scope = "lease-" + os.urandom(4).hex()
    strict = a("BEGIN", scope, "strict", "LEASE", 4000)[1]
    loose = a("BEGIN", scope, "loose", "LEASE", 4000, "LOOSE")[1]
    assert b("BEGIN", scope, "strict")[0] == "busy"
    assert b("BEGIN", scope, "loose", "LOOSE")[0] == "busy"
    assert wait_until(lambda: b("BEGIN", scope, "strict")[0] == "doubt", 60, 0.1)
    taken = wait_until(lambda: [x for x in [b("BEGIN", scope, "loose", "LOOSE")]
                                if x[0] == "started"], 60, 0.1)
    assert taken[0][1] > loose
    assert a("FINISH", scope, "loose", loose, "SUCCEEDED", "late")[0] == "stale"
    assert b("FINISH", scope, "loose", taken[0][1], "SUCCEEDED", "mine")[0] == "ok"
    assert a("BEGIN", scope, "loose", "LOOSE")[4] == "mine"
    assert a("FINISH", scope, "strict", strict, "SUCCEEDED", "late, but its own")[0] == "ok"
    assert b("BEGIN", scope, "strict")[4] == "late, but its own"


def check_expiry_race(one, two, rounds=25):
    """When a record has expired, one of two who ask at the same moment starts it, not both."""
    a, b = one.client(), two.client()
    scope = "expiry-" + os.urandom(4).hex()
    again = 0
    for i in range(rounds):
        fence = a("BEGIN", scope, str(i))[1]
        assert a("FINISH", scope, str(i), fence, "SUCCEEDED", "x", "TTL", 5)[0] == "ok"
        for _ in range(200):
            a.send("BEGIN", scope, str(i))
            b.send("BEGIN", scope, str(i))
            answers = [a.read(), b.read()]
            words = [x[0] for x in answers]
            assert words.count("started") <= 1, answers
            if "started" in words:
                assert set(words) <= {"started", "busy", "replay"}
                assert [x for x in answers if x[0] == "started"][0][1] > fence
                again += 1
                break
            time.sleep(0.002)
    assert again == rounds


def check_lost_is_lost(server, chaos, rounds=3):
    """A claim that took effect, whose reply was cut, and nobody to ask afterwards: it is LOST,
    never "not stored"; and whoever asks again with the same nonce has it."""
    client = server.client(60)
    scope = "lost-" + os.urandom(4).hex()
    for i in range(rounds):
        nonce = os.urandom(8).hex()
        answer = wait_until(lambda: [x for x in [client("BEGIN", scope, "%d-warm" % i)]
                                     if not isinstance(x, Error)], 30, 0.05)
        assert answer  # connected
        chaos.cut_at(1, then="refuse")
        answer = client("BEGIN", scope, str(i), "NONCE", nonce)
        chaos.heal()
        told = answer.word if isinstance(answer, Error) else answer[0]
        last = wait_until(lambda: [x for x in [client("GET", scope, str(i))]
                                   if not isinstance(x, Error)], 30, 0.05)[0]
        if told == "UNAVAILABLE":
            assert last[0] == "absent", (i, answer, last)
        else:
            assert told in ("LOST", "started"), answer
        mine = wait_until(lambda: [x for x in [client("BEGIN", scope, str(i), "NONCE", nonce)]
                                   if not isinstance(x, Error)], 30, 0.05)[0]
        assert mine[0] == "started", (i, answer, mine)
    assert chaos.cuts == rounds


def check_lost_records_are_noticed(one, two, lose):
    """`lose` makes the store forget; the owner of a live claim who comes to finish it finds out, and the log says so."""
    a, b = one.client(), two.client()
    vanished = lambda: [l for l in a("INFO").splitlines() if l.startswith("vanished:")][0]  # noqa: E731
    begin = lambda name: a("BEGIN", "gone", name, "LEASE", LEASE_MS)[1]  # noqa: E731
    fences = {name: begin(name) for name in ("finished", "released", "forgotten", "taken", "lost", "again")}
    # What other engines and operators may do is no loss.
    b("FINISH", "gone", "finished", fences["finished"], "SUCCEEDED", "x")
    b("RELEASE", "gone", "released", fences["released"])
    b("FORGET", "gone", "forgotten")
    b("FORGET", "gone", "taken")
    assert b("BEGIN", "gone", "taken")[0] == "started"
    for name in ("finished", "released", "forgotten", "taken"):
        a("FINISH", "gone", name, fences[name], "SUCCEEDED", "y")
    assert a("RENEW", "gone", "lost", fences["lost"], LEASE_MS)[0] == "ok"
    assert vanished() == "vanished:0" and "lost a record" not in one.output()
    lose()
    said = wait_until(lambda: [x for x in [a("FINISH", "gone", "lost", fences["lost"], "SUCCEEDED", "x")]
                               if not isinstance(x, Error)])
    assert said[0][0] == "stale", said
    assert vanished() == "vanished:1" and "lost a record" in one.output()
    # A duplicate that runs again because of it is noticed as well.
    assert a("BEGIN", "gone", "again")[0] == "started" and vanished() == "vanished:2"
