#!/usr/bin/python3
"""Let every allocation and every system call of `idem consume` fail once: tests/faults/consumers.py [KIND...]

  KIND          own (an allocation by idem's code), error, interrupted, short, which are the default; alloc (also in libraries)
  --only WORD   only this broker: redis, rabbitmq, nats, kafka
  --points N    N points of each kind for each broker, spread over all of them; without it all
  --verbose     print each point

faults.c is loaded into the consumer, not into the broker, the server with the records or the command that handles messages. For each point
two messages are published, one of them twice; the other one can never be handled. Then a consumer runs until the broker has no more. It
ends by itself, with exit code 0, or with that of an error and a message. What it left behind is consumed by later ones. In the end each good
message was handled once, or it is among the doubts; none of them is a dead letter. Each bad one is among the letters.
"""
import argparse
import collections
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, name) for name in ("tests/support", "tests/faults", "tests/system")]

from commands import ERRORS  # noqa: E402
from faults import Broken, Fault  # noqa: E402
from lib import IDEM, Server, folder  # noqa: E402

OWN_KINDS = ["own", "error", "interrupted", "short"]
HANDLER = 'case "$IDEM_ID" in bad*) exit 65;; esac; cat > /dev/null; echo "$IDEM_ID" >> "$0"'


class Trial:
    """A broker, a server with the records, and a handler: a command, or a ledger that is asked over HTTP."""

    def __init__(self, where, broker, ledger=None):
        self.where, self.broker, self.ledger = where, broker, ledger
        self.fault, self.server = Fault(where, alone=True), Server(where)
        self.points, self.flaws = {}, []
        self.file = os.path.join(where, "handled")
        source = broker.source.replace("claim_ms=1500", "claim_ms=100")
        handler = ["--to", ledger.url] if ledger else ["--", "sh", "-c", HANDLER, self.file]
        self.argv = [IDEM, "consume", source, "--store", "idem+unix:" + self.server.socket, "--until-idle", "200ms", "--lease", "2s",
                     "--concurrency", "2", "--backoff", "5ms", "--metrics", os.path.join(where, "metrics"), "--json", *handler]

    def publish(self, name):
        good, bad = {"id": "good-" + name}, {"id": "bad-" + name}
        if self.ledger:
            self.ledger.status[bad["id"]] = 422
        self.broker.publish([good, bad, good])

    def consume(self, env=None, idle="200ms"):
        return subprocess.run([idle if word == "200ms" else word for word in self.argv], text=True, errors="replace", timeout=90, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env={**os.environ, **(env or {})})

    def judge(self, said):
        """What is wrong with how it ended, or None."""
        if said.returncode < 0 or said.returncode not in ERRORS | {0, 2}:  # 2: it cannot write its metrics
            return "exit %d" % said.returncode
        if said.returncode and not said.stderr.strip() and '"text":' not in said.stdout:
            return "exit %d without a message" % said.returncode
        return "a bug" if "Sanitizer" in said.stderr or "Assertion" in said.stderr else None

    def run(self, kind, left):
        """The name of the call that failed, or None; how many there were."""
        name = "%s-%d-%d" % (kind, left, len(self.points))
        self.points[name] = None
        self.publish(name)
        self.fault.arm(kind, left)
        try:
            said = self.consume(self.fault.env)
            flaw = self.judge(said)
        except subprocess.TimeoutExpired:
            said, flaw = None, "it did not end"
        fired, seen = self.fault.disarm(), self.fault.seen()
        self.points[name] = fired
        if fired == "pthread_create" and "nats://" in self.broker.source and flaw in ("exit -11", "it did not end"):
            flaw = None  # libnats 3.4: a connection's first thread waits on what is gone when its second one cannot be started
        if flaw:
            self.flaws.append("%s (%s): %s\n%s" % (name, fired, flaw, said and said.stdout[-300:] + said.stderr[-600:]))
        return fired, seen

    def run_all(self, kinds, points=0, verbose=False):
        """Returns the number of points at which a call failed."""
        for kind in kinds:
            _, most = self.run(kind, 1 << 30)
            for left in range(1, most + 1, max(1, most // points) if points else 1):
                fired, _ = self.run(kind, left)
                if verbose:
                    print(type(self.broker).__name__, kind, left, "of", most, fired, *self.flaws[-1:], flush=True)
        self.consume_the_rest()
        self.judge_messages()
        return sum(bool(fired) for fired in self.points.values())

    def consume_the_rest(self):
        """Kafka's mock does not tell what is left, and misses a member of the group only when its session is over."""
        for _ in range(100):
            said = self.consume(idle="200ms" if self.broker.left_behind() is not None else "5s")
            if said.returncode != 0:
                raise Broken("without a fault: %s%s" % (said.stdout, said.stderr))
            left = self.broker.left_behind()
            if not left and (left is not None or json.loads(said.stdout.splitlines()[-1])["received"] == 0):
                return
        raise Broken("%s messages stay at the broker" % left)

    def handled(self):
        if self.ledger:
            return self.ledger.effects
        with open(self.file) as f:
            return collections.Counter(f.read().split())

    def judge_messages(self):
        handled = self.handled()
        dead, doubts = (dict(self.broker.letters("orders." + kind)) for kind in ("dead", "doubt"))
        for name, fired in self.points.items():
            good, bad = "good-" + name, "bad-" + name
            wrong = ["handled %d times" % handled[good]] if handled[good] > 1 else []
            wrong += ["neither handled nor a doubt"] if not handled[good] and good not in doubts else []
            wrong += ["a dead letter: " + dead[good]] if good in dead else []
            wrong += ["the bad one is no letter"] if bad not in dead and bad not in doubts else []
            wrong += ["the bad one was handled"] if handled[bad] else []
            self.flaws += ["%s (%s): %s" % (name, fired, what) for what in wrong]
        if self.ledger:
            self.flaws += ["a wrong or missing Idempotency-Key: %s" % (what,) for what in self.ledger.wrong]

    def close(self):
        if self.server.stop() != 0:
            self.flaws.append("the server: " + self.server.output()[-1000:])


def try_broker(broker, kinds, points=0, ledger=None, verbose=False):
    with folder("/dev/shm") as where:
        trial = Trial(where, broker, ledger)
        try:
            done = trial.run_all(kinds, points, verbose)
        finally:
            trial.close()
    return done, trial.flaws


def nats_broker():
    from nats import Nats
    broker = Nats()
    broker.make_stream("orders", "orders.new")
    return broker


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*OWN_KINDS, "alloc", []])
    parser.add_argument("--only", default="")
    parser.add_argument("--points", type=int, default=0)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    subprocess.run(["make", "-s", "build/idem", "build/tests/faults.so"], cwd=ROOT, check=True)
    import test_consume
    flaws = []
    for name, make in (("redis", test_consume.Stream), ("rabbitmq", test_consume.Rabbit), ("nats", nats_broker), ("kafka", test_consume.Kafka)):
        for ledger in (None, test_consume.Ledger()) if args.only in name else ():
            broker = make()
            try:
                done, wrong = try_broker(broker, args.kinds or OWN_KINDS, args.points, ledger, args.verbose)
            finally:
                broker.stop()
            print("%s, %s: %d points, %d flaws" % (name, "http" if ledger else "command", done, len(wrong)), flush=True)
            flaws += wrong
    for flaw in flaws:
        print(flaw)
    return 1 if flaws else 0


if __name__ == "__main__":
    sys.exit(main())
