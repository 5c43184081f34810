"""One table, src/base/problem.h, says what every problem is called, its status, its class and whether a retry makes
sense: the page about problems, the server, the gateway and the page helper agree with it."""
import json
import os
import re
import subprocess
import urllib.error
import urllib.request

import pytest

from gateway import Stack, ask
from lib import ROOT, Server, folder

CLASSES = {"NOT_EXECUTED": "not executed", "IN_PROGRESS": "in progress", "UNKNOWN": "outcome unknown", "DONE": "done",
           "FAILED": "failed for good"}


def text(path):
    with open(os.path.join(ROOT, path)) as f:
        return f.read()


def table():
    """Every problem: its name to (status, class, retryable)."""
    code = text("src/base/problem.h").replace("\\\n", " ")
    rows = re.findall(r'X\(\w+,\s+"([a-z-]+)",\s+(\d+),\s+(\w+),\s+([01]),', code)
    return {name: (int(status), CLASSES[kind], retry == "1") for name, status, kind, retry in rows}


def described():
    """The same as docs/problems.md has it: the first words under each heading."""
    found = {}
    for name, about in re.findall(r"^### ([a-z-]+)\n\n((?:.+\n)+)", text("docs/problems.md"), re.M):
        said = about.split(". ")[0].replace("\n", " ")
        classes = [kind for kind in CLASSES.values() if re.search(r", %s(,|\.|$)" % kind, said)]
        assert len(classes) == 1, (name, said)
        found[name] = (int(said[:3]), classes[0], ", retryable" in said)
    return found


def test_the_page_describes_every_problem_as_it_is():
    assert len(table()) > 30 and described() == table()


@pytest.mark.parametrize("page", ["docs/problems.md", "docs/clients.md"])
def test_the_pages_list_every_class(page):
    listed = re.findall(r"^\| \**([a-z ]+?)\** \|", text(page), re.M)
    assert set(listed) - {"class"} == set(CLASSES.values())


def test_the_server_says_the_class():
    with folder() as where:
        with Server(where, http=True) as server:
            for path, name in (("/v1/nowhere", "not-found"), ("/v1/records/a%00/b", "invalid")):
                with pytest.raises(urllib.error.HTTPError) as got:
                    urllib.request.urlopen("http://127.0.0.1:%d%s" % (server.http, path))
                said = json.loads(got.value.read())
                assert said["type"].endswith("/" + name)
                assert (said["status"], said["class"], said["retryable"]) == table()[name]


@pytest.fixture(scope="module")
def stack():
    with folder() as where:
        more = "".join("location /%s { idem on; %s proxy_pass http://service; }\n" % one for one in (
            ("replay", ""), ("refuse", "idem_duplicate refuse;"), ("fixed", 'idem_duplicate answer 200 "done";'),
            ("small", "idem_max_answer 5000;")))
        with Stack(where, more=more) as stack:
            yield stack


@pytest.mark.parametrize("route", ["replay", "refuse", "fixed"])
def test_a_request_settled_as_failed_is_never_told_as_done(stack, route):
    with stack.resp() as r:
        assert r("SETTLE", "anonymous", "settled-" + route)[:2] == ["settled", "failed"]
    got = ask(stack.port, "settled-" + route, path="/" + route)
    assert (got.status, got.json()["class"], got.json()["retryable"]) == (409, "failed for good", False), got
    assert got.problem == "settled" and stack.ledger.executions("settled-" + route) == 0


@pytest.mark.parametrize("route,size", [("refuse", 10), ("fixed", 10), ("small", 300000)])
def test_a_failure_that_is_not_replayed_is_told_as_a_failure(stack, route, size):
    key = "failed-" + route
    assert ask(stack.port, key, path="/" + route, x_code=500, x_size=size).status == 500
    got = ask(stack.port, key, path="/" + route, x_code=500, x_size=size)
    assert (got.status, got.problem, got.json()["class"]) == (409, "failed", "failed for good"), got
    assert stack.ledger.executions(key) == 1


@pytest.mark.parametrize("result,status,kind", [
    ('{"order":7}', 200, "application/json"), ("bezahlt: 7 €", 200, "text/plain; charset=utf-8"),
    (b"\xff\x00\x01", 200, "application/octet-stream"), ("{not json", 200, "text/plain; charset=utf-8"), ("", 204, None)])
def test_a_settled_success_is_answered_as_what_it_is(stack, result, status, kind):
    key = "raw-%s" % (kind or "none").split("/")[-1][:5] + str(len(result))
    with stack.resp() as r:
        assert r("SETTLE", "anonymous", key, "AS", "succeeded", result)[:2] == ["settled", "succeeded"]
    got = ask(stack.port, key, path="/replay")
    assert (got.status, got.headers.get("content-type")) == (status, kind) and got.replayed
    assert got.body == (result if isinstance(result, bytes) else result.encode())


SCRIPT = r"""
require(process.argv[2]);
(async () => {
    const said = [];
    for (const [status, body, head] of JSON.parse(process.argv[3])) {
        const type = body === null ? "text/plain" : "application/problem+json";
        const judged = await idem.judge(new Response(body === null ? "x" : JSON.stringify(body),
                                                     {status: status, headers: {"Content-Type": type, ...head}}));
        said.push([judged.class, judged.retryable, judged.final]);
    }
    console.log(JSON.stringify(said));
})();
"""


def test_the_page_helper_goes_by_class_and_retryable():
    rows = list(table().values())
    cases = [[status, {"class": kind, "retryable": retry}, {}] for status, kind, retry in rows]
    wanted = [[kind, retry, not retry and kind in ("done", "not executed", "failed for good")] for _, kind, retry in rows]
    plain = [(201, {}, [None, False, True]), (400, {}, [None, False, True]), (503, {}, [None, True, False]),
             (409, {"Retry-After": "1"}, [None, True, False]), (409, {}, [None, False, True]), (504, {}, [None, False, False])]
    cases += [[status, None, head] for status, head, _ in plain]
    done = subprocess.run(["node", "-e", SCRIPT, "x", os.path.join(ROOT, "clients/js/idem.js"), json.dumps(cases)],
                          text=True, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout) == wanted + [want for _, _, want in plain]
