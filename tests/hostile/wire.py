"""Random input that is nearly right: commands, requests and JSON made from the grammar, and then damaged a little.

A Dice is a random.Random with a few choices more; one seed makes one input.
"""
import json
import random

from lib import encode

WORDS = [b"shop", b"order", b"", b"a" * 300, b"\x00", b"\xff\xfe", "é".encode(), b"*3", b"$-1", b"\r\n", b"0", b"..", b"%00", b"{a}", b"'; --"]
NUMBERS = [b"0", b"1", b"-1", b"5000", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"1e3", b"0x10", b" 1",
           b"1 ", b"", b"+5", b"00001", b"99999999999999999999999"]
OPTIONS = [b"LEASE", b"TTL", b"WAIT", b"NONCE", b"TAG", b"LOOSE", b"STRICT", b"FINGERPRINT", b"FP", b"KIND", b"COUNT", b"SCOPE", b"NEXT",
           b"NOTE", b"NOREPLAY", b"ID", b"SUBJECT", b"AS", b"FENCE", b"REASON", b"KEEP", b"FAIR", b"RETRY"]
VERBS = {b"BEGIN": 2, b"FINISH": 5, b"RELEASE": 3, b"RENEW": 4, b"GET": 2, b"FORGET": 2, b"SETTLE": 4, b"LOCK": 3, b"UNLOCK": 2, b"ISSUE": 1,
         b"REDEEM": 2, b"SCAN": 1, b"ID": 1, b"PING": 0, b"INFO": 0, b"HELLO": 1, b"AUTH": 2, b"COMMAND": 0, b"CLIENT": 2, b"ECHO": 1,
         b"CANCEL": 1, b"PROPOSALS": 0, b"WAITERS": 1, b"ROLLBACK": 1, b"SELECT": 1, b"STATS": 0, b"NOSUCH": 1}


class Dice(random.Random):
    def maybe(self, chance):
        return self.random() < chance

    def number(self):
        return self.choice(NUMBERS) if self.maybe(0.3) else b"%d" % self.randint(0, 60000)

    def word(self):
        return self.choice(WORDS) if self.maybe(0.3) else b"w%d" % self.randint(0, 40)

    def text(self):
        return self.word() if self.maybe(0.9) else bytes(self.choices(range(256), k=self.randint(0, 5000)))

    def damaged(self, data):
        """Some bytes changed, cut out, repeated or put in."""
        data = bytearray(data)
        for _ in range(self.randint(1, 4)):
            at = self.randint(0, len(data))
            what = self.randint(0, 4)
            if what == 0 and data:
                data[at % len(data)] = self.randint(0, 255)
            elif what == 1:
                del data[at:at + self.randint(1, 20)]
            elif what == 2:
                data[at:at] = data[at:at + self.randint(1, 200)]
            elif what == 3:
                data[at:at] = self.choice(WORDS + NUMBERS + [b"\r\n", b"\n", b"*", b"$", b":", b"\r\n\r\n", b"*1000000\r\n", b"$1000000\r\n"])
            else:
                data = data[:at]
        return bytes(data)

    def pieces(self, data):
        """As the network may cut it."""
        while data:
            length = self.choice((1, 2, 7, 100, 5000, len(data)))
            yield data[:length]
            data = data[length:]


def command(dice):
    """One RESP command; one in six is damaged. Most have a short wait, so that nothing holds the line."""
    verb = dice.choice(list(VERBS))
    words = [verb] + [dice.number() if dice.maybe(0.2) else dice.text() for _ in range(VERBS[verb])]
    if verb == b"FINISH" and dice.maybe(0.8):
        words[4] = dice.choice((b"SUCCEEDED", b"FAILED", b"succeeded", b""))
    for _ in range(dice.choice((0, 0, 1, 2, 5))):
        option = dice.choice(OPTIONS)
        words += [option, b"%d" % dice.randint(0, 50) if option == b"WAIT" else dice.number() if dice.maybe(0.5) else dice.text()]
    if dice.maybe(0.05):
        words = words[:dice.randint(0, len(words))] + [b"x"] * dice.choice((0, 1, 2000))
    data = encode(*words) if dice.maybe(0.95) else b" ".join(words) + b"\r\n"
    return dice.damaged(data) if dice.maybe(0.17) else data


def json_text(dice, deep=0):
    value = lambda: dice.choice((dice.randint(-5, 70000), "x" * dice.randint(0, 300), None, True, 1e300, -1, 2**70, "\u0000", "é", [], {}))  # noqa: E731
    names = ["subject", "lease", "ttl", "wait", "nonce", "fence", "outcome", "result", "kind", "mode", "fingerprint", "holder", "note", "next",
             "count", "reason", "as", "name", "secret", "id", "nosuch"]
    data = {dice.choice(names): value() for _ in range(dice.randint(0, 6))}
    if deep < 3 and dice.maybe(0.1):
        data[dice.choice(names)] = json.loads(json_text(dice, deep + 1))
    return json.dumps(data).encode()


PATHS = [b"/v1/records/%s/%s/begin", b"/v1/records/%s/%s/finish", b"/v1/records/%s/%s/release", b"/v1/records/%s/%s/renew", b"/v1/records/%s/%s",
         b"/v1/records/%s/%s/settle", b"/v1/records?scope=%s&count=%s", b"/v1/locks/%s?fence=%s", b"/v1/tokens/%s/redeem?x=%s",
         b"/v1/ids/%s?count=%s", b"/v1/doubts?count=%s%s", b"/v1/stats?seconds=%s%s", b"/v1/play/%s/%s", b"/v1/session%s%s", b"/metrics%s%s",
         b"/health%s%s", b"/%s%s", b"/problems/%s%s", b"/v1/consumers/%s%s", b"/v1/audit?count=%s&%s"]


def escaped(word):
    return b"".join(b"%c" % c if chr(c).isalnum() else b"%%%02x" % c for c in word)


def http_request(dice, path=None, headers=()):
    """One HTTP request; one in six is damaged."""
    method = dice.choice((b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"BREW"))
    path = path or dice.choice(PATHS) % (escaped(dice.word()), escaped(dice.word()))
    body = dice.damaged(json_text(dice)) if dice.maybe(0.1) else json_text(dice)
    lines = [b"%s %s HTTP/1.%d" % (method, path, dice.choice((1, 1, 1, 0))), b"Host: 127.0.0.1", *headers]
    if dice.maybe(0.8):
        lines.append(b"Content-Type: application/json")
    if dice.maybe(0.2):
        lines.append(dice.choice((b"X: " + dice.word().replace(b"\r\n", b""), b"Expect: 100-continue", b"Connection: close", b"Accept: text/html",
                                  b"Authorization: Bearer " + b"x" * 100, b"Cookie: idem=" + b"y" * 50, b"Range: bytes=0-1", b"Origin: http://evil")))
    if dice.maybe(0.2):
        lines.append(b"Transfer-Encoding: chunked")
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in dice.pieces(body)) + b"0\r\n\r\n"
    else:
        lines.append(b"Content-Length: %d" % (len(body) if dice.maybe(0.97) else dice.randint(0, 2000)))
    data = b"\r\n".join(lines) + b"\r\n\r\n" + body
    return dice.damaged(data) if dice.maybe(0.17) else data
