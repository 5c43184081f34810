"""Whose key it is: what a scope may be made of, what happens without one, and that sites do not share."""
import json
import os
import subprocess
import time

import pytest
from gateway import *
from lib import *


def said(where, *flags, status=2):
    """What `idem gateway` says when it refuses these flags."""
    got = subprocess.run([IDEM, "gateway", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:%d" % free_port(),
                          "--store", "memory:", *flags], capture_output=True, text=True, timeout=60)
    assert got.returncode == status, got
    return got.stderr


def nginx_says(where, location):
    conf = os.path.join(where, "n.conf")
    with open(conf, "w") as f:
        f.write("""load_module %s; pid %s/p; error_log stderr; events {} http { idem_engine unix:%s/s;
            proxy_ignore_client_abort on; server { listen 127.0.0.1:1; location / { idem on; %s
            proxy_pass http://127.0.0.1:1; } } }""" % (MODULE, where, where, location))
    got = nginx_test(where, conf)
    return got.returncode, got.stderr


PLAIN = [("scope", "http_x_source", "$http_x_source"), ("scope", "remote_user", "$remote_user"),
         ("scope", "X-Merchant", "$http_x_merchant"), ("scope", "source", "json:source"), ("scope", "source", "const:NAME"),
         ("scope", "json:", "json:PATH"), ("scope", "shop 7", "const:"), ("key", "X-Request-Id", "$http_x_request_id"),
         ("key", "http_x_seq", "$http_x_seq"), ("token", "cookie_token", "$cookie_token"), ("key", "const:k", "const:")]


@pytest.mark.parametrize("option,word,hint", PLAIN)
def test_a_plain_word_is_refused_and_told_what_was_meant(option, word, hint):
    with folder() as where:
        text = said(where, "--" + option, '"%s"' % word if " " in word and option != "scope" else word)
        assert hint in text and word in text, text
        status, text = nginx_says(where, 'idem_%s "%s";' % (option, word))
        assert status != 0 and hint in text and word in text, text


def test_a_part_of_a_scope_that_may_be_missing_needs_a_name():
    """$1 is a part that the module cannot see to be empty."""
    with folder() as where:
        status, text = nginx_says(where, 'idem_scope "$1:$http_x_user";')
        assert status != 0 and "named" in text, text
        assert nginx_says(where, 'idem_scope "$1";')[0] == 0


@pytest.fixture(scope="module")
def stack():
    with folder() as where, Stack(where, workers=2, more="""
        location /json { idem on; idem_key json:seq; idem_scope json:source; proxy_pass http://service; }
        location /must { idem on; idem_key json:seq; idem_scope json:source; idem_required on; proxy_pass http://service; }
        location /form { idem on; idem_key form:seq; idem_scope form:source; idem_required on; proxy_pass http://service; }
        location /xml { idem on; idem_key xml:Seq; idem_scope xml:Source; idem_required on; proxy_pass http://service; }
        location /mixed { idem on; idem_scope json:source; proxy_pass http://service; }
        location /merchant { idem on; idem_scope $http_x_merchant; proxy_pass http://service; }
        location /parts { idem on; idem_scope "$http_x_merchant:$http_x_shop"; proxy_pass http://service; }
        location /partsmust { idem on; idem_scope "$http_x_merchant:$http_x_shop"; idem_required on; proxy_pass http://service; }
        location /shared { idem on; idem_scope $http_x_merchant; idem_anonymous on; proxy_pass http://service; }
        location /never { idem on; idem_scope $http_x_merchant; idem_anonymous off; proxy_pass http://service; }
        location /one { idem on; idem_scope const:shop; proxy_pass http://service; }
        location /token { idem_issue_token; idem_scope json:source; }
        location /use { idem on; idem_scope json:source; idem_token $http_token; proxy_pass http://service; }
        """, http="""
        server { listen unix:%s/a; server_name a.example;
                 location / { idem on; idem_scope $http_x_merchant; idem_fingerprint off; proxy_pass http://service; } }
        server { listen unix:%s/b; server_name b.example;
                 location / { idem on; idem_scope $http_x_merchant; idem_fingerprint off; proxy_pass http://service; } }
        server { listen unix:%s/c;
                 location / { idem on; idem_scope $http_x_merchant; idem_fingerprint off; proxy_pass http://service; } }
        """ % (where, where, where)) as s:
        yield s


@pytest.fixture
def key(request):
    return "%s-%d" % (request.node.name.split("[")[0][:60], time.monotonic_ns())


BODIES = {"/json": '{"source":"%s","seq":"%s"}', "/must": '{"source":"%s","seq":"%s"}', "/form": "source=%s&seq=%s",
          "/xml": "<m><Source>%s</Source><Seq>%s</Seq></m>"}


@pytest.mark.parametrize("path", sorted(BODIES))
def test_source_and_seq_as_fields_of_the_body(stack, key, path):
    """Two merchants with the same sequence number are two orders; a repeat of either is a replay."""
    def post(source):
        return ask(stack.port, path=path, body=(BODIES[path] % (source, key)).encode())
    a, b = post("A"), post("B")
    assert (a.status, b.status) == (201, 201) and not b.replayed and a.body != b.body
    assert post("A").body == a.body and post("A").replayed and post("B").body == b.body
    assert stack.record(key, "A")["state"] == "succeeded"


def test_a_key_in_a_header_and_the_scope_in_the_body(stack, key):
    a = ask(stack.port, key, path="/mixed", body=b'{"source":"A"}')
    b = ask(stack.port, key, path="/mixed", body=b'{"source":"B"}')
    assert a.status == b.status == 201 and a.body != b.body
    assert ask(stack.port, key, path="/mixed", body=b'{"source":"A"}').replayed


@pytest.mark.parametrize("body", ['{"seq":"%s"}', '{"source":"","seq":"%s"}', '{"source":null,"seq":"%s"}'])
def test_required_requires_the_scope_as_well_as_the_key(stack, key, body):
    got = ask(stack.port, path="/must", body=(body % key).encode())
    assert got.status == 400 and got.problem in ("scope-missing", "scope-refused"), got
    assert not stack.ledger.executions(key)
    got = ask(stack.port, path="/must", body=b'{"source":"A"}')
    assert got.status == 400 and got.problem == "key-missing"


def test_a_body_that_names_two_callers_is_refused(stack, key):
    got = ask(stack.port, path="/json", body=('{"source":"A","source":"B","seq":"%s"}' % key).encode())
    assert got.status in (400, 403) and got.problem in ("scope-refused", "key-malformed"), got


@pytest.mark.parametrize("path,headers", [("/merchant", {}), ("/merchant", {"X-Merchant": ""}), ("/parts", {}),
                                          ("/parts", {"X-Merchant": "m"}), ("/parts", {"X-Shop": "s"}),
                                          ("/mixed", {})])
def test_without_a_scope_a_request_is_as_one_without_a_key(stack, key, path, headers):
    """It must not share a scope with others who name nobody, so nothing is recorded and nothing is replayed."""
    one, two = (ask(stack.port, key, path=path, headers=headers) for _ in range(2))
    assert one.status == two.status == 201 and not two.replayed and one.body != two.body
    assert "idempotency-expires" not in one.headers
    assert stack.record(key) is None and stack.record(key, ":") is None
    assert eventually(lambda: "idem=no-scope" in open(stack.where + "/access.log").read())


@pytest.mark.parametrize("headers", [{}, {"X-Merchant": "m"}, {"X-Shop": "s"}])
def test_a_required_scope_needs_all_its_parts(stack, key, headers):
    got = ask(stack.port, key, path="/partsmust", headers=headers)
    assert got.status == 400 and got.problem == "scope-missing", got
    both = {"X-Merchant": "m", "X-Shop": "s"}
    assert ask(stack.port, key, path="/partsmust", headers=both).status == 201
    assert ask(stack.port, key, path="/partsmust", headers=both).replayed


def test_sharing_and_refusing_are_told_by_idem_anonymous(stack, key):
    one, two = (ask(stack.port, key, path="/shared") for _ in range(2))
    assert one.status == 201 and two.replayed and stack.record(key)["state"] == "succeeded"
    got = ask(stack.port, key, path="/never")
    assert got.status == 400 and got.problem == "scope-missing"


def test_a_scope_for_all_callers_is_a_constant_on_purpose(stack, key):
    one = ask(stack.port, key, path="/one", headers={"Authorization": "a"})
    two = ask(stack.port, key, path="/one", headers={"Authorization": "b"})
    assert two.replayed and two.body == one.body and stack.record(key, "shop")["state"] == "succeeded"


def test_a_header_that_names_two_callers_is_refused(stack, key):
    got = raw(stack.port, ("POST /merchant HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\nX-Merchant: A\r\nX-Merchant: B\r\n"
                           "Content-Length: 0\r\nConnection: close\r\n\r\n" % key).encode())
    assert b" 403 " in got.split(b"\r\n")[0] and b"scope-refused" in got, got
    assert not stack.ledger.executions(key)


@pytest.mark.parametrize("name", ["caller-" + "0a" * 20, "idem.x", " a", "x" * 201])
def test_a_caller_cannot_take_the_name_of_a_credentials_digest(stack, key, name):
    got = ask(stack.port, path="/json", body=json.dumps({"source": name, "seq": key}).encode())
    assert got.status == 403 and got.problem == "scope-refused", got


def test_tokens_belong_to_the_scope_in_the_body(stack, key):
    def token(source):
        return ask(stack.port, path="/token", body=json.dumps({"source": source}).encode())
    got = token("A")
    assert got.status == 200, got
    mine = got.json()["token"]
    assert ask(stack.port, path="/use", token=mine, body=b'{"source":"B"}').problem == "token-unknown"
    assert ask(stack.port, path="/use", token=mine, body=b'{"source":"A"}').status == 201
    assert ask(stack.port, path="/token", body=b'{}').problem == "scope-missing"
    assert ask(stack.port, path="/token", method="GET", body=None).problem == "scope-missing"


def site(where, name, key, merchant):
    s = connect("%s/%s" % (where, name))
    s.sendall(("POST /o HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\nX-Merchant: %s\r\nContent-Length: 0\r\n"
               "Connection: close\r\n\r\n" % (key, merchant)).encode())
    got = b""
    while part := s.recv(65536):
        got += part
    s.close()
    assert got.startswith(b"HTTP/1.1 201"), got
    return b"Idempotent-Replayed: true" in got


def test_sites_do_not_share_the_scopes_that_a_value_names(stack, key):
    """Also without a fingerprint: a merchant of one site is another one on the next, however it is called."""
    callers = [("a", "m"), ("b", "m"), ("c", "m"), ("c", "m@a.example"), ("c", "m@b.example"), ("a", "m@b.example"),
               ("b", "m@a.example"), ("c", "m@"), ("c", "m@a.example@")]
    for name, merchant in callers:
        assert not site(stack.where, name, key, merchant), (name, merchant)
    for name, merchant in callers:
        assert site(stack.where, name, key, merchant), (name, merchant)
    assert stack.record(key, "m@a.example") and stack.record(key, "m")


@pytest.mark.parametrize("flags,word", [(["--scope", "$http_x_merchant"], "without a scope (an empty --scope) pass as if they"),
                                        (["--scope", "$http_x_merchant", "--anonymous", "on"],
                                         "callers without a scope share the scope \"anonymous\""),
                                        ([], "the route /: callers without a credential share the scope"), (["--scope", "$http_x_merchant", "--required"], None),
                                        (["--scope", "const:shop"], None), (["--anonymous", "off"], None)])
def test_at_start_it_is_said_what_happens_without_a_scope(flags, word):
    with folder() as where, Ledger(where) as ledger:
        with Gateway(where, ledger.port, *flags, "--http", "off") as g:
            assert ask(g.port, "k", x_merchant="m").status == (403 if "off" in flags else 201)
            text = g.output()
        assert word in text if word else "share" not in text and "without a scope" not in text, text
        assert "idem_" not in text and "nginx.conf" not in text, "the user has neither"
