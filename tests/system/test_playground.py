"""The playground: each scheme broken and protected, over HTTP and in a real browser, on a sandbox that nothing is left of."""
import json
import os
import re
import signal
import subprocess

import pytest

from browser import Browser
from lib import IDEM, ROOT, Process, Server, folder, free_port, wait_until
from test_console import Page, shot
from test_http import Http

HEADLINE = {  # the action that the scheme is about, and how often it is done without protection
    "token": ("double", 2), "unique": ("double", 2), "optimistic": ("double", 1), "pessimistic": ("double", 2), "dedup": ("kill", 2),
    "state": ("late", 2), "lock": ("pause", 2), "seq": ("retry", 2), "doubt": ("kill", 2), "message": ("lose", 2), "strict": ("fail", 2)}


class Playground(Process):
    def __init__(self):
        self.http = free_port()
        super().__init__([IDEM, "playground", "--listen", "127.0.0.1:%d" % self.http], ready=self.http)


@pytest.fixture(scope="module")
def playground():
    with Playground() as playground:
        yield playground


def play(port, scheme, action, protected):
    return Http(port)("POST", "/v1/play/%s/%s" % (scheme, action), protected=protected)


# ---- over HTTP ---------------------------------------------------------------

def test_every_scheme_of_the_table_is_there(playground):
    schemes = Http(playground.http)("GET", "/v1/play")["schemes"]
    assert [s["name"] for s in schemes] == list(HEADLINE)
    assert all(set(s["breaks"]) <= set(s["actions"]) for s in schemes)
    assert all(s["breaks"] for s in schemes if s["name"] != "strict")


@pytest.mark.parametrize("scheme", HEADLINE)
def test_a_scheme_goes_wrong_where_it_says_so_and_never_when_protected(playground, scheme):
    known = next(s for s in Http(playground.http)("GET", "/v1/play")["schemes"] if s["name"] == scheme)
    assert HEADLINE[scheme][0] in known["breaks"] or scheme == "strict"
    with open(os.path.join(ROOT, "console/words.js")) as file:
        words = file.read()
    for action in known["actions"]:
        assert '"play-do-%s":' % action in words
        for protected in (False, True):
            told = play(playground.http, scheme, action, protected)
            where = (scheme, action, protected, told["effects"], told["replies"])
            assert told["wrong"] == (not protected and action in known["breaks"]), where
            assert told["wrong"] == (told["effects"] != told["wanted"]), where
            if protected:
                assert told["effects"] == 1, where
            times = [m["at_us"] for m in told["messages"]]
            assert times[0] >= 0 and times[-1] >= times[0] and len(times) <= 64
            said = [m["text"] for m in told["messages"] if m["kind"] in ("reply", "lost", "note")] + list(told["replies"])
            assert all('"play-%s":' % word in words for word in said), said
            assert {m["from"] for m in told["messages"]} <= set(told["actors"])
    action, effects = HEADLINE[scheme]
    assert play(playground.http, scheme, action, False)["effects"] == effects


def test_a_storm_is_two_hundred_requests_and_one_effect(playground):
    told = play(playground.http, "seq", "storm", True)
    assert sum(told["replies"].values()) == 200 and told["replies"]["first"] == 1 and told["effects"] == 1
    told = play(playground.http, "seq", "storm", False)
    assert sum(told["replies"].values()) == 200 and told["effects"] == 8  # one a worker


def test_the_record_is_told_beside_the_table(playground):
    told = play(playground.http, "seq", "send", True)
    assert [(r["scope"], r["id"], r["state"]) for r in told["records"]] == [("unionpay", "A-1001", "succeeded")]
    assert told["tables"] == [{"name": "payments", "columns": ["id", "seq"], "rows": [["1", "A-1001"]]}]
    words = [m["text"] for m in told["messages"]]
    assert any(w.startswith("BEGIN unionpay A-1001") for w in words) and any(w.startswith("started ") for w in words)
    assert play(playground.http, "seq", "send", False)["records"] == []


def test_the_record_of_a_transaction_is_a_row_beside_the_payment(playground):
    payments, record = play(playground.http, "dedup", "kill", True)["tables"]
    assert payments["rows"] == [["1", "A-1001"]] and record["rows"] == [["shop", "A-1001", "succeeded", "paid"]]


def test_a_doubt_is_settled_and_then_answered(playground):
    told = play(playground.http, "doubt", "kill", True)
    assert told["replies"] == {"doubt": 1, "replay": 1} and told["records"][0]["state"] == "succeeded"


def test_what_is_not_there_is_refused(playground):
    api = Http(playground.http)
    assert api.problem("POST", "/v1/play/nothing/send", protected=True) == "invalid"
    assert api.problem("POST", "/v1/play/token/pause", protected=True) == "invalid"
    assert api.problem("POST", "/v1/play/token/send") == "invalid"
    for headers, problem in (({"Origin": "http://evil.example"}, "foreign-origin"), ({"Host": "evil.example"}, "wrong-host"),
                             ({"Content-Type": "text/plain"}, "unsupported-media-type")):
        answer, data = api.raw("POST", "/v1/play/token/send", b'{"protected": true}', {"Content-Type": "application/json", **headers})
        assert answer.status >= 400 and json.loads(data)["type"].endswith("/" + problem), data


def test_a_server_without_the_console_has_no_playground():
    with folder() as f, Server(f, http=True) as server:
        assert Http(server.http).problem("GET", "/v1/play") == "not-found"


def test_the_sandbox_is_not_the_servers_store():
    with folder() as f, Server(f, "--console", http=True) as server:
        for scheme, (action, _) in HEADLINE.items():
            play(server.http, scheme, action, True)
        with server.client() as client:
            assert client("SCAN", "0") == ["records", "0"]


def test_it_prints_its_address_and_ends_at_ctrl_c():
    port = free_port()
    ran = subprocess.Popen([IDEM, "playground", "--listen", ":%d" % port], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert ran.stdout.readline() == "http://127.0.0.1:%d/console#/play\n" % port
    assert play(port, "token", "double", False)["effects"] == 2
    ran.send_signal(signal.SIGINT)
    out, err = ran.communicate(timeout=60)
    assert ran.returncode == 0 and out == "" and err == "", err


def test_with_json_the_address_is_an_object():
    port = free_port()
    ran = subprocess.Popen([IDEM, "playground", "--json", "--listen", "localhost:%d" % port], stdout=subprocess.PIPE, text=True)
    assert json.loads(ran.stdout.readline()) == {"url": "http://localhost:%d/console#/play" % port}
    ran.terminate()
    assert ran.wait(60) == 0 and ran.stdout.read() == ""
    ran.stdout.close()


def test_it_listens_on_this_machine_only():
    for address in ("0.0.0.0:7398", "*:7398", "192.0.2.1:80", "127.0.0.1:1,127.0.0.1:2", "x"):
        ran = subprocess.run([IDEM, "playground", "--listen", address], capture_output=True, text=True, timeout=60)
        assert ran.returncode == 2 and "one address of this machine" in ran.stderr, ran.stderr


# ---- in a browser ------------------------------------------------------------

@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture
def page(browser, playground):
    page = Page(browser, playground.http)
    browser.size(1280, 900)
    motion(browser, reduced=True)
    browser.complaints()
    page.open("play")
    browser.run("localStorage.setItem('idem-language', 'en'); localStorage.setItem('idem-theme', 'light');")
    browser.reload()
    page.has(".schemes a")
    yield page
    assert not browser.complaints()


def press(page, selector):
    """Press a button or the switch, wait until all is drawn; effects, and whether that is wrong."""
    page.has(selector)
    run = lambda: page.browser.run("return document.querySelector('.outcome')?.dataset.run || '0'")
    before = run()
    page.browser.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
    page.browser.click(selector)
    assert wait_until(lambda: run() != before, 40, step=0.1), selector
    assert wait_until(lambda: page.browser.run("const s = document.querySelector('.diagram svg'); return s.dataset.shown === s.dataset.count"), 40, step=0.1)
    page.has("[data-action]:enabled")
    told = page.browser.run("return {...document.querySelector('.outcome').dataset}")
    return int(told["effects"]), told["wrong"] == "true"


def motion(browser, reduced):
    browser.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {
        "features": [{"name": "prefers-reduced-motion", "value": "reduce" if reduced else ""}]}})


@pytest.mark.parametrize("scheme", HEADLINE)
def test_a_scheme_is_seen_broken_and_then_protected(page, browser, scheme):
    action, effects = HEADLINE[scheme]
    page.open("play/" + scheme)
    page.has("[data-action=%s]" % action)
    assert press(page, "[data-action=%s]" % action) == (effects, scheme != "strict")
    drawn = browser.run("return document.querySelectorAll('.diagram .m').length")
    assert drawn == browser.run("return Number(document.querySelector('.diagram svg').dataset.count)") > 3
    assert press(page, "input[name=half][value=true]") == (1, False)
    page.press("中文")
    page.has("[data-action=%s]" % action)
    assert re.search("[\u4e00-\u9fff]", browser.run("return document.querySelector('h2').innerText + ''"))
    assert press(page, "[data-action=%s]" % action) == (effects, scheme != "strict")
    page.accessible()
    browser.size(390, 844)
    page.fits()
    page.press("English")


def test_what_happened_is_drawn_step_by_step(page, browser):
    page.open("play/token")
    page.has("[data-action=double]")
    motion(browser, reduced=False)
    browser.click("[data-action=double]")
    shown = lambda: browser.run("return Number(document.querySelector('.diagram svg')?.dataset.shown || 0)")
    assert wait_until(lambda: 1 <= shown() < 10, 20, step=0.02)  # one after the other
    assert wait_until(lambda: shown() == 18, 40)
    browser.run("scrollTo(0, 0)")
    browser.size(1280, 1000)
    shot(browser, "playground")
    motion(browser, reduced=True)
    page.press("中文")
    page.has("[data-action=double]")
    assert press(page, "[data-action=double]") == (2, True)
    browser.run("scrollTo(0, 0)")
    shot(browser, "playground.zh-CN")
    page.press("English")


def test_the_links_lead_to_the_schemes(page, browser):
    for scheme in HEADLINE:
        page.has(".schemes a[href='#/play/%s']" % scheme)
    browser.click(".schemes a[href='#/play/lock']")
    page.has("[data-action=pause]")
    page.shows("Distributed lock")
    browser.click("[aria-label='Light or dark']")
    assert press(page, "[data-action=pause]") == (2, True)
    page.accessible()
    browser.click("[aria-label='Light or dark']")
    assert not browser.run("return document.querySelectorAll('nav').length")  # nothing but the playground


def test_the_console_has_it_as_a_tab(browser):
    with folder() as f, Server(f, "--console", http=True) as server:
        page = Page(browser, server.http)
        page.open("play/unique")
        page.has("nav a[href='#/play'][aria-current=page]")
        assert press(page, "[data-action=double]")[1]
        browser.open("about:blank")  # it would ask the server that ends now
        browser.complaints()


def test_the_samples_stand_in_the_pages_that_they_name(page, browser):
    """Every line of every sample, as the page shows it."""
    seen = 0
    for scheme in HEADLINE:
        page.open("play/" + scheme)
        page.has(".schemes a[href='#/play/%s'][aria-current]" % scheme)
        count = browser.run("return document.querySelectorAll('.bar [aria-pressed]').length")
        assert count >= 3
        for i in range(count):
            browser.run("document.querySelectorAll('.bar [aria-pressed]')[arguments[0]].click()", i)
            page.has(".bar [aria-pressed]:nth-child(%d)[aria-pressed=true]" % (i + 1))
            text, source = browser.run("return [document.querySelector('.sample').textContent, document.querySelector('.sample + .note').textContent]")
            with open(os.path.join(ROOT, source)) as file:
                there = file.read()
            for line in text.splitlines():
                assert line.strip() in there, (scheme, source, line)
                seen += 1
    assert seen > 100
