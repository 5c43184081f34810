"""Ids with options: bits, epochs, steps and pools on the command line, in the server's file and in its metrics."""
import json
import os
import re
import subprocess
import time
import urllib.request

from lib import IDEM, Server, folder


def idem(*args, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("IDEM_")}
    run = subprocess.run([IDEM, *args], capture_output=True, text=True, timeout=60, env={**clean, **env})
    return run.returncode, run.stdout, run.stderr


def explained(number, *flags, **env):
    code, out, err = idem("id", "explain", str(number), "--json", *flags, **env)
    assert code == 0, err
    return json.loads(out)


def test_numbers_of_a_segment_are_consecutive_on_the_command_line():
    with folder() as where:
        for store in ("journal:%s/j" % where, "sqlite:%s/db" % where):
            got = []
            for count in (1, 1, 3, 1):
                code, out, err = idem("id", "segment:orders", "-n", str(count), "--store", store)
                assert code == 0, err
                got += [int(n) for n in out.split()]
            assert got == [1, 2, 3, 4, 5, 6], store
            assert idem("id", "segment:orders", "--store", store, "--segment-step", "100")[1] == "7\n"
            assert idem("id", "segment:orders", "--store", store)[1] != "8\n"  # the step was fetched whole


def test_a_server_has_the_options_in_its_file():
    with folder() as where:
        file = where + "/idem.conf"
        with open(file, "w") as f:
            f.write("uid-bits = 30,20,13\nuid-epoch = 2020-05-01\nsnowflake-epoch = 2021-01-01\n"
                    "worker-numbers = 7-9\nsegment-step = 1\n")
        with Server(where, "--config", file, http=True) as server, server.client() as c:
            uid, snowflake = c("ID", "uid")[1], c("ID", "snowflake")[1]
            assert [int(c("ID", "segment:orders")[1]) for _ in range(3)] == [1, 2, 3]
            numbers = [int(c("ID", "segment:a")[1]) for _ in range(3)] + [int(n) for n in c("ID", "segment:a", "4")[1:]]
            assert numbers == [1, 2, 3, 4, 5, 6, 7]
            parts = explained(int(uid), "--kind", "uid", "--config", file)
            assert parts["worker"] == 7 and abs(parts["time_ms"] / 1000 - time.time()) < 120
            assert parts == explained(int(uid), "--kind", "uid", IDEM_UID_BITS="30,20,13", IDEM_UID_EPOCH="2020-05-01")
            assert parts != explained(int(uid), "--kind", "uid")
            assert explained(int(snowflake), "--snowflake-epoch", "2021-01-01")["worker"] == 7
            told = urllib.request.urlopen("http://127.0.0.1:%d/metrics" % server.http).read().decode()
            figures = dict(re.findall(r"^(idem_ids_\S+) (\S+)$", told, re.M))
            assert figures['idem_ids_worker{kind="uid"}'] == "7" and figures["idem_ids_segment_names"] == "2"
            assert figures['idem_ids_given_total{kind="segment"}'] == "10"
            assert figures["idem_ids_segment_ranges_total"] == "7"
            assert float(figures['idem_ids_reserved{kind="uid"}']) > 8192
            assert abs(float(figures['idem_ids_clock_ahead_seconds{kind="snowflake"}'])) < 60


def test_wrong_values_are_refused_by_name():
    for flag, value, word in (("--uid-bits", "28,22", "28,22,13"), ("--uid-bits", "28,22,14", "add up to 63"),
                              ("--uid-epoch", "yesterday", "a day"), ("--snowflake-epoch", "2024-01-01x", "a day"),
                              ("--segment-step", "0", "1 or more"), ("--segment-step-max", "5", "out of range"),
                              ("--worker-numbers", "9-3", "a range"), ("--worker-numbers", "9", "a range")):
        code, _, err = idem("serve", "--check", flag, value)
        assert code == 2 and word in err, (flag, value, err)
        code, _, err = idem("id", "explain", "12345", flag, value)
        assert code == 2 and word in err, (flag, value, err)


def test_a_store_refuses_other_bits():
    with folder() as where:
        store = "journal:%s/j" % where
        assert idem("id", "uid", "--store", store)[0] == 0
        code, _, err = idem("id", "uid", "--store", store, "--uid-bits", "30,20,13")
        assert code == 2 and "28,22,13" in err, err
