"""The client examples of docs/clients.md, taken from the page and run against a gateway whose service makes a new
order of every request: the same key twice is one order; a busy key is waited for; console/idem.js sends a form once."""
import http.client
import json
import os
import re
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lib import IDEM, ROOT, Process, folder, free_port

PAGE = open(os.path.join(ROOT, "docs/clients.md"), encoding="utf-8").read()
CODE = {name: re.search(r"```%s\n(.*?)```" % name, PAGE, re.S).group(1) for name in ("js", "python", "java")}

RUN = {
    "js": """
(async () => {
    const [url, key] = process.argv.slice(2);
    const one = once(url, {item: "book"}, key), two = once(url, {item: "book"}, key);
    for (const answer of [await one, await two, await once(url, {item: "book"}, key)])
        console.log(answer.status, (await answer.text()).trim());
})();
""",
    "python": """
import sys, threading
url, key = sys.argv[1:]
answers = []
calls = [threading.Thread(target=lambda: answers.append(once(url, {"item": "book"}, key))) for _ in range(2)]
[c.start() for c in calls]; [c.join() for c in calls]
for status, body in answers + [once(url, {"item": "book"}, key)]:
    print(status, body.decode().strip())
""",
    "java": """
class Main {
    public static void main(String[] args) throws Exception {
        var client = HttpClient.newHttpClient();
        for (int i = 0; i < 3; i++) {
            var answer = Once.post(client, URI.create(args[0]), "{\\"item\\":\\"book\\"}", args[1]);
            System.out.println(answer.statusCode() + " " + answer.body().trim());
        }
    }
}
""",
}


@pytest.fixture(scope="module")
def shop():
    with folder() as f:
        service, port = free_port(), free_port()
        with Process(["/usr/bin/python3", "examples/shop.py", str(service)], ready=service), \
             Process([IDEM, "gateway", "--upstream", "http://127.0.0.1:%d" % service, "--token-path", "/token",
                      "--listen", "127.0.0.1:%d" % port, "--store", "journal:" + f + "/j"], ready=port):
            yield port


def orders(port):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    c.request("GET", "/orders")
    return json.loads(c.getresponse().read())["orders"]


def argv_of(name, where):
    path = os.path.join(where, {"js": "x.js", "python": "x.py", "java": "Once.java"}[name])
    with open(path, "w") as f:
        f.write(CODE[name] + RUN[name])
    if name == "java":
        subprocess.run(["javac", "-d", where, path], check=True)
        return ["java", "-cp", where, "Main"]
    return [{"js": "node", "python": "/usr/bin/python3"}[name], path]


@pytest.mark.parametrize("name", sorted(CODE))
def test_the_example_gets_one_answer_however_often_it_asks(shop, name):
    before = orders(shop)
    with folder() as f:
        done = subprocess.run([*argv_of(name, f), "http://127.0.0.1:%d/orders" % shop, "key-of-" + name], text=True,
                              timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 3 and len(set(lines)) == 1 and lines[0].startswith("201 "), done.stdout
    assert orders(shop) == before + 1


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
                               os.path.join(ROOT, "console/idem.js")], text=True, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.stdout.strip() == "201 true", done.stdout
    assert orders(shop) == before + 1
