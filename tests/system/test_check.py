"""idem check: storms of repeated requests against services that are idempotent, that are not, and that only look so.
Waits more than it works."""
import contextlib
import http.server
import json
import re
import subprocess
import threading

import pytest

from gateway import Gateway, Ledger
from lib import IDEM, folder, free_port, on_a_terminal


class Shop(http.server.ThreadingHTTPServer):
    """A shop in which every behaviour of interest can be chosen.

    none      every request is executed
    replay    one execution for a key, its answer is repeated; another body is refused
    race      as replay, but looks first and writes later
    blind     as replay, but does not compare bodies
    plain     executes every request, and always answers "ok"
    refuse    a repeat is refused with 409
    stuck     every request gets the same stored answer, whatever its key
    stamp     as replay, but every answer has a number of its own in it
    busy      as replay, but somebody else uses it all the time
    crash     as replay, but a repeat gets a server error
    mute      as replay, but the connection of a repeat is closed without an answer
    limited   one request of a new key succeeds, the others are told to come later
    twice     every new key has two effects from the second key on
    never     only the first key has an effect

    `shown` is what GET answers: it gets the number of effects.
    """
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, way, key=lambda request: request["headers"].get("idempotency-key"), shown=lambda n: {"name": "orders", "count": n}):
        self.way, self.key, self.shown = way, key, shown
        self.lock, self.effects, self.known, self.answers = threading.Lock(), 0, {}, 0
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = "http://127.0.0.1:%d" % self.server_address[1]

    def execute(self):
        with self.lock:
            self.effects += 1
            return {"order": self.effects}

    def once(self, key, body):
        """(status, answer, replayed)"""
        if self.way == "none":
            return 201, self.execute(), False
        if self.way == "plain":
            self.execute()
            return 200, "ok", False
        if self.way == "stuck":
            key = "the only one"
        if self.way == "race":
            known = self.known.get(key)
            if not known:
                threading.Event().wait(0.05)
                self.known[key] = known = body, self.execute()
            return 201, known[1], False
        with self.lock:
            known = self.known.get(key)
            replayed = known is not None
            if not replayed and self.way == "limited" and len(self.known) > 2:
                return 429, "later", False
            if not replayed:
                first = not self.known
                self.effects += 0 if self.way == "never" and not first else 2 if self.way == "twice" and not first else 1
                known = self.known[key] = body, {"order": len(self.known)}
            self.answers += 1
        if self.way == "mute" and replayed:
            return None, "", False
        if self.way == "crash" and replayed:
            return 500, "again", False
        if self.way == "refuse" and replayed:
            return 409, "again", False
        if known[0] != body and self.way in ("replay", "stamp"):
            return 422, "another body", False
        if self.way == "stamp":
            return 201, {**known[1], "answer": self.answers}, False
        return 201, known[1], replayed

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.effects += self.server.way == "busy"
        shown = self.server.shown(self.server.effects)
        self.respond(*(shown if isinstance(shown, tuple) else (200, shown)))

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = {"headers": {k.lower(): v for k, v in self.headers.items()}, "path": self.path, "body": body}
        self.respond(*self.server.once(self.server.key(request), body))

    def respond(self, status, answer, replayed=False):
        if status is None:
            self.close_connection = True
            return
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        with contextlib.suppress(OSError):
            self.send_response(status)
            if replayed:
                self.send_header("Idempotent-Replayed", "true")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *_):
        pass


def check(url, *flags, body='{"amount":10}'):
    run = subprocess.run([IDEM, "check", url, "--body", body, "--parallel", "20", "--timeout", "30s", *flags],
                         capture_output=True, text=True, timeout=300)
    return run.returncode, run.stdout, run.stderr


def check_json(url, *flags, **more):
    code, out, err = check(url, "--json", *flags, **more)
    found = json.loads(out)
    return code, found, {r["round"].split(",")[0]: r for r in found.get("rounds", [])}


def test_a_service_that_executes_every_request_is_not_idempotent():
    with Shop("none") as shop:
        code, out, _ = check(shop.url + "/orders")
        assert code == 1 and "\nnot idempotent: one key" in out, out
        assert re.search(r'^FAILED  one key, at the same time: 23 x 201; 23 different responses: {"order": \d+} and', out, re.M)
        assert "\x1b" not in out


def test_an_idempotent_service_is_told_so_by_its_answers_alone():
    with Shop("replay") as shop:
        code, found, rounds = check_json(shop.url + "/orders")
        assert code == 0 and found["verdict"] == "idempotent", found
        assert "judged by the responses only" in found["why"]
        assert rounds["one key"]["statuses"] == {"201": 23} and rounds["one key"]["different_answers"] == 1
        assert rounds["one key"]["replayed"] == 22 and "effects" not in rounds["one key"]
        assert rounds["different keys"]["different_answers"] == 20
        assert rounds["two bodies under one key"]["statuses"]["422"] == 11
        assert rounds["cut connections"]["no_answer"] <= 5
        assert shop.effects == 1 + 1 + 20 + 2 + 1


def test_effects_are_counted_where_a_url_tells_them():
    with Shop("replay") as shop:
        code, found, rounds = check_json(shop.url + "/orders", "--effect-url", shop.url + "/count")
        assert code == 0 and "one for each key" in found["why"], found
        assert rounds["one key"]["effects"] == 1 and rounds["different keys"]["effects"] == 20
        assert rounds["two bodies under one key"]["effects"] == 1 and rounds["cut connections"]["effects"] == 1
        code, found, _ = check_json(shop.url + "/orders", "--effect-url", shop.url, "--effect-field", "name")
        assert code == 2 and "the response is not a number" in found["text"], found


def test_effects_that_never_settle_end_the_check():
    with Shop("busy") as shop:
        code, out, err = check(shop.url + "/orders", "--effect-url", shop.url + "/count")
        assert code == 2 and out == "" and "the number changes all the time" in err and "nobody else uses" in err, (code, out, err)


def test_a_check_before_a_write_is_found_by_its_race():
    with Shop("race") as shop:
        code, found, rounds = check_json(shop.url + "/orders", "--effect-url", shop.url)
        assert code == 1 and rounds["one key"]["effects"] > 1, found


def test_equal_answers_prove_nothing_if_all_are_equal():
    with Shop("plain") as shop:
        code, found, rounds = check_json(shop.url + "/orders")
        assert code == 3 and found["verdict"] == "cannot tell" and "--effect-url" in found["why"], found
        code, found, rounds = check_json(shop.url + "/orders", "--effect-url", shop.url)
        assert code == 1 and rounds["one key"]["effects"] == 23, found


def test_one_answer_for_all_keys_is_not_idempotence():
    with Shop("stuck") as shop:
        code, found, rounds = check_json(shop.url + "/orders")
        assert code == 1 and "new key" in rounds["different keys"]["why"], found
        assert check_json(shop.url + "/orders", "--effect-url", shop.url)[0] == 3  # even one request has no effect


def test_repeats_may_be_refused():
    with Shop("refuse") as shop:
        code, found, rounds = check_json(shop.url + "/orders", "--timeout", "5s")
        assert code == 0 and rounds["one key"]["statuses"] == {"201": 1, "409": 22}, found
        assert rounds["cut connections"]["result"] in ("open", "ok")  # the first answer may be faster than the cut
        code, found, rounds = check_json(shop.url + "/orders", "--timeout", "5s", "--effect-url", shop.url)
        assert code == 0 and rounds["cut connections"]["result"] == "ok", found


def test_weak_spots_are_named():
    with Shop("blind") as shop:
        code, found, rounds = check_json(shop.url + "/orders")
        assert code == 0 and rounds["two bodies under one key"]["result"] == "weak", found
        assert "not refused (422)" in rounds["two bodies under one key"]["why"]
    with Shop("stamp") as shop:
        assert check_json(shop.url + "/orders")[0] == 1
        code, found, rounds = check_json(shop.url + "/orders", "--effect-url", shop.url)
        assert code == 0 and "one effect, but" in rounds["one key"]["why"], found


FEW = ("--parallel", "4")


@pytest.mark.parametrize("shown", [lambda n: n, lambda n: ["order"] * n, lambda n: {"name": "orders", "all": ["order"] * n},
                                   lambda n: b"%d orders" % n, lambda n: b"balance: -%d" % n, lambda n: "%d orders" % n],
                         ids=["a number", "an array", "an array in an object", "text", "a negative number in text", "text in JSON"])
def test_the_effects_are_read_from_whatever_shows_them(shown):
    with Shop("replay", shown=shown) as shop:
        code, found, rounds = check_json(shop.url, "--effect-url", shop.url, *FEW)
        assert code == 0 and {name: r["effects"] for name, r in rounds.items()} == {
            "one request": 1, "one key": 1, "different keys": 4, "two bodies under one key": 1, "cut connections": 1}, found


@pytest.mark.parametrize("shown,code,text", [(lambda n: {"name": "orders"}, 2, "the response is not a number"), (lambda n: b"none", 2, "is not a number"),
                                             (lambda n: [] if n == 0 else b"?", 2, "is not a number"), (lambda n: None, 2, "is not a number"),
                                             (lambda n: (404, n), 20, "returned status 404; give an --effect-url"),
                                             (lambda n: n if n == 0 else (503, n), 20, "returned status 503"),
                                             (lambda n: n if n < 3 else (301, n), 20, "returned status 301"),
                                             (lambda n: b"1" * 1100000, 20, "Failed writing received data")])
def test_effects_that_cannot_be_read_end_the_check(shown, code, text):
    with Shop("replay", shown=shown) as shop:
        got, found, _ = check_json(shop.url, "--effect-url", shop.url, *FEW)
        assert got == code and text in found["text"] and "verdict" not in found, found


@pytest.mark.parametrize("way,round,result,why", [("crash", "one key", "weak", "repeats got server errors"),
                                                  ("mute", "one key", "weak", "some requests got no response"),
                                                  ("limited", "different keys", "weak", "not all succeeded, which may be a limit"),
                                                  ("never", "different keys", "failed", "requests with keys of their own had no effect"),
                                                  ("twice", "different keys", "failed", "there were more effects than requests")])
def test_what_a_round_shows_is_said(way, round, result, why):
    with Shop(way) as shop:
        code, found, rounds = check_json(shop.url, "--effect-url", shop.url, "--timeout", "300ms", *FEW)
        assert rounds[round]["result"] == result and why in rounds[round]["why"], found
        assert (code == 1) == (result == "failed"), found


def test_an_effect_that_is_no_multiple_is_shown_as_a_change():
    """The first request counts one, and each other key two: 1.5 effects is nothing to speak of."""
    with Shop("twice", shown=lambda n: n + 1.5 if n > 3 else 2 * n) as shop:
        code, out, _ = check(shop.url, "--effect-url", shop.url, *FEW)
        assert code == 1 and "; the number changed by " in out and "; effects: 1\n" in out, out


def test_a_form_gets_one_more_field_as_its_other_body():
    with Shop("replay") as shop:
        code, found, rounds = check_json(shop.url, *FEW, body="amount=10")
        assert code == 0 and rounds["two bodies under one key"]["statuses"]["422"] == 3, found
        assert {body for body, _ in shop.known.values()} == {b"amount=10", b"amount=10&idem_check=1"}
    for body, other in (('{"name":"ann"}', b'{"name":"ann","idem_check":1}'), ('{"a":"b","n":1,"m":2}', b'{"a":"b","n":2,"m":2}'), ("[1]", b"[1]&idem_check=1")):
        with Shop("replay") as shop:
            assert check_json(shop.url, *FEW, body=body)[0] == 0
            assert {sent for sent, _ in shop.known.values()} == {body.encode(), other}


def test_a_request_without_a_body_has_no_other_body():
    with Shop("replay") as shop:
        code, found, rounds = check_json(shop.url, *FEW, body="")
        assert code == 0 and "two bodies under one key" not in rounds, found
        code, found, rounds = check_json(shop.url, *FEW, "--other-body", "other", body="")
        assert code == 0 and rounds["two bodies under one key"]["statuses"]["422"] == 3, found
        code, found, _ = check_json(shop.url, *FEW, "--header", "content-type: text/plain", "--effect-url", shop.url)
        assert code == 0, found


def test_a_body_that_cannot_be_read_sends_nothing():
    with Shop("replay") as shop:
        for flags in (["--body", "@/no/such/file"], ["--other-body", "@/no/such/file"], ["--header", "A: b\nC: d"], ["--header", "A: b\rC: d"]):
            code, out, err = check(shop.url, *flags)
            assert code == 2 and out == "" and ("cannot read /no/such/file" in err or "is not a header" in err), err
        assert shop.effects == 0 and not shop.known


def test_a_key_may_be_anywhere_in_the_request():
    cases = (
        (["--body", '{"seq":"{key}","amount":1}'], lambda r: json.loads(r["body"])["seq"]),
        (["--header", "X-Request: n-{key}"], lambda r: r["headers"].get("x-request")),
        (["--key-header", "X-Request-Id"], lambda r: r["headers"].get("x-request-id")),
    )
    for flags, key in cases:
        with Shop("replay", key) as shop:
            code, found, _ = check_json(shop.url + "/orders", *flags)
            assert code == 0, (flags, found)
            assert None not in shop.known
            assert check(shop.url + "/o")[0] != 0  # a key that the service does not look at
    with Shop("replay", lambda r: r["path"]) as shop:
        assert check_json(shop.url + "/orders/{key}")[0] == 0


def test_what_cannot_be_checked_is_said():
    code, _, err = check("http://127.0.0.1:%d/" % free_port())
    assert code == 20 and "onnect" in err, err
    code, found, rounds = None, None, None
    with Shop("replay") as shop:
        code, found, rounds = check_json(shop.url, "--method", "BREW")
        assert code == 3 and "does not succeed" in found["why"] and found["rounds"][0]["statuses"] == {"501": 1}
    for flags in (["ftp://host/"], ["http://h", "--parallel", "1"], ["http://h", "--parallel", "5000"],
                  ["http://h", "--header", "x"], ["http://h", "--timeout", "0"]):
        assert check(*flags)[0] == 2, flags


def test_a_gateway_makes_the_ledger_idempotent():
    with folder() as where, Ledger(where) as ledger:
        code, found, _ = check_json("http://127.0.0.1:%d/orders" % ledger.port)
        assert code == 1, found
        with Gateway(where, ledger.port) as gateway:
            before = len(ledger.entries())
            code, found, rounds = check_json("http://127.0.0.1:%d/orders" % gateway.port)
            assert code == 0 and all(r["result"] == "ok" for r in found["rounds"]), found
            assert rounds["two bodies under one key"]["statuses"]["422"] >= 1
            assert len(ledger.entries()) - before == 1 + 1 + 20 + 2 + 1


def test_progress_and_colour_are_for_terminals():
    with Shop("race") as shop:
        out = on_a_terminal("check", shop.url + "/", "--body", "{}", "--parallel", "20")
        assert "one key, at the same time: " in out and "\r\x1b[K" in out and "\x1b[31mFAILED" in out, out
        for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            out = on_a_terminal("check", shop.url + "/", "--body", "{}", "--parallel", "4", **plain)
            assert "\x1b[3" not in out and "FAILED" in out, out
    with Shop("blind") as shop:
        out = on_a_terminal("check", shop.url + "/", "--body", '{"n":1}', "--parallel", "4", NO_COLOR="")
        assert "\x1b[33mweak" in out and "\x1b[32midempotent\x1b[0m: " in out, out
    with Shop("plain") as shop:
        assert "\x1b[33mcannot tell" in on_a_terminal("check", shop.url + "/", "--body", "{}", "--parallel", "4")
