"""The console in a real browser, as an operator uses it: charts under load, a doubt settled with a composed answer that the
client then gets, records, both languages, a phone's width, no way in for stored scripts and for other pages."""
import base64
import http.server
import os
import threading
import time

import pytest

from browser import Browser
from lib import ROOT, Resp, Server, folder, free_port, wait_until
from test_console_http import CREDENTIALS, PROM, SECRETS, authorized, console_server, doubt, fence_of
from test_http import begin, rec

PAGES = ("overview", "doubts", "records", "locks", "routes", "audit", "play")
SHOTS = os.environ.get("IDEM_SCREENSHOTS") or os.path.join(ROOT, "build/screenshots")
AXE = os.path.join(ROOT, "build/npm/node_modules/axe-core/axe.min.js")
EVIL = "<img src=x onerror=window.hit=1><script>window.hit=1</script>"
TEXT = "return document.body.innerText"


@pytest.fixture(scope="module")
def server():
    with folder() as f:
        with open(f + "/credentials", "w") as file:
            file.write(CREDENTIALS)
        os.chmod(f + "/credentials", 0o600)
        with Server(f, "--console", "--trust-socket", "--credentials", f + "/credentials", http=True) as server:
            yield server


@pytest.fixture
def load(server):
    """Clients that begin, repeat and finish, for as long as the test runs."""
    over = threading.Event()

    def run(n):
        with Resp(server.socket) as client:
            i = 0
            while not over.is_set():
                i += 1
                key = "order-%d-%d" % (n, i)
                fence = client("BEGIN", "shop", key)[1]
                client("BEGIN", "shop", key)
                client("FINISH", "shop", key, fence, "succeeded", "{}")
                for _ in range(3):
                    client("BEGIN", "shop", key)
                time.sleep(0.01)
    threads = [threading.Thread(target=run, args=(n,)) for n in range(2)]
    [t.start() for t in threads]
    yield
    over.set()
    [t.join() for t in threads]


class Page:
    """The console in a browser."""

    def __init__(self, browser, port):
        self.browser, self.port, self.address = browser, port, "http://127.0.0.1:%d" % port

    def open(self, name="overview"):
        self.browser.open("%s/console#/%s" % (self.address, name))

    def shows(self, text, seconds=20):
        assert wait_until(lambda: text in self.browser.run(TEXT), seconds, step=0.1), self.browser.run(TEXT)[:3000]

    def has(self, selector, seconds=20):
        assert wait_until(lambda: self.browser.run("return document.querySelectorAll(arguments[0]).length", selector), seconds, step=0.1), selector

    def login(self, name="ops"):
        self.open()
        self.browser.run("localStorage.setItem('idem-language', 'en'); localStorage.setItem('idem-theme', 'light');")
        self.browser.reload()
        self.has(".login, nav")
        if self.browser.run("return !!document.querySelector('.login')"):
            self.browser.type("[name=name]", name)
            self.browser.type("[name=secret]", SECRETS[name])
            self.browser.click(".login button")
        self.has("nav")

    def press(self, text, within="body"):
        """The button with this text."""
        found = wait_until(lambda: self.browser.run("""
            const all = [...document.querySelectorAll(arguments[1] + ' button')].filter((b) => b.textContent === arguments[0]);
            document.querySelectorAll('[data-press]').forEach((b) => delete b.dataset.press);
            if (all[0]) { all[0].scrollIntoView({block: "center"}); all[0].dataset.press = 1; }
            return all.length""", text, within), 20, step=0.1)
        assert found, text
        self.browser.click("[data-press]")

    def accessible(self):
        """What the automatic checker of accessibility finds: nothing."""
        with open(AXE) as axe:
            self.browser.run(axe.read() + "\nwindow.axe = axe;")
        found = self.browser.ask("POST", "/execute/async", {"args": [], "script": """
            const done = arguments[arguments.length - 1];
            axe.run({resultTypes: ["violations"]}).then((r) => done(r.violations.map((v) =>
                v.id + ": " + v.nodes.map((n) => n.target + " " + n.failureSummary).join("; "))), (e) => done([String(e)]));"""})
        assert not found, found

    def fits(self):
        """Nothing sticks out to the right."""
        wide = self.browser.run("return [document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], wide


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture
def page(browser, server):
    page = Page(browser, server.http)
    browser.size(1280, 800)
    browser.complaints()
    page.login()
    yield page
    assert not browser.complaints()


def shot(browser, name):
    os.makedirs(SHOTS, exist_ok=True)
    browser.screenshot(os.path.join(SHOTS, name + ".png"))


def test_a_wrong_secret_is_told_and_logging_out_ends_it(browser, server):
    page = Page(browser, server.http)
    browser.open(page.address + "/console")
    page.has(".login")
    page.accessible()
    browser.type("[name=name]", "ops")
    browser.type("[name=secret]", "wrong")
    browser.click(".login button")
    page.shows("the name or the secret is wrong")
    page.login()
    assert not browser.run("return document.cookie")  # a script cannot read it
    page.press("Log out")
    page.has(".login")
    browser.complaints()  # the browser notes the 401


def test_the_charts_move_under_load(page, browser, load):
    page.open()
    page.has(".chart canvas")
    first = lambda: browser.run("return Number(document.querySelector('.tile dd').textContent.replace(/[^0-9.]/g, ''))")
    assert wait_until(lambda: first() > 10, 30, step=0.3)
    told = lambda: browser.run("return document.querySelector('.chart [role=img]').getAttribute('aria-label')")
    before = told()
    assert wait_until(lambda: told() != before, 20, step=0.3)
    pixels = lambda: browser.run("return document.querySelector('.chart canvas').toDataURL()")
    was = pixels()
    assert wait_until(lambda: pixels() != was, 20, step=0.3)
    page.press("Pause")
    page.has("[aria-pressed=true]")
    time.sleep(0.5)
    was = pixels()
    time.sleep(2.2)
    assert pixels() == was
    page.press("Go on")
    assert wait_until(lambda: pixels() != was, 20, step=0.3)
    browser.choose(".bar select", "3600")
    page.accessible()
    browser.choose(".bar select", "60")
    time.sleep(6)
    shot(browser, "console-overview")


def test_a_doubt_is_settled_with_a_composed_answer_and_the_client_gets_it(page, browser, server):
    doubt(server.http, "shop", "pay-7")
    doubt(server.http, "shop", "pay-8")
    page.open("doubts")
    page.has("tbody tr:nth-child(2)")
    assert browser.run("return [...document.querySelectorAll('tbody tr')].map((r) => r.cells[2].innerText)") == ["pay-7", "pay-8"]
    page.accessible()
    shot(browser, "console-doubts")
    browser.click("tbody tr button")
    page.has("dialog.drawer [name=reason]")
    page.shows("till 4")
    page.accessible()
    browser.choose("dialog select[name=outcome]", "succeeded")
    browser.type("dialog [name=status]", "201")
    browser.type("dialog [name=headers]", "Content-Type: application/json\nLocation: /payments/7")
    browser.type("dialog [name=body]", '{"paid": "七"}')
    browser.type("dialog [name=reason]", "the bank has it")
    shot(browser, "console-settle")
    browser.type("dialog [name=secret]", "wrong")
    page.press("Settle", "dialog")
    page.shows("the secret is wrong")
    browser.type("dialog [name=secret]", SECRETS["ops"])
    page.press("Settle", "dialog")
    page.shows("Settled: shop pay-7")
    said = begin(authorized(server.http), "shop", "pay-7")
    assert said["kind"] == "http" and said["state"] == "succeeded"
    assert said["result"] == '201\nContent-Type: application/json\nLocation: /payments/7\n\n{"paid": "七"}'
    page.open("audit")
    page.shows("the bank has it")
    page.accessible()
    assert wait_until(lambda: len(browser.complaints()) == 1, 10)  # the one wrong secret


def test_a_record_is_found_shown_and_forgotten(page, browser, server):
    api = authorized(server.http)
    fence = begin(api, "books", "order-7", subject="till 9")["fence"]
    api("POST", rec("books", "order-7", "finish"), fence=fence, outcome="succeeded", kind="http",
        result_base64=base64.b64encode(b"201\nContent-Type: text/plain\n\nfound me").decode())
    page.open("records")
    page.has("form[role=search]")
    browser.type("[name=id]", "order-7")
    page.press("Find")
    assert wait_until(lambda: browser.run("return [...document.querySelectorAll('tbody tr')].map((r) => r.cells[0].innerText)") == ["books"], 20)
    page.accessible()
    browser.click("tbody tr button")
    page.has("dialog .reveal")
    assert "found me" not in browser.run(TEXT)
    page.press("Show the result")
    page.shows("found me")
    page.shows("HTTP 201")
    page.shows("/v1/records/books/order-7'")
    page.accessible()
    assert [e["verb"] for e in api("GET", "/v1/audit?scope=books")["entries"]] == ["get"]
    browser.click("dialog summary")
    browser.type("dialog details [name=reason]", "test data")
    browser.type("dialog details [name=secret]", SECRETS["ops"])
    page.press("Forget", "dialog")
    page.shows("Forgotten: books order-7")
    assert begin(api, "books", "order-7")["verdict"] == "started"


def test_a_lock_is_shown_and_freed_and_an_id_explained(page, browser, server):
    api = authorized(server.http)
    api("PUT", "/v1/locks/report", owner="host-3", lease_ms=600000)
    made = api("GET", "/v1/ids/snowflake")["ids"][0]
    page.open("locks")
    page.shows("host-3")
    page.accessible()
    page.press("Free it")
    browser.type("dialog [name=reason]", "host-3 is gone")
    browser.type("dialog [name=secret]", SECRETS["ops"])
    page.press("Free it", "dialog")
    page.shows("Freed: report")
    assert api("PUT", "/v1/locks/report", owner="host-4")["verdict"] == "started"
    browser.type("main form input", made)
    page.press("Explain an id")
    page.shows("made at")


def test_who_waits_for_a_lock_and_how_long_a_segment_lasts(page, browser, server):
    api = authorized(server.http)
    api("PUT", "/v1/locks/nightly", owner="host-7", lease_ms=600000)
    over = threading.Event()

    def wait():
        authorized(server.http)("PUT", "/v1/locks/nightly", owner="host-8", wait_ms=300000)

    def ids():
        asker = authorized(server.http)
        while not over.wait(0.2):
            asker("GET", "/v1/ids/segment:orders?count=3")
    threads = [threading.Thread(target=wait, daemon=True), threading.Thread(target=ids, daemon=True)]
    for thread in threads:
        thread.start()
    try:
        page.open("locks")
        page.has(".queue summary")
        browser.click(".queue summary")
        page.shows("host-8: for ")
        page.accessible()
        row = lambda: browser.run("return [...document.querySelectorAll('tr')].filter((r) => r.querySelector('meter')).map((r) => [...r.cells].map((c) => c.innerText))[0]")
        assert wait_until(lambda: row() and row()[0] == "orders" and row()[5] != "–", 30), row()
        page.accessible()
        held = api("GET", "/v1/locks/nightly")["record"]
        api("DELETE", "/v1/locks/nightly?fence=%d" % held["fence"])
        threads[0].join(30)
        assert wait_until(lambda: "host-8" in browser.run(TEXT) and not browser.run("return document.querySelector('.queue')"), 20)
    finally:
        over.set()
        threads[1].join(30)


def test_consumers_are_shown_with_their_lag_and_dead_letters(browser):
    with folder() as f:
        with open(f + "/mail.prom", "w") as file:
            file.write(PROM.replace("%s", "orders/mail"))
        with console_server("--consumers", f) as server:
            page = Page(browser, server.http)
            page.login()
            page.open("routes")
            page.shows("orders/mail")
            page.shows("1,234")
            assert browser.run("return document.querySelectorAll('td.bad').length") >= 1  # two dead letters
            page.accessible()
            page.press("Log out")
            browser.complaints()


def test_the_drawer_of_a_doubt_has_request_trace_and_what_operators_did(page, browser, server):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    api = authorized(server.http)
    begin(api, "web", "drawer", lease_ms=30, subject="POST /orders " + trace)
    wait_until(lambda: begin(api, "web", "drawer")["verdict"] == "doubt")
    api("POST", rec("web", "drawer", "settle"), outcome="failed", result="no", reason="nothing was booked")
    page.open("records")
    browser.type("[name=scope]", "web")
    browser.type("[name=id]", "drawer")
    page.press("Find")
    found = lambda: browser.run("return [...document.querySelectorAll('tbody tr')].map((r) => r.cells[1].innerText)")
    assert wait_until(lambda: found() == ["drawer"], 20)
    browser.click("tbody tr button")
    page.shows("settle – ops: nothing was booked")
    page.accessible()
    begin(api, "web", "drawer-2", lease_ms=600000, subject="POST /orders " + trace)
    browser.run("""const now = window.fetch;  // closing the drawer looks for the record again: that response comes late
        window.fetch = async (what, ...more) => { const got = await now(what, ...more);
            if (String(what).endsWith("/drawer")) { await new Promise((then) => setTimeout(then, 3000)); window.late = true; } return got; };""")
    browser.run("document.querySelector('dialog').close()")
    browser.type("[name=id]", "drawer-2")
    page.press("Find")
    assert wait_until(lambda: found() == ["drawer-2"], 20)
    assert wait_until(lambda: browser.run("return window.late"), 20)
    time.sleep(0.2)
    assert found() == ["drawer-2"]
    browser.click("tbody tr button")
    assert wait_until(lambda: browser.run("return [...document.querySelectorAll('dialog dd')].some((d) => d.innerText === arguments[0])", trace), 20)
    assert browser.run("return [...document.querySelectorAll('dialog dd')].some((d) => d.innerText === 'POST /orders')")


def test_chinese_dark_keyboard_and_a_phone(page, browser):
    page.press("中文")
    page.shows("总览")
    assert browser.run("return document.documentElement.lang") == "zh-CN"
    browser.click("[aria-label='浅色/深色']")
    colour = lambda: browser.run("return getComputedStyle(document.body).backgroundColor")
    assert wait_until(lambda: colour() == "rgb(22, 24, 29)", 10)
    browser.size(390, 844)
    browser.click("header b")
    for n, name in enumerate(PAGES):
        browser.keys(str(n + 1))
        assert wait_until(lambda: browser.url().endswith("#/" + name), 10)
        page.has("nav a[href='#/%s'][aria-current=page]" % name)
        page.fits()
        page.accessible()
    page.open()
    page.has(".chart canvas")
    time.sleep(1.5)
    shot(browser, "console-phone")
    browser.click("[aria-label='浅色/深色']")
    assert wait_until(lambda: colour() == "rgb(255, 255, 255)", 10)
    page.accessible()
    page.press("English")
    page.shows("Overview")


def test_a_stored_script_does_nothing(page, browser, server):
    api = authorized(server.http)
    fence = begin(api, EVIL, EVIL, subject=EVIL)["fence"]
    api("POST", rec(EVIL, EVIL, "finish"), fence=fence, outcome="succeeded", kind="http",
        result_base64=base64.b64encode(("200\nX-Evil: %s\nContent-Type: text/html\n\n%s" % (EVIL, EVIL)).encode()).decode())
    doubt(server.http, "evil", EVIL)
    page.open("records")
    browser.type("[name=scope]", EVIL)
    page.press("Find")
    page.shows("<script>window.hit=1</script>")
    browser.click("tbody tr button")
    page.press("Show the result")
    page.shows("X-Evil: " + EVIL)
    page.open("doubts")
    page.shows(EVIL)
    page.open("audit")
    page.shows(EVIL)
    assert not browser.run("return window.hit") and not browser.run("return document.querySelectorAll('main img, main script, dialog img').length")


def test_a_page_of_another_site_can_do_nothing(browser, server):
    """A site on another port of the same host, so that even a cookie of the same site comes along."""
    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><link rel=icon href='data:,'><title>evil</title>")

        def log_message(self, *_):
            pass
    Page(browser, server.http).login()
    address, port = "http://127.0.0.1:%d" % server.http, free_port()
    begin(authorized(server.http), "shop", "target")
    site = http.server.ThreadingHTTPServer(("127.0.0.1", port), Site)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    try:
        browser.open("http://127.0.0.1:%d/" % port)
        tried = browser.ask("POST", "/execute/async", {"args": [address], "script": """
            const [to, done] = arguments, all = {credentials: "include", mode: "cors"};
            const json = {...all, method: "POST", headers: {"Content-Type": "application/json", "X-Idem-Console": "1"}, body: "{}"};
            const plain = {credentials: "include", mode: "no-cors", method: "POST", body: '{"reason":"x"}'};
            const forget = to + "/v1/records/shop/target/forget";
            const said = (p) => p.then((r) => r.type + " " + r.status, (e) => "refused");
            Promise.all([said(fetch(to + "/v1/doubts", all)), said(fetch(to + "/v1/doubts", {...all, headers: {"X-Idem-Console": "1"}})),
                said(fetch(forget, json)), said(fetch(forget, plain))]).then(done);"""})
        assert tried == ["refused", "refused", "refused", "opaque 0"] or tried == ["refused"] * 4, tried
        browser.run("const f = document.createElement('iframe'); f.src = arguments[0] + '/console'; document.body.append(f);", address)
        assert wait_until(lambda: any("frame" in c.lower() for c in browser.complaints()), 20), "the frame was not refused"
    finally:
        site.shutdown()
        site.server_close()
    assert authorized(server.http)("GET", rec("shop", "target"))["verdict"] == "record"
    assert not [e for e in authorized(server.http)("GET", "/v1/audit?scope=shop&id=target")["entries"]]


def test_a_second_person_approves(browser):
    with console_server("--second-person") as server:
        doubt(server.http, "shop", "two")
        ops = authorized(server.http)
        assert ops.problem("POST", rec("shop", "two", "settle"), outcome="succeeded", kind="http", reason="the bank has it", fence=fence_of(ops, "shop", "two"),
            result_base64=base64.b64encode(b"201\n\n{}").decode()) == "forbidden"
        page = Page(browser, server.http)
        page.login("boss")
        page.open("doubts")
        page.shows("ops wants to settle shop two: the bank has it")
        page.shows("HTTP 201")
        page.accessible()
        browser.click(".proposal summary")
        browser.type(".proposal [name=reason]", "I see it, too")
        browser.type(".proposal [name=secret]", SECRETS["boss"])
        page.press("Approve", ".proposal")
        page.shows("Done: settle shop two")
        assert begin(authorized(server.http), "shop", "two")["result"] == "201\n\n{}"
        page.press("Log out")
        page.has(".login")
        browser.complaints()


def test_who_may_only_view_sees_no_way_to_settle(browser, server):
    page = Page(browser, server.http)
    page.login()
    page.press("Log out")
    page.login("desk")
    doubt(server.http, "shop", "desk-sees")
    page.open("doubts")
    page.shows("desk-sees")
    browser.click("tbody tr button")
    page.has("dialog.drawer")
    page.shows("Your credential does not have the right for this.")
    browser.run("document.querySelector('dialog').close()")
    page.press("Log out")
    browser.complaints()


def test_every_word_is_there_in_both_languages():
    import re
    words = open(os.path.join(ROOT, "console/words.js")).read()
    catalogue = dict(re.findall(r'^    "?([\w-]+)"?: (\[(?:.|\n)*?\]),$', words, re.M))
    used = set()
    for name in os.listdir(os.path.join(ROOT, "console")):
        if name.endswith(".jsx") or name == "api.js":
            text = open(os.path.join(ROOT, "console", name)).read()
            used |= set(re.findall(r'\bt\("([\w-]+)"', text)) | set(re.findall(r'throw \["(\w+)"', text))
    assert used <= set(catalogue) and len(used) > 80, used - set(catalogue)
    for key, pair in catalogue.items():
        both = re.findall(r'"((?:[^"\\]|\\.)*)"', pair)
        assert len(both) == 2 and all(both), key
        assert sorted(re.findall(r"\{\w+\}", both[0])) == sorted(re.findall(r"\{\w+\}", both[1])), key
        assert key == "language" or re.search("[\u4e00-\u9fff]", both[1]) or both[1] == "ID", key
