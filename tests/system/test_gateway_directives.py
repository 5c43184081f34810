"""What nginx says of wrong values of the module's directives when it reads its configuration."""
import os

import pytest
from gateway import MODULE, nginx_test
from lib import folder

ENGINE = "idem_engine unix:/s;"


def says(where, http, location):
    conf = os.path.join(where, "n.conf")
    with open(conf, "w") as f:
        f.write("""load_module %s; pid %s/p; error_log stderr; events {} http { %s
            proxy_ignore_client_abort on; server { listen 127.0.0.1:1; location / { idem on; %s
            proxy_pass http://127.0.0.1:1; } } }""" % (MODULE, where, http.replace("WHERE", where), location))
    got = nginx_test(where, conf)
    return got.returncode, got.stderr


def twice(name, one, other):
    return "idem_%s %s; idem_%s %s;" % (name, one, name, other)


@pytest.mark.parametrize("location,said", [
    *[(twice(name, one, other), "is duplicate") for name, one, other in (
        ("key", "$http_a", "$http_b"), ("token", "$http_a", "form:b"), ("scope", "$http_a", "const:b"), ("credential", "a", "b"),
        ("release", "500", "501"), ("duplicate", "replay", "refuse"), ("fingerprint", "body", "off"), ("inject_token", "a", "b"),
        ("replayed_header", "a", "b"), ("keep_header", "a", "b"), ("drop_header", "a", "b"))],
    *[("idem_release %s;" % value, 'invalid status "%s"' % value) for value in ("600", "199", "500-499", "x", "500-", "-500", "500-x")],
    ('idem_duplicate maybe;', "is neither"), ('idem_duplicate answer 199 "x";', "is neither"), ('idem_duplicate answer 600 "x";', "is neither"),
    ('idem_duplicate answer x "x";', "is neither"), ('idem_duplicate refuse 200 "x";', "is neither"),
    ("idem_fingerprint xml;", "idem_fingerprint"), ("idem_fingerprint body json;", "idem_fingerprint"),
    ("idem_keep_header a:;", "not the name of a header"), ("idem_credential 'a b';", "not the name of a header"),
    ("idem_methods POST FETCH;", 'invalid value "FETCH"'), ("idem_mode lax;", 'invalid value "lax"'), ("idem_profile other;", 'invalid value "other"'),
    ("idem_lease 99ms;", "100ms to 7d"), ("idem_wait 2h;", "0 to 1h"), ("idem_ttl 0;", "1ms to 3660d"), ("idem_token_ttl 0;", "1ms to 3660d"),
    ("idem_dedupe_content 4000d;", "0 to 3660d"), ("idem_fail_open on;", "loose"), ("idem_inject_token 'a b';", "letters, digits"),
    ("idem_scope $http_a-$nosuch;", 'unknown "nosuch" variable'),
])
def test_a_wrong_value_in_a_location_is_refused(location, said):
    with folder() as where:
        status, text = says(where, ENGINE, location)
        assert status == 1 and said in text and "n.conf:" in text, text


@pytest.mark.parametrize("http,said", [
    *[("idem_engine unix:/s %s;" % value, 'invalid parameter "%s"' % value) for value in (
        "timeout=0", "timeout=x", "away=x", "max_buffered=x", "odd=1", "tls=of", "tls=off1", "tls=of0", "tls=no")],
    ("idem_engine unix:/s user=u;", "has user= without password="), ("idem_engine unix:/s name=n;", "need tls=on"),
    ("idem_engine unix:/s key=n;", "need tls=on"), (ENGINE + ENGINE, "is duplicate"), ("idem_engine host:0;", "in engine"),
    ("idem_engine unix:;", "in engine"), ("idem_problem_base https://a/b;" + ENGINE, "needs a URL that ends with / or #"),
    ("idem_figures WHERE/f; idem_figures WHERE/f;" + ENGINE, "is duplicate"), ("idem_figures WHERE;" + ENGINE, "idem_figures cannot use"),
    ("idem_figures WHERE/n.conf;" + ENGINE, "is not a file of idem_figures"), ("", "idem_engine"),
])
def test_a_wrong_value_for_all_servers_is_refused(http, said):
    with folder() as where:
        status, text = says(where, http, "")
        assert status == 1 and said in text, text


@pytest.mark.parametrize("http,location", [
    ("idem_engine [::1]:1 user=u password=p timeout=1s away=0 max_buffered=1m tls=off;", ""),
    ("idem_engine localhost;", "idem_duplicate replay; idem_fingerprint body; idem_release off;"),
    (ENGINE, 'idem_duplicate answer 200 "x"; idem_fingerprint off; idem_release 200 500-599;'),
    (ENGINE, "idem_inject_token token; idem_token form:token $http_token;"), (ENGINE, "idem_inject_token token; idem_token form:other;"),
    (ENGINE, "idem_inject_token off; idem_token off; idem_key off;"), (ENGINE, "idem_fail_open on; idem_mode loose;"),
    ("idem_figures WHERE/f; idem_problem_base https://a/b#;" + ENGINE, ""),
])
def test_an_unusual_value_is_accepted(http, location):
    with folder() as where:
        status, text = says(where, http, location)
        assert status == 0, text


def test_a_file_of_figures_of_another_build_is_replaced():
    with folder() as where:
        http = "idem_figures WHERE/f;" + ENGINE
        for at, wrong in ((24, b"\1\0\0\0\0\0\0\0"), (32, b"\0" * 8), (32, b"\xff" * 8), (12, b"x")):  # its size, its number of routes, its name
            assert says(where, http, "")[0] == 0
            with open(where + "/f", "r+b") as f:
                right = f.read(40)
                f.seek(at)
                f.write(wrong)
            old = os.open(where + "/f", os.O_RDONLY)  # keeps its number
            assert says(where, http, "")[0] == 0
            with open(where + "/f", "rb") as f:
                assert f.read(40) == right and os.fstat(f.fileno()).st_ino != os.fstat(old).st_ino, at
            os.close(old)
