"""clients/js/idem.js in a real browser, through the real gateway with a token path, to a service that makes a new order
of every request: what counts is its ledger."""
import base64
import json
import os
import shutil
import sys
import time
import urllib.parse
import urllib.request

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from browser import Browser
from chaos import Chaos
from gateway import Ledger, Stack
from lib import ROOT, folder, free_port, wait_until

FORM = """<!doctype html><link rel="icon" href="data:,"><script src="idem.js"></script>
<form action="/orders" method="post" data-idem-token="/token" %s>
<input name="item" value="book"><input name="action" value="buy">
<button id="pay" name="how" value="card">Pay</button><button id="never" disabled>Not today</button></form>
<script>
window.events = [];
for (const name of ["idem:done", "idem:failed"])
    document.addEventListener(name, (e) => events.push(name + " " + (e.detail.status || e.detail)));
</script>"""
SCRIPT = '<script src="idem.js"></script>'
PAGES = {
    "form.html": FORM % 'data-idem-next="thanks.html"',
    "stay.html": FORM % "",
    "redirect.html": (FORM % "").replace("/orders", "/redirect"),
    "bad.html": (FORM % "").replace("/orders", "/bad"),
    "away.html": (FORM % "").replace("/orders", "/away"),
    "next.html": (FORM % "").replace("/orders", "/next"),
    "slow.html": (FORM % 'data-idem-next="thanks.html"').replace("/orders", "/slow"),
    "slow-tab.html": (FORM % 'data-idem-next="thanks.html"').replace("/orders", "/slow"),
    "lost.html": FORM % 'data-idem-next="thanks.html" data-idem-attempts="2"',
    "old.html": (FORM % "").replace('"/token"', '"/short-token"'),
    "field.html": FORM.replace('data-idem-token="/token"', 'data-idem-field="token"').replace(
        "<input", '<input type="hidden" name="token" value="TOKEN"><input', 1).replace("/orders", "/field") %
    'data-idem-next="thanks.html"',
    "inject.html": FORM.replace('data-idem-token="/token"', 'data-idem-field="token"').replace("/orders", "/field") %
    'data-idem-next="/pages/thanks.html"',
    "checked.html": FORM % 'onsubmit="return false"',
    "thanks.html": '<!doctype html><link rel="icon" href="data:,"><title>Thanks</title>',
}
GATED = "idem on; idem_key off; idem_token $http_token; idem_required on; proxy_pass http://service/orders;"
SEE_THANKS = b"HTTP/1.1 303 See\r\nLocation: /pages/thanks.html\r\nContent-Length: 0\r\n\r\n".hex()


@pytest.fixture(scope="module")
def site():
    away = free_port()
    with folder() as f:
        os.chmod(f, 0o755)
        os.mkdir(f + "/pages")
        shutil.copy(os.path.join(ROOT, "clients/js/idem.js"), f + "/pages")
        for name, text in PAGES.items():
            open(f + "/pages/" + name, "w").write(text)
        open(f + "/pages/inject-plain.html", "w").write(PAGES["inject.html"].replace(SCRIPT, ""))
        more = """
        location = /token { idem_issue_token; }
        location /orders { %s proxy_set_header X-Sleep 0.4; }
        location = /short-token { idem_issue_token; idem_token_ttl 1s; }
        location /next { %s idem_next_token on; }
        location /slow { %s proxy_set_header X-Sleep 2; }
        location /away { %s }
        location /field { %s idem_wait 20s; proxy_set_header X-Way bytes:%s; }
        location /bad { %s proxy_set_header X-Code 400; }
        location /redirect { %s proxy_set_header X-Way bytes:%s; }
        location /pages/ { alias %s/pages/; types { text/html html; text/javascript js; } }
        location /inject/ { idem on; idem_inject_token token; alias %s/pages/; types { text/html html; text/javascript js; } }
        """ % (GATED, GATED, GATED, GATED.replace("http://service", "http://127.0.0.1:%d" % away),
               GATED.replace("$http_token", "form:token"), SEE_THANKS, GATED, GATED, SEE_THANKS, f, f)
        with Stack(f, more=more) as stack:
            stack.pages, stack.away = f + "/pages/", away
            stack.line = Chaos(stack.port)
            yield stack
            stack.line.stop()


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture
def page(site, browser):
    """Opens a page through a line that can be cut; new_orders() is what the service has done since."""
    class Page:
        def __init__(self):
            self.before = len(site.ledger.entries())

        def open(self, name):
            browser.open("http://127.0.0.1:%d/pages/%s" % (site.line.port, name))

            wait_until(lambda: self.token(), 10)

        def token(self):
            """The token of the page's form, which is there as soon as the page is shown."""
            return browser.run("return ((document.forms[0] || {}).idemPage || {}).token")

        def new_orders(self):
            return [urllib.parse.parse_qs(base64.b64decode(e["body"]).decode())
                    for e in site.ledger.entries()[self.before:]]

        def back(self, name):
            browser.back()
            assert self.arrives_at(name)
            assert wait_until(lambda: browser.run(
                "return document.readyState == 'complete' && !document.querySelector('#pay').disabled") and self.token(), 10)

        def arrives_at(self, name):
            return wait_until(lambda: browser.url().endswith("/pages/" + name), 10)

    yield Page()
    site.line.heal()


ORDER = {"item": ["book"], "action": ["buy"], "how": ["card"]}


def test_a_double_click_is_one_order_and_leads_to_the_result_page(page, browser):
    page.open("form.html")
    browser.click("#pay", times=2)
    assert browser.run("return document.querySelector('#pay').disabled")
    assert page.arrives_at("thanks.html")
    assert page.new_orders() == [ORDER]


def test_a_cut_connection_is_retried_with_the_same_token(page, browser, site):
    page.open("form.html")
    site.line.cut_at(1)  # the page has its token; the answer to the order does not arrive
    browser.click("#pay")
    assert page.arrives_at("thanks.html")
    assert site.line.cuts >= 1
    assert page.new_orders() == [ORDER]
    with open(site.where + "/access.log") as log:
        told = [line.split("idem=")[1].split() for line in log if line.startswith("POST /orders")][-2:]
    assert told[0][0] == "started" and told[1][0] == "replay" and told[0][2] == told[1][2], told


def test_a_token_is_there_as_soon_as_the_page_is_shown_and_stays_through_a_reload(page, browser):
    page.open("form.html")
    token = page.token()
    assert token
    browser.reload()
    assert wait_until(lambda: page.token() == token, 10)
    browser.open("about:blank")
    page.open("form.html")
    assert page.token() and page.token() != token


def test_a_reload_while_the_answer_is_missing_and_another_click_is_one_order(page, browser):
    page.open("slow.html")
    browser.click("#pay")
    assert wait_until(page.new_orders, 10)
    browser.reload()
    browser.click("#pay")
    assert page.arrives_at("thanks.html")
    assert page.new_orders() == [ORDER]


def test_back_and_another_click_is_the_same_order_until_the_form_is_changed_or_opened_again(page, browser):
    def buys():
        browser.click("#pay")
        assert page.arrives_at("thanks.html")

    page.open("form.html")
    buys()
    for _ in range(2):
        page.back("form.html")
        buys()
        assert page.new_orders() == [ORDER]
    page.back("form.html")
    browser.run("document.querySelector('[name=item]').value = 'two books'")
    buys()
    assert page.new_orders() == [ORDER, {**ORDER, "item": ["two books"]}]
    page.open("form.html")
    buys()
    assert page.new_orders()[2:] == [ORDER]


def test_a_tab_closed_while_the_answer_is_missing_is_repeated_by_the_next_one(page, browser):
    page.open("slow-tab.html")
    browser.click("#pay")
    assert wait_until(page.new_orders, 10)
    browser.new_tab()
    page.open("slow-tab.html")
    browser.click("#pay")
    assert page.arrives_at("thanks.html")
    assert page.new_orders() == [ORDER]
    page.open("slow-tab.html")  # it has been answered by now: this is another order
    browser.click("#pay")
    assert page.arrives_at("thanks.html")
    assert page.new_orders() == [ORDER, ORDER]


def test_a_lost_network_keeps_the_token_for_the_next_click_and_through_a_reload(page, browser, site):
    page.open("lost.html")
    browser.click("#pay")
    assert wait_until(page.new_orders, 10)
    site.line.refuse()
    site.line.close_pairs()
    assert wait_until(lambda: browser.run("return events.length"), 20)
    assert "TypeError" in browser.run("return events")[0] and page.new_orders() == [ORDER]
    site.line.heal()
    browser.reload()
    browser.click("#pay")
    assert page.arrives_at("thanks.html")
    assert page.new_orders() == [ORDER]


def test_a_problem_that_may_be_retried_is_retried(page, browser, site):
    page.open("away.html")
    browser.click("#pay")  # 502 service-unreachable, "retryable": true
    assert wait_until(lambda: "POST /away" in open(site.where + "/access.log").read(), 10)
    with Ledger(site.where + "/pages", site.away):
        assert wait_until(lambda: browser.run("return events.length"), 20)
    assert browser.run("return events") == ["idem:done 201"]


def test_a_page_that_was_open_for_longer_than_its_token_lives_gets_another(page, browser):
    page.open("old.html")
    time.sleep(1.5)
    browser.click("#pay")
    assert wait_until(lambda: browser.run("return events.length"), 10)
    assert browser.run("return events") == ["idem:done 201"] and page.new_orders() == [ORDER]


@pytest.mark.parametrize("script", [True, False])
def test_a_hidden_field_that_the_service_renders_works_with_the_script_and_without(page, browser, site, script):
    def render():
        with urllib.request.urlopen("http://127.0.0.1:%d/token" % site.port, data=b"") as answer:
            text = PAGES["field.html"].replace("TOKEN", json.load(answer)["token"])
        with open(site.pages + "field.html", "w") as f:
            f.write(text if script else text.replace(SCRIPT, ""))

    render()
    browser.open("http://127.0.0.1:%d/pages/field.html" % site.line.port)
    browser.click("#pay", times=2)
    assert page.arrives_at("thanks.html")
    assert [{k: v for k, v in order.items() if k != "token"} for order in page.new_orders()] == [ORDER]
    if script:
        render()  # Back loads the page again, with another token in it
        page.back("field.html")
        browser.click("#pay")
        assert page.arrives_at("thanks.html")
        assert len(page.new_orders()) == 1


@pytest.mark.parametrize("name", ["inject.html", "inject-plain.html"])
def test_a_field_that_the_gateway_puts_into_the_form_works_with_the_script_and_without(page, browser, site, name):
    def buys(times):
        browser.click("#pay", times=times)
        assert page.arrives_at("thanks.html")
        return [{k: v for k, v in order.items() if k != "token"} for order in page.new_orders()]

    address = "http://127.0.0.1:%d/inject/%s" % (site.line.port, name)
    browser.open(address)
    assert browser.run("return [...document.forms[0].elements].some(e => e.name == 'token')")
    assert buys(2) == [ORDER]
    browser.back()
    assert wait_until(lambda: browser.url() == address, 60)
    assert wait_until(lambda: browser.run("return document.readyState == 'complete' && !document.querySelector('#pay').disabled"), 60)
    assert buys(1) == [ORDER]
    browser.open(address)
    assert buys(1) == [ORDER, ORDER]


def test_without_a_result_page_the_form_is_told_and_can_be_used_again(page, browser):
    page.open("stay.html")
    browser.click("#pay")
    assert wait_until(lambda: browser.run("return events.length"), 10)
    browser.click("#pay")
    assert wait_until(lambda: browser.run("return events.length == 2"), 10)
    assert browser.run("return events") == ["idem:done 201", "idem:done 201"]
    assert browser.run("return document.querySelector('#never').disabled")
    assert page.new_orders() == [ORDER, ORDER]


def test_the_next_token_comes_with_the_answer(page, browser, site):
    def asked():
        with open(site.where + "/access.log") as log:
            return sum(line.startswith("POST /token") for line in log)

    page.open("next.html")
    before = asked()
    for n in (1, 2, 3):
        browser.click("#pay")
        assert wait_until(lambda: browser.run("return events.length") == n, 10)
    assert browser.run("return events") == ["idem:done 201"] * 3
    assert page.new_orders() == [ORDER] * 3 and asked() == before


def test_a_service_that_redirects_is_followed(page, browser):
    page.open("redirect.html")
    browser.click("#pay")
    assert page.arrives_at("thanks.html")
    assert page.new_orders() == [ORDER]


def test_a_refusal_is_told_and_not_repeated(page, browser):
    page.open("bad.html")
    browser.click("#pay")
    assert wait_until(lambda: browser.run("return events.length"), 10)
    assert browser.run("return events") == ["idem:failed 400"]
    assert not browser.run("return document.querySelector('#pay').disabled")
    assert page.new_orders() == [ORDER]


def test_what_the_page_itself_cancelled_is_not_sent(page, browser):
    page.open("checked.html")
    browser.click("#pay")
    assert browser.run("return document.querySelector('form').idemBusy") is None
    assert page.new_orders() == []
