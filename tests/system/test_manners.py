"""How the command line treats people: suggestions, usage, examples, tables and colour on a terminal."""
import json
import os
import re
import subprocess
import time

import servers
from gateway import Gateway, Ledger, ask
from lib import IDEM, Process, Server, encode, folder, free_port, on_a_terminal, wait_until


def idem(*args, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("IDEM_")}
    run = subprocess.run([IDEM, *args], capture_output=True, text=True, timeout=60, env={**clean, **env})
    return run.returncode, run.stdout, run.stderr


def commands():
    return re.findall(r"^  ([a-z][a-z-]*) ", idem("--help")[1], re.M)


def test_a_mistyped_option_or_command_is_guessed():
    for args, meant in ((["scan", "--doubts"], "--doubt?"), (["begin", "s", "i", "--leas", "5s"], "--lease?"),
                        (["scan", "--jsno"], "--json?"), (["gateway", "--upsteam=http://x"], "--upstream?"),
                        (["settel", "s", "i"], '"settle"?'), (["versoin"], '"version"?')):
        code, out, err = idem(*args)
        assert code == 2 and out == "" and "did you mean " + meant in err, (args, err)
    for args in (["scan", "--zzz"], ["begin", "s", "i", "-Z"], ["frobnicate"], ["scan", "--"  + "x" * 200]):
        code, _, err = idem(*args)
        assert code == 2 and "did you mean" not in err, err


def test_a_mistyped_name_in_a_file_is_guessed(tmp_path):
    file = tmp_path / "idem.conf"
    for command, text, meant in (("serve", "max-client = 5\n", "max-clients"), ("serve", "scope_record = 5\n", "scope-records"),
                                 ("gateway", "upsteam = http://x\n", "upstream"), ("gateway", "listn = 80\n", "listen"),
                                 ("gateway", "[route /pay]\nleas = 5s\n", "lease"), ("serve", "frobnicate = 1\n", None),
                                 ("gateway", "frobnicate = 1\n", None)):
        file.write_text(text)
        code, out, err = idem(command, "--config", str(file), "--check" if command == "serve" else "--print-config")
        assert code == 2 and out == "", (text, err)
        assert ('did you mean "%s"?' % meant if meant else 'idem help %s' % command) in err and (meant or "did you mean" not in err), err


def test_a_wrong_call_shows_how_it_is_called():
    code, _, err = idem("begin", "shop")
    assert code == 2 and err == ("idem: begin: too few arguments: ID is missing\nusage: idem begin SCOPE ID [options]\n"
                                 "       idem help begin explains it\n")
    code, _, err = idem("lock", "--nonsense")
    assert code == 2 and err.count("\n") == 4 and "idem lock NAME [options] -- COMMAND" in err


def test_the_version_is_told_in_both_ways():
    assert idem("version") == idem("--version") and re.match(r"idem \d+\.\d+\.\d+\n$", idem("version")[1])


def test_every_help_has_an_example_and_says_where_records_are_found():
    for command in commands():
        if command in ("help", "version"):
            continue
        out = idem("help", command)[1]
        assert re.search(r"^Examples?:\n  idem %s\b" % command, out, re.M), command
        assert ("idem help connecting" in out) == ("  -S, --server" in out), command
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]+", out.split("\nExample")[1].split(" -- ")[0]):
            assert option + " " in out.split("\nExample")[0], (command, option)
    page = idem("help", "connecting")[1]
    for word in ("--server", "--store", "--credentials", "IDEM_SERVER", "IDEM_STORE", "IDEM_AUTH", "IDEM_SERVER_USER"):
        assert word in page
    assert max(len(line) for line in page.splitlines()) <= 80


def test_the_gateways_options_are_in_groups():
    out = idem("help", "gateway")[1]
    groups = re.findall(r"^([A-Z][^\n]*:)\n  ", out, re.M)
    assert groups[:4] == ["The service:", "Where clients connect:", "Records and the engine:", "Paths of its own:"]
    assert all("For every route" in g or len(g) < 40 for g in groups)


def test_a_terminal_gets_a_table_and_a_pipe_gets_lines():
    with folder() as where:
        store = "sqlite:" + where + "/db"
        assert idem("begin", "shop", "slow", "--lease", "300ms", "--store", store)[0] == 0
        assert idem("settle", "shop", "gone", "--store", store)[0] == 0
        time.sleep(0.5)
        out = on_a_terminal("scan", "--store", store)
        assert re.search(r"\x1b\[1mTYPE +STATE +AGE +FENCE +SCOPE ID\x1b\[0m", out), out
        assert re.search(r"^request  \x1b\[31mDOUBT    \x1b\[0m +\d+s  \d+ +shop slow$", out, re.M), out
        assert re.search(r"^request  failed +\d+s  \d+ +shop gone$", out, re.M), out
        plain = on_a_terminal("scan", "--store", store, NO_COLOR="1")
        assert "DOUBT" in plain and "\x1b[3" not in plain and "\x1b[1m" not in plain
        code, out, err = idem("scan", "--store", store)
        assert code == 0 and err == "" and "\x1b" not in out and "DOUBT" not in out and "TYPE" not in out
        assert re.search(r"^request executing \d{4}-\d\d-\d\dT\S+ \d+ shop slow$", out, re.M), out


def test_bench_shows_how_far_it_is():
    with folder() as where, Server(where, store="memory:") as server:
        flags = ["bench", "--server", "unix:" + server.socket, "--time", "1s", "--clients", "4"]
        assert re.search(r"\r\x1b\[K\d+ of 1000 ms", on_a_terminal(*flags))
        code, out, err = idem(*flags)
        assert code == 0 and err == "" and "ms" in out


def test_long_commands_show_how_far_they_are():
    with folder() as where, Ledger(where) as ledger:
        journal = where + "/j"
        with Server(where, store="journal:" + journal) as server:
            with server.client() as c:
                c.raw(b"".join(encode("BEGIN", "shop", "order-%d" % i) for i in range(1200)))
                assert all(c.read()[0] == "started" for _ in range(1200))
            at = ["--server", "unix:" + server.socket]
            calls = [(["scan", "--id", "none", *at], r"searching; found so far: 0 of \d+"), (["find", "none", *at], "searching; found so far: 0"),
                     (["doubts", *at], "searching; in doubt so far: 0"), (["backup", journal, where + "/backup"], r"\d+ segments, \d+ MiB copied")]
            for call, progress in calls:
                assert re.search(r"\r\x1b\[K" + progress, on_a_terminal(*call)), call
                assert "\x1b[K" not in idem(*call[:2], *call[2:])[2]
        assert re.search(r"\r\x1b\[K\d+ records", on_a_terminal("store", "copy", "journal:" + journal, "sqlite:" + where + "/db"))
        url = "http://127.0.0.1:%d/orders" % ledger.port
        assert re.search(r"\r\x1b\[K[^\r]+: \d+ of \d+", on_a_terminal("check", url, "--body", "{}", "--parallel", "4"))


# One call of each command that says something on standard output, on a store with a record (SCOPE shop, ID done) and a journal.
JSON_CALLS = [
    ["begin", "shop", "new"], ["finish", "shop", "done", "1", "failed"], ["release", "shop", "done", "1"],
    ["renew", "shop", "done", "1", "5s"], ["settle", "shop", "gone"], ["get", "shop", "done"], ["forget", "shop", "none"],
    ["issue", "me"], ["redeem", "none", "me"], ["scan"], ["doubts"], ["find", "done"], ["audit", "--server", "SERVER"],
    ["store", "check", "STORE"], ["store", "init", "STORE"], ["store", "sql", "sqlite"], ["store", "copy", "STORE", "sqlite:DIR/copy"],
    ["journal", "check", "DIR/j"], ["journal", "dump", "DIR/j"], ["backup", "DIR/j", "DIR/backup"],
    ["restore", "DIR/backup", "DIR/restored"], ["serve", "--check"], ["top", "--once", "--every", "50ms", "--server", "SERVER"],
    ["bench", "--time", "1s", "--clients", "2", "--server", "SERVER"], ["gateway", "--print-config", "--upstream", "http://127.0.0.1:9"],
    ["check", "http://127.0.0.1:CLOSED/", "--body", "{}", "--parallel", "2", "--timeout", "1s"],
    ["run", "shop", "busy", "true"], ["lock", "one"], ["unlock", "none", "1"], ["id", "uuid7"], ["id", "explain", "387411238093066240"],
    ["consume", "redis-stream://127.0.0.1:REDIS?stream=s&group=g", "--to", "http://127.0.0.1:CLOSED/", "--until-idle", "500ms"],
    ["help"], ["help", "begin"], ["help", "connecting"], ["help", "exit-codes"], ["completion", "bash"], ["version"],
]


def test_every_command_answers_in_json():
    assert {call[0] for call in JSON_CALLS} | {"playground"} == set(commands())  # which serves until it is stopped: below
    with folder() as where, Server(where, store="journal:" + where + "/j") as server:
        store = "sqlite:" + where + "/db"
        assert idem("begin", "shop", "busy", "--store", store)[0] == 0
        assert idem("begin", "shop", "doubt", "--lease", "100ms", "--store", store)[0] == 0
        fence = idem("begin", "shop", "done", "--print", "fence", "--store", store)[1].strip()
        assert idem("finish", "shop", "done", fence, "succeeded", "x", "--store", store)[0] == 0
        with server.client() as c:
            assert c("BEGIN", "shop", "1")[0] == "started" and c("FORGET", "shop", "1")[0] == "ok"
            assert c("BEGIN", "shop", "kept")[0] == "started"  # what was forgotten leaves the journal
        redis = servers.Redis()
        try:
            answer_all(store, {"SERVER": "unix:" + server.socket, "STORE": store, "CLOSED": str(free_port()), "DIR": where,
                               "REDIS": str(redis.port)})
        finally:
            redis.stop()


def answer_all(store, places):
    for call in JSON_CALLS:
        words = [re.sub("|".join(places), lambda m: places[m.group(0)], word) for word in call]
        code, out, err = idem(words[0], "--json", *words[1:], **({} if "--server" in words else {"IDEM_STORE": store}))
        assert code not in (2, 24), (words, code, err)
        assert out and all(isinstance(json.loads(line), dict) for line in out.splitlines()), (words, out, err)


def test_servers_log_json_when_asked():
    with folder() as where, Server(where, "--json", store="memory:") as server:
        first = server.output().splitlines()[0]
        assert json.loads(first)["event"], first
    port = free_port()
    with Process([IDEM, "playground", "--json", "--listen", "127.0.0.1:%d" % port], ready=port) as playground:
        assert json.loads(playground.output())["url"].startswith("http://127.0.0.1:%d/" % port)
    with folder() as where, Ledger(where) as ledger, Gateway(where, ledger.port, "--json", store="memory:") as gateway:
        assert ask(gateway.port, "a").status == 201
        lines = wait_until(lambda: [line for line in gateway.output().splitlines() if not re.match(r"\d{4}/", line)])  # nginx has a form of its own
        assert lines and all(json.loads(line)["event"] for line in lines), lines


def test_the_help_of_a_command_is_not_cut_by_a_terminal():
    for command in commands():
        for line in idem("help", command)[1].splitlines():
            assert len(line) <= 80, (command, line)
