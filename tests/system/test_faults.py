"""Allocations and system calls of `idem serve` and of commands that fail (tests/faults): no crash, no wrong answer, no second execution. Some points here, all of them in make soak."""
import os
import subprocess
import sys

import pytest

from lib import ROOT, SOAK, folder

sys.path.insert(0, os.path.join(ROOT, "tests/faults"))

import commands  # noqa: E402
import faults  # noqa: E402
import operators  # noqa: E402

COVERED = bool(os.environ.get("IDEM_COVERAGE"))  # scripts/coverage: large enough to reach nearly every failing call
POINTS = 0 if SOAK else 100 if COVERED else 8  # of each kind; 0: all
START_POINTS = 0 if SOAK else 12 if COVERED else 3
SETTINGS_POINTS = 0 if SOAK else 80 if COVERED else 2
STOP_POINTS = 0 if SOAK else 12 if COVERED else 1
OPERATOR_POINTS = 0 if SOAK else 25 if COVERED else 2  # of each kind in each part of an operator's work
CHECKED = ["ids over RESP", "an id explained", "figures of routes", "figures_over_resp_are_whole", "a_session"]
COMMAND_POINTS = {kind: 0 if SOAK else 3 if kind == "alloc" else 2 for kind in faults.KINDS}  # of each command
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


def test_operators_get_right_answers_whatever_call_fails():
    with folder() as where:
        programme = operators.Operators(where)
        programme.up()
        if SOAK or COVERED:
            programme.each_part(faults.KINDS, OPERATOR_POINTS)
        else:
            for kind in ("alloc", "error"):
                programme.enumerate(kind, OPERATOR_POINTS)
            for part in operators.PARTS:
                programme.parts = [part]
                if part.__name__ in CHECKED:
                    programme.enumerate("alloc", 12)
        programme.finish()
    print("%d points, %s" % (programme.points, programme.calls))
    assert not programme.flaws, "\n".join(programme.flaws)
    assert programme.points >= 30


@pytest.mark.parametrize("kind", ["alloc", "error"])
def test_a_server_with_every_setting_starts_or_says_why_not(kind):
    with folder() as where:
        points, flaws = faults.start_failing(where, kind, SETTINGS_POINTS, operators.Files(where).flags, own=True)
    assert not flaws, "\n".join(flaws)
    assert points > 0


@pytest.mark.parametrize("kind", ["alloc", "error"])
def test_a_server_stops_in_order_while_clients_wait(kind):
    with folder() as where:
        points, flaws = operators.stop_failing(where, kind, STOP_POINTS)
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
        if COVERED:
            os.mkdir(where + "/more")
            more, wrong = commands.run_all(where + "/more", [kind], 60, through=(True,))
            points, flaws = points + more, flaws + wrong
    print("%d points" % points)
    assert not flaws, "\n".join(flaws)
    assert points > 50


@pytest.mark.parametrize("name", ["run", "lock"])
def test_a_command_that_cannot_be_started_holds_nothing(name):
    """The last allocation before the command is that of its environment. The few points of the test above meet it on some machines only."""
    case, codes = next(c for c in commands.CASES if c.name == name), []
    with folder("/dev/shm") as where:
        stage = commands.Stage(where, True)
        try:
            most = commands.run_once(stage, case, "alloc", 1 << 30)[1]
            for left in range(most - 5, most + 1):
                context = commands.Context(stage, case.before)
                stage.fault.arm("alloc", left)
                said = stage.call(*case.argv(context), env=stage.fault.env)
                stage.fault.disarm()
                codes.append(said.returncode)
                assert not case.judge(stage, context.record, said), said
        finally:
            stage.close()
    assert commands.NOT_STARTED in codes, codes
