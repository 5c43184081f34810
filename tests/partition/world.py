"""One scenario: a store on its machines, engines on theirs, many clients, and a fault."""
import contextlib
import os
import random
import time

import net
import servers
from crowd import Crowd
from faults import FAULTS
from lib import Clock, Error, Server, folder, wait_until
from stores import RIGS

ENGINES = 3
ENOUGH = 200  # answers that must come before the fault, and again when all is well
FULL_MIB = 400
REACH = 3000  # of a store that loses records, so many of the last ids are asked for again


class World:
    def __init__(self, store, fault, seed, hold):
        os.environ["IDEM_TEST_SEED"] = str(seed)
        self.dice = random.Random(seed)
        self.fault = fault
        self.net = net.Network()
        self.redises = []
        servers.machines = self.place
        self.clients = [self.machine() for _ in range(ENGINES)]
        self.hold = max(hold, RIGS[store].hold)
        self.rig = RIGS[store](self.dice)
        self.accepted = None

    def machine(self):
        machine = self.net.machine(FULL_MIB if self.fault == "full" else None)
        if self.fault == "clock":
            machine.clock = Clock(machine.disk)
            machine.env = machine.clock.env
        return machine

    def place(self, kind):
        """The next server's machine. A Sentinel shares that of a Redis, as most people have it."""
        if kind == "sentinel":
            return self.redises.pop(0)
        machine = self.machine()
        if kind == "redis":
            self.redises.append(machine)
        return machine

    def store_machines(self):
        return [m for m in self.net.all if m not in self.clients]

    def wait(self):
        time.sleep(self.hold)

    def play(self):
        if hasattr(self.rig, "play"):
            return self.rig.play(self, FAULTS[self.fault])
        with contextlib.ExitStack() as stack:
            self.engines = []
            for i, machine in enumerate(self.clients):
                where = stack.enter_context(folder())
                self.engines.append(stack.enter_context(Server(where, *self.rig.flags(where), env=machine.env, prefix=machine.prefix,
                                                               store=self.rig.urls[i % len(self.rig.urls)])))
            crowd = Crowd(self.engines, threads=3 * ENGINES, patience=60)
            crowd.run(0, seconds=300, meanwhile=lambda: self.disturb(crowd))
            return self.judge(crowd)

    def disturb(self, crowd):
        self.enough(crowd, "before the fault")
        victim = self.rig.primary()
        crowd.reach = REACH if not self.rig.holds else crowd.reach
        try:
            FAULTS[self.fault](self, victim)
        finally:
            self.net.heal()
        self.rig.recover(victim)
        if not self.rig.holds:  # the operator knows now, and what follows may run again
            self.accepted = time.monotonic()
            for engine in self.engines:
                engine.client()("ROLLBACK", "ACCEPT", "REASON", "drill")
        self.enough(crowd, "after the fault")

    @staticmethod
    def enough(crowd, when):
        before = crowd.answers
        assert wait_until(lambda: crowd.answers >= before + ENOUGH, 90), \
            "%d answers in 90 s %s" % (crowd.answers - before, when)

    def judge(self, crowd):
        counts = crowd.counts()
        row = {"answers": crowd.answers, "executions": len(executions(crowd.calls)), "lost": counts["LOST"],
               "refused": counts["UNAVAILABLE"] + counts["OVERLOADED"] + counts["FULL"], "pause": round(crowd.longest_pause(), 1)}
        if self.accepted:
            crowd.calls = [c for c in crowd.calls if c.end < self.accepted]
        flaws = crowd.flaws(final=self.rig.holds)
        if not self.rig.holds:  # records are lost, as docs/stores.md says; what must not happen is a second execution
            flaws = [f for f in flaws if "R1: started" in f]
        alarms = [e for e in self.engines if "went back" in e.output() or "lost a record" in e.output()]
        verdict = "VIOLATED" if flaws else "noticed" if alarms else "ok"
        if self.rig.planted:
            verdict = "found" if flaws else "NOT FOUND"
        if verdict.isupper():
            row["why"] = "%d flaws, %d alarms: %s" % (len(flaws), len(alarms), "\n".join(flaws[:10]))
        return {**row, "verdict": verdict}


def executions(calls):
    return {(c.id, c.nonce) for c in calls if c.verb == "BEGIN" and not isinstance(c.answer, Error) and c.answer[0] == "started"}
