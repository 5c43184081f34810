"""A short list of habits that make a sentence need a second reading. It cannot judge a text; a reader does. It only keeps these from
coming back into what users read: README, docs, public headers, help."""
import os
import re
import subprocess

import pytest

from lib import IDEM, ROOT

HABITS = {
    "a sentence whose subject is a clause (Who comes later ..., What is stored ...): name the actor or the thing":
        r"(?:^|[.!] |\n\n)(?:Who|What|Whoever|Whatever) (?!to )[a-z][^.?!|]*\.",
    "\"is no X\": write \"is not a X\"": r"(?<!there )(?<!There )\b(?:is|are|was|were) no (?!longer\b|more\b|later\b|earlier\b|less\b|other\b|\w+er than\b)[a-z]+",
    "\"anew\": write \"again\"": r"\banew\b",
    "a sentence without a subject (Runs a piece of work; Needs Go 1.19; Tested on ...): name it":
        r"(?:^|[.!?] |\n\n)(?:Runs|Needs|Takes|Gives|Keeps|Makes|Shows|Prints|Tells|Tested|Measured) [a-z]",
    "\"Without it: ... With it: ...\": name the thing": r"\bWith(?:out)? it:",
    "\"stands\" for \"is\"": r"\bstands? (?!for\b)(?:there|in|on|at|behind|before|beside|after|under)\b",
}


def tracked(*patterns):
    return subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, text=True, stdout=subprocess.PIPE).stdout.split()


def prose(path):
    """The text of a page without code, tables and links; of a header its comments."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        text = f.read()
    if path.endswith(".h"):
        return "\n\n".join(re.sub(r"\n \*", "\n", comment) for comment in re.findall(r"/\*(.*?)\*/", text, re.S))
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"^    .*$|^\|.*$|^#.*$", "", text, flags=re.M)  # without re.S, or one heading takes the rest of the page with it
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)


def helps():
    commands = re.findall(r"^  ([a-z]+) ", subprocess.run([IDEM, "--help"], text=True, stdout=subprocess.PIPE).stdout, re.M)
    return {"idem help " + c: subprocess.run([IDEM, "help", c], text=True, stdout=subprocess.PIPE).stdout for c in commands}


def joined(text):
    """Each paragraph in one line."""
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text))


def test_the_list_finds_what_it_looks_for():
    said = ("Sent twice. Who comes later\nwaits.\n\nThat is no folder. It is made anew; the line stands\nthere. There\nis no file. What to do?\n\n"
            "Runs a command. It needs\nroot. Without it: two orders.")
    assert [len(re.findall(pattern, joined(said))) for pattern in HABITS.values()] == [1] * len(HABITS)


@pytest.mark.parametrize("habit", sorted(HABITS))
def test_users_do_not_read_this_habit(habit):
    pages = tracked("README.md", "SECURITY.md", "CONTRIBUTING.md", "docs/*.md", "clients/*.md", "examples/*.md", "bench/README.md",
                    "ARCHITECTURE.md", "include/idem/*.h")
    texts = {page: prose(page) for page in pages if not page.endswith(".zh-CN.md")}
    assert len(texts) > 40 and [page for page, text in texts.items() if len(text.split()) < 20] == []
    found = ["%s: %s" % (name, " ".join(hit.group(0).split())) for name, text in {**texts, **helps()}.items()
             for hit in re.finditer(HABITS[habit], joined(text))]
    assert not found, habit + "\n" + "\n".join(found)
