"""What a reader of the source relies on: a name means one thing, and a function fits on a screen."""
import collections
import os
import re
import subprocess

from lib import ROOT

LINES_MAX = 70


def sources(*ends):
    names = subprocess.run(["git", "ls-files", "src", "include"], cwd=ROOT, text=True, stdout=subprocess.PIPE).stdout.split()
    return [n for n in names if n.endswith(ends) and os.path.exists(os.path.join(ROOT, n))]


def text(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def code(path):
    """Without comments and strings, which keep their line breaks."""
    return re.sub(r"/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text(path), flags=re.S)


def test_no_function_is_longer_than_a_screen():
    found = []
    for path in sources(".c", ".h"):
        lines = text(path).split("\n")
        start = None
        for number, line in enumerate(lines):
            if line == "{":
                start = number
            elif line == "}" and start is not None:
                if number - start - 1 > LINES_MAX:
                    found.append((path, start + 1, number - start - 1))
                start = None
    assert found == []


def test_a_file_name_stands_for_one_file():
    """A public header may have the name of the internal one that adds to it."""
    homes = collections.defaultdict(list)
    for path in sources(".c", ".h"):
        if path.startswith("src/"):
            homes[os.path.basename(path)].append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_a_struct_name_stands_for_one_struct():
    homes = collections.defaultdict(list)
    for path in sources(".c", ".h"):
        if not path.endswith(("_test.c", "_fuzz.c")):
            for name in re.findall(r"^(?:struct|enum|union) (\w+) \{", code(path), re.M):
                homes[name].append(path)
    assert len(homes) > 300
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_step_decides_about_a_record_and_names_nothing_else():
    """The step of a segment of ids is a public option, in the word of the article about Leaf."""
    found = []
    for path in sources(".c", ".h"):
        if not path.startswith(("src/record/", "src/engine/", "src/id/")) and not path.endswith("_test.c"):
            words = set(re.findall(r"(?<![.>])\b\w*step\w*", code(path)))
            found += [(path, word) for word in words if not re.fullmatch("idem__step|sqlite3_step|.*segment_step.*", word)]
    assert found == []


def test_settle_and_release_happen_to_records_and_to_nothing_else():
    """Where the verbs have their homes a name may have the word; elsewhere only these."""
    homes = ("src/record/", "src/engine/", "src/wire/", "src/token/", "src/gateway/module/", "src/serve/play/", "src/cli/cmd_",
             "src/cli/cli.h", "src/cli/main.c", "src/cli/verb.h")
    known = {"release", "http_release_undelivered", "amqp_maybe_release_buffers", "memory_order_release"}
    found = []
    for path in sources(".c", ".h"):
        if not path.startswith(homes) and not path.endswith(("_test.c", "_fuzz.c")) and path.startswith("src/"):
            found += [(path, word) for word in set(re.findall(r"\b\w*(?:settle|release|redeem)\w*", code(path))) - known]
    assert found == []


FLOORS = [["base"], ["record"], ["wire", "store"], ["engine"], ["remote", "sql", "token", "id", "lock", "consume"], ["builtin", "serve"],
          ["gateway"], ["cli"]]


def test_includes_point_one_way():
    """A folder sees itself and the folders on the floors below it; the core of the server sees no surface but what starts it."""
    floor = {name: i for i, names in enumerate(FLOORS) for name in names}
    found = []
    for path in sources(".c", ".h"):
        if not path.startswith("src/") or path.endswith(("_test.c", "_fuzz.c")):
            continue
        here = path.split("/")[1]
        for line in re.findall(r'^#include "(\.\./[^"]+)"', text(path), re.M):
            there = os.path.normpath(os.path.join(os.path.dirname(path), line))
            seen = there.split("/")[1]
            if there.startswith("src/") and seen != here and floor[seen] >= floor[here]:
                found.append((path, there))
            if path.startswith("src/serve/core/") and there.startswith(("src/serve/http/", "src/serve/resp/")) \
                    and path != "src/serve/core/server.c" and not there.endswith("/problem_page.h"):
                found.append((path, there))
    assert found == []
