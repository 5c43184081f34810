"""The service's answer: whole or not, never altered by its client's wishes, and the same for everybody."""
import contextlib
import hashlib
import http.client
import json
import os
import re
import socket
import subprocess

import pytest

from cgi_service import CgiService
from gateway import *
from lib import IDEM, Resp, encode, folder
from test_gateway_upstreams import SAFE, params

FILE = b"0123456789" * 7


@pytest.fixture(scope="module")
def stack():
    with folder() as where, Stack(where, more="""
        location /close { idem on; idem_close_delimited on; proxy_pass http://service; }
        location /unbuffered { idem on; proxy_buffering off; proxy_pass http://service; }
        location /loose { idem on; idem_mode loose; proxy_pass http://service; }
        location /small { idem on; idem_max_answer 5000; proxy_pass http://service; }
        location /small/close { idem on; idem_max_answer 5000; idem_close_delimited on; proxy_pass http://service; }
        location /small/unbuffered { idem on; idem_max_answer 5000; proxy_buffering off; proxy_pass http://service; }
        location /small/gzip { idem on; idem_max_answer 5000; gzip on; gzip_types *; proxy_pass http://service; }
        location /small/slow { idem on; idem_max_answer 5000; limit_rate 20k; proxy_pass http://service; }
        location /force { idem on; proxy_force_ranges on; proxy_pass http://service; }
        location /put { idem on; idem_methods POST PUT GET; proxy_force_ranges on; proxy_pass http://service; }
        location /caught { idem on; proxy_intercept_errors on; error_page 302 = @other; proxy_pass http://service; }
        location @other { proxy_pass http://service; }
        location /plain { proxy_pass http://service; }
        location /inner/ { internal; alias %s/; }
        location /sub { idem on; sub_filter_types *; sub_filter_once off; sub_filter "order" "longer-order"; proxy_force_ranges on;
                        proxy_pass http://service; }
        location /added { idem on; addition_types *; add_before_body /inner/head.txt; add_after_body /plain/after;
                          proxy_force_ranges on; proxy_pass http://service; }
        location /ssi { idem on; ssi on; ssi_types *; proxy_force_ranges on; proxy_pass http://service; }
        location /tunnel { idem on; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
                           proxy_pass http://service; }
        """ % where) as s:
        for name, data in (("file.txt", FILE), ("head.txt", b"head:")):
            with open(os.path.join(where, name), "wb") as f:
                f.write(data)
        yield s


@pytest.fixture
def key(request):
    key.n = getattr(key, "n", 0) + 1
    return "%s-%d" % (re.sub(r"[^a-z0-9]+", "-", request.node.name)[:60], key.n)


def twice(stack, key, **named):
    return ask(stack.port, key, **named), ask(stack.port, key, **named)


def unknown(stack, key, **named):
    got = ask(stack.port, key, **named)
    assert got.status == 504 and got.problem == "outcome-unknown", got
    assert stack.record(key)["state"] == "executing" and stack.ledger.executions(key) == 1
    # A loose one may run again after its lease: until then somebody may be at work.
    said = "in-progress" if named.get("path") == "/loose" else "outcome-unknown"
    eventually(lambda: ask(stack.port, key, **named).problem == said, 10)


# ---- is it whole? ------------------------------------------------------------------------------------------------

PAID = b"HTTP/1.%d 200 OK\r\nContent-Type: application/json\r\n%s\r\n"


@pytest.mark.parametrize("path", ["/orders", "/unbuffered", "/loose"])
@pytest.mark.parametrize("data", [PAID % (1, b"") + b'{"paid": tr', PAID % (1, b"Connection: close\r\n") + b'{"paid": true}',
                                  PAID % (0, b"") + b'{"paid": true}', PAID % (1, b"")],
                         ids=["cut", "whole", "http-1.0", "empty"])
def test_an_answer_that_only_the_connection_ends_is_unknown(stack, key, path, data):
    unknown(stack, key, path=path, x_way="bytes:" + data.hex())
    assert "has no Content-Length and ends with the connection" in stack.nginx.errors()


def test_a_route_may_take_the_end_of_the_connection_for_the_end_of_the_answer(stack, key):
    first, again = twice(stack, key, path="/close", x_way="bytes:" + (PAID % (0, b"") + b'{"paid": true}').hex())
    assert first.body == again.body == b'{"paid": true}' and again.replayed
    unknown(stack, key + "reset", path="/close", x_way="reset")
    unknown(stack, key + "half", path="/close", x_way="half-body")


def test_an_old_service_that_says_how_long_its_answer_is_needs_no_permission(stack, key):
    data = PAID % (0, b"Content-Length: 14\r\n") + b'{"paid": true}'
    first, again = twice(stack, key, x_way="bytes:" + data.hex())
    assert first.body == again.body == b'{"paid": true}' and again.replayed


def test_an_answer_that_is_not_kept_may_end_as_it_likes(stack, key):
    """429 gives the key back: nobody will be replayed what may be half of an answer."""
    data = b"HTTP/1.0 429 Slow\r\n\r\nlater"
    for _ in range(2):
        got = ask(stack.port, key, x_way="bytes:" + data.hex())
        assert got.status == 429 and got.body == b"later" and not got.replayed
    assert stack.ledger.executions(key) == 2


@pytest.mark.parametrize("buffering", ["on", "off"])
@pytest.mark.parametrize("protocol,way,whole", [
    ("fastcgi", "", True), ("fastcgi", "open", True), ("fastcgi", "cut", False), ("fastcgi", "half", False),
    ("scgi", "", True), ("scgi", "open", False), ("scgi", "cut", False), ("scgi", "half", False),
    ("uwsgi", "", True), ("uwsgi", "open", False), ("uwsgi", "cut", False), ("uwsgi", "half", False)])
def test_only_whole_answers_of_cgi_services_are_kept(cgi, key, protocol, way, whole, buffering):
    stack, services = cgi
    named = {"path": "/%s/%s" % (protocol, buffering), "x_way": way}
    first, again = twice(stack, key, **named)
    assert services[protocol].executions(key) == 1
    if whole:
        assert first.status == 201 and first.body == again.body and again.replayed
        return
    assert first.status == 504 and first.problem == "outcome-unknown"
    assert again.problem in ("in-progress", "outcome-unknown")  # it is told at once, but not before the first answer
    if way == "open":
        first, again = twice(stack, key + "allowed", path="/%s/allowed" % protocol, x_way=way)
        assert first.status == 201 and first.body == again.body and again.replayed


@pytest.fixture(scope="module")
def cgi():
    with contextlib.ExitStack() as on:
        where = on.enter_context(folder())
        services = {p: on.enter_context(CgiService(p)) for p in ("fastcgi", "scgi", "uwsgi")}
        more = "".join("location /%s/%s { idem on; %s %s %s_pass 127.0.0.1:%d; %s }\n"
                       % (p, name, SAFE % (p, p), option % {"p": p}, p, services[p].port, params(p)) for p in services
                       for name, option in (("on", ""), ("off", "%(p)s_buffering off;"), ("allowed", "idem_close_delimited on;")))
        yield on.enter_context(Stack(where, more=more)), services


# ---- larger than what is kept --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/small", "/small/unbuffered", "/small/gzip"])
@pytest.mark.parametrize("way", ["half-body", "half-chunk", "close"])
def test_a_cut_answer_over_the_limit_is_unknown(stack, key, path, way):
    """Its client has seen its beginning by then, and must not take it for the whole."""
    got = Later(ask, stack.port, key, path=path, x_way=way, x_size=300000).result()
    assert isinstance(got, (http.client.IncompleteRead, ConnectionError)), got
    assert stack.record(key)["state"] == "executing" and stack.ledger.executions(key) == 1
    eventually(lambda: ask(stack.port, key, path=path, x_way=way, x_size=300000).problem == "outcome-unknown", 10)


@pytest.mark.parametrize("path,ways", [("/small", ["", "chunked"]), ("/small/unbuffered", ["", "chunked"]),
                                       ("/small/gzip", ["", "chunked"]), ("/small/close", ["", "chunked", "close"])])
@pytest.mark.parametrize("size", [5001, 300000, 3000000])
def test_a_whole_answer_over_the_limit_is_done(stack, key, path, ways, size):
    for way in ways:
        first, again = twice(stack, key + way, path=path, x_size=size, x_way=way)
        assert first.status == 201 and len(first.body) == size and first.body[-10:] == (first.body[:10] * 2)[size % 10:][:10]
        assert again.status == 410 and again.problem == "not-replayable" and again.json()["class"] == "done"
        assert stack.ledger.executions(key + way) == 1
    assert ask(stack.port, key + "later", path=path, x_size=size, x_code=429).status == 429
    assert stack.record(key + "later")["state"] == "free"


def test_an_answer_over_the_limit_that_is_sent_slowly_is_sent_to_its_end(stack, key):
    got = ask(stack.port, key, path="/small/slow", x_size=40000, timeout=10)
    assert got.status == 201 and len(got.body) == 40000 and stack.record(key)["state"] == "succeeded"


def test_an_answer_over_the_limit_out_of_a_file_has_no_byte_twice(key):
    """nginx writes it to a file for a slow client, and with sendfile it sends the file's bytes, not those in memory."""
    with folder() as where, Stack(where, "idem_max_answer 5000;", http="sendfile on;", listen=" sndbuf=8k") as s:
        with socket.socket() as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.connect(("127.0.0.1", s.port))
            c.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\nX-Size: 3000000\r\nContent-Length: 0\r\n"
                      b"Connection: close\r\n\r\n" % key.encode())
            eventually(lambda: "temporary file" in s.nginx.errors())
            with c.makefile("rb") as file:
                body = file.read().partition(b"\r\n\r\n")[2]
        assert body == body[:10] * 300000 and s.record(key)["state"] == "succeeded"


@pytest.mark.parametrize("path", ["/small", "/small/unbuffered"])
def test_a_client_that_leaves_during_an_answer_over_the_limit_changes_nothing(stack, key, path):
    s = socket.create_connection(("127.0.0.1", stack.port), 30)
    s.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\nX-Size: 20000000\r\nContent-Length: 0\r\n\r\n"
              % (path.encode(), key.encode()))
    assert s.recv(1000).startswith(b"HTTP/1.1 201")
    s.close()
    eventually(lambda: stack.record(key)["state"] == "succeeded")
    assert stack.ledger.executions(key) == 1


def test_an_answer_over_the_limit_over_http2():
    def curl(port, key, *more):
        got = subprocess.run(["curl", "-s", "--http2-prior-knowledge", "-H", "Idempotency-Key: " + key, "-d", "{}", "-o", "/dev/null",
                              "-w", "%{http_code} %{size_download}", *more, "http://127.0.0.1:%d/orders" % port],
                             capture_output=True, text=True, timeout=60)
        return got.returncode, got.stdout
    with folder() as where, Stack(where, location="idem_max_answer 5000;", listen=" http2") as s:
        assert curl(s.port, "whole", "-H", "X-Size: 3000000") == (0, "201 3000000")
        assert s.record("whole")["state"] == "succeeded"
        assert curl(s.port, "cut", "-H", "X-Size: 3000000", "-H", "X-Way: half-chunk")[0] != 0
        assert s.record("cut")["state"] == "executing"
        code, _ = curl(s.port, "left", "-H", "X-Size: 30000000", "--limit-rate", "100k", "--max-time", "1")
        assert code == 28
        eventually(lambda: s.record("left")["state"] == "succeeded")


def test_nobody_gets_the_end_of_an_answer_over_the_limit_before_it_is_recorded(key):
    with folder() as where, Stack(where, location="idem_max_answer 5000;", engine_options="timeout=1s") as s:
        slow = Working(s.port, s.ledger, key, x_size=300000)
        s.engine.stop(9)
        got = slow.result()
        assert isinstance(got, http.client.IncompleteRead), got
        s.restart_engine()
        eventually(lambda: s.record(key)["state"] == "succeeded")
        assert s.ledger.executions(key) == 1


def test_an_answer_that_the_engine_does_not_keep_has_the_outcome_of_its_status_whatever_its_body_says():
    body = b"$6\r\nFAILED\r\n" + b"x" * 1500
    with folder() as where, Stack(where, engine=("--max-result", "1k")) as s:
        for status, state in (200, "succeeded"), (422, "failed"):
            data = b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body
            got = ask(s.port, state, x_way="open:" + data.hex())
            assert got.status == status and got.body == body, got
            record = s.record(state)
            assert record["state"] == state and record["replayable"] == 0, record


def test_an_answer_that_is_longer_than_the_engines_commands_harms_nobody():
    with folder() as where, Stack(where, location="idem_max_answer 8m; proxy_buffers 16 1m; proxy_buffer_size 1m;"
                                                  "proxy_busy_buffers_size 4m;") as s:
        got = ask(s.port, "large", x_size=3000000)
        assert got.status == 201 and len(got.body) >= 3000000, got
        record = s.record("large")
        assert record["state"] == "succeeded" and record["replayable"] == 0, record
        assert ask(s.port, "other").status == 201
        assert ask(s.port, "large", x_size=3000000).problem == "not-replayable"


# ---- the service did it, and nginx cannot say what it answered ---------------------------------------------------------


@pytest.mark.parametrize("target", ["/inner/missing.txt", "/plain/elsewhere", "@other", "/nothing-there"])
def test_an_answer_that_nginx_cannot_serve_is_done_for_everybody(stack, key, target):
    if target == "/nothing-there":
        os.makedirs(os.path.join(stack.where, "dir"), exist_ok=True)
        target = "/inner/dir/"
    first, again = twice(stack, key, x_way="accel:" + target)
    for got in (first, again):
        assert got.status == 410 and got.problem == "not-replayable" and got.json()["class"] == "done", got
    assert stack.record(key)["state"] == "succeeded" and stack.ledger.executions(key) == 1


def test_an_answer_that_an_error_page_lost_is_done_for_everybody(stack, key):
    data = b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"
    for got in twice(stack, key, path="/caught", x_way="open:" + data.hex()):
        assert got.status == 410 and got.json()["class"] == "done", got
    assert stack.record(key)["state"] == "succeeded" and stack.ledger.executions(key) == 1


def test_an_answer_that_the_service_wants_tried_again_is_not_done(stack, key):
    for _ in range(2):
        assert ask(stack.port, key, x_way="accel:/inner/missing.txt", x_code=429).status == 404
        assert stack.record(key)["state"] == "free"


# ---- nothing that a client asks for alters it --------------------------------------------------------------------------

WISHES = [{"Range": "bytes=0-9"}, {"Range": "bytes=-5"}, {"Range": "bytes=0-1,4-5"}, {"Range": "bytes=900000-"},
          {"Range": "bytes=0-9", "If-Range": '"e"'}, {"If-None-Match": "*"}, {"If-None-Match": '"e"'}, {"If-Match": '"other"'},
          {"If-Modified-Since": "Fri, 31 Dec 2100 00:00:00 GMT"}, {"If-Unmodified-Since": "Fri, 31 Dec 1999 00:00:00 GMT"}]
TAGGED = b'HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 70\r\nETag: "e"\r\n' \
         b"Accept-Ranges: bytes\r\nLast-Modified: Sat, 01 Jan 2000 00:00:00 GMT\r\n\r\n" + FILE


def on_one_connection(port, requests):
    """Every answer, read by its own length; a byte too many would spoil the next one."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        for path, headers in requests:
            c.request("POST", path, b"{}", headers)
            r = c.getresponse()
            yield r.status, r.read(), dict(r.getheaders())
    finally:
        c.close()


@pytest.mark.parametrize("path", ["/orders", "/force", "/put"])
@pytest.mark.parametrize("way", ["accel:/inner/file.txt", "open:" + TAGGED.hex()], ids=["file", "service"])
def test_ranges_and_conditions_do_not_alter_an_answer(stack, key, path, way):
    asked = [(path, {"Idempotency-Key": "%s-%d" % (key, i), "X-Way": way, "X-Code": "200", **wish})
             for i, wish in enumerate(WISHES)]
    for first, again in zip(*(list(on_one_connection(stack.port, asked)) for _ in range(2))):
        assert (first[0], first[1]) == (200, FILE) and (again[0], again[1]) == (200, FILE), (first, again)
        assert again[2]["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize("path,data,body", [
    ("/sub", b"order and order", b"longer-order and longer-order"),
    ("/added", b"middle", None),
    ("/ssi", b'a<!--# echo var="request_method" -->b<!--# include virtual="/inner/head.txt" -->c', b"aPOSTbhead:c")])
def test_filters_of_nginx_see_the_whole_answer_every_time(stack, key, path, data, body):
    way = "open:" + (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(data) + data).hex()
    asked = [(path, {"Idempotency-Key": key, "X-Way": way, "Range": "bytes=0-3"}), ("/orders", {"Idempotency-Key": key + "next"})]
    first, _, = got = list(on_one_connection(stack.port, asked))
    again, _ = list(on_one_connection(stack.port, asked))
    assert got[1][0] == 201 and first[0] == again[0] == 200 and "Idempotent-Replayed" in again[2]
    if body:
        assert first[1] == again[1] == body
    else:
        assert first[1].startswith(b"head:middle") and again[1].startswith(b"head:middle")
    assert stack.ledger.executions(key) == 1 + (2 if path == "/added" else 0)


# ---- no other protocol passes the gate ---------------------------------------------------------------------------------


def shake(port, path, upgrade, connection=b"Upgrade"):
    """GET with an Upgrade; then what looks like a request of its own with forged headers."""
    s = socket.create_connection(("127.0.0.1", port), 10)
    with s:
        s.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\n%sConnection: %s\r\n\r\n"
                  % (path.encode(), b"".join(b"Upgrade: %s\r\n" % u for u in upgrade), connection))
        data = s.recv(10000)
        if not data.startswith(b"HTTP/1.1 101"):
            return data
        s.sendall(b"tunnel")
        while b"TUNNEL" not in data:
            part = s.recv(1000)
            if not part:
                break
            data += part
        return data


@pytest.mark.parametrize("upgrade", [[b"h2c"], [b"echo"], [b"websocket, h2c"], [b"h2c", b"echo"], [b"HTTP/2.0"]])
def test_only_websockets_leave_http_behind_on_a_gated_location(stack, upgrade):
    got = shake(stack.port, "/tunnel", upgrade)
    assert got.startswith(b"HTTP/1.1 201") and b"TUNNEL" not in got, got
    assert "upgrade" not in [n.lower() for n in stack.ledger.entries()[-1]["names"]]


@pytest.mark.parametrize("upgrade", [[b"websocket"], [b"WebSocket"], [b"h2c", b"websocket"]])
def test_websockets_pass_a_gated_location(stack, upgrade):
    assert b"TUNNEL" in shake(stack.port, "/tunnel", upgrade)


def test_a_gated_request_changes_no_protocol(stack, key):
    got = ask(stack.port, key, path="/tunnel", headers={"Upgrade": "websocket", "Connection": "Upgrade"})
    assert got.status == 201 and stack.ledger.executions(key) == 1


def test_a_problem_leads_to_its_line_in_the_access_log():
    """A customer's screenshot has the key and the instance; the log has the instance, and the engine's log the same digest."""
    with folder() as where, Ledger(where) as ledger:
        def line(instance):
            with open(os.path.join(where, "log")) as f:
                return eventually(lambda: [one for one in f.readlines() if instance in one])[0]

        def told(port, **named):
            got = ask(port, "order-7", body=b"another", headers={"X-User": "al ice"}, **named)
            assert got.problem == "mismatch" and got.json()["idempotency_key"] == "order-7"
            assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", got.json()["instance"])
            return got.json()["instance"]

        flags = ("--scope", "$http_x_user", "--access-log", os.path.join(where, "log"))
        with Gateway(where, ledger.port, *flags) as g:
            assert ask(g.port, "order-7", headers={"X-User": "al ice"}).status == 201
            first, second = told(g.port), told(g.port)
            assert first != second
            key = hashlib.sha256(b"\1\0\6al ice\0\7order-7").hexdigest()[:16]
            assert " idem=mismatch key=%s fence=- upstream=- instance=%s" % (key, first) in line(first)
            assert "order-7" not in line(first)
            digits = first[9:].replace("-", "")
            assert digits[:12] + digits[13:16] == key[:15]  # the instance names the record without the log
        with Gateway(where, ledger.port, *flags, "--log-keys", "on", port=g.port) as g:
            instance = told(g.port)
            assert ' idem=mismatch scope="al ice" id="order-7" fence=- upstream=- instance=%s' % instance in line(instance)
            got = ask(g.port, r'"a\"b\\"', headers={"X-User": "u"}, x_way="nothing")
            assert got.json()["idempotency_key"] == 'a"b\\' and got.problem == "outcome-unknown"
            said = line(got.json()["instance"])
            assert re.search(r"idem=outcome-unknown .* fence=\d+ upstream=0\.\d+ ", said), said


@pytest.mark.parametrize("store", ["journal", "sqlite"])
def test_find_takes_an_instance_and_a_digest_of_the_log(store):
    with folder() as where, Ledger(where) as ledger:
        socket = os.path.join(where, "s")

        def find(word, *flags):
            done = subprocess.run([IDEM, "find", word, "--server", "unix:" + socket, *flags], capture_output=True, text=True, timeout=60)
            return done.returncode, done.stdout, done.stderr

        with Gateway(where, ledger.port, "--scope", "$http_x_user", store=store + ":" + where + "/store", socket=socket) as g:
            with Resp(socket) as c:  # more than one part of a scan
                c.raw(b"".join(encode("BEGIN", "others", "other-%d" % i) for i in range(600)))
                assert [c.read()[0] for _ in range(600)] == ["started"] * 600
            assert ask(g.port, "order-77", headers={"X-User": "u"}).status == 201
            got = ask(g.port, "order-77", body=b"another", headers={"X-User": "u"})
            code, out, err = find(got.json()["instance"])
            assert (code, err) == (0, "") and re.fullmatch(r"request succeeded \S+ \d+ u order-77\n", out), (code, out, err)
            assert find(got.json()["instance"][9:].upper())[1] == out  # without its urn:uuid:
            key = hashlib.sha256(b"\1\0\1u\0\10order-77").hexdigest()[:16]
            assert find("key=" + key)[:2] == (0, out)
            assert json.loads(find("key=" + key, "--json")[1])["id"] == "order-77"
            assert find("key=" + "0" * 16)[0] == 16
            missing = ask(g.port, path="/orders", headers={"X-User": "u", "Idempotency-Key": '"'})
            code, out, err = find(missing.json()["instance"])
            assert code == 16 and out == "" and "no record" in err and "access log" in err, (code, out, err)
            # a key that looks like an instance is still a key
            odd = "urn:uuid:6d0c1f63-29c1-8f5e-9f3e-0123456789ab"
            assert ask(g.port, odd, headers={"X-User": "u"}).status == 201
            assert find(odd)[1].endswith(" u %s\n" % odd)


def test_a_limit_has_an_instance_too():
    with folder() as where, Ledger(where) as ledger:
        with Gateway(where, ledger.port, "--token-path", "/token", "--token-rate", "1r/m", store="memory:") as g:
            got = eventually(lambda: (lambda a: a if a.status == 429 else None)(ask(g.port, path="/token", body=None)))
            assert got.problem == "too-many-tokens" and got.json()["instance"].startswith("urn:uuid:")
