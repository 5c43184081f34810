"""An operator's day, with the commands as the pages have them: find a doubt, settle it, and the client gets the answer."""
import json
import os
import re
import subprocess
import time

import pytest

import servers
from gateway import *
from lib import IDEM, ROOT, Process, Server, folder, free_port, wait_until


def page(name):
    with open(os.path.join(ROOT, name)) as f:
        return f.read()


def commands(name, heading):
    """The lines after "$ " under a heading."""
    section = re.search(r"^## %s\n(.*?)(?=^## |\Z)" % re.escape(heading), page(name), re.M | re.S).group(1)
    return re.findall(r"^    \$ (idem .*)$", section, re.M)


class Home:
    """An ordinary user's: a gateway with everything by default but its port and store, and the user's own shell."""

    def __init__(self, where, upstream, *flags):
        if os.geteuid() == 0:
            os.chmod(where, 0o755)
            os.chown(where, 65534, 65534)
        self.where, self.port = where, free_port()
        self.as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        self.env = {**{n: v for n, v in os.environ.items() if not n.startswith("IDEM_")}, "HOME": where,
                    "XDG_RUNTIME_DIR": where, "XDG_STATE_HOME": where + "/state",
                    "PATH": os.path.dirname(IDEM) + ":" + os.environ["PATH"]}
        self.gateway = self.start(self.port, upstream, "--store", "journal:%s/journal" % where, *flags)

    def start(self, port, upstream, *flags):
        return Process([*self.as_user, IDEM, "gateway", "--upstream", "http://127.0.0.1:%d" % upstream, "--listen",
                        "127.0.0.1:%d" % port, *flags], ready=port, env=self.env)

    def shell(self, line):
        done = subprocess.run([*self.as_user, "sh", "-c", line], env=self.env, cwd=self.where, text=True, timeout=60,
                              capture_output=True)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def home():
    with folder() as where, Ledger(where) as ledger:
        home = Home(where, ledger.port, "--lease", "1s")
        home.ledger = ledger
        with home.gateway:
            yield home


@pytest.mark.parametrize("name,heading", [("docs/gateway.md", "Settle a doubt"),
                                          ("docs/gateway.zh-CN.md", "裁定存疑")])
def test_a_gateways_doubt_is_settled_as_the_page_says(home, name, heading):
    lines = commands(name, heading)
    assert [line.split()[1] for line in lines] == ["doubts", "settle", "settle", "get", "forget"]
    listing, success, failure, fence, forget = lines
    for line, wanted in ((success, 201), (failure, 409), (forget, 504)):
        scope, key = line.split()[2:4]
        key_here = key + "-" + name[-8:-3].strip("./")
        first = ask(home.port, key_here, x_way="half-body")
        assert first.status == 504 and first.problem == "outcome-unknown"
        assert eventually(lambda: home.shell(listing)[1].endswith("  %s %s  (POST /orders)\n" % (scope, key_here)), seconds=30), home.shell(listing)
        assert ask(home.port, key_here, x_way="half-body").json()["class"] == "outcome unknown"
        if line == forget:
            found = home.shell(fence.replace(key, key_here))[1].strip()
            other = re.sub(r"(--fence) \d+", r"\1 %d" % (int(found) - 1), line)
            assert home.shell(other.replace(key, key_here))[1].startswith("stale")
            line = re.sub(r"(--fence) \d+", r"\1 " + found, line)
        code, out, err = home.shell(line.replace(key, key_here))
        assert code == 0 and out.startswith("ok" if wanted == 504 else "settled"), (line, out, err)
        got = ask(home.port, key_here, x_way="half-body")
        assert got.status == wanted and home.ledger.executions(key_here) == (2 if wanted == 504 else 1), got  # the same key ran again
        if wanted == 201:
            assert got.replayed and got.headers["content-type"] == "application/json" and got.json() == {"order": 7}
        elif wanted == 409:
            assert got.problem == "settled" and got.json()["class"] == "failed for good"


def test_the_gateways_engine_takes_the_servers_options_from_the_environment(home):
    with folder() as where, pytest.MonkeyPatch.context() as env:
        for name, value in (("IDEM_REQUIRE_REASON", "yes"), ("IDEM_LOG_LEVEL", "info"), ("IDEM_AUDIT", where + "/trail")):
            env.setenv(name, value)
        with Gateway(where, home.ledger.port, socket=where + "/s") as g, Resp(where + "/s") as c:
            assert wait_until(lambda: "event=ready" in g.output())
            assert "reason" in str(c("FORGET", "shop", "1")) and c("FORGET", "shop", "1", "REASON", "r")[0] == "absent"
            with open(where + "/trail") as f:
                assert '"reason":"r"' in f.read()


def test_a_second_gateway_says_how_to_reach_it(home):
    """The default socket is taken: one line of its output can be copied, and the commands then reach this one."""
    port = free_port()
    with home.start(port, home.ledger.port, "--store", "journal:%s/second" % home.where) as second:
        line = eventually(lambda: re.search(r"export IDEM_SERVER=\S+", second.output())).group(0)
        assert ask(port, "only-here").status == 201
        assert " only-here\n" in home.shell(line + "; idem scan")[1] and " only-here\n" not in home.shell("idem scan")[1]
    assert os.path.realpath(home.where + "/idem.sock") != home.where + "/idem.sock", "the first one's link stays"


def test_a_server_beside_a_gateway_does_without_the_default_socket(home):
    """It says how to reach it. Without another address it does not start, and says what to give."""
    port, http = free_port(), free_port()
    serve = [*home.as_user, IDEM, "serve", "--store", "memory:"]
    with Process([*serve, "--listen", "127.0.0.1:%d" % port], ready=port, env=home.env) as server:
        said = server.output()
        assert "level=warning event=socket-in-use socket=%s/idem.sock" % home.where in said and "socket=none listen=" in said
        assert home.shell("idem begin here only " + re.search(r"--server \S+\d", said).group(0))[0] == 0
    with Process([*serve, "--http", "127.0.0.1:%d" % http], ready=http, env=home.env) as server:
        assert wait_until(lambda: "HTTP only: give it a socket of its own with --socket PATH" in server.output())
    assert home.shell("idem scan --scope here")[0] == 0, "the gateway's link stays"
    for more in ([], ["--listen", "127.0.0.1:%d" % port, "--socket", home.where + "/idem.sock"]):
        run = subprocess.run([*serve, *more], env=home.env, capture_output=True, text=True, timeout=60)
        assert run.returncode == 1 and "another server listens on %s/idem.sock" % home.where in run.stderr, run.stderr
        assert "give another path with --socket" in run.stderr


def test_a_gateway_says_that_its_journal_is_new():
    """A mistyped path would else begin with an empty memory, and nobody would know."""
    with folder() as where, Ledger(where) as ledger:
        for new in (True, False):
            with Gateway(where, ledger.port) as g:
                assert ask(g.port, "k").status == 201
                assert ("%s/journal: a new, empty journal was created; if there was one before, correct the path" % where
                        in g.output()) == new, g.output()


def test_the_default_socket_is_free_again(home):
    """A gateway that was killed leaves a link to nothing; a server, or another gateway, takes its place."""
    with folder() as where:
        other = Home(where, home.ledger.port)
        assert os.path.islink(where + "/idem.sock")
        other.gateway.stop()
        assert not os.path.lexists(where + "/idem.sock")
        os.symlink(where + "/gone", where + "/idem.sock")
        with other.start(other.port, home.ledger.port, "--store", "journal:%s/journal" % where) as again:
            assert "the default of this user" in eventually(lambda: again.output() if "reach it" in again.output() else None)
            assert other.shell("idem scan")[0] == 0
        os.symlink(where + "/gone", where + "/idem.sock")
        with Process([*other.as_user, IDEM, "serve"], ready=where + "/idem.sock", env=other.env):
            assert other.shell("idem begin shop 1")[0] == 0


def test_addresses_that_are_printed_are_understood(home):
    said = eventually(lambda: home.gateway.output() if "reach it at" in home.gateway.output() else None)
    socket = re.search(r"reach it at (\S+),", said).group(1)
    for address in (socket, "unix:" + socket, "idem+unix:" + socket):
        assert home.shell("idem scan --server " + address)[0] == 0, address
    code, _, err = home.shell("idem scan --server " + re.search(r"http://\S+/(?=\n|$)", said.split("metrics at ")[1]).group(0))
    assert code != 0 and "HTTP address" in err and "unix:PATH" in err


@pytest.mark.parametrize("options,wrong", [
    ("--http 201", "--as"), ("--as succeeded --http 99", "200 to 599"), ("--as succeeded --body x", "--http"),
    ("--as succeeded --http 200 --header nonsense", "Name: value"), ("--as succeeded --http 200 --result x", "--result"),
    ("--as succeeded --http 200 --header 'Content-Length: 3'", "itself")])
def test_settle_refuses_an_answer_that_is_none(home, options, wrong):
    code, _, err = home.shell("idem settle shop wrong " + options)
    assert code == 2 and wrong in err, err


def test_an_operators_word_is_always_logged(home):
    """Also under the gateway, whose engine logs little else: who, from where, what, the verdict and why."""
    for key in ("audited", "audited-too"):
        assert ask(home.port, key, x_way="half-body").status == 504
    eventually(lambda: home.shell("idem scan --doubt")[1].count(" audited") == 2, seconds=30)
    assert home.shell("idem settle anonymous audited --as failed --reason 'ticket 7, not booked'")[0] == 0
    assert home.shell("idem forget anonymous audited-too")[0] == 0
    uid = 65534 if os.geteuid() == 0 else os.geteuid()
    lines = eventually(lambda: [line for line in home.gateway.output().splitlines() if "event=operator" in line
                                and ("ticket 7" in line or "verb=forget" in line)][1:] and
                       [line for line in home.gateway.output().splitlines() if "event=operator" in line][-2:])
    settled, forgot = lines
    for part in ("verb=settle", "outcome=failed", "verdict=settled", 'reason="ticket 7, not booked"', "surface=resp",
                 'from="uid=%d pid=' % uid, " key=", " who="):
        assert part in settled, (part, settled)
    assert "verb=forget" in forgot and "verdict=ok" in forgot and "audited" not in forgot


def test_a_key_that_a_proxy_joined_is_refused(home):
    got = ask(home.port, "a-1,a-2")
    assert got.status == 400 and got.problem == "key-malformed" and "comma" in got.json()["detail"]
    assert ask(home.port, '"a-1,a-2"').status == 201
    assert home.ledger.executions("a-1,a-2") == 1, "the quoted one"


@pytest.mark.parametrize("line", [
    "idem begin s i --lease 30", "idem renew s i 1 30", "idem run s i --lease 30 -- true", "idem lock l --lease 30 -- true",
    "idem serve --check --idle-timeout 30", "IDEM_IDLE_TIMEOUT=30 idem serve --check",
    "echo idle-timeout = 30 >serve.conf; idem serve --check --config serve.conf",
    "idem gateway --upstream http://127.0.0.1:1 --wait 30 --print-config",
    "idem gateway --upstream http://127.0.0.1:1 --drain-timeout 30 --print-config",
    "echo wait = 30 >gateway.conf; idem gateway --upstream http://127.0.0.1:1 --config gateway.conf --print-config"])
def test_a_time_without_a_unit_is_refused(home, line):
    """Thirty seconds or thirty milliseconds? Nobody guesses."""
    code, out, err = home.shell(line)
    assert code == 2 and "30s or 30ms?" in err and out == "", (out[:200], err)
    code, _, err = home.shell(line.replace("30", "0"))
    assert "0s or 0ms?" not in err


# ---- many doubts ----------------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def doubtful():
    """A server with doubts of three scopes, the last of them just now, and one request at work."""
    with folder() as where, Server(where, http=True) as s, s.client() as c:
        for scope, id in (("shop", "a"), ("shop", "b"), ("bank", "c"), ("late", "d")):
            assert c("BEGIN", scope, id, "LEASE", "50", "SUBJECT", "POST /" + scope)[0] == "started"
            assert wait_until(lambda: c("BEGIN", scope, id)[0] == "doubt")
        assert c("BEGIN", "shop", "at-work", "LEASE", "600000")[0] == "started"
        s.c = c
        yield s


def run_idem(server, *argv, **more):
    return subprocess.run([IDEM, *argv, "--server", server.socket], capture_output=True, text=True, timeout=60, **more)


def test_doubts_are_listed_oldest_first(doubtful):
    done = run_idem(doubtful, "doubts")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[4:6] for line in lines] == [["shop", "a"], ["shop", "b"], ["bank", "c"], ["late", "d"]], done
    assert re.fullmatch(r"\d+s", lines[0][0]) and lines[0][1:3] == ["request", "1"] and lines[0][6:] == ["(POST", "/shop)"]
    told = [json.loads(line) for line in run_idem(doubtful, "doubts", "--json", "--scope", "bank").stdout.splitlines()]
    assert [(t["id"], t["doubt_ms"] >= 0, t["attempt"]) for t in told] == [("c", True, 1)]
    assert run_idem(doubtful, "doubts", "--older", "1h").stdout == ""


@pytest.mark.parametrize("argv,wrong", [
    (["--as", "failed"], "--scope, --older or --all"), (["--scope", "shop"], "--as"), (["shop"], "SCOPE and ID"),
    (["shop", "a", "--as", "failed", "--all"], "leave out"), (["--as", "failed", "--scope", "shop"], "--yes")])
def test_many_are_not_settled_by_mistake(doubtful, argv, wrong):
    done = run_idem(doubtful, "settle", *argv, stdin=subprocess.DEVNULL)
    assert done.returncode == 2 and wrong in done.stderr, done
    assert run_idem(doubtful, "doubts").stdout.count("\n") == 4


def test_many_doubts_are_settled_by_a_filter(doubtful):
    dry = run_idem(doubtful, "settle", "--as", "failed", "--scope", "shop", "--dry-run")
    assert dry.returncode == 0 and len(dry.stdout.splitlines()) == 2 and len(run_idem(doubtful, "doubts").stdout.splitlines()) == 4
    done = run_idem(doubtful, "settle", "--as", "failed", "--scope", "shop", "--yes", "--reason", "the bank was down")
    assert done.returncode == 0 and done.stdout == "settled shop a\nsettled shop b\n" and "2 of 2" in done.stderr, done
    assert [line.split()[4:6] for line in run_idem(doubtful, "doubts").stdout.splitlines()] == [["bank", "c"], ["late", "d"]]
    assert doubtful.c("GET", "shop", "at-work")[8] == "executing", "who is at work is not touched"
    assert run_idem(doubtful, "audit").stdout.count('settled: doubt -> failed "the bank was down"') == 2
    assert run_idem(doubtful, "settle", "--as", "failed", "--scope", "shop", "--yes").returncode == 0, "nothing left is fine"


def test_a_terminal_is_asked_first(doubtful):
    import pty
    for answer, settled in ((b"n\n", False), (b"y\n", True)):
        ours, theirs = pty.openpty()
        os.write(ours, answer)
        done = run_idem(doubtful, "settle", "--as", "succeeded", "--scope", "bank", stdin=theirs)
        os.close(ours), os.close(theirs)
        assert "Settle these 1 as succeeded?" in done.stderr and (done.returncode == 0) == settled, done
        assert (doubtful.c("BEGIN", "bank", "c")[0] == "replay") == settled


def test_top_shows_doubts_and_the_oldest(doubtful):
    def told():
        done = run_idem(doubtful, "top", "--once", "--json", "--every", "100ms")
        return json.loads(done.stdout) if done.returncode == 0 else {}
    assert wait_until(lambda: told().get("doubts", 0) > 0)
    assert told()["oldest_doubt_seconds"] >= 0
    assert wait_until(lambda: re.search(r"^doubts +[1-9]\d* +oldest +\d+ s$",
                                        run_idem(doubtful, "top", "--once", "--every", "100ms").stdout, re.M))


@pytest.mark.parametrize("store, figure", [("journal", "journal_records"), ("sqlite", "sqlite_connected"), ("Redis", "redis_swaps_total"),
                                           ("Postgres", "postgres_connects_total")])
def test_top_shows_the_figures_of_every_store(store, figure, tmp_path):
    database = getattr(servers, store)() if store[0].isupper() else None
    url = database.url if database else "%s:%s" % (store, tmp_path / "data")
    try:
        subprocess.run([IDEM, "store", "init", url], check=True, stdout=subprocess.DEVNULL)
        with Server(str(tmp_path), store=url) as s, s.client() as c:
            assert c("BEGIN", "shop", "order-7")[0] == "started"

            def shown(*flags):
                return subprocess.run([IDEM, "top", "--server", "unix:" + s.socket, "--once", "--every", "200ms", *flags],
                                      capture_output=True, text=True, timeout=60, check=True).stdout
            assert wait_until(lambda: json.loads(shown("--json"))["store"].get(figure, 0) >= 1)
            assert wait_until(lambda: re.search(r"^store\n(?:.*\n)*%s +[1-9]" % figure, shown(), re.M))
    finally:
        if database:
            database.stop()


# ---- being told -----------------------------------------------------------------------------------------------------------------

def new_doubt(c, id):
    assert c("BEGIN", "shop", id, "LEASE", "50", "SUBJECT", "POST /pay")[0] == "started"


def lines_of(path):
    try:
        with open(path) as f:
            return [json.loads(line) for line in f]
    except FileNotFoundError:
        return []


def test_a_command_is_told_of_new_doubts_and_not_too_often():
    with folder() as where:
        told = where + "/told"
        command = "cat >>%s; echo >>%s" % (told, told)
        with Server(where, "--on-doubt", command, "--on-doubt-every", "2s") as s, s.client() as c:
            new_doubt(c, "a")
            assert wait_until(lambda: len(lines_of(told)) == 1)
            first, = lines_of(told)
            assert (first["event"], first["new"], first["doubts"]) == ("doubt", 1, 1), first
            record, = first["records"]
            assert (record["scope"], record["id"], record["subject"], record["attempt"]) == ("shop", "a", "POST /pay", 1)
            for id in "bcd":
                new_doubt(c, id)
            assert wait_until(lambda: sum(t["new"] for t in lines_of(told)) == 4)
            later = lines_of(told)[1:]
            assert sorted(r["id"] for t in later for r in t["records"]) == ["b", "c", "d"] and len(later) <= 3, later
            assert s.output().count("event=doubt") == len(lines_of(told))


def test_a_command_that_fails_is_told_again():
    with folder() as where:
        told = where + "/told"
        command = "test -e %s/up || exit 3; cat >>%s; echo >>%s" % (where, told, told)
        with Server(where, "--on-doubt", command, "--on-doubt-every", "100ms") as s, s.client() as c:
            new_doubt(c, "a")
            assert wait_until(lambda: 'event=on-doubt-failed why="it ended with exit status 3"' in s.output())
            open(where + "/up", "w").close()
            assert wait_until(lambda: lines_of(told))
            assert lines_of(told)[0]["records"][0]["id"] == "a"


def test_a_url_is_told_of_new_doubts():
    import http.server
    import threading
    got = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.headers["Content-Type"], json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass
    hook = http.server.HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=hook.serve_forever)
    thread.start()
    try:
        with folder() as where, Server(where, "--on-doubt", "http://127.0.0.1:%d/hook" % hook.server_port) as s, s.client() as c:
            new_doubt(c, "a")
            assert wait_until(lambda: got)
            assert got[0][0] == "application/json" and got[0][1]["records"][0]["id"] == "a"
    finally:
        hook.shutdown()
        thread.join()
        hook.server_close()


def test_a_server_stops_while_its_command_hangs():
    with folder() as where:
        with Server(where, "--on-doubt", "touch %s/runs; sleep 1000" % where) as s, s.client() as c:
            new_doubt(c, "a")
            assert wait_until(lambda: os.path.exists(where + "/runs"))
            assert s.stop(seconds=20) == 0


def test_a_gateways_engine_tells_of_doubts_too():
    with folder() as where, Ledger(where) as ledger:
        os.environ["IDEM_ON_DOUBT"] = "cat >>%s/told; echo >>%s/told" % (where, where)
        try:
            with Gateway(where, ledger.port, "--lease", "1s") as g:
                assert ask(g.port, "k", x_way="half-body").status == 504
                assert wait_until(lambda: lines_of(where + "/told"))
                assert lines_of(where + "/told")[0]["records"][0]["id"] == "k"
        finally:
            del os.environ["IDEM_ON_DOUBT"]


def test_a_scope_over_its_rate_gets_429_from_the_gateway():
    """Nothing was executed, and sending it again is safe."""
    with folder() as where, Ledger(where) as ledger:
        os.environ["IDEM_SCOPE_RATE"] = "1"
        try:
            with Gateway(where, ledger.port) as g:
                def refused():
                    got = ask(g.port, "k-%d" % time.monotonic_ns())
                    return got if got.status != 201 else None
                got = wait_until(refused, step=0)
                assert got.status == 429 and got.problem == "over-quota" and got.headers["retry-after"] == "1"
        finally:
            del os.environ["IDEM_SCOPE_RATE"]


def test_what_the_next_one_simply_takes_is_not_in_doubt():
    with folder() as f:
        store = ["--store", "journal:" + f + "/j"]
        idem = lambda *argv: subprocess.run([IDEM, *argv, *store], text=True, capture_output=True).stdout  # noqa: E731
        for line in (["begin", "s", "loose", "--loose"], ["lock", "nightly"], ["begin", "s", "strict"]):
            assert idem(*line, "--lease", "100ms").startswith("started")
        assert wait_until(lambda: "strict" in idem("doubts"))
        assert [json.loads(line)["id"] for line in idem("doubts", "--json").splitlines()] == ["strict"]
        assert idem("scan", "--doubt").split()[-1] == "strict"
