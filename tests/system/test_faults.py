"""Allocations and system calls of `idem serve` and of commands that fail (tests/faults): no crash, no wrong answer, no second execution. Some points here, all of them in make soak."""
import os
import subprocess
import sys

import pytest

from lib import ROOT, SOAK, folder

sys.path.insert(0, os.path.join(ROOT, "tests/faults"))

import commands  # noqa: E402
import faults  # noqa: E402

POINTS = 0 if SOAK else 8  # of each kind; 0: all
START_POINTS = 0 if SOAK else 3
COMMAND_POINTS = {kind: 0 if SOAK else 3 if kind == "alloc" else 2 for kind in faults.KINDS}  # of each command
COVERAGE = bool(os.environ.get("IDEM_COVERAGE"))  # scripts/coverage: nearly all points of commands that ask a server
DENSE = 110  # the first allocations of a story: RESP, then a request and a reply over HTTP


@pytest.fixture(scope="module", autouse=True)
def injector():
    subprocess.run(["make", "-s", "build/tests/faults.so"], cwd=ROOT, check=True)


def test_the_server_answers_right_whatever_call_fails():
    with folder() as where:
        programme = faults.Programme(where)
        programme.up()
        for kind in faults.KINDS:
            programme.enumerate(kind, POINTS)
        for left in range(1, DENSE):
            programme.tell("alloc", left)
        programme.finish()
    print("%d points, %s" % (programme.points, programme.calls))
    assert not programme.flaws, "\n".join(programme.flaws)
    assert programme.points >= DENSE


@pytest.mark.parametrize("kind", faults.KINDS)
def test_the_server_starts_or_says_why_not(kind):
    with folder() as where:
        points, flaws = faults.start_failing(where, kind, START_POINTS)
    assert not flaws, "\n".join(flaws)
    assert points > 0


def test_a_wrong_answer_is_noticed():
    """The checker itself: a server that forgets what it told."""
    with folder() as where:
        programme = faults.Programme(where)
        programme.up()
        programme.acknowledged.update(faults.story(programme.client, 1))
        assert programme.client.resp("FORGET", "s", "k1")[0] == "ok"
        programme.finish()
    assert len(programme.flaws) == 1 and "k1" in programme.flaws[0]


@pytest.mark.parametrize("kind", faults.KINDS)
def test_a_command_does_its_work_or_says_that_it_did_not(kind):
    with folder("/dev/shm") as where:
        points, flaws = commands.run_all(where, [kind], COMMAND_POINTS[kind], slow=SOAK)
        if COVERAGE:
            os.mkdir(where + "/more")
            more, wrong = commands.run_all(where + "/more", [kind], 60, through=(True,))
            points, flaws = points + more, flaws + wrong
    print("%d points" % points)
    assert not flaws, "\n".join(flaws)
    assert points > 50
