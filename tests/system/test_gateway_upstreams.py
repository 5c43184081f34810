"""What may stand behind the gate: one service only, whose answer has an end that everybody can see."""
import contextlib
import os
import socket
import subprocess

import pytest

from cgi_service import CgiService
from gateway import *
from lib import folder

SAFE = "%s_next_upstream off; %s_ignore_client_abort on;"


def refusal(location, http="", gate="idem on;"):
    """What nginx says of a configuration in which only proxy's settings are safe; "" if it takes it."""
    with folder() as where:
        conf = os.path.join(where, "n.conf")
        with open(conf, "w") as f:
            f.write("""load_module %s; pid %s/p; error_log stderr; events {}
                http { idem_engine unix:%s/s; proxy_next_upstream off; proxy_ignore_client_abort on; %s
                       server { listen 127.0.0.1:1;
                                location /orders { %s %s } } }""" % (MODULE, where, where, http, gate, location))
        got = nginx_test(where, conf)
        return got.stderr if got.returncode else ""


@pytest.mark.parametrize("protocol", ["fastcgi", "uwsgi", "scgi"])
@pytest.mark.parametrize("address", ["$backend", "127.0.0.1:1"])
def test_every_way_to_a_service_is_checked_by_its_own_settings(protocol, address):
    way = 'set $backend "127.0.0.1:1"; %s_pass %s; ' % (protocol, address)
    assert '"%s_ignore_client_abort on"' % protocol in refusal(way)
    assert '"%s_next_upstream off"' % protocol in \
        refusal(way + "%s_ignore_client_abort on; %s_next_upstream error non_idempotent;" % (protocol, protocol))
    told = refusal(way + "%s_ignore_client_abort on; idem_methods PUT;" % protocol)  # "error timeout" by default
    assert '"%s_next_upstream off"' % protocol in told and '"/orders"' in told
    assert refusal(way + SAFE % (protocol, protocol)) == ""


@pytest.mark.parametrize("protocol", ["fastcgi", "uwsgi", "scgi", "http"])
def test_a_request_is_sent_to_one_of_two_services(protocol):
    """The first one executes it and dies; nginx would ask the second."""
    directive, scheme = ("proxy", "http://") if protocol == "http" else (protocol, "")
    way = 'set $backend pool; %s_pass %s$backend; ' % (directive, scheme)
    pool = "upstream pool { server 127.0.0.1:1 max_fails=0; server 127.0.0.1:2 max_fails=0; }"
    assert directive + "_next_upstream" in refusal(
        way + "%s_next_upstream error non_idempotent; %s_ignore_client_abort on;" % (directive, directive), pool)
    if protocol == "http":
        return
    with folder() as where, CgiService(protocol, "one") as one, CgiService(protocol, "two") as two:
        pool = "upstream pool { server 127.0.0.1:%d max_fails=0; server 127.0.0.1:%d max_fails=0; }" % (one.port, two.port)
        with Stack(where, location=SAFE % (directive, directive), http=pool, proxy=way + params(protocol)) as stack:
            got = ask(stack.port, "twice", x_way="nothing")
            assert got.status == 504 and got.problem == "outcome-unknown"
            assert one.executions("twice") + two.executions("twice") == 1
            assert stack.record("twice")["state"] == "executing"
            first, again = ask(stack.port, "once"), ask(stack.port, "once")
            assert first.status == again.status == 201 and first.body == again.body and again.replayed
            assert one.executions("once") + two.executions("once") == 1


def params(protocol):
    return "".join("%s_param %s $%s; " % (protocol, n, n.lower()) for n in
                   ("REQUEST_METHOD", "REQUEST_URI", "CONTENT_TYPE", "CONTENT_LENGTH", "QUERY_STRING"))


@pytest.mark.parametrize("location", ["grpc_pass grpc://127.0.0.1:1;", "stub_status;", "empty_gif;",
                                      "set $memcached_key a; memcached_pass 127.0.0.1:1;",
                                      "proxy_pass http://127.0.0.1:1; empty_gif;"])
def test_what_cannot_be_proven_to_run_once_is_refused(location):
    told = refusal(location)
    assert '"/orders"' in told and "proxy_pass" in told and "idem off" in told, told
    assert refusal(location, gate="idem off;") == ""


def test_a_location_without_a_service_may_be_gated():
    assert refusal("try_files /nowhere @app; } location @app { proxy_pass http://127.0.0.1:1;") == ""
    assert refusal("} location = /token { idem on; idem_issue_token;") == ""


def test_what_nginx_does_itself_is_not_given_back_as_if_it_had_not_run():
    """Here nginx is the service; it fails, and nobody but it knows how far it had come."""
    with folder() as where, Stack(where, more="""
            location /dav { idem on; idem_methods PUT DELETE; dav_methods PUT DELETE; root %s; }
            location /gif { idem on; try_files /nowhere @gif; } location @gif { empty_gif; }""" % where) as stack:
        first, again = (ask(stack.port, "put", method="PUT", path="/dav/file") for _ in range(2))
        assert first.status == again.status == 500 and again.replayed
        got = ask(stack.port, "gif", path="/gif")
        assert got.status == 502 and got.problem == "service-unreachable" and stack.record("gif")["state"] == "free"
        assert "does not use" in stack.nginx.errors()


def test_a_cache_does_not_stand_in_for_a_gated_request():
    zone = "proxy_cache_path cache keys_zone=one:1m; proxy_cache one;"
    way = "proxy_pass http://127.0.0.1:1; "
    assert '"proxy_cache off"' in refusal(way + "idem_methods GET POST;", zone)
    assert '"proxy_cache off"' in refusal(way + "proxy_cache_methods POST;", zone)
    assert refusal(way, zone) == refusal(way + "idem_methods GET; proxy_cache off;", zone) == ""
    with folder() as where, Stack(where, http="proxy_cache_path %s/cache keys_zone=one:1m;" % where, more="""
            location /cached { idem on; idem_methods GET; try_files /nowhere @cached; }
            location @cached { proxy_cache one; proxy_cache_valid 1h; proxy_pass http://service; }""") as stack:
        for key in "ab":
            assert ask(stack.port, key, method="GET", path="/cached", body=None).problem == "service-unreachable"
        assert stack.ledger.entries() == [] and "proxy_cache off" in stack.nginx.errors()


def test_a_post_action_never_sends_a_request_again():
    """Neither after an unknown outcome, nor after a cut or a refused response, nor after a good one."""
    cases = {"dies": {"x_way": "nothing"}, "gated": {"x_way": "nothing"}, "refused": {}, "good": {},
             "cut": {"x_way": "half-body", "x_size": 300000}}
    with folder() as where, Stack(where, more="""
            location /dies { idem on; post_action @again; proxy_pass http://service; }
            location /gated { idem on; post_action /twice; proxy_pass http://service; }
            location /refused { idem on; post_action @again; proxy_pass http://127.0.0.1:1; }
            location /good { idem on; post_action @again; proxy_pass http://service; }
            location /cut { idem on; idem_max_answer 10k; post_action @again; proxy_pass http://service; }
            location @again { proxy_pass http://service; }
            location /twice { idem on; proxy_pass http://service; }""") as stack:
        for key, how in cases.items():
            Later(ask, stack.port, key, path="/" + key, **how).result()
        # a request is in the log when its post_action is over
        eventually(lambda: logged(where) == len(cases), 10)
        ran = {key: stack.ledger.executions(key) for key in cases}
        assert ran == {**{key: 1 for key in cases}, "refused": 0}
        assert "post_action" in stack.nginx.errors()
        assert {key: stack.record(key)["state"] for key in cases} == {
            "dies": "executing", "gated": "executing", "refused": "free", "good": "succeeded", "cut": "executing"}


def logged(where):
    with open(os.path.join(where, "access.log")) as f:
        return f.read().count("\n")


def test_a_post_action_runs_nothing_for_a_client_that_left_while_it_waited():
    """Its verdict comes later, and would have run the request in the location of the post_action."""
    with folder() as where, Stack(where, more="""
            location /wait { idem on; idem_wait 20s; idem_mode loose; post_action @after; proxy_pass http://service; }
            location @after { proxy_set_header X-Until ""; proxy_pass http://service; }""") as stack:
        first = Working(stack.port, stack.ledger, "k", path="/wait", x_code=500)
        second = Later(ask, stack.port, "k", path="/wait", timeout=1)
        eventually(lambda: stack.waiting() == 1)
        assert isinstance(second.result(), OSError)
        eventually(lambda: logged(where) == 1)
        assert first.result().status == 500
        eventually(lambda: logged(where) == 2)
        eventually(lambda: stack.record("k")["state"] == "free", 10)
        assert stack.ledger.executions("k") == 1 and stack.waiting() == 0


def test_a_post_action_runs_nothing_for_a_client_that_left_before_a_service_was_reached():
    """With HTTP/2 nginx knows that the client has left, and goes to the post_action without a response."""
    with folder() as where, contextlib.ExitStack() as sockets:
        full = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # its queue is full: nobody can connect, and nobody is refused
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        way = "post_action @%%s; proxy_connect_timeout 2s; proxy_pass http://127.0.0.1:%d;" % full.getsockname()[1]
        with Stack(where, listen=" http2", more="""
                location /service { idem on; %s } location @service { proxy_pass http://service; }
                location /files { idem on; %s } location @files { root %s; }""" %
                   (way % "service", way % "files", where)) as stack:
            for key in ("service", "files"):
                subprocess.run(["curl", "-s", "-m", "0.5", "--http2-prior-knowledge", "-H", "Idempotency-Key: " + key,
                                "-d", "x", "http://127.0.0.1:%d/%s" % (stack.port, key)], stdout=subprocess.DEVNULL)
                assert stack.record(key)["state"] == "executing"
            eventually(lambda: logged(where) == 2, 20)
            eventually(lambda: {stack.record(key)["state"] for key in ("service", "files")} == {"free"}, 10)
            assert stack.ledger.entries() == []


@pytest.mark.parametrize("status", ["", "=200", "=404"])
def test_a_page_about_a_service_that_was_not_reached_leaves_the_key_free(status):
    with folder() as where, Stack(where, "error_page 502 %s /50x.html;" % status, more="""
            location = /50x.html { root %s; }""" % where) as stack:
        with open(os.path.join(where, "50x.html"), "w") as f:
            f.write("a page")
        stack.ledger.kill()
        for _ in range(2):
            got = ask(stack.port, "one")
            assert (got.status, got.body, got.replayed) == (int(status[1:] or 502), b"a page", False)
            eventually(lambda: stack.record("one")["state"] == "free", 10)
        stack.restart_ledger()
        first, again = ask(stack.port, "one"), ask(stack.port, "one")
        assert first.status == 201 and again.replayed and stack.ledger.executions("one") == 1


@pytest.mark.parametrize("status", ["", "=200", "=404"])
def test_a_recursive_error_page_leaves_the_key_free(status):
    """nginx does not mark such a page as one."""
    with folder() as where, Stack(where, "recursive_error_pages on; error_page 502 %s /50x.html;" % status, more="""
            location = /50x.html { root %s; }""" % where) as stack:
        with open(os.path.join(where, "50x.html"), "w") as f:
            f.write("a page")
        stack.ledger.kill()
        for _ in range(2):
            got = ask(stack.port, "one")
            assert got.status == 502 and got.problem == "service-unreachable" and stack.record("one")["state"] == "free"
        stack.restart_ledger()
        first, again = ask(stack.port, "one"), ask(stack.port, "one")
        assert first.status == 201 and again.replayed and stack.ledger.executions("one") == 1


def test_a_page_about_what_nginx_did_itself_frees_nothing():
    with folder() as where, Stack(where, more="""
            location /dav { idem on; idem_methods PUT; dav_methods PUT; root %s; error_page 500 /50x.html; }
            location = /50x.html { root %s; }""" % (where, where)) as stack:
        with open(os.path.join(where, "50x.html"), "w") as f:
            f.write("a page")
        first, again = (ask(stack.port, "put", method="PUT", path="/dav/file") for _ in range(2))
        assert first.status == again.status == 500 and first.body == b"a page" and again.replayed
        assert stack.record("put")["state"] == "failed"


@pytest.mark.parametrize("target", ["/tokens", "/outcome"])
def test_an_error_page_that_asks_the_engine_is_answered(target):
    with folder() as where, Stack(where, "idem_max_body 10; error_page 413 %s;" % target, more="""
            location = /tokens { idem_issue_token; }
            location = /outcome { idem_status; }""") as stack:
        workers = stack.nginx.workers()
        got = raw(stack.port, b"POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n"
                  b"20\r\n" + b"x" * 32 + b"\r\n0\r\n\r\n", 5, until=b"</html>")
        assert got.startswith(b"HTTP/1.1 500 ") and stack.record("k") is None and stack.ledger.entries() == []
        assert stack.nginx.workers() == workers and ask(stack.port, method="GET", path="/tokens", body=None).status == 200
