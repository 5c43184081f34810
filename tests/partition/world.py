"""One scenario: a store on its machines, engines on theirs, many clients, and a fault."""
import contextlib
import os
import random
import time

import net
import servers
from crowd import Crowd
from faults import FAULTS
from lib import Error, Server, folder, patient, wait_until
from stores import RIGS

ENGINES = 3
AFTER = 200  # answers that must come when all is well again


class World:
    def __init__(self, store, seed, hold):
        os.environ["IDEM_TEST_SEED"] = str(seed)
        self.dice = random.Random(seed)
        self.hold = hold
        self.net = net.Network()
        self.kind = RIGS[store]
        self.placed = {}
        servers.machines = self.place
        self.clients = [self.net.machine() for _ in range(ENGINES)]
        self.rig = self.kind(self)

    def place(self, kind):
        """The next server's machine. A Sentinel shares that of a Redis, as most people have it."""
        if kind == "sentinel":
            return self.placed["redis"].pop(0)
        machine = self.net.machine(self.kind.disk_mib)
        self.placed.setdefault(kind, []).append(machine)
        return machine

    def rig_machines(self):
        return [m for m in self.net.all if m not in self.clients]

    def wait(self):
        time.sleep(self.hold)

    def play(self, fault):
        with contextlib.ExitStack() as stack:
            engines = []
            for i, machine in enumerate(self.clients):
                where = stack.enter_context(folder())
                url = self.rig.urls[i % len(self.rig.urls)]
                engines.append(stack.enter_context(Server(where, *self.rig.flags(where), store=url, prefix=machine.prefix)))
            crowd = Crowd(engines, threads=3 * ENGINES, patience=60)
            crowd.run(0, seconds=300, meanwhile=lambda: self.disturb(crowd, FAULTS[fault]))
            return self.judge(crowd, engines)

    def disturb(self, crowd, fault):
        self.enough(crowd, "before the fault")
        victim = self.rig.primary()
        try:
            fault(self, victim)
        finally:
            self.net.heal()
        self.rig.recover(victim)
        self.enough(crowd, "after the fault")

    @staticmethod
    def enough(crowd, when):
        before = crowd.answers
        assert wait_until(lambda: crowd.answers >= before + AFTER, 90), "%d answers in 90 s %s, and then none" % (crowd.answers - before, when)

    def judge(self, crowd, engines):
        counts, flaws = crowd.counts(), crowd.flaws()
        row = {"answers": crowd.answers, "executions": len(executions(crowd.calls)), "lost": counts["LOST"],
               "refused": counts["UNAVAILABLE"] + counts["OVERLOADED"] + counts["FULL"],
               "pause": round(crowd.longest_pause(), 1), "verdict": "VIOLATED" if flaws else "ok"}
        if flaws:
            row["why"] = "%d flaws: %s" % (len(flaws), "\n".join(flaws[:10]))
        return row


def executions(calls):
    return {(c.id, c.nonce) for c in calls if c.verb == "BEGIN" and not isinstance(c.answer, Error) and c.answer[0] == "started"}
