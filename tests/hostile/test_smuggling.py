"""Several hundred requests whose length can be read in two ways: every pair of a Content-Length and a Transfer-Encoding, in both
orders and versions. tests/system/test_gateway_security.py has the chosen ones; the rule is the same."""
import itertools

import pytest

from gateway import Stack
from lib import folder
from smuggling import HOST, INNER, KEY, check_ambiguous

LENGTHS = [b"Content-Length: 4\r\n", b"Content-Length: 0\r\n", b"Content-Length: 5\r\nContent-Length: 4\r\n", b"Content-Length: 4, 4\r\n",
           b"Content-Length: +4\r\n", b"Content-Length : 4\r\n", b"Content-Length: 4\n", b"Content-Length:\t4\r\n", b"content_length: 4\r\n",
           b"Content-Length: 04\r\n", b"Content-Length: 4\x00\r\n"]
ENCODINGS = [b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: Chunked\r\n", b"Transfer-Encoding:chunked\r\n",
             b"Transfer-Encoding : chunked\r\n", b"Transfer-Encoding: chunked\n", b"Transfer-Encoding: x, chunked\r\n",
             b"Transfer-Encoding: chunked, x\r\n", b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
             b"Transfer_Encoding: chunked\r\n", b"X: 1\r\n Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: \"chunked\"\r\n"]
BODIES = [b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n"]


def payloads():
    for (i, length), (j, encoding), (k, body) in itertools.product(enumerate(LENGTHS), enumerate(ENCODINGS), enumerate(BODIES)):
        for order, lines in (("le", length + encoding), ("el", encoding + length)):
            version = b"1.0" if (i + j + k) % 4 == 0 else b"1.1"
            yield ("%s-%d-%d-%d" % (order, i, j, k), b"POST /o HTTP/" + version + b"\r\n" + HOST + KEY + lines + b"\r\n" + body + INNER)


PAYLOADS = list(payloads())


@pytest.fixture(scope="module")
def stack():
    with folder() as where, Stack(where, workers=2, more="location = /connections { stub_status; }") as s:
        yield s


def test_there_are_enough():
    assert len(dict(PAYLOADS)) == len(PAYLOADS) >= 400


@pytest.mark.parametrize("name,payload", PAYLOADS, ids=[n for n, _ in PAYLOADS])
def test_a_pair_of_lengths(stack, name, payload):
    check_ambiguous(stack, name, payload)
