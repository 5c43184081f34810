"""Requests that two HTTP parsers may read in different ways, and what must hold for each of them."""
from gateway import ask, eventually, raw

KEY = b"Idempotency-Key: %s\r\n"
HOST = b"Host: x\r\n"
INNER = b"POST /smuggled HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


def check_ambiguous(stack, name, payload):
    """A payload comes twice with one key, with a probe behind it: the gated request runs at most once, what follows it is
    seen as its own request or not at all, and nobody gets somebody else's answer."""
    key = ("smuggle-" + name).encode()
    before = len(stack.ledger.entries())
    for _ in range(2):
        data = payload.replace(b"%s", key)
        got = raw(stack.port, data, timeout=0.25)
        for answer in got.split(b"HTTP/1.")[1:]:
            assert answer[:1] in (b"0", b"1") and answer[2:5] in (b"200", b"201", b"400", b"405", b"411", b"413", b"414", b"501",
                                                                  b"505", b"100", b"422"), answer[:100]
    # What was sent may be on its way still: nothing is when the only connection left is the one that asks.
    eventually(lambda: b"Active connections: 1 " in ask(stack.port, method="GET", path="/connections", body=None).body)
    fresh = stack.ledger.entries()[before:]
    gated = [e for e in fresh if (e["key"] or "").strip('"').startswith(key.decode())]
    inner = [e for e in fresh if e["path"] == "/smuggled"]
    assert len(gated) <= 1 and len(gated) + len(inner) == len(fresh), fresh
    assert len(inner) <= 2
    for e in fresh:
        assert "x-evil" not in [n.lower() for n in e["names"]]
        assert "content-length" in [n.lower() for n in e["names"]] or "transfer-encoding" not in e["names"]
    probe = ask(stack.port, "probe-" + name)
    assert probe.status == 201 and not probe.replayed and ask(stack.port, "probe-" + name).body == probe.body
