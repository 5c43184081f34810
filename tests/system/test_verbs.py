"""Verbs of several operations (a request or else a token, SETTLE's look, REDEEM NEXT) come to the same through RESP,
HTTP, the command line and C: one story, told through each of them."""
import http.client
import json
import os
import re
import subprocess
import urllib.error
import urllib.request

import pytest

import servers
from lib import IDEM, Server, folder, run_c_test

TTL_MS = 123456


class ThroughResp:
    def __init__(self, server):
        self.resp = server.client()

    def issue(self):
        return self.resp("ISSUE", "verbs", "TTL", TTL_MS)[1]

    def verb(self, name, id, fence=None):
        more = {"begin": ("TOKEN",), "renew": (fence, 60000), "release": (fence,),
                "finish": (fence, "SUCCEEDED", "paid")}.get(name, ())
        got = self.resp(name.upper(), "verbs", id, *more)
        return {"verdict": got[0], "fence": got[1] if got[0] == "started" else None}

    def get(self, id):
        got = self.resp("GET", "verbs", id)
        return {"verdict": got[0], **dict(zip(got[1::2], got[2::2]))}

    def redeem_next(self, token):
        got = self.resp("REDEEM", token, "verbs", "NEXT")
        return {"verdict": got[0], "token": got[1] if len(got) > 1 else None}


class ThroughHttp:
    def __init__(self, server):
        self.port = server.http

    def ask(self, method, path, **fields):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, json.dumps(fields) if method == "POST" else None,
                           {"Content-Type": "application/json"} if method == "POST" else {})
        return json.loads(connection.getresponse().read())

    def issue(self):
        return self.ask("POST", "/v1/tokens", subject="verbs", ttl_ms=TTL_MS)["token"]

    def verb(self, name, id, fence=None):
        fields = {"begin": {"token": True}, "renew": {"fence": fence, "lease_ms": 60000}, "release": {"fence": fence},
                  "finish": {"fence": fence, "outcome": "succeeded", "result": "paid"}}.get(name, {})
        return self.ask("POST", "/v1/records/verbs/%s/%s" % (id, name), **fields)

    def get(self, id):
        got = self.ask("GET", "/v1/records/verbs/" + id)
        return {"verdict": got["verdict"], **got.get("record", {})}

    def redeem_next(self, token):
        return self.ask("POST", "/v1/tokens/%s/redeem" % token, subject="verbs", next=True)


class ThroughCli:
    def __init__(self, server):
        self.url = "idem+unix:" + server.socket

    def ask(self, *args):
        done = subprocess.run([IDEM, *map(str, args), "--json"], stdout=subprocess.PIPE, timeout=60,
                              env={**os.environ, "IDEM_STORE": self.url})
        return json.loads(done.stdout)

    def issue(self):
        return self.ask("issue", "verbs", "--ttl", "%dms" % TTL_MS)["tokens"][0]

    def verb(self, name, id, fence=None):
        more = {"begin": ("--token",), "renew": (fence, "1m"), "release": (fence,),
                "finish": (fence, "succeeded", "paid")}.get(name, ())
        return self.ask(name, "verbs", id, *more)

    def get(self, id):
        return self.ask("get", "verbs", id)

    def redeem_next(self, token):
        return self.ask("redeem", token, "verbs", "--next")


def story(by, absent):
    """The same steps as in tests/c/verbs_test.c, in the same words."""
    lines = []

    def tell(step, *args):
        got = by.verb(*args)
        lines.append("%s %s" % (step, got["verdict"]))
        return got.get("fence")

    def show(step, id):
        got = by.get(id)
        lines.append(" ".join([step, got["verdict"]] + ([got["type"], got["state"]] if got["verdict"] == "record" else [])
                              + ([str(got["expires"] - got["created"])] if got.get("state") == "issued" else [])))

    def redeem_next(step, token):
        got = by.redeem_next(token)
        lines.append("%s %s %s" % (step, got["verdict"], "token" if got.get("token") else "none"))
        return got.get("token")

    show("get-nothing", absent)
    tell("settle-nothing", "settle", absent)
    show("settled-nothing", absent)
    token = by.issue()
    tell("settle-token", "settle", token)
    show("settled-token", token)
    token = by.issue()
    fence = tell("begin-token", "begin", token)
    tell("renew-token", "renew", token, fence)
    tell("release-token", "release", token, fence)
    fence = tell("again-token", "begin", token)
    tell("finish-token", "finish", token, fence)
    show("finished-token", token)
    tell("finish-nothing", "finish", "no-such-id", fence)
    token = by.issue()
    fresh = redeem_next("redeem-next", token)
    show("fresh-token", fresh)
    redeem_next("redeem-twice", token)
    redeem_next("redeem-nothing", "no-such-token")
    return lines


def story_in_c(store):
    said = run_c_test("verbs_test", store).splitlines()
    return [line.split("story: ", 1)[1] for line in said if "story: " in line]


def lifetimes(lines):
    """An engine on a store with its own clock adds to a lifetime what it does not know about that clock: milliseconds."""
    return [re.sub(r"\d+$", lambda n: str(TTL_MS) if TTL_MS <= int(n[0]) < TTL_MS + 2000 else n[0], line) for line in lines]


@pytest.fixture(params=["journal", "redis"])
def stores(request):
    """Two fresh ones. A server drives the engine of a journal itself; that of Redis has a thread of its own."""
    with folder() as where:
        if request.param == "journal":
            yield "journal:%s/a" % where, "journal:%s/b" % where
            return
        redis = servers.Redis()
        try:
            yield redis.url, redis.url + "/1"
        finally:
            redis.stop()


def test_every_surface_tells_the_same_story(stores):
    with folder() as where, Server(where, http=True, store=stores[0]) as server:
        told = {by.__name__: story(by(server), by.__name__) for by in (ThroughResp, ThroughHttp, ThroughCli)}
        told["C, through the server"] = story_in_c("idem+unix:" + server.socket)
    told["C, on a store"] = expected = lifetimes(story_in_c(stores[1]))
    assert "fresh-token record token issued %d" % TTL_MS in expected and "settled-token record token failed" in expected
    assert "settled-nothing record request failed" in expected and "finished-token record token succeeded" in expected
    assert len(expected) == 16
    for by, lines in told.items():
        assert lifetimes(lines) == expected, by


@pytest.mark.parametrize("store", ["memory:", "sqlite:%s/db"], ids=["driven", "threaded"])
def test_many_tokens_in_one_answer_are_one_thing_on_both_surfaces(store):
    with folder() as where, Server(where, "--max-queue", "64", "--token-rate", "0", http=True, store=store.replace("%s", where)) as s, \
            s.client() as c:
        def over_http(count):
            request = urllib.request.Request("http://127.0.0.1:%d/v1/tokens" % s.http, json.dumps({"subject": "me", "count": count}).encode(),
                                             {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as e:
                return e.code, json.load(e)
        said = c("ISSUE", "me", "COUNT", 60)
        status, told = over_http(60)
        assert said[0] == "issued" and status == 200 and told["expires"] > 1e12, told
        tokens = said[1:] + told["tokens"]
        assert len(set(tokens)) == 120 and told["token"] == told["tokens"][0]
        assert all(c("REDEEM", token, "me")[0] == "redeemed" for token in tokens)
        # More than the queue takes at once: refused as a whole, unless the engine was quick, and the next ones work.
        said = c("ISSUE", "me", "COUNT", 1000)
        assert len(said) == 1001 if isinstance(said, list) else said.word == "OVERLOADED", said
        status, told = over_http(1000)
        assert len(told["tokens"]) == 1000 if status == 200 else told["type"].endswith("/overloaded"), told
        for n in range(20):
            c.send("ISSUE", "me", "COUNT", 3, "TAG", n)
        assert sorted(c.read()[1] for _ in range(20)) == list(range(20))
        assert over_http(1)[0] == 200 and c("ISSUE", "me")[0] == "issued"
