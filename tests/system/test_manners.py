"""How the command line treats people: suggestions, usage, examples, tables and colour on a terminal."""
import os
import re
import subprocess
import time

from lib import IDEM, Server, folder, on_a_terminal


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


def test_a_wrong_call_shows_how_it_is_called():
    code, _, err = idem("begin", "shop")
    assert code == 2 and err == ("idem: begin: too few arguments\nusage: idem begin SCOPE ID [options]\n"
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
