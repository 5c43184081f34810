"""The client examples of docs/clients.md, taken from the page and run against a gateway whose service makes a new
order of every request: the same key twice is one order; a busy key is waited for; an outcome that nobody knows is told
as such, after one try; what is not retryable is not retried; clients/js/idem.js sends a form once."""
import http.client
import json
import os
import re
import subprocess
import sys
import time

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gateway import Gateway, Later, Ledger, ask, eventually, storm
from lib import IDEM, ROOT, Process, build_go, folder, free_port

PAGE = open(os.path.join(ROOT, "docs/clients.md"), encoding="utf-8").read()
CODE = {name: re.search(r"```%s\n(.*?)```" % name, PAGE, re.S).group(1) for name in ("js", "python", "java", "go")}

RUN = {
    "js": """
(async () => {
    const [url, key] = process.argv.slice(2);
    try {
        // Whichever fails first is caught.
        const both = await Promise.all([once(url, {item: "book"}, key), once(url, {item: "book"}, key)]);
        for (const answer of [...both, await once(url, {item: "book"}, key)])
            console.log(answer.status, (await answer.text()).trim());
    } catch (e) { console.log(e.message); process.exit(0); }
})();
""",
    "python": """
import concurrent.futures, sys
url, key = sys.argv[1:]
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    try:
        calls = [pool.submit(once, url, {"item": "book"}, key) for _ in range(2)]
        for status, body in [c.result() for c in calls] + [once(url, {"item": "book"}, key)]:
            print(status, body.decode().strip())
    except OutcomeUnknown:
        print("outcome unknown")
""",
    "java": """
class Main {
    public static void main(String[] args) throws Exception {
        var client = HttpClient.newHttpClient();
        try {
            for (int i = 0; i < 3; i++) {
                var answer = Once.post(client, URI.create(args[0]), "{\\"item\\":\\"book\\"}", args[1]);
                System.out.println(answer.statusCode() + " " + answer.body().trim());
            }
        } catch (IllegalStateException e) {
            System.out.println(e.getMessage());
        }
    }
}
""",
    "go": """
func main() {
	type told struct { answer *http.Response; data []byte; err error }
	tell := make(chan told, 3)
	ask := func() {
		answer, data, err := Once(os.Args[1], []byte(`{"item":"book"}`), os.Args[2])
		tell <- told{answer, data, err}
	}
	go ask()
	go ask()
	all := []told{<-tell, <-tell}
	ask()
	for _, t := range append(all, <-tell) {
		if t.err != nil {
			fmt.Println(t.err)
			return
		}
		fmt.Println(t.answer.StatusCode, strings.TrimSpace(string(t.data)))
	}
}
""",
}

BODY = {name: b'{"item": "book"}' if name == "python" else b'{"item":"book"}' for name in CODE}


@pytest.fixture(scope="module")
def shop():
    with folder() as f:
        service, port = free_port(), free_port()
        with Process(["/usr/bin/python3", "examples/shop.py", str(service)], ready=service), \
             Process([IDEM, "gateway", "--upstream", "http://127.0.0.1:%d" % service, "--token-path", "/token",
                      "--listen", "127.0.0.1:%d" % port, "--store", "journal:" + f + "/j"], ready=port):
            yield port


def orders(port):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    c.request("GET", "/orders")
    return json.loads(c.getresponse().read())["orders"]


@pytest.fixture(scope="module")
def programs():
    with folder() as f:
        made = {}

        def program(name):
            if name not in made:
                made[name] = build(name, f)
            return made[name]
        yield program


def build(name, where):
    path = os.path.join(where, {"js": "x.js", "python": "x.py", "java": "Once.java", "go": "x.go"}[name])
    code = CODE[name].replace("import (", 'import (\n\t"fmt"\n\t"os"', 1) if name == "go" else CODE[name]
    with open(path, "w") as f:
        f.write(code + RUN[name])
    if name == "java":
        subprocess.run(["javac", "-d", where, path], check=True)
        return ["java", "-cp", where, "Main"]
    if name == "go":
        return [build_go(path)]
    return [{"js": "node", "python": "/usr/bin/python3"}[name], path]


def run(argv, url, key):
    done = subprocess.run([*argv, url, key], text=True, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout.strip().splitlines()


@pytest.mark.parametrize("name", sorted(CODE))
def test_the_example_gets_one_answer_however_often_it_asks(shop, programs, name):
    before = orders(shop)
    lines = run(programs(name), "http://127.0.0.1:%d/orders" % shop, "key-of-" + name)
    assert len(lines) == 3 and len(set(lines)) == 1 and lines[0].startswith("201 "), lines
    assert orders(shop) == before + 1


def test_the_examples_act_by_class(programs):
    """In progress: it waits. Unknown: it says so. Refused: that is final. Not executed: it tries again."""
    names = sorted(CODE)
    argv = {name: programs(name) for name in names}
    with folder() as f, Ledger(f) as ledger, Gateway(f, ledger.port, "--lease", "4s") as g:
        def all_run(key):
            url = "http://127.0.0.1:%d/x" % g.port
            return dict(zip(names, storm(len(names), lambda i: run(argv[names[i]], url, key + names[i]))))

        def first(key, name, body=None, **named):
            return ask(g.port, key + name, path="/x", body=body or BODY[name], **named)

        def runs(key):
            return {ledger.executions(key + name) for name in names}

        slow = {name: Later(first, "busy", name, x_sleep=1.5) for name in names}
        eventually(lambda: runs("busy") == {1})
        for name, lines in all_run("busy").items():
            assert set(lines) == {"201 " + slow[name].result().body.decode()} and len(lines) == 3, (name, lines)

        assert {first("cut", name, x_way="half-body").problem for name in names} == {"outcome-unknown"}
        for name, lines in all_run("cut").items():
            assert [line.split(":")[0] for line in lines] == ["outcome unknown"], (name, lines)

        assert {first("other", name, b"another request").status for name in names} == {201}
        for name, lines in all_run("other").items():
            assert len(lines) == 3 and all(line.startswith("422 ") for line in lines), (name, lines)
        assert runs("busy") == runs("cut") == runs("other") == {1}

        ledger.kill()
        away = Later(all_run, "away")
        time.sleep(0.5)
        with Ledger(f, ledger.port) as ledger:
            for name, lines in away.result().items():
                assert len(lines) == 3 and len(set(lines)) == 1 and lines[0].startswith("201 "), (name, lines)
            assert runs("away") == {1}


def test_the_page_helper_sends_once_with_one_token(shop):
    before = orders(shop)
    script = r"""
const base = process.argv[2];
const real = globalThis.fetch;
let lost = 2;                                  // the first two answers are lost on the way
globalThis.fetch = async (path, options) => {
    const answer = await real(new URL(path, base), options);
    if (String(path).endsWith("/orders") && lost-- > 0) throw new TypeError("network");
    return answer;
};
require(process.argv[3]);
(async () => {
    const answer = await idem.submit("/orders", {body: '{"item":"pen"}'});
    console.log(answer.status, answer.headers.get("Idempotent-Replayed"));
})();
"""
    with folder() as f:
        open(f + "/x.js", "w").write(script)
        done = subprocess.run(["node", f + "/x.js", "http://127.0.0.1:%d/" % shop,
                               os.path.join(ROOT, "clients/js/idem.js")], text=True, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.stdout.strip() == "201 true", done.stdout
    assert orders(shop) == before + 1
