"""examples/bank: every call on its pages gives the answer on the page; and what a caller does wrong is told as such."""
import http.client
import json
import os
import re
import subprocess

import pytest

from lib import IDEM, ROOT, Process, folder, free_port
from servers import Redis

PAGES = {name: os.path.join(ROOT, "examples/bank", name) for name in ("README.md", "README.zh-CN.md")}


def calls(name):
    """(command, lines that it prints) for every line that begins with $ in a console block of the page."""
    with open(PAGES[name]) as f:
        blocks = re.findall(r"^```console\n(.*?)^```", f.read(), re.M | re.S)
    found = []
    for line in "".join(blocks).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


class Bank(Process):
    def __init__(self, *args):
        self.port = free_port()
        super().__init__([os.path.join(ROOT, "examples/bank/run"), str(self.port), *args], ready=self.port)

    def __call__(self, method, path, body=None, **headers):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request(method, path, json.dumps(body) if body is not None else None,
                  {k.replace("_", "-"): v for k, v in headers.items()})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, json.loads(text) if text.startswith("{") else text

    def ticket(self):
        return self("POST", "/tickets")[1]["ticket"]


@pytest.fixture(scope="module")
def bank():
    with Bank() as b:
        yield b


@pytest.mark.parametrize("name", PAGES)
def test_every_call_on_the_page_gives_the_answer_on_the_page(name):
    steps = calls(name)
    assert len(steps) > 40
    with Bank() as bank, folder() as where:
        script = "\n".join("%s\necho ----" % command.replace("localhost:8080", "127.0.0.1:%d" % bank.port)
                           for command, _ in steps)
        done = subprocess.run(["bash", "-c", script], cwd=where, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        for (command, wanted), got in zip(steps, done.stdout.split("----\n")):
            pattern = "\n".join(wanted + [""]) if wanted else ""
            assert re.fullmatch(re.escape(pattern).replace("…", r"[^\n]*"), got), (command, wanted, got)


def test_both_pages_make_the_same_calls():
    assert calls("README.md") == calls("README.zh-CN.md")


def test_an_order_number_sent_back_as_text_or_as_a_number_is_the_same_order(bank):
    no = bank("POST", "/orders", {"item": "phone"})[1]["no"]
    assert bank("POST", "/orders", {"item": "phone", "no": no}) == (200, {"verdict": "duplicate", "no": no})
    assert bank("POST", "/orders", {"item": "phone", "no": int(no)}) == (200, {"verdict": "duplicate", "no": no})
    assert bank("POST", "/orders", {"item": "phone", "no": "seven"})[0] == 400


def test_a_ticket_with_another_amount_or_account_is_refused(bank):
    ticket = bank.ticket()
    assert bank("PUT", "/accounts/ann/" + ticket, {"amount": 10}) == (200, {"withdrawn": 10})
    assert bank("PUT", "/accounts/ann/" + ticket, {"amount": 11})[0] == 422
    assert bank("PUT", "/accounts/bob/" + ticket, {"amount": 10})[0] == 422
    assert bank("PUT", "/accounts/ann/" + ticket, {"amount": 10}) == (200, {"withdrawn": 10})


def test_an_amount_behind_a_question_mark_is_withdrawn(bank):
    before, ticket = bank("GET", "/accounts/bob")[1]["balance"], bank.ticket()
    assert bank("PUT", "/accounts/bob/%s?amount=10" % ticket) == (200, {"withdrawn": 10})
    assert bank("GET", "/accounts/bob")[1]["balance"] == before - 10


@pytest.mark.parametrize("amount", [None, 0, -1, "ten", 1.5, "", 10 ** 13])
def test_a_wrong_amount_is_the_callers_mistake_and_the_ticket_stays_good(bank, amount):
    ticket = bank.ticket()
    status, said = bank("PUT", "/accounts/ann/" + ticket, {} if amount is None else {"amount": amount})
    assert status == 400 and "amount" in said["error"] and said["retryable"] is False
    assert bank("PUT", "/accounts/ann/" + ticket, {"amount": 1}) == (200, {"withdrawn": 1})


@pytest.mark.parametrize("field,value", [("source", None), ("seq", None), ("seq", ""), ("amount", None), ("from", 7),
                                         ("to", "x" * 65)])
def test_a_transfer_without_one_of_its_fields_is_the_callers_mistake(bank, field, value):
    body = {"source": "s", "seq": "q-" + field, "from": "ann", "to": "bob", "amount": 1}
    body.update({field: value})
    status, said = bank("POST", "/transfers", {k: v for k, v in body.items() if v is not None})
    assert status == 400 and field in said["error"] and said["retryable"] is False


@pytest.mark.parametrize("settings,options", [({}, ""), ({"appendonly": "no"}, "?unsafe=forget")],
                         ids=["kept", "may-forget"])
def test_tokens_can_be_in_redis(settings, options):
    redis = Redis(**settings)
    url = redis.url + options
    try:
        with folder() as where, Bank("sqlite:%s/bank.db" % where, url) as bank:
            token = bank("GET", "/token")[1]
            listed = subprocess.run([IDEM, "scan", "--store", url], capture_output=True, text=True).stdout
            assert token in listed
            assert [bank("POST", "/test", token=token)[1] for _ in range(3)] == ["正常调用", "重复调用", "重复调用"]
            assert bank("PUT", "/accounts/ann/" + bank.ticket(), {"amount": 1})[0] == 200, "tickets are beside the accounts"
    finally:
        redis.stop()


def test_every_test_that_the_table_of_the_articles_names_is_there():
    tables = []
    for name in ("docs/articles.md", "docs/articles.zh-CN.md"):
        with open(os.path.join(ROOT, name)) as f:
            tables.append([line.split(" | ")[-1].strip(" |\n`") for line in f if re.match(r"\| 00\d ", line)])
    assert tables[0] == tables[1] and len(tables[0]) > 85
    for named in set(tables[0]) - {"—"}:
        file, _, test = named.partition("::")
        with open(os.path.join(ROOT, file if "/" in file else "tests/system/" + file)) as f:
            assert not test or "def %s(" % test in f.read(), named
