"""Real stores on machines that are network namespaces, whose network is cut and which fail over. These are the quickest
scenarios of `make partition`. Waits more than it works."""
import os
import signal
import subprocess

import pytest

from lib import ROOT, runs, wait_until

RUN = os.path.join(ROOT, "tests/partition/run")


def play(scenario, *more):
    assert os.geteuid() == 0, "this one needs root: sudo make check ONLY=partition"
    done = subprocess.run([RUN, "--only", scenario, "--seed", "1", "--hold", "6", *more], text=True, timeout=800,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


@pytest.mark.parametrize("scenario, verdict", [
    ("redis-sentinel clean", "ok"),
    ("postgres clean", "ok"),
    ("redis-planted lag", "found"),  # records are lost and nothing watches: the checker must see it
])
def test_nothing_runs_twice(scenario, verdict):
    code, said = play(scenario)
    assert code == 0 and "verdict=" + verdict in said, said


def inside(pid):
    """The process namespaces below this process."""
    children = subprocess.run(["pgrep", "-P", str(pid)], text=True, stdout=subprocess.PIPE).stdout.split()
    return [p for c in children for p in [int(c), *inside(c)]]


def test_nothing_is_left_of_a_scenario_that_was_killed():
    run = subprocess.Popen([RUN, "--only", "etcd clean", "--seed", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: len(inside(run.pid)) > 4), "its servers do not start"
        started = inside(run.pid)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert wait_until(lambda: not any(runs(pid) for pid in started)), started
    assert " m1" not in subprocess.run(["ip", "netns", "list"], text=True, stdout=subprocess.PIPE).stdout


def test_without_root_it_says_so():
    said = subprocess.run(["setpriv", "--reuid", "nobody", "--clear-groups", RUN], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert said.returncode == 1 and "needs root: sudo make partition" in said.stdout, said.stdout
