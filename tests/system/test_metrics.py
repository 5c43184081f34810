"""Every metric that the program has is described, and every one that a page names exists."""
import glob
import os
import re
import urllib.request

import pytest

from lib import ROOT, Server, folder, wait_until


def text(path):
    with open(os.path.join(ROOT, path)) as f:
        return f.read()


def described():
    """By docs/metrics.md: name to type and help."""
    rows = re.findall(r"^\| `((?:idem|process)_\w+)` \| (\w+) \|(?: [^|]*\|)? ([^|]+) \|$", text("docs/metrics.md"), re.M)
    return {name: (kind, help) for name, kind, help in rows}


def told_by_stores():
    """Every figure that some store tells."""
    found = set()
    for folder_, _, files in os.walk(os.path.join(ROOT, "src/store")):
        for name in files:
            if name.endswith(".c") and not name.endswith("_test.c"):
                found |= set(re.findall(r'each\(arg, "(\w+)"', text(os.path.join(folder_, name))))
    return {"idem_" + name for name in found}


@pytest.fixture(scope="module")
def metrics():
    with folder() as where:
        with Server(where, http=True) as server:
            yield urllib.request.urlopen("http://127.0.0.1:%d/metrics" % server.http).read().decode()


def test_every_metric_is_described_as_it_is(metrics):
    helps = dict(re.findall(r"^# HELP (\w+) (.*)$", metrics, re.M))
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", metrics, re.M))
    page = described()
    assert len(types) > 25 and {n: page.get(n) for n in types} == {n: (types[n], helps[n]) for n in types}
    stores = told_by_stores()
    consumers = {n for n in page if n.startswith("idem_consume_")}  # test_consume.py compares these
    assert len(stores) > 30 and set(page) - consumers == set(types) | stores


def test_who_waits_for_a_lock_is_counted():
    with folder() as where, Server(where, http=True) as server:
        def value(name):
            text = urllib.request.urlopen("http://127.0.0.1:%d/metrics" % server.http).read().decode()
            return int(re.search(r"^%s (\d+)$" % name, text, re.M).group(1))
        with server.client() as holder, server.client() as one, server.client() as two, server.client() as duplicate:
            fence = holder("LOCK", "nightly", "a", 60000)[1]
            holder("BEGIN", "shop", "order-7", "LEASE", 60000)
            one.send("LOCK", "nightly", "b", 60000, "WAIT", 60000)
            two.send("LOCK", "nightly", "c", 60000, "WAIT", 60000)
            duplicate.send("BEGIN", "shop", "order-7", "WAIT", 60000)
            assert wait_until(lambda: (value("idem_locks_waiting"), value("idem_parked")) == (2, 3))
            assert "locks_waiting:2\r\n" in holder("INFO")
            holder("UNLOCK", "nightly", fence)
            assert wait_until(lambda: (value("idem_locks_waiting"), value("idem_parked")) == (1, 2))


def test_counters_and_only_counters_end_in_total(metrics):
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", metrics, re.M):
        assert name.endswith("_total") == (kind == "counter"), name
    for name, (kind, help) in described().items():
        assert name.endswith("_total") == (kind == "counter") and help != "A figure of the store.", name


def test_every_metric_that_a_page_names_exists():
    pages = glob.glob(os.path.join(ROOT, "docs/**/*.md"), recursive=True) + glob.glob(os.path.join(ROOT, "README*.md"))
    known = set(described())
    families = tuple("idem_" + s + "_" for s in ("consume", "journal", "redis", "etcd", "zookeeper", "postgres", "mysql", "sqlite", "store"))
    seen = 0
    for page in pages:
        for name in re.findall(r"\b(idem_\w+|process_\w+)\b", text(page)):
            if name.endswith(("_total", "_seconds", "_sum")) or name.startswith(families) and not name.endswith("_"):
                assert re.sub(r"_(sum|count|bucket)$", "", name) in known or name in known, (page, name)
                seen += 1
    assert seen > 40
