"""The programmes of `make soak` in small: each can be run, and the ones with a checker of their own notice a broken promise."""
import glob
import json
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
        f.write(lines[0] + "\n" + json.dumps({**json.loads(lines[1]), "version": "another"}) + "\n")
    other = subprocess.run([*command, "--minutes", "0"], capture_output=True, text=True)
    assert "1 slices passed, 0 failed" in other.stdout, other


def test_a_slice_counts_until_the_code_that_it_executes_changes():
    """Folders that exist, and each programme has those of the programs that it starts."""
    every = {p.name: p for p in programmes.programmes(["src/wire/wire_reply_fuzz"])}
    for p in every.values():
        for path in p.code(p.subjects[0]):
            assert glob.glob(os.path.join(ROOT, path.replace(":(glob)", ""))), (p.name, path)
    assert set(programmes.JOURNAL) - {":(glob)src/store/*.[ch]", "src/store/journal"} < set(programmes.ENGINE) < set(programmes.SERVER) < set(programmes.GATEWAY)
    assert "src/wire" in every["fuzz"].code("src/wire/wire_reply_fuzz") and "src/gateway" not in every["server-kills"].code("")


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
