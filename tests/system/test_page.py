"""clients/js/idem.js in a real browser, through the real gateway with a token path, to a service that makes a new order
of every request: what counts is its ledger."""
import base64
import os
import shutil
import sys
import urllib.parse

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from browser import Browser
from chaos import Chaos
from gateway import Stack
from lib import ROOT, folder, wait_until

FORM = """<!doctype html><link rel="icon" href="data:,"><script src="idem.js"></script>
<form action="/orders" method="post" data-idem-token="/token" %s>
<input name="item" value="book"><input name="action" value="buy">
<button id="pay" name="how" value="card">Pay</button><button id="never" disabled>Not today</button></form>
<script>
window.events = [];
for (const name of ["idem:done", "idem:failed"])
    document.addEventListener(name, (e) => events.push(name + " " + (e.detail.status || e.detail)));
</script>"""
PAGES = {
    "form.html": FORM % 'data-idem-next="thanks.html"',
    "stay.html": FORM % "",
    "redirect.html": (FORM % "").replace("/orders", "/redirect"),
    "bad.html": (FORM % "").replace("/orders", "/bad"),
    "checked.html": FORM % 'onsubmit="return false"',
    "thanks.html": '<!doctype html><link rel="icon" href="data:,"><title>Thanks</title>',
}
GATED = "idem on; idem_key off; idem_token $http_token; idem_required on; proxy_pass http://service/orders;"


@pytest.fixture(scope="module")
def site():
    with folder() as f:
        os.chmod(f, 0o755)
        os.mkdir(f + "/pages")
        shutil.copy(os.path.join(ROOT, "clients/js/idem.js"), f + "/pages")
        for name, text in PAGES.items():
            open(f + "/pages/" + name, "w").write(text)
        more = """
        location = /token { idem_issue_token; }
        location /orders { %s proxy_set_header X-Sleep 0.4; }
        location /bad { %s proxy_set_header X-Code 400; }
        location /redirect { %s proxy_set_header X-Way bytes:%s; }
        location /pages/ { alias %s/pages/; types { text/html html; text/javascript js; } }
        """ % (GATED, GATED, GATED,
               b"HTTP/1.1 303 See\r\nLocation: /pages/thanks.html\r\nContent-Length: 0\r\n\r\n".hex(), f)
        with Stack(f, more=more) as stack:
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

        def new_orders(self):
            return [urllib.parse.parse_qs(base64.b64decode(e["body"]).decode())
                    for e in site.ledger.entries()[self.before:]]

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
    site.line.cut_at(2)  # the token arrives; the answer to the order does not
    browser.click("#pay")
    assert page.arrives_at("thanks.html")
    assert site.line.cuts >= 1
    assert page.new_orders() == [ORDER]
    with open(site.where + "/access.log") as log:
        told = [line.split("idem=")[1].split() for line in log if line.startswith("POST /orders")][-2:]
    assert told[0][0] == "started" and told[1][0] == "replay" and told[0][2] == told[1][2], told


def test_a_form_of_a_page_that_was_come_back_to_makes_another_order(page, browser):
    page.open("form.html")
    browser.click("#pay")
    assert page.arrives_at("thanks.html")
    browser.back()
    assert page.arrives_at("form.html")
    assert wait_until(lambda: not browser.run("return document.querySelector('#pay').disabled"), 5)
    browser.click("#pay")
    assert page.arrives_at("thanks.html")
    assert page.new_orders() == [ORDER, ORDER]


def test_without_a_result_page_the_form_is_told_and_can_be_used_again(page, browser):
    page.open("stay.html")
    browser.click("#pay")
    assert wait_until(lambda: browser.run("return events.length"), 10)
    browser.click("#pay")
    assert wait_until(lambda: browser.run("return events.length == 2"), 10)
    assert browser.run("return events") == ["idem:done 201", "idem:done 201"]
    assert browser.run("return document.querySelector('#never').disabled")
    assert page.new_orders() == [ORDER, ORDER]


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
