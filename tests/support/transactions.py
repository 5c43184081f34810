"""Plays clients/conformance/transactions.json: the transaction helper of a client on a real database.

    play(argv of the driver, database, SCENARIOS[0])

`database` is a fixture; a test file imports it together with `postgres` and `mariadb`.
"""
import concurrent.futures
import itertools
import json
import os
import time

import pytest

from lib import ROOT
from test_conformance import Driver
from test_stores_sql import idem

with open(os.path.join(ROOT, "clients/conformance/transactions.json"), encoding="utf-8") as f:
    SCENARIOS = json.load(f)
names = itertools.count()


@pytest.fixture(scope="module", params=["postgres", "mariadb"])
def database(request):
    server = request.getfixturevalue(request.param)
    idem("store", "init", server.url)
    return server


class Play:
    def __init__(self, argv, database):
        self.argv, self.database = argv, database
        self.name = "play-%d-%d" % (os.getpid(), next(names))
        self.driver = Driver(argv, "idem://127.0.0.1:1")  # transactions need no server
        database.sql("create table if not exists conformance (name varchar(60) primary key, n int not null)")
        database.sql("insert into conformance values ('%s', 0)" % self.name)

    def command(self, once):
        add = {"sql": "update conformance set n = n + 1 where name = '%s'" % self.name}
        once = {"arguments": [1], **once, "work": [add if "add" in step else step for step in once["work"]]}
        if once["arguments"] == "$none":
            del once["arguments"]
        return {"op": "transaction", "database": self.database.url, "scope": self.name, **once}

    def again(self, command):
        """Once more while another is at work, or has locked a row."""
        end = time.monotonic() + 60
        while True:
            answer = self.driver.call(command)
            if answer["class"] != "in_progress" and not answer.get("deadlock") or time.monotonic() > end:
                return answer
            time.sleep(0.05)

    def step(self, step):
        if "record" in step:
            table = "idem.idem_record" if self.database.url.startswith("postgres") else "idem_record"
            assert self.database.sql("select count(*) from %s where scope = '%s'" % (table, self.name)) == "1"
            return
        command = self.command(step["once"])
        if step.get("dies"):
            n = self.driver.start(command)
            with self.driver.lock:
                assert self.driver.lock.wait_for(lambda: self.driver.ended, 60)
            assert n not in self.driver.answers
            self.driver.close()
            self.driver = Driver(self.argv, "idem://127.0.0.1:1")
            return
        if "parallel" in step:
            with concurrent.futures.ThreadPoolExecutor(step["parallel"]) as pool:
                answers = list(pool.map(lambda _: self.again(command), range(step["parallel"])))
        else:
            answers = [self.again(command) if step.get("again") else self.driver.call(command)]
        for answer in answers:
            assert {k: answer.get(k) for k in step["expect"]} == step["expect"], answer
        assert sum(answer["ran"] for answer in answers) <= 1


def play(argv, database, scenario):
    run = Play(argv, database)
    try:
        for step in scenario["steps"]:
            run.step(step)
        assert int(database.sql("select n from conformance where name = '%s'" % run.name)) == scenario["effects"]
    finally:
        run.driver.close()
