"""Every code block of README.md and docs/ is run, or is marked as output (```text): a new block that is neither fails here.

A function of this file runs the blocks of a page. It takes each one by its first words. ELSEWHERE names the test that runs the other ones. The
Chinese pages have the same code (test_docs.py).

Waits more than it works.
"""
import json
import os
import re
import signal
import subprocess
import urllib.request

import pytest

import servers
from gateway import MODULE, nginx_test
from lib import IDEM, ROOT, Server, folder, free_port, listens, wait_until
from test_stores_sql import mariadb, postgres  # noqa: F401 (fixtures)

ALL = ""  # every block of the page

# Page: {the first words of a block: the test that runs it}. A test that `make check` does not run is a target of make.
ELSEWHERE = {
    "README.md": {
        "make demo": "test_demo.py::test_the_demo_plays_its_story_and_cleans_up",
        "build/idem serve": "test_docs.py::test_the_readmes_server_answers_redis_cli",
        "unset IDEM_SERVER": "test_docs.py::test_the_first_steps_of_the_readme_work",
        "scripts/deps build": "test_install.py::test_everything_is_where_people_look_for_it",
        "client = idem.Client": "test_docs.py::test_the_readmes_lines_in_each_language_are_those_that_the_client_runs",
        "Order order": "test_docs.py::test_the_readmes_lines_in_each_language_are_those_that_the_client_runs",
        "const order": "test_docs.py::test_the_readmes_lines_in_each_language_are_those_that_the_client_runs",
        "order, err": "test_docs.py::test_the_readmes_lines_in_each_language_are_those_that_the_client_runs",
        "$order": "test_docs.py::test_the_readmes_lines_in_each_language_are_those_that_the_client_runs",
        "idem_open(": "test_c_api.py::test_the_short_example_runs_once",
    },
    "docs/choosing.md": {ALL: "test_c_api.py::test_the_schemes_of_the_page_about_choosing_run"},
    "docs/clients.md": {ALL: "test_clients.py::test_the_example_gets_one_answer_however_often_it_asks"},
    "docs/containers.md": {"make image": "make image-check"},
    "docs/gateway.md": {
        "$ idem doubts": "test_operations.py::test_a_gateways_doubt_is_settled_as_the_page_says",
        "$ idem settle": "test_operations.py::test_a_gateways_doubt_is_settled_as_the_page_says",
        "$ idem get": "test_operations.py::test_a_gateways_doubt_is_settled_as_the_page_says",
        "load_module": "test_docs.py::test_the_configuration_for_ones_own_nginx_is_one",
    },
    "docs/install.md": {
        "make deb": "make package-check", "sudo idem begin": "make package-check", "sudo apt install ./build/deb/libnginx": "make package-check",
        "sudo systemctl enable --now idem-gateway": "make package-check",
        "sudo idem backup": "make package-check", "sudo systemctl stop idem": "make package-check",
        "upstream shop_gateways": "test_load_balancer.py::test_two_gateways_are_restarted_one_after_the_other_while_clients_go_on",
        "# systemctl edit idem": "test_systemd.py::test_a_credential_of_systemd_stands_for_a_variable",
    },
    "docs/messages.md": {"$ idem consume": "test_consume.py::test_every_message_is_handled_once_although_published_twice"},
    "docs/operators-day.md": {ALL: "test_operators_day.py::test_the_day"},
    "docs/playground.md": {"$ idem playground": "test_playground.py::test_it_prints_its_address_and_ends_at_ctrl_c"},
    "docs/stores.md": {"ACL SETUSER": "test_waking.py::test_the_account_of_the_docs_is_woken"},
    "docs/sql/tables.md": {"create schema idem": "test_stores_sql.py::test_a_table_in_partitions_holds_the_contract"},
    "docs/tokens.md": {"<script": "test_page.py::test_a_double_click_is_one_order_and_leads_to_the_result_page",
                       "<form": "test_page.py::test_a_double_click_is_one_order_and_leads_to_the_result_page"},
    **{"docs/sql/%s.md" % language: {ALL: "test_sql_guides.py::test_the_page_does_what_it_says"} for language in ("go", "java", "node", "python")},
    **{"docs/%s.md" % page: {ALL: "test_tutorials.py::test_every_block_of_the_page_works"} for page in (
        "tutorials/consumer", "tutorials/cron", "tutorials/doubt", "tutorials/http-service", "tutorials/java-method", "tutorials/transaction",
        "howto/test-your-service", "howto/backup-restore-upgrade")},
    "docs/howto/migrate.md": {
        word: "test_tutorials.py::test_every_block_of_the_page_works" for word in ("redis-server", "./pay_setnx.sh", "cat > pay.sh", "kill $server",
                                                                          "export IDEM_STORE=journal", "sqlite3")},
}

# Code of the reader's that idem replaces, and what it is replaced by: fragments, for comparison.
FRAGMENTS = {"docs/howto/migrate.md": ['if (!"OK".equals(redis.set(', "RLock lock", "insert into dedup", "Receipt receipt", "try (PreparedStatement"]}


def pages():
    files = subprocess.run(["git", "ls-files", "README.md", "docs/*.md"], cwd=ROOT, text=True, stdout=subprocess.PIPE).stdout.split()
    return sorted(f for f in files if not f.endswith(".zh-CN.md"))


def blocks(page):
    """The code of a page: what is in fences that do not say text, and what is indented by four or more behind an empty line."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        lines = f.read().split("\n")
    found, at = [], 0
    while at < len(lines):
        fence = re.match(r"```(\w*)$", lines[at])
        indented = lines[at].startswith("    ") and lines[at - 1].strip() == ""
        start = at
        if fence:
            at = lines.index("```", at + 1)
            if fence.group(1) != "text":
                found.append("\n".join(lines[start + 1:at]))
        elif indented:
            while at + 1 < len(lines) and (lines[at + 1].startswith("    ") or lines[at + 1] == "" and lines[at + 2:at + 3] and
                                           lines[at + 2].startswith("    ")):
                at += 1
            width = len(lines[start]) - len(lines[start].lstrip())
            found.append("\n".join(line[min(width, len(line) - len(line.lstrip())):] for line in lines[start:at + 1]))
        at += 1
    return [block.strip("\n") for block in found]


def begins(block, word):
    return block.strip().startswith(word)


def mine(page):
    """The blocks of a page that this file has to run."""
    others = [*ELSEWHERE.get(page, {}), *FRAGMENTS.get(page, [])]
    return [block for block in blocks(page) if not any(begins(block, word) for word in others)]


class Page:
    """The blocks of a page, to be taken one by one; all of them have to be."""

    def __init__(self, name):
        self.name, self.left = name, mine(name)
        assert self.left, name

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        assert kind or not self.left, "%s has blocks that nobody runs:\n%s" % (self.name, "\n---\n".join(self.left))

    def take(self, word):
        block = next((b for b in self.left if begins(b, word)), None)
        assert block is not None, (self.name, word)
        self.left.remove(block)
        return block


def commands(block):
    """What is typed: lines without a prompt, or behind "$ ", with the lines that they are continued on. A comment goes."""
    prompts = re.search(r"^\$ ", block, re.M)
    joined = block.replace("\\\n", " ")
    lines = re.findall(r"^\$ (.*)$", joined, re.M) if prompts else joined.split("\n")
    return [line for line in (re.sub(r"(^|\s+)# .*$", "", line).strip() for line in lines) if line]


def session(block):
    """Pairs of what is typed and what is shown behind it."""
    parts = re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.M)
    assert parts[0] == ""
    return [(part.partition("\n")[0], part.partition("\n")[2].strip("\n")) for part in parts[1:]]


def sh(line, here, code=0, text=None, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("IDEM_", "XDG_"))}
    done = subprocess.run(["bash", "-c", line], cwd=here, text=True, input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120,
                          env={**clean, "HOME": here, "PATH": os.path.dirname(IDEM) + ":" + os.environ["PATH"], **env})
    assert code is None or done.returncode == code, (line, done)
    return done.stdout


def script(here, name, text="#!/bin/sh\necho $IDEM_FENCE\n"):
    with open(os.path.join(here, name), "w") as f:
        f.write(text)
    os.chmod(os.path.join(here, name), 0o755)


class Background:
    """A line that starts a server, and ends it at the end."""

    def __init__(self, line, here, port=None, **env):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("IDEM_", "XDG_"))}
        self.line, self.port, self.out = line, port, open(os.path.join(here, "background-%d" % free_port()), "w+")
        self.process = subprocess.Popen(["bash", "-c", "exec " + line], cwd=here, stdout=self.out, stderr=subprocess.STDOUT,
                                        env={**clean, "HOME": here, "PATH": os.path.dirname(IDEM) + ":" + os.environ["PATH"], **env})

    def said(self):
        self.out.seek(0)
        return self.out.read()

    def __enter__(self):
        up = lambda: listens(self.port) if self.port else "event=ready" in self.said()  # noqa: E731
        assert wait_until(lambda: up() or self.process.poll() is not None) and self.process.poll() is None, (self.line, self.said())
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.out.close()


SHOP = """
import http.server, json, sys
orders = []
class Shop(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        orders.append(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps({"order": len(orders)}, separators=(",", ":")).encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer.request_queue_size = 256  # with the default of 5, a crowd's connections are tried again for seconds
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Shop).serve_forever()
"""


def shop(here):
    """A service that makes an order of every POST."""
    port = free_port()
    script(here, "shop.py", SHOP)
    return Background("/usr/bin/python3 shop.py %d" % port, here, port)


def replace(text, *pairs):
    for old, new in pairs:
        assert old in text, (old, text)
        text = text.replace(old, str(new))
    return text


def compare(said, shown, numbers):
    """What was said is what the page shows, but for numbers of ten digits or more, times and ages, and where it shows "...". `numbers` keeps which
    long number of the page is which here."""
    shape = lambda text: re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z|\d{10,}|\b(?:\d+[smhd])+\b *", "N", text)  # noqa: E731
    pattern = ".*?".join(re.escape(shape(part.strip())) for part in re.split(r"^ *\.\.\.$", shown, flags=re.M))
    assert re.fullmatch(pattern, shape(said.strip()), re.S), "shown:\n%s\nsaid:\n%s" % (shown, said)
    for page, here in zip(re.findall(r"\d{10,}", shown), re.findall(r"\d{10,}", said)):
        numbers[page] = here


def play(block, here, prepare=lambda line: line, **env):
    """A session of the page, line by line."""
    numbers = {}
    for typed, shown in session(block):
        for page, actual in numbers.items():
            typed = typed.replace(page, actual)
        compare(sh(prepare(typed), here, code=None, **env), shown, numbers)


# ---- the rule ----------------------------------------------------------------------------------------------------------

RUNS = set()  # the pages that a test of this file runs


def runs(page):
    RUNS.add(page)
    return page


def test_every_block_is_run_or_marked_as_output():
    unknown = ["%s: %s" % (page, block.split("\n")[0]) for page in pages() if page not in RUNS for block in mine(page)]
    assert not unknown, "run them in this file, name the test that does, or mark them with ```text:\n" + "\n".join(unknown)


def test_what_is_run_elsewhere_is_there():
    for page, names in {**ELSEWHERE, **{p: dict.fromkeys(words, None) for p, words in FRAGMENTS.items()}}.items():
        for word, where in names.items():
            assert any(begins(block, word) for block in blocks(page)), (page, word)
            if where and where.startswith("make "):
                with open(os.path.join(ROOT, "Makefile")) as f:
                    assert re.search(r"^%s:" % where[5:], f.read(), re.M), where
            elif where:
                file, test = where.split("::")
                with open(os.path.join(ROOT, "tests/system", file)) as f:
                    assert "def %s(" % test in f.read(), where


def test_a_new_block_would_be_noticed(tmp_path):
    page = tmp_path / "new.md"
    page.write_text("# New\n\n    $ idem frobnicate\n\n```text\noutput\n```\n\n```sh\nidem bogus\n```\n\n1. A step:\n\n       idem odd\n")
    assert mine(str(page)) == ["$ idem frobnicate", "idem bogus", "idem odd"]


# ---- the pages ---------------------------------------------------------------------------------------------------------

def test_readme(page=runs("README.md")):
    with Page(page) as p, folder() as here, shop(here) as service:
        port = free_port()
        line = replace(p.take("build/idem gateway"), ("build/idem", IDEM), ("9000", service.port), ("8080", port))
        with Background(line, here, port, IDEM_STORE="journal:%s/j" % here):
            pass


def test_alerts(page=runs("docs/alerts.md")):
    with Page(page) as p, folder() as here:
        serve, *rest = commands(p.take("idem serve"))
        with Background(replace(serve, ("7399", free_port())), here, IDEM_STORE="memory:", IDEM_SOCKET="none"):
            for line in rest:
                sh(line, ROOT)


def test_check(page=runs("docs/check.md")):
    with Page(page) as p, folder() as here, shop(here) as service:
        (check, shown), (echo, status) = session(p.take("$ idem check"))
        said = sh(replace(check, ("8080", service.port)), here, code=int(status))
        digits = lambda text: re.sub(r"\d+", "9", text)  # noqa: E731
        for line in shown.split("\n"):
            assert line == "..." or digits(line) in digits(said), (line, said)
        assert echo == "echo $?"


def test_cli(page=runs("docs/cli.md")):
    with Page(page) as p, folder() as here, Server(here) as server:
        play(p.take("$ idem begin shop"), here)
        env = {"IDEM_SERVER": "unix:" + server.socket}
        for key in ("order-7", "order-9"):
            sh("idem begin shop %s --lease 10ms" % key, here, **env)
        doubts = p.take("$ idem doubts")
        assert wait_until(lambda: len(sh("idem doubts", here, **env).splitlines()) == 2)
        play(doubts.split("\n$ idem settle")[0], here, **env)
        dry, real = commands(doubts)[1:]
        assert len(sh(replace(dry, ("--older 1h", "--older 1ms")), here, **env).splitlines()) == 2
        assert sh(replace(real, ("--older 1h", "--older 1ms")) + " --yes", here, **env) == "settled shop order-7\nsettled shop order-9\n"
        lines = "day=monday; send_mail() { echo sent; }\n" + p.take("if fence=")
        assert sh(lines, here, **env).startswith("sent\nok\n") and sh(lines, here, **env) == "was sent already\n"


def test_console(page=runs("docs/console.md")):
    with Page(page) as p, folder() as here:
        (_, file), (serve, _) = session(p.take("$ cat credentials"))
        script(here, "credentials", file + "\n")
        os.chmod(here + "/credentials", 0o600)
        port = free_port()
        with Background(replace(serve, ("7399", port)), here, port, IDEM_STORE="memory:", IDEM_SOCKET="none"):
            with urllib.request.urlopen("http://127.0.0.1:%d/console" % port, timeout=60) as answer:
                assert answer.status == 200


def tls_files(here, *names):
    sh("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost "
       "-keyout k.pem -out c.pem 2>&1", here)
    for name in names:
        sh("cp %s %s" % ("k.pem" if name.endswith(".key") else "c.pem", name), here)


def test_gateway(page=runs("docs/gateway.md")):
    with Page(page) as p, folder() as here, shop(here) as service:
        port = free_port()
        start = replace(commands(p.take("$ idem gateway --upstream http://127.0.0.1:9000 --listen"))[0], ("9000", service.port), ("8080", port))
        env = {"IDEM_STORE": "journal:%s/j" % here, "IDEM_SERVER": "unix:%s/s" % here}
        with Background(start + " --status-path /requests --socket %s/s" % here, here, port, **env):
            (curl, first), (again, second) = session(p.take("$ curl -i -X POST"))
            assert again == "# the same line again"
            for shown in (first, second):
                said = sh(replace(curl, ("8080", port)), here)
                for line in shown.split("\n"):
                    assert line == "..." or re.search(r"^%s" % re.escape(line.split(":")[0]), said, re.M), (line, said)
            said = sh(replace(commands(p.take("$ curl -i http"))[0], ("8080", port)), here)
            assert said.startswith("HTTP/1.1 201") and "Idempotent-Replayed: true" in said
            problem = json.loads(sh("curl -s -X POST http://127.0.0.1:%d/orders -H 'Idempotency-Key: order-7' -d other" % port, here))
            find = re.sub(r"urn:uuid:\S+", problem["instance"], commands(p.take("$ idem find"))[0])
            assert sh(find, here, **env).endswith(" anonymous order-7\n")
        script(here, "routes.conf", p.take("upstream ="))
        assert "location" in sh("idem gateway --config routes.conf --print-config", here)
        [(check, told)] = session(p.take("$ idem gateway --config gateway.conf --check"))
        assert sh(check.replace("gateway.conf", "routes.conf"), here) == told + "\n"
        tls_files(here, "ca.pem", "nginx.pem", "nginx.key", "auth")
        line = replace(p.take("idem_engine engine.example"), ("/etc/idem", here), ("engine.example", "127.0.0.1"))
        script(here, "n.conf", "load_module %s; events {} pid %s/p; error_log stderr; http { access_log off; %s %s }" % (
            MODULE, here, " ".join("%s_temp_path %s/%s;" % (n, here, n) for n in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")), line))
        told = nginx_test(here, here + "/n.conf")
        assert told.returncode == 0, told.stderr
        script(here, "auth", "nginx d41uFhRk0gJ7cXnA2mYt\n")
        os.chmod(here + "/auth", 0o600)
        line = replace(commands(p.take("$ idem gateway --upstream http://127.0.0.1:9000 --engine"))[0], ("/etc/idem", here), ("engine.example", "localhost"))
        assert "localhost:6390" in sh(line + " --print-config", here)


def test_http(page=runs("docs/http.md")):
    with Page(page) as p, folder() as here, Server(here, "--http", "127.0.0.1:%d" % (port := free_port())):
        play(p.take("$ curl"), here, lambda line: line.replace("7399", str(port)))


def test_ids(page=runs("docs/ids.md")):
    with Page(page) as p, folder() as here:
        port, http = free_port(), free_port()
        script(here, "idem.conf", "uid-bits = 28,22,13\n")
        with Server(here, "--listen", "127.0.0.1:%d" % port, "--http", "127.0.0.1:%d" % http) as server:
            for line in p.take("$ idem id snowflake").split("\n"):
                prompt, _, what = re.sub(r" +# .*", "", line).partition(" ")
                if prompt == "$":
                    assert sh(what.replace("/etc/idem", here), here, IDEM_SERVER="unix:" + server.socket)
                elif prompt == ">":
                    assert len(sh("redis-cli -p %d %s" % (port, what), here).split()) == 11
                else:
                    assert prompt == "GET" and "ids" in sh("curl -sf 'http://127.0.0.1:%d%s'" % (http, what), here)


def test_journal(page=runs("docs/journal.md")):
    with Page(page) as p, folder() as here:
        mine = lambda line: line.replace("/var/lib", here).replace("/backup", here).replace(" DIR", " %s/idem" % here)  # noqa: E731
        sh(mine("idem begin shop order-7 --store journal:/var/lib/idem"), here)
        for line in commands(p.take("idem journal check")):
            sh(mine(line), here)
        *backups, restore = commands(p.take("idem backup"))
        for line in backups:
            sh(mine(line), here)
        sh("rm -r %s/idem" % here, here)
        sh(mine(restore), here)
        sh(re.sub(r"postgres:\S+", "sqlite:%s/db" % here, mine(p.take("idem store copy"))), here)
        assert " order-7" in sh("idem scan --store sqlite:%s/db" % here, here)


def resp(here, port, block, prepare=lambda line: line):
    """Lines with "> " are commands of RESP, what follows one is its reply; lines with "$ " are typed in a shell."""
    numbers = {}
    for part in re.split(r"^(?=[$>] )", re.sub(r" +# .*$", "", block, flags=re.M), flags=re.M)[1:]:
        typed, _, shown = part[2:].partition("\n")
        for page, actual in numbers.items():
            typed = typed.replace(page, actual)
        if part[0] == "$":
            sh(prepare(typed), here, IDEM_SERVER="127.0.0.1:%d" % port)
            continue
        said = sh("redis-cli --no-raw -p %d %s" % (port, typed), here)
        for line in shown.strip().split("\n") if shown.strip() else []:
            actual = said.split("\n")[int(line[0]) - 1]
            if re.fullmatch(r'\d\) "[\w-]{32}"', line):  # a token
                numbers[line[4:-1]] = actual[4:-1]
            else:
                compare(actual, line, numbers)


def test_locks(page=runs("docs/locks.md")):
    with Page(page) as p, folder() as here, Server(here, "--listen", "127.0.0.1:%d" % (port := free_port())):
        for name in ("report", "transfer", "render", "export", "import", "print"):
            script(here, name + ".sh")
        resp(here, port, p.take("$ idem lock nightly-report"))
        for word in ("$ idem lock account-7", "$ idem lock printer"):
            for line in commands(p.take(word)):
                assert int(sh(line, here, IDEM_SERVER="127.0.0.1:%d" % port)) > 0
        update = p.take("UPDATE account")
        row = sh("sqlite3 :memory: \"create table account (id, balance, fence); insert into account values (7, 0, 34); %s; select changes()\"" % (
            re.sub(r"\?", lambda _, values=iter(("1", "33", "7", "33")): next(values), update)), here)
        assert row == "0\n", "the late holder changes nothing"


CONSUMER = """
import idem
class Message:
    def __init__(self, id, body):
        self.id, self.body = id, body
    def acknowledge(self):
        print(self.id, self.body, "acknowledged")
    def put_back(self):
        print(self.id, self.body, "put back")
    def move_to(self, queue):
        print(self.id, self.body, queue)
shipped = []
def ship(body):
    if body == "broken":
        raise ValueError(body)
    shipped.append(body)
    if body == "again":
        on_message(Message("3", body))
CODE
for id, body in (("1", "book"), ("1", "book"), ("1", "pen"), ("2", "broken"), ("2", "broken"), ("3", "again"), ("4", "ink")):
    on_message(Message(id, body))
print("shipped", *shipped)
"""


def test_messages(page=runs("docs/messages.md")):
    with Page(page) as p, folder() as here:
        assert len(sh(p.take("id=$(idem id uuid7)") + "; echo $id", here)) == 37
        with Server(here, "--listen", "127.0.0.1:%d" % (port := free_port())):
            code = replace(p.take("client = idem.Client"), ("6390", str(port)))
            sh("idem begin orders/shop 4 --lease 1ms", here, IDEM_SERVER="127.0.0.1:%d" % port)
            script(here, "consumer.py", CONSUMER.replace("CODE", code))
            assert sh("sleep 0.1; /usr/bin/python3 consumer.py", here, PYTHONPATH=os.path.join(ROOT, "clients/python")).split("\n") == [
                "1 book acknowledged", "1 book acknowledged", "1 pen orders.dead", "2 broken orders.dead", "2 broken orders.dead",
                "3 again put back", "3 again acknowledged", "4 ink orders.doubt", "shipped book again", ""]


def test_metrics(page=runs("docs/metrics.md")):
    with Page(page) as p, folder() as here:
        rule = {"groups": [{"name": "page", "rules": [{"record": "page", "expr": p.take("sum by (route)")}]}]}
        script(here, "rules.yml", json.dumps(rule))
        sh("promtool check rules rules.yml", here)


def test_run(page=runs("docs/run.md")):
    with Page(page) as p, folder() as here, Server(here, "--listen", "127.0.0.1:%d" % (port := free_port())):
        script(here, "send-report")
        line = commands(p.take("# on every machine"))[0].split(None, 5)[5].replace("\\%", "%")
        line = replace(line, ("10.0.0.5:6390", "127.0.0.1:%d" % port), ("/usr/local/bin", here))
        assert sh(line, here) == sh(line, here) != ""


def test_sealing(page=runs("docs/sealing.md")):
    with Page(page) as p, folder() as here:
        umask, key, serve = (line.replace("/etc/idem", here) for line in commands(p.take("umask")))
        sh("%s; %s" % (umask, key), here)
        with Background(serve, here, IDEM_STORE="sqlite:%s/db" % here, IDEM_SOCKET=here + "/s"):
            fence = sh("idem begin shop order-7 -p fence", here, IDEM_SERVER="unix:%s/s" % here).strip()
            sh("idem finish shop order-7 %s succeeded paid" % fence, here, IDEM_SERVER="unix:%s/s" % here)
        assert sh("sqlite3 db '%s'" % p.take("select count(*)"), here) == "0\n"


def rotate(rows, here):
    """Both names work until the old line is removed; a request that one began is finished by the other."""
    *both, new = rows.split("\n")
    server = "unix:%s/rotated" % here
    as_old, as_new = ({"IDEM_SERVER": server, "IDEM_AUTH": ":".join(row.split()[:2])} for row in (both[-1], new))
    put = lambda text: sh("umask 077; cat > rotated.txt", here, text=text + "\n")  # noqa: E731
    put("\n".join(both))
    with Background("idem serve --credentials rotated.txt", here, IDEM_STORE="memory:", IDEM_SOCKET=here + "/rotated") as serve:
        def reread(text):
            seen = serve.said().count("event=reread ")
            put(text)
            os.kill(serve.process.pid, signal.SIGHUP)
            assert wait_until(lambda: serve.said().count("event=reread ") > seen)

        fence = sh("idem begin shop order-8 -p fence", here, **as_old).strip()
        reread(rows)
        sh("idem finish shop order-8 %s succeeded paid" % fence, here, **as_new)
        assert sh("idem begin shop order-8 -p result", here, code=10, **as_old).strip() == "paid"
        reread(new)
        sh("idem begin shop order-8", here, code=2, **as_old)
        assert wait_until(lambda: "event=auth-failed" in serve.said())


def test_server(page=runs("docs/server.md")):
    with Page(page) as p, folder() as here:
        with Background(p.take("idem serve"), here, IDEM_SOCKET=here + "/plain", IDEM_STORE="memory:"):
            pass
        digest = sh("printf %s d41uFhRk0gJ7cXnA2mYt | b2sum -l 256", here).split()[0]
        rows = [re.sub(r"6f3c…64 digits", digest, p.take("# name")), p.take("billing  cert:")]
        tls_files(here, "server.pem", "server.key", "clients.pem")
        script(here, "credentials", "\n".join(rows) + "\n")
        os.chmod(here + "/credentials", 0o600)
        os.chmod(here + "/server.key", 0o600)
        serve = commands(p.take("idem serve --listen '*:6390'"))[0].replace("/etc/idem", here).replace("*:6390", "127.0.0.1:%d" % free_port())
        with Background(serve, here, IDEM_STORE="journal:%s/j" % here, IDEM_SOCKET=here + "/s"):
            env = {"IDEM_SERVER": "unix:%s/s" % here, "IDEM_AUTH": "ops:d41uFhRk0gJ7cXnA2mYt"}
            sh("idem begin shop order-7 --lease 10ms", here, **env)
            wait_until(lambda: sh("idem doubts", here, **env))
            sh("idem settle shop order-7 --as failed --reason 'the bank says no'", here, **env)
            play(p.take("$ idem audit"), here, **env)
        rotate(p.take("# the old and the new name"), here)
        for line in commands(p.take("idem serve --on-doubt")):
            sh(line + " --check", here)


def test_sql(postgres, mariadb, page=runs("docs/sql/README.md")):  # noqa: F811
    def maria(text):
        return mariadb.sql(text)
    with Page(page) as p, folder() as here:
        for database in (postgres, mariadb):
            sh("idem store init '%s'" % database.url, here)
        maria("start transaction; %s commit" % p.take("call idem_begin").replace("order-7", "page-7"))
        on_postgres, on_mariadb, comment = p.take("select idem.update_versioned").split("\n")
        assert comment.startswith("-- update item")
        make = "drop table if exists item; create table item (id int primary key, name varchar(9), price int, version int); insert into item values (7, 'x', 1, 10);"
        assert postgres.sql(make + on_postgres).splitlines()[-1] == "first"
        assert maria(make + "start transaction; " + on_mariadb + " commit; select @verdict").split()[-1] == "first"
        first, second = p.take("-- a server, PostgreSQL").split("-- a server, MariaDB")
        postgres.sql("drop role if exists engine; create role engine login; " + first)
        maria("create or replace user engine@'127.0.0.1' identified by 'secret'; " + second.replace("engine", "engine@'127.0.0.1'"))
        for database in (postgres, mariadb):
            store = database.url.replace("idem:", "engine:")
            for line in ("store check", "begin page rights --store", "forget page rights --store"):  # which deletes
                sh("idem %s '%s'" % (line, store), here)
        postgres.sql("drop owned by engine; drop role engine")
        maria("drop user engine@'127.0.0.1'")
        rights = p.take("-- PostgreSQL")
        first, second = rights.split("-- MariaDB")
        postgres.sql("drop role if exists shop; create role shop; " + re.sub(r"--.*", "", first) + "; drop owned by shop; drop role shop")
        maria("create or replace user shop; " + re.sub(r"--.*", "", second) + " drop user shop")
        fence = postgres.sql("select fence from idem.begin('page', 'join')")
        lines = re.sub(r"--.*", "", p.take("begin;"))
        for name, value in (("scope", "'page'"), ("id", "'join'"), ("fence", fence)):
            lines = lines.replace(":" + name, value)
        postgres.sql("drop table if exists account; create table account (id text, balance int)")
        assert postgres.sql(lines).splitlines() == ["started", "ok"]


def test_sql_tables(postgres, page=runs("docs/sql/tables.md")):  # noqa: F811
    with Page(page) as p, folder() as here:
        sh("idem store init '%s'" % postgres.url, here)
        postgres.sql(p.take("select convert_from"))


def play_postgres(p, here):
    """The recipe; the superuser of the tests has the name that the page gives to its account."""
    primary, standby = servers.Postgres("cluster_name=db1"), None
    mine = lambda text: re.sub(r"\bidem:change|(?<=role )idem|(?<=owner )idem", lambda m: m[0].replace("idem", "app"), text)  # noqa: E731
    try:
        primary.halt()
        ca, *files = servers.authority(here, "db")
        for name, file in zip(("server.crt", "server.key"), files):
            sh("install -m 600 -o %d %s %s" % (os.stat(primary.data).st_uid, file, os.path.join(primary.data, name)), here)
        with open(os.path.join(primary.data, "pg_hba.conf"), "r+") as f:
            rest = f.read()
            f.seek(0)
            f.write("hostssl idem app 127.0.0.1/32 scram-sha-256\nhost idem app 127.0.0.1/32 reject\n" + rest)
        primary.settings += ("ssl=on",)
        primary.start()
        standby = servers.PostgresStandby(primary, synchronous=False)
        standby.halt()
        standby.settings += ("cluster_name=db2", "ssl=on")
        standby.start()
        assert wait_until(lambda: primary.sql("select application_name from pg_stat_replication") == "db2")
        hosts = (("db1,db2", "127.0.0.1:%d,127.0.0.1:%d" % (standby.port, primary.port)), ("/etc/idem/ca.pem", ca))
        for line in commands(p.take("-- psql on the primary")):
            if not line.startswith("--"):
                primary.sql(mine(line))
        export, init = p.take("export IDEM_STORE='postgres").split("\n")
        export = replace(mine(export), *hosts)
        sh(export + "\n" + init, here)
        check = p.take("idem store check")
        warned = sh(export + "\n" + check + " 2>&1", here)
        assert "1 standby is connected and synchronous_standby_names is empty" in warned, warned
        for line in commands(p.take("-- psql on the primary")):
            if not line.startswith("--"):
                primary.sql(line)
        assert wait_until(lambda: primary.sql("select sync_state from pg_stat_replication") == "quorum")
        said = sh(export + "\n" + check + " 2>&1", here)
        assert "a commit waits for ANY 1 (db1, db2) (synchronous_standby_names)\n" in said and "warning" not in said, said
        name, _, url = p.take("# /etc/idem/environment").split("\n")[1].partition("=")
        assert "export %s='%s'" % (name, replace(mine(url), *hosts)) == export
        script(here, "idem.conf", replace(p.take("# /etc/idem/idem.conf"), ("/var/lib/idem-epoch", here)) + "\n")
        with Background("idem serve --config idem.conf --socket %s/s" % here, here, **{name: replace(mine(url), *hosts)}):
            assert os.path.exists(here + "/epoch")
    finally:
        if standby:
            standby.stop()
        primary.stop()


def play_cluster(p, here):
    class Node(servers.Redis):
        safe = {}

        def start(self):
            self.spawn(self.program, here + "/redis.conf", "--port", str(self.port), "--bind", self.host, "--protected-mode", "no", "--dir", self.folder)
            return self.wait_until(lambda: self.ask("ping", check=False) == "PONG")

    script(here, "redis.conf", p.take("# redis.conf of every node") + "\n")
    create, export, check = p.take("redis-cli --cluster").split("\n")
    nodes = []
    try:
        for _ in range(6):
            nodes.append(Node(cluster_enabled="yes"))
        at = ["127.0.0.1:%d" % node.port for node in nodes]
        sh(replace(create, *[("10.0.0.%d:6379" % (i + 1), a) for i, a in enumerate(at)]), here)
        export_here = replace(export, *[("10.0.0.%d" % (i + 1), a) for i, a in enumerate(at)])
        said = []
        assert wait_until(lambda: said.append(sh(export_here + "\n" + check + " 2>&1", here, code=None)) or "is ready to use" in said[-1], 60, 0.5), said[-1]
        assert "warning" not in said[-1] and "redis: 1 replica(s) must confirm every write\n" in said[-1], said[-1]
        begin = export_here + '\nidem begin recipe x$RANDOM --store "$IDEM_STORE" >/dev/null; echo $?'
        assert wait_until(lambda: sh(begin, here) == "0\n", 60, 0.5)
    finally:
        for node in nodes:
            node.stop()


def play_sentinel(p, here):
    """One folder and one loopback port for each Redis and each Sentinel; what they rewrite in their files is kept."""
    def conf(node, text):
        with open(os.path.join(node.folder, "node.conf"), "w") as f:
            f.write(text + "\nport %d\nbind %s\ndir %s\n" % (node.port, node.host, node.folder))
        return os.path.join(node.folder, "node.conf")

    class Node(servers.Redis):
        def start(self):
            if not os.path.exists(os.path.join(self.folder, "node.conf")):
                text = every + ("\n" + replace(follow, ("10.0.0.1 6379", "127.0.0.1 %d" % nodes[0].port)) if nodes else "")
                conf(self, text + "\nrepl-diskless-sync-delay 0")
            self.spawn(self.program, os.path.join(self.folder, "node.conf"))
            return self.wait_until(lambda: "NOAUTH" in self.ask("ping", check=False))

    class Sentinel(servers.Sentinel):
        def start(self):
            self.spawn(self.program, conf(self, replace(watch, ("10.0.0.1 6379", "127.0.0.1 %d" % nodes[0].port))), "--sentinel")
            return self.wait_until(lambda: self.ask("ping") == "PONG")

    every, follow, watch = (p.take(word) for word in ("# redis.conf of all three", "# redis.conf of 10.0.0.2", "# sentinel.conf of all"))
    export, check = p.take("export IDEM_STORE='redis+sentinel").split("\n")
    nodes, sentinels = [], []
    try:
        for _ in range(3):
            nodes.append(Node())
        for _ in range(3):
            sentinels.append(Sentinel(nodes[0]))
        assert wait_until(lambda: all(s.sees(replicas=2, others=2) for s in sentinels), 120, 0.5)
        export = replace(export, ("10.0.0.1,10.0.0.2,10.0.0.3", ",".join("127.0.0.1:%d" % s.port for s in sentinels)))
        said = []
        assert wait_until(lambda: said.append(sh(export + "\n" + check + " 2>&1", here, code=None)) or "is ready to use" in said[-1], 60, 0.5), said[-1]
        assert "warning" not in said[-1] and "redis: 2 replica(s) must confirm every write\n" in said[-1], said[-1]
        begin = export + '\nidem begin recipe %s --store "$IDEM_STORE" >/dev/null 2>&1; echo $?'
        assert sh(begin % "before", here) == "0\n"
        nodes[0].kill()
        assert wait_until(lambda: {s.primary() for s in sentinels} < {n.port for n in nodes[1:]}, 60, 0.5)
        assert sh(begin % "meanwhile", here) != "0\n"  # one replica is left, and two must confirm
        nodes[0].start()
        assert wait_until(lambda: sh(begin % "after", here) == "0\n", 120, 0.5)
        assert sh(begin % "before", here) != "0\n"  # the claim is still there
    finally:
        for node in sentinels + nodes:
            node.stop()


def test_stores(page=runs("docs/stores.md")):
    with Page(page) as p, folder() as here:
        play_postgres(p, here)
        play_cluster(p, here)
        play_sentinel(p, here)
        for line in commands(p.take("idem store init URL")):
            sh(line.replace("URL", "sqlite:%s/db" % here), here)


def test_tokens(page=runs("docs/tokens.md")):
    with Page(page) as p, folder() as here, shop(here) as service:
        with folder() as there, Server(there, "--listen", "127.0.0.1:%d" % (port := free_port())):
            resp(here, port, p.take("> ISSUE"))
        port = free_port()
        line = replace(commands(p.take("$ idem gateway"))[0], ("9000", service.port), ("8080", port))
        with Background(line, here, port, IDEM_STORE="journal:%s/j" % here):
            assert len(sh("curl -sf -X POST http://127.0.0.1:%d/token" % port, here)) > 20


def test_production(page=runs("docs/howto/production.md")):
    with Page(page) as p, folder() as here, Server(here, "--listen", "127.0.0.1:%d" % (port := free_port())):
        said = sh(replace(p.take("idem bench"), ("3s", "1s")), here, IDEM_SERVER="127.0.0.1:%d" % port)
        assert re.match(r"pair: \d+/s, p50 .* p99 ", said), said
        rules = [{"record": "page:%d" % i, "expr": line} for i, line in enumerate(p.take("sum(rate(idem_errors_total").split("\n"))]
        script(here, "rules.yml", json.dumps({"groups": [{"name": "page", "rules": rules}]}))
        sh("promtool check rules rules.yml", here)


TWINS = [page for page in pages() if os.path.exists(os.path.join(ROOT, page.replace(".md", ".zh-CN.md")))]


@pytest.mark.parametrize("page", TWINS)
def test_the_chinese_page_has_the_same_commands(page):
    """But for comments, and for texts that a person writes in the own language (a reason, an answer)."""
    def code(name):
        for block in blocks(name):
            for line in block.split("\n"):
                line = re.sub(r"'[^']*'", "''", re.sub(r"\s*(#|--|//|/\*) .*", "", line)).strip()
                if line and re.match(r"\$ |> |idem |sudo |make |[a-z_-]+ = ", line):
                    yield line
    assert list(code(page)) == list(code(page.replace(".md", ".zh-CN.md")))
