"""PostgreSQL with a synchronous standby: an answer is given only for what the standby has.

The standby stalls, a commit waits for it, and the wait ends early: the primary is killed and started, or somebody
terminates or cancels the backend that waits. The commit is then visible on the primary and not on the standby.
Waits more than it works.
"""
import contextlib
import json
import os
import socket
import subprocess
import threading
import time
import urllib.request

import pytest

import servers
from lib import IDEM, ROOT, Error, Process, Server, folder, free_port, wait_until

NONCE = "00112233445566%02d"


@contextlib.contextmanager
def primary_and_standby():
    primary = servers.Postgres()
    standby = None
    try:
        subprocess.run([IDEM, "store", "init", primary.url], check=True, stdout=subprocess.DEVNULL)
        primary.sql("create role shop login; grant usage on schema idem to shop; "
                    "grant select, insert, update, delete on idem.idem_record to shop; "
                    "grant select on idem.idem_machine, idem.idem_version to shop")
        standby = servers.PostgresStandby(primary)
        yield primary, standby
    finally:
        if standby:
            standby.stop()
        primary.stop()


@pytest.fixture(scope="module")
def pair():
    with primary_and_standby() as both:
        yield both


def store_of(server, timeout_ms):
    """As a role that may do no more than the documentation asks for."""
    return server.url.replace("idem:secret@", "shop@") + "?timeout_ms=%d" % timeout_ms


def verdict(answer):
    """The word of a verdict, or None where no verdict was given."""
    return None if isinstance(answer, Error) else answer[0]


def waiting(primary):
    return [int(pid) for pid in primary.sql("select pid from pg_stat_activity where wait_event = 'SyncRep'").split()]


def restart(primary):
    primary.kill()
    primary.start()


def terminate(primary):
    for pid in waiting(primary):
        primary.sql("select pg_terminate_backend(%d)" % pid)


def cancel(primary):
    for pid in waiting(primary):
        primary.sql("select pg_cancel_backend(%d)" % pid)


def terminate_all(primary):
    primary.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'shop'")


def in_the_meantime(what, *args):
    """Run something beside the test; join() it."""
    thread = threading.Thread(target=what, args=args)
    thread.start()
    return thread


def ask_while_it_waits(client, primary, ended, *command):
    """One command, whose commit waits for the standby until `ended` ends that. Asked until it has got that far."""
    answers = []

    def ask():
        while not answers or (getattr(answers[-1], "word", "") == "UNAVAILABLE" and len(answers) < 1000):
            answers.append(client(*command))
            time.sleep(0.02)

    asked = in_the_meantime(ask)
    assert wait_until(lambda: waiting(primary)), answers
    ended(primary)
    while asked.is_alive():  # the engine sends a lost swap again
        if ended is not restart:
            ended(primary)
        asked.join(0.05)
    return answers[-1]


@pytest.mark.parametrize("ended", [restart, terminate, cancel])
def test_what_the_standby_has_not_got_is_not_told(pair, ended):
    primary, standby = pair
    scope = "%s-%d" % (ended.__name__, time.time_ns())
    with folder() as where, Server(where, store=store_of(primary, 1500)) as server, server.client() as c:
        fence = c("BEGIN", scope, "finished")[1]
        standby.stall()
        try:
            # FINISH goes first: its engine still knows the record, and need not read what it may not tell.
            assert verdict(ask_while_it_waits(c, primary, ended, "FINISH", scope, "finished", fence, "SUCCEEDED",
                                              "paid")) is None
            assert verdict(ask_while_it_waits(c, primary, ended, "BEGIN", scope, "begun", "NONCE", NONCE % 1)) is None
            def both_are_there():
                ended(primary)
                return primary.sql("select count(*) from idem.idem_record where scope = '%s' and (state, id) in "
                                   "((2, 'begun'), (3, 'finished'))" % scope) == "2"

            assert wait_until(both_are_there)
            told = []
            for _ in range(6):
                told += [verdict(c("BEGIN", scope, "begun", "NONCE", NONCE % 1)), verdict(c("BEGIN", scope, "finished")),
                         verdict(c("GET", scope, "finished")), verdict(c("SCAN", "0", "SCOPE", scope))]
                time.sleep(0.2)
            assert set(told) == {None}, told
            # Who asks again and again does not use up the server's connections.
            assert len(waiting(primary)) <= 4, waiting(primary)
        finally:
            standby.resume()
        assert wait_until(lambda: verdict(c("BEGIN", scope, "begun", "NONCE", NONCE % 1)) == "started")
        assert verdict(c("BEGIN", scope, "begun", "NONCE", NONCE % 2)) == "busy"
        assert wait_until(lambda: verdict(c("BEGIN", scope, "finished")) == "replay")
        assert c("GET", scope, "finished")[-1] is not None


def checked(url, code=0):
    done = subprocess.run([IDEM, "store", "check", url], text=True, capture_output=True, timeout=60)
    assert done.returncode == code, done
    return done.stdout, done.stderr


def test_standbys_that_no_commit_waits_for_are_warned_of(pair):
    primary, standby = pair
    store, several = store_of(primary, 2000), "s are connected and synchronous_standby_names is empty"
    warning = ("1 standby is connected and synchronous_standby_names is empty: a failover to it loses the last claims, "
               "and their requests run again (docs/stores.md)")
    said, warned = checked(store)
    assert "postgres: a commit waits for * (synchronous_standby_names)\n" in said and warned == "", (said, warned)
    with folder() as where, Server(where, store=store) as server:
        assert "a commit waits for * (" in server.output() and warning not in server.output()
        primary.sql("alter system set synchronous_standby_names = ''")
        primary.sql("select pg_reload_conf()")
        archive = None
        try:
            # A program that only archives is no standby.
            archive = subprocess.Popen([primary.bin + "pg_receivewal", "-h", primary.host, "-p", str(primary.port), "-U", "idem", "-D", where])
            assert wait_until(lambda: primary.sql("select count(*) from pg_stat_replication") == "2")
            said, warned = checked(store)
            assert "a commit waits" not in said and warned.count(warning) == 1 and several not in warned, (said, warned)
            assert "standby" not in checked(store + "&unsafe=synchronous_commit")[1]
            # A running server looks again every 10 s.
            assert wait_until(lambda: warning in server.output(), 60), server.output()
            with folder() as other, Server(other, store=store) as second:
                assert second.output().count(warning) == 1
            # An account that may not look works, too.
            primary.sql("revoke select on pg_stat_replication from public")
            assert checked(store)[1] == ""
        finally:
            if archive:
                archive.kill()
                archive.wait()
            primary.sql("grant select on pg_stat_replication to public")
            primary.sql("alter system set synchronous_standby_names = '*'")
            primary.sql("select pg_reload_conf()")
        assert wait_until(lambda: primary.sql("select sync_state from pg_stat_replication where application_name = 'walreceiver'") == "sync")


def test_standbys_that_a_commit_needs_and_that_are_not_connected_are_warned_of(pair):
    primary, standby = pair
    none = "postgres: no standby that synchronous_standby_names (%s) names is connected and streaming: every request fails until %s"
    name = primary.sql("select application_name from pg_stat_replication")

    def waits_for(names):
        primary.sql("alter system set synchronous_standby_names = '%s'" % names)
        primary.sql("select pg_reload_conf()")
        assert wait_until(lambda: primary.sql("show synchronous_standby_names") == names)

    store = store_of(primary, 2000)  # a role that does not see sync_state
    try:
        assert checked(store)[1] == "" and checked(primary.url)[1] == ""
        with folder() as where, Server(where, store=primary.url) as server:
            waits_for("ANY 1 (other, another)")
            assert none % ("ANY 1 (other, another)", "1 is") in checked(primary.url)[1]
            assert wait_until(lambda: server.output().count(none % ("ANY 1 (other, another)", "1 is")) == 1, 60), server.output()
        for names in ("FIRST 2 (%s, other)" % name, "2 (other,%s)" % name):
            waits_for(names)
            assert "only 1 of the standbys that synchronous_standby_names (%s) names is connected and streaming: every request fails " \
                "until 2 are\n" % names in checked(primary.url)[1], names
        for names in (name, "ANY 1 (%s, other)" % name, "*"):
            waits_for(names)
            assert wait_until(lambda: checked(primary.url)[1] == ""), names
        standby.kill()
        assert wait_until(lambda: primary.sql("select count(*) from pg_stat_replication") == "0")
        for url in (primary.url, store):
            assert checked(url)[1] == "idem: warning: " + none % ("*", "1 is") + "\n"
        assert "standby" not in checked(store + "&unsafe=synchronous_commit")[1]
    finally:
        waits_for("*")
        standby.start()
        assert wait_until(lambda: primary.sql("select sync_state from pg_stat_replication") == "sync")


def test_a_url_that_names_the_standby_is_told_what_to_change(pair):
    said = checked(store_of(pair[1], 2000), 20)[1]
    assert said.endswith("this server is a standby; name the primary, or add target_session_attrs=read-write\n"), said


def test_a_wait_that_was_cancelled_is_not_taken_for_stored(pair):
    """PostgreSQL answers such a commit with success, and a warning."""
    primary, standby = pair
    scope = "cancelled-%d" % time.time_ns()
    with folder() as where, Server(where, store=store_of(primary, 20000)) as server, server.client() as c:
        assert verdict(c("BEGIN", scope, "before")) == "started"
        standby.stall()
        try:
            answers = []
            asked = in_the_meantime(lambda: answers.append(c("BEGIN", scope, "x")))
            assert wait_until(lambda: waiting(primary))
            cancel(primary)
            asked.join(1)
            assert answers == [] or verdict(answers[0]) is None
        finally:
            standby.resume()
        asked.join()
        # The engine has asked again, and waited for the standby.
        assert verdict(answers[0]) in ("started", None)


@pytest.mark.parametrize("level", ["off", "local", "remote_write"])
def test_a_commit_waits_for_the_standby_whatever_the_server_has_as_a_default(pair, level):
    primary, standby = pair
    scope = "%s-%d" % (level, time.time_ns())
    primary.sql("alter role shop set synchronous_commit = %s" % level)
    try:
        with folder() as where, Server(where, store=store_of(primary, 1000)) as server, server.client() as c:
            assert verdict(c("BEGIN", scope, "x")) == "started"
            standby.stall()
            try:
                assert verdict(c("BEGIN", scope, "y")) is None
            finally:
                standby.resume()
    finally:
        primary.sql("alter role shop reset synchronous_commit")


@pytest.mark.parametrize("first", ["silent", "standby"])
def test_a_host_of_the_url_that_does_not_reply_does_not_hide_the_next(pair, first):
    """As a machine that was switched off, or whose PostgreSQL was stopped: nothing comes back, not even a refusal."""
    primary, standby = pair
    with socket.create_server(("127.0.0.1", 0)) as silent, folder() as where:
        hosts = ["127.0.0.1:%d" % port for port in (silent.getsockname()[1], standby.port)]
        store = "postgres://shop@%s,127.0.0.1:%d/postgres" % (",".join(hosts if first == "silent" else hosts[::-1]), primary.port)
        with Server(where, store=store + "?target_session_attrs=read-write") as server, server.client() as c:
            for key in ("before", "after"):
                assert wait_until(lambda: verdict(c("BEGIN", "silent-" + first, key, "NONCE", NONCE % 1)) == "started", 20)
                terminate_all(primary)


# ---- in a service's own transaction ------------------------------------------------


def ask_beside(primary, text):
    """A statement of a service, committed by itself."""
    return subprocess.Popen(["psql", "-qAt", "-v", "ON_ERROR_STOP=1", store_of(primary, 0).split("?")[0], "-c", text],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_service_commits_what_its_transaction_was_told_only_with_the_standby(pair):
    primary, standby = pair
    scope = "service-%d" % time.time_ns()
    standby.stall()
    asked = []
    try:
        written = ask_beside(primary, "select idem.finish('%s', 'x', fence, 'succeeded', 'paid') from idem.begin('%s', 'x')" %
                             (scope, scope))
        assert wait_until(lambda: waiting(primary))
        cancel(primary)
        assert "ok" in written.communicate(timeout=60)[0]
        fence = primary.sql("select fence from idem.idem_record where scope = '%s'" % scope)
        # (join and try_finish lock the row; only one of them can do so at a time.)
        for text in ("verdict from idem.begin('%s', 'x')" % scope, "verdict from idem.settle('%s', 'x')" % scope,
                     "state from idem.get('%s', 'x')" % scope, "verdict from idem.join('%s', 'x', %s)" % (scope, fence)):
            asked.append(ask_beside(primary, "select " + text))
        assert wait_until(lambda: len(waiting(primary)) == len(asked)), [p.poll() for p in asked]
    finally:
        standby.resume()
        said = [p.communicate(timeout=60)[0].strip() for p in asked]
    assert said == ["replay", "replay", "succeeded", "replay"]
    assert primary.sql("begin read only; select state from idem.get('%s', 'x'); commit" % scope) == "succeeded"
    assert standby.sql("select state from idem.get('%s', 'x')" % scope) == "succeeded"


def test_a_run_in_a_transaction_of_its_own_replays_only_what_the_standby_has(pair):
    """The bank uses idem_sql_run."""
    primary, standby = pair
    order = {"source": "run-%d" % time.time_ns(), "seq": "1", "from": "ann", "to": "bob", "amount": 1}
    port = free_port()
    with Process([os.path.join(ROOT, "build/examples/bank"), str(port), primary.url], ready=port):
        def transfer(answers):
            request = urllib.request.Request("http://127.0.0.1:%d/transfers" % port, json.dumps(order).encode(),
                                             {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as response:
                answers.append(response.read())

        first, second = [], []
        standby.stall()
        try:
            asked = in_the_meantime(transfer, first)
            assert wait_until(lambda: waiting(primary))
            cancel(primary)  # committed here, not there
            asked.join()
            asked = in_the_meantime(transfer, second)
            assert wait_until(lambda: waiting(primary) or second)
            assert not second
        finally:
            standby.resume()
        asked.join()
        assert first == second


def test_nothing_that_was_told_is_lost_when_the_standby_takes_over():
    with primary_and_standby() as (primary, standby):
        scope = "takeover-%d" % time.time_ns()
        with folder() as where, Server(where, store=store_of(primary, 1000)) as server, server.client() as c:
            fences = {key: c("BEGIN", scope, key)[1] for key in ("early", "late")}
            assert verdict(c("FINISH", scope, "early", fences["early"], "SUCCEEDED", "paid")) == "ok"
            standby.stall()
            for command in (("FINISH", scope, "late", fences["late"], "SUCCEEDED", "paid"),
                            ("BEGIN", scope, "new", "NONCE", NONCE % 1)):
                answers = []
                assert wait_until(lambda: answers.append(c(*command)) or answers[-1].word == "LOST"), answers
                restart(primary)
            told = {}
            for _ in range(10):
                for key in ("early", "late", "new"):
                    word = verdict(c("BEGIN", scope, key, "NONCE", NONCE % 1))
                    told[key] = word or told.get(key)
                time.sleep(0.2)
            standby.take_over()
        with folder() as where, Server(where, store=store_of(standby, 20000)) as server, server.client() as c:
            assert verdict(c("BEGIN", scope, "early")) == "replay"
            assert told["late"] != "replay" or verdict(c("BEGIN", scope, "late")) == "replay"
            assert told["new"] != "started" or verdict(c("BEGIN", scope, "new")) == "busy"
            assert told["new"] is None and told["late"] is None, told
