"""The programmes of `make soak` in small: each can be run, and the ones with a checker of their own notice a broken promise."""
import os
import subprocess
import sys

import pytest

from lib import ROOT

sys.path.insert(0, os.path.join(ROOT, "tests/soak"))
import programmes  # noqa: E402


def test_the_list_and_a_wrong_name():
    run = lambda *args: subprocess.run([os.path.join(ROOT, "tests/soak/run"), *args], capture_output=True, text=True)  # noqa: E731
    listed = run("--list")
    assert listed.returncode == 0 and "random kills of the server" in listed.stdout, listed
    wrong = run("--only", "kils")
    assert wrong.returncode == 1 and "no programme is called kils" in wrong.stderr, wrong


def test_slices_run_side_by_side_and_go_on_where_they_stopped(tmp_path):
    """Two parts at a time; a second call finds what the first did, and another version of the code starts from the beginning."""
    done = str(tmp_path / "done.jsonl")
    command = [os.path.join(ROOT, "tests/soak/run"), "--only", "fault-points,crash-images", "--jobs", "2", "--done", done]
    first = subprocess.run([*command, "--minutes", "0.01"], capture_output=True, text=True)
    assert first.returncode == 0 and "2 slices passed, 0 failed" in first.stdout, first
    again = subprocess.run([*command, "--minutes", "0"], capture_output=True, text=True)
    assert "2 slices passed, 0 failed" in again.stdout, again
    with open(done) as f:
        lines = f.read().splitlines()
    with open(done, "w") as f:
        f.write("\n".join(['{"version": "another"}', *lines[1:]]) + "\n")
    other = subprocess.run([*command, "--minutes", "0"], capture_output=True, text=True)
    assert "0 slices passed, 0 failed" in other.stdout, other


@pytest.mark.parametrize("work, subject, size", [(programmes.server_kills, "", 5), (programmes.storm, "journal", 5),
                                                 (programmes.storm, "sqlite", 3), (programmes.mixed, "", 6)])
def test_a_slice_in_small(work, subject, size):
    assert work(subject, 7, size) == size


class Line:
    """A connection with the answers that a broken server would give."""

    def __init__(self, answer):
        self.answer = answer

    def send(self, *_):
        pass

    def read(self):
        return self.answer

    def __call__(self, *_):
        return ["ok"]


@pytest.mark.parametrize("answers", [[["started", 1], ["started", 2]], [["started", 1], ["replay", 0, 0, 0, "another answer"]],
                                     [["started", 1], ["busy"]], [["busy"], ["busy"]]])
def test_a_storm_notices_a_broken_promise(answers):
    with pytest.raises(programmes.Broken):
        programmes.one_key([Line(a) for a in answers], "scope", "key")
