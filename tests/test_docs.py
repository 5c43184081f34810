"""The documents name things that exist: files, commands, make targets."""
import os
import re
import subprocess

from lib import IDEM, ROOT


def text(path):
    with open(os.path.join(ROOT, path)) as f:
        return f.read()


def documents():
    files = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, text=True, stdout=subprocess.PIPE).stdout.split()
    return files or [f for f in os.listdir(ROOT) if f.endswith(".md")]


def test_every_link_leads_somewhere():
    broken = []
    for document in documents():
        for target in re.findall(r"\]\(([^)#\s]+)", text(document)):
            if not re.match(r"[a-z]+:", target):
                path = os.path.join(ROOT, os.path.dirname(document), target)
                if not os.path.exists(path):
                    broken.append("%s: %s" % (document, target))
    assert broken == []


def test_both_readmes_lead_to_the_same_places():
    links = lambda path: [link.replace(".zh-CN", "") for link in re.findall(r"\]\((?!README)([^)]+)\)", text(path))]
    assert links("README.md") == links("README.zh-CN.md")


def test_the_map_names_folders_and_files_that_exist():
    map_ = text("ARCHITECTURE.md")
    for folder in re.findall(r"`((?:src|include|sql|console|examples|docs|bench|tests)/[\w/]*)`", map_):
        if folder.endswith("/") and not folder.startswith(("console", "sql/")):
            assert os.path.isdir(os.path.join(ROOT, folder)), folder
    tracked = {os.path.basename(f) for _, _, files in os.walk(os.path.join(ROOT, "src")) for f in files}
    tracked |= {f for _, _, files in os.walk(os.path.join(ROOT, "tests")) for f in files}
    tracked |= set(os.listdir(os.path.join(ROOT, "include/idem")))
    for name in re.findall(r"`(\w+\.[ch])`", map_):
        assert name in tracked, name


def test_every_invariant_is_cited_where_it_is_kept():
    numbers = re.findall(r"^- \*\*(I\d+)\*\*", text("ARCHITECTURE.md"), re.M)
    assert numbers == ["I%d" % i for i in range(1, len(numbers) + 1)] and len(numbers) >= 10


def test_the_first_steps_of_the_readme_work(tmp_path):
    store = {**os.environ, "IDEM_STORE": "journal:%s" % tmp_path}
    said = []
    fence = "0"
    for line in re.findall(r"^    build/idem ((?:begin|finish) .*?)(?:\s+#.*)?$", text("README.md"), re.M):
        command = line.replace("FENCE", fence)
        out = subprocess.run("%s %s" % (IDEM, command), shell=True, env=store, text=True, stdout=subprocess.PIPE).stdout
        said.append(out.split()[0])
        if out.startswith("started"):
            fence = re.search(r"fence: (\d+)", out).group(1)
    assert said == ["started", "busy", "ok", "replay"]


def test_contributing_names_make_targets_that_exist():
    makefile = text("Makefile")
    for target in re.findall(r"^    make ([a-z]+)\b", text("CONTRIBUTING.md"), re.M):
        assert re.search(r"^%s:" % target, makefile, re.M), target
