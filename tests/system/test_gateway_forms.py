"""A token in the forms of a page (idem_inject_token): the form works once, without JavaScript and without a change of
the service."""
import gzip
import html.parser
import os
import re
import urllib.parse

import pytest
from gateway import *
from lib import *
from test_gateway_scope import nginx_says

FORM = '<form action="/orders" method="post"><input name="item" value="book"><button>Buy</button></form>'
PAGE = "<!DOCTYPE html><title>Shop</title><form action=/search><input name=q></form>%s</html>" % FORM
HTML = {"Accept": "text/html,application/xhtml+xml", "Cookie": "s=1"}
FIELD = r'<input type="hidden" name="token" value="([\w-]{32})">'


def answer(body, *headers, chunks=None):
    """The bytes that the service is to send."""
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n" + "".join(h + "\r\n" for h in headers)
    if chunks is None:
        return (head + "Content-Length: %d\r\n\r\n" % len(body)).encode() + body
    parts = [body[i:i + chunks] for i in range(0, len(body), chunks)]
    return (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + b"".join(
        b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"


def get(stack, served, path="/page", **headers):
    name = os.path.join(stack.where, "page")
    with open(name, "wb") as f:
        f.write(served)
    return ask(stack.port, method="GET", path=path, body=None,
               headers={**HTML, "X-Way": "file:" + name, **{n.replace("_", "-"): v for n, v in headers.items()}})


class Fields(html.parser.HTMLParser):
    """What a browser would send for the last form of a page."""

    def __init__(self, page):
        super().__init__()
        self.fields = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "form":
            self.fields = []
        if tag == "input":
            self.fields.append((dict(attrs)["name"], dict(attrs)["value"] if "value" in dict(attrs) else ""))


def submit(stack, page, path="/orders", **changed):
    fields = {**dict(Fields(page.body.decode()).fields), **changed}
    return ask(stack.port, path=path, body=urllib.parse.urlencode(fields).encode(),
               headers={**HTML, "Content-Type": "application/x-www-form-urlencoded"})


def orders(stack):
    return [e for e in stack.ledger.entries() if e["method"] == "POST"]


@pytest.fixture(scope="module")
def stack():
    with folder() as where, Stack(where, "idem_inject_token token;", more="""
            location /must { idem on; idem_inject_token token; idem_required on; proxy_pass http://service; }
            location /both { idem on; idem_inject_token token; idem_page_token on; proxy_pass http://service; }
            location /plain { idem on; proxy_pass http://service; }
            location /none { idem on; idem_inject_token off; proxy_pass http://service; }
            """, http="gzip on; gzip_min_length 1; gzip_http_version 1.0;") as s:
        yield s


def test_a_form_without_javascript_is_one_order(stack):
    before = len(orders(stack))
    page = get(stack, answer(PAGE.encode()))
    token = re.search(FIELD + "</form>", page.body.decode()).group(1)
    assert re.sub(FIELD, "", page.body.decode()) == PAGE and "content-length" not in page.headers
    first = submit(stack, page)
    again = submit(stack, page)
    assert first.status == 201 and again.replayed and again.body == first.body and len(orders(stack)) == before + 1
    assert orders(stack)[-1]["idem"]["idem-id"] == token
    assert submit(stack, page, item="pen").problem == "mismatch"
    # another look at the page is another order
    assert not submit(stack, get(stack, answer(PAGE.encode()))).replayed and len(orders(stack)) == before + 2


def test_a_made_up_token_and_another_callers_are_refused(stack):
    page = get(stack, answer(PAGE.encode()))
    assert submit(stack, page, token="a" * 32).problem == "token-unknown"
    other = get(stack, answer(PAGE.encode()), cookie="s=2")
    assert submit(stack, other).problem == "token-unknown"


def test_a_route_may_require_the_token(stack):
    page = get(stack, answer(PAGE.encode()), "/must/page")
    assert submit(stack, page, "/must").status == 201
    got = ask(stack.port, path="/must", body=b"item=book", headers={"Cookie": "s=1"})
    assert got.problem == "key-missing"


@pytest.mark.parametrize("chunks", [1, 7, 1000, 70000])
def test_a_page_in_chunks(stack, chunks):
    page = "<p>x</p>" * (50 if chunks < 10 else 40000) + FORM + "<script>'%s'</script>" % FORM + FORM + "y" * 300
    got = get(stack, answer(page.encode(), chunks=chunks)).body.decode()
    assert re.sub(FIELD, "", got) == page and len(set(re.findall(FIELD, got))) == 1
    assert len(re.findall(FIELD + "</form>", got)) == len(re.findall(FIELD, got)) == 2


@pytest.mark.parametrize("chunks", [1, 3, 1000])
def test_no_form_that_may_go_elsewhere_gets_a_token(stack, chunks):
    host = "127.0.0.1:%d" % stack.port
    own = ["", "/orders?a=1&amp;b=2", "http://%s/orders" % host, "&#x2f;orders"]
    foreign = ["https://evil.example/", "&#x2f;&#x2f;evil.example", "https&colon;//evil.example", "//%s.evil.example/" % host,
               "javascript:alert(1)"]
    forms = ['<form method="post" action="%s"><button>Go</button></form>' % url for url in own + foreign]
    forms += ['<form method="post"><button formaction="%s">Go</button></form>' % url for url in own + foreign]
    got = get(stack, answer("".join(forms).encode(), chunks=chunks)).body.decode()
    assert re.sub(FIELD, "", got) == "".join(forms)
    has = [bool(re.search(FIELD, form)) for form in re.findall("<form.*?</form>", got)]
    assert has == ([True] * len(own) + [False] * len(foreign)) * 2
    based = '<head><base href="https://evil.example/"></head>' + forms[0].replace('action=""', 'action="orders"')
    assert get(stack, answer(based.encode(), chunks=chunks)).body.decode() == based


@pytest.mark.parametrize("end", ["<", "</", "</for", "</form", "</form>"])
def test_a_page_that_ends_in_a_form_is_all_there(stack, end):
    page = '<form method="post">' + end
    for chunks in (1, 6, 1000):
        got = get(stack, answer(page.encode(), chunks=chunks)).body.decode()
        assert re.sub(FIELD, "", got) == page and bool(re.search(FIELD, got)) == (end == "</form>")


@pytest.mark.parametrize("size", [1, 4, 7])
def test_a_page_of_nginx_itself_in_small_buffers(size):
    """Whole buffers are kept back, and nginx uses them again."""
    with folder() as where, Stack(where, more="""
            location /files/ { idem on; idem_inject_token token; output_buffers 2 %d; alias %s/; }""" % (size, where)) as stack:
        for n in range(4):
            page = "." * n + FORM + "b" * 40
            with open(os.path.join(where, "page.html"), "w") as f:
                f.write(page)
            got = ask(stack.port, method="GET", path="/files/page.html", body=None, headers=HTML, timeout=10).body.decode()
            assert re.sub(FIELD, "", got) == page and re.search(FIELD + "</form>", got)


def test_a_page_out_of_a_file_gets_its_token_with_sendfile():
    """nginx sends the file's bytes, not those in memory, unless a filter says that they have changed."""
    with folder() as where, Stack(where, http="sendfile on;", more="""
            location /files/ { idem on; idem_inject_token token; alias %s/; }""" % where) as stack:
        page = PAGE + "b" * 100000 + PAGE
        with open(os.path.join(where, "page.html"), "w") as f:
            f.write(page)
        got = ask(stack.port, method="GET", path="/files/page.html", body=None, headers=HTML, timeout=10).body.decode()
        assert re.sub(FIELD, "", got) == page and len(re.findall(FIELD + "</form>", got)) == 2


def test_a_large_page_with_a_length(stack):
    page = ("<p>%d</p>" % n for n in range(100000))
    page = "".join(page) + FORM + "z" * 500000 + FORM
    got = get(stack, answer(page.encode())).body.decode()
    assert re.sub(FIELD, "", got) == page and len(re.findall(FIELD, got)) == 2


def test_the_service_is_asked_for_the_page_as_it_is(stack):
    got = get(stack, answer(PAGE.encode(), "ETag: \"e\"", "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT", "Cache-Control: public",
                            "Accept-Ranges: bytes"),
              accept_encoding="gzip", if_none_match='"e"', if_modified_since="Sun, 06 Nov 1994 08:49:37 GMT", range="bytes=0-9")
    assert got.status == 200 and got.headers["content-encoding"] == "gzip"  # by nginx, behind us
    assert re.search(FIELD, gzip.decompress(got.body).decode())
    assert got.headers["cache-control"] == "private, no-cache"
    assert not {"etag", "last-modified", "accept-ranges", "content-range"} & set(got.headers)
    asked = {n.lower() for n in stack.ledger.entries()[-1]["names"]}
    assert not asked & {"accept-encoding", "if-none-match", "if-modified-since", "range"} and "cookie" in asked


@pytest.mark.parametrize("how", ["compressed", "json", "image", "plain", "none", "head"])
def test_what_is_no_page_stays_as_it_is(stack, how):
    body = gzip.compress(PAGE.encode()) if how == "compressed" else PAGE.encode()
    served = answer(body, *(["Content-Encoding: gzip"] if how == "compressed" else []))
    if how == "json":
        served = served.replace(b"text/html; charset=utf-8", b"application/json")
    if how == "head":
        assert ask(stack.port, method="HEAD", path="/page", body=None, headers=HTML).status == 201
        return
    got = get(stack, served, "/%s/page" % how if how in ("plain", "none") else "/page",
              **({"accept": "image/png,*/*"} if how == "image" else {}))
    assert got.status == 200 and got.body == body and got.headers["content-length"] == str(len(body))


def test_the_service_gets_the_token_too_if_it_wants_it(stack):
    page = get(stack, answer(PAGE.encode()), "/both/page").body.decode()
    assert re.search(FIELD, page).group(1) == stack.ledger.entries()[-1]["headers"]["idem-token"]
    get(stack, answer(PAGE.encode()))
    assert "idem-token" not in stack.ledger.entries()[-1]["headers"]


def test_without_the_engine_a_page_is_shown_without_a_token():
    with folder() as where, Stack(where, "idem_inject_token token;", engine_options="timeout=2s") as stack:
        assert re.search(FIELD, get(stack, answer(PAGE.encode())).body.decode())
        stack.engine.kill()
        got = get(stack, answer(PAGE.encode()))
        assert got.status == 200 and got.body == PAGE.encode()
        # a token that nobody waits for any more does not keep nginx from ending
        assert stack.nginx.stop() == 0


def test_a_field_has_a_plain_name():
    with folder() as where:
        assert "letters, digits" in nginx_says(where, "idem_inject_token 'a\"><script>';")[1]
        assert nginx_says(where, "idem_inject_token csrf_token-1.x;")[0] == 0


def test_the_launcher_puts_the_token_into_pages():
    with folder() as where, Ledger(where) as ledger:
        with Gateway(where, ledger.port, "--inject-token", "once", "--token-path", "/token", "--required", store="memory:") as g:
            page = ask(g.port, method="GET", path="/page", body=None,
                       headers={**HTML, "X-Way": "open:" + answer(PAGE.encode()).hex()})
            fields = Fields(page.body.decode()).fields
            assert [n for n, _ in fields] == ["item", "once"]
            body = urllib.parse.urlencode(fields).encode()
            assert ask(g.port, body=body, headers=HTML).status == 201 and ask(g.port, body=body, headers=HTML).replayed
