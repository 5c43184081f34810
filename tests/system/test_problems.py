"""One table, src/base/problem.h, says what every problem is called, its status, its class and whether a retry makes
sense: the page about problems, the server, the gateway and the page helper agree with it."""
import html
import json
import os
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import pytest

from gateway import Gateway, Ledger, Stack, ask
from lib import IDEM, ROOT, Server, folder

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


@pytest.mark.parametrize("path", ["node/src/answer.js", "go/answer.go", "java/src/main/java/idem/Problem.java", "python/idem/web.py",
                                  "php/src/HttpAnswer.php"])
def test_the_middlewares_have_the_same_titles(path):
    code = text("src/base/problem.h").replace("\\\n", " ")
    titles = dict(re.findall(r'X\(\w+,\s+"([a-z-]+)",\s+\d+,\s+\w+,\s+[01],\s+"([^"]+)"\)', code))
    rows = re.findall(r"""^\s*["']?([A-Za-z_-]+)["']?\W{1,6}\d{3}, ["'][a-z ]+["'], \w+,\s*("[^"]+"|'[^']+')""", text("clients/" + path), re.M)
    assert len(rows) >= 12
    for name, title in rows:
        assert title[1:-1] == titles[name.lower().replace("_", "-")], name


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


def pages(port, base):
    """The page of every problem in both languages, as a browser shows it."""
    found = {}
    for name in table():
        for language, accepted in (("en", None), ("zh-CN", "zh-TW;q=0.9, en;q=0.5"), ("en", "en-GB,zh;q=0.9"), ("zh-CN", "de, zh, en")):
            request = urllib.request.Request("http://127.0.0.1:%d%s%s" % (port, base, name))
            if accepted:
                request.add_header("Accept-Language", accepted)
            with urllib.request.urlopen(request) as got:
                assert got.headers["Content-Type"] == "text/html; charset=utf-8" and got.headers["Cache-Control"] == "no-store"
                page = got.read().decode()
            assert '<html lang="%s">' % language in page, (name, accepted)
            assert page.endswith("</body></html>\n") and page.count("<code>") == page.count("</code>")
            shown = " ".join(html.unescape(re.sub("<[^>]+>", " ", page)).split())
            assert found.setdefault((name, language), shown) == shown
    return found


def in_manual(name, language):
    """What the manual says of a problem and its class, without marks."""
    manual = text("docs/problems.md" if language == "en" else "docs/problems.zh-CN.md")
    about = re.search(r"^### %s\n\n(.*?)(?=\n\n#|\n\Z)" % name, manual, re.M | re.S).group(1)
    happened, todo = re.search(r"^\| %s \| (.*?) \| (.*?) \|$" % table()[name][1], manual, re.M).groups()
    return [re.sub(r"\s", "", re.sub(r"\]\([^)]*\)|[`\[]", "", said)) for said in (about, happened, todo)]


def check_pages(found):
    for (name, language), shown in found.items():
        for said in in_manual(name, language):
            assert said in shown.replace(" ", ""), (name, language, said)
        assert (("Retry: yes" if language == "en" else "可以重试") in shown) == table()[name][2]
    assert len(found) == 2 * len(table())


def test_the_type_of_the_servers_problem_leads_to_its_page():
    with folder() as where:
        creds = os.path.join(where, "creds")
        with open(creds, "w") as f:
            f.write("ops secret operate\n")
        os.chmod(creds, 0o600)
        with Server(where, "--credentials", creds, http=True) as server:
            site = "http://127.0.0.1:%d" % server.http
            with pytest.raises(urllib.error.HTTPError) as got:
                urllib.request.urlopen(site + "/v1/records/a/b")
            type_ = json.loads(got.value.read())["type"]
            assert type_ == "/problems/unauthorized"
            with urllib.request.urlopen(urllib.parse.urljoin(site + "/v1/records/a/b", type_)) as got:
                assert "<h1>unauthorized</h1>" in got.read().decode()
            check_pages(pages(server.http, "/problems/"))
            with pytest.raises(urllib.error.HTTPError) as got:
                urllib.request.urlopen(site + "/problems/no-such")
            assert got.value.status == 404 and json.loads(got.value.read())["type"] == "/problems/not-found"


def test_the_address_of_the_pages_can_be_chosen():
    with folder() as where:
        with Server(where, "--problem-base", "https://docs.example/idem#", http=True) as server:
            with pytest.raises(urllib.error.HTTPError) as got:
                urllib.request.urlopen("http://127.0.0.1:%d/v1/nowhere" % server.http)
            assert json.loads(got.value.read())["type"] == "https://docs.example/idem#not-found"
            with urllib.request.urlopen("http://127.0.0.1:%d/openapi.json" % server.http) as got:
                types = json.loads(got.read())["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
            assert "https://docs.example/idem#not-found" in types
    for command in (["serve", "--http", "127.0.0.1:0"], ["gateway", "--upstream", "http://127.0.0.1:9"]):
        for wrong in ("https://docs.example/idem", 'https://docs.example/"/', "a b/", "#é#"):
            done = subprocess.run([IDEM, *command, "--problem-base", wrong], text=True, stderr=subprocess.PIPE, timeout=60)
            assert done.returncode == 2 and "ends with / or #" in done.stderr, done.stderr


def test_the_gateway_serves_the_pages_and_leaves_other_paths_to_the_service():
    with folder() as where, Ledger(where) as ledger:
        with Gateway(where, ledger.port, "--required") as g:
            got = ask(g.port)
            assert got.json()["type"] == got.json()["documentation"] == "/.idem/problems/key-missing"
            assert got.headers["link"] == '</.idem/problems/key-missing>; rel="describedby"'
            check_pages(pages(g.port, "/.idem/problems/"))
            assert ask(g.port, method="HEAD", path="/.idem/problems/mismatch", body=None).status == 200
            for method, path in (("GET", "/problems/mismatch"), ("GET", "/.idem/problems/mine"), ("GET", "/.idem/problems/"),
                                 ("DELETE", "/.idem/problems/mismatch")):
                assert "idem</title>" not in ask(g.port, method=method, path=path, body=None).body.decode(), path
    with folder() as where, Ledger(where) as ledger:
        with Gateway(where, ledger.port, "--required", "--problem-base", "https://docs.example/idem/", "--token-path", "/token",
                     "--token-rate", "1r/m") as g:
            assert ask(g.port).json()["type"] == "https://docs.example/idem/key-missing"
            assert b"<title>" not in ask(g.port, method="GET", path="/.idem/problems/key-missing", body=None).body
            fast = [ask(g.port, path="/token", body=b"", authorization="a") for _ in range(130)][-1]
            assert (fast.status, fast.json()["type"]) == (429, "https://docs.example/idem/too-many-tokens")


def test_an_nginx_whose_locations_refuse_everything_else_still_serves_the_pages():
    with folder() as where:
        with Stack(where, more="location /.idem { return 404; }\n") as stack:
            check_pages(pages(stack.port, "/.idem/problems/"))


def test_no_problem_leads_to_an_address_that_nobody_has():
    files = subprocess.run(["git", "ls-files", "src", "clients", "docs", "console", "README*"], cwd=ROOT, text=True, stdout=subprocess.PIPE).stdout.split()
    assert [name for name in files if name.endswith((".c", ".h", ".py", ".js", ".go", ".java", ".php", ".md"))
            and "idem.example/" in text(name)] == []
    for source in ("python/idem/web.py", "node/src/answer.js", "go/answer.go", "php/src/HttpAnswer.php", "java/src/main/java/idem/Problem.java"):
        code = text("clients/" + source)
        assert "urn:idem:problems/" in code and "IDEM_PROBLEM_BASE" in code, source


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
