"""Send a request to a service behind idem until there is an answer, under one key."""
import http.client
import json
import random
import time
import urllib.request
import uuid
from typing import Any, Mapping, NamedTuple, Optional, Union

from .errors import OutcomeUnknown


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class _AsItIs(urllib.request.HTTPErrorProcessor):
    """No redirect and no exception: the answer is the caller's."""

    def http_response(self, request, response):
        return response

    https_response = http_response


def send(url: str, body: Union[bytes, str] = b"", *, key: Optional[str] = None, method: str = "POST",
         headers: Optional[Mapping[str, str]] = None, tries: int = 6, timeout: float = 30.0) -> Answer:
    """The answer of the service, or of the last try.

        answer = idem.http.send("http://127.0.0.1:8080/orders", json.dumps(cart), key="order-7")

    The key is made before the first try and kept through all of them: give one of your own where another process may go on. Raises
    OutcomeUnknown where the service says that nobody knows, and OSError where no try got an answer: send it again later, with the
    same key.
    """
    key = str(uuid.uuid4()) if key is None else key
    request = urllib.request.Request(url, body.encode() if isinstance(body, str) else body, dict(headers or {}), method=method)
    request.add_header("Idempotency-Key", '"%s"' % key.replace("\\", "\\\\").replace('"', '\\"'))
    opener = urllib.request.build_opener(_AsItIs)
    for i in range(1, tries + 1):
        after = 0.0
        try:
            with opener.open(request, timeout=timeout) as got:
                answer = Answer(got.status, got.headers, got.read())
        except (OSError, http.client.HTTPException) as e:
            if i == tries:
                raise e if isinstance(e, OSError) else OSError("no answer that can be read: %r" % e) from e
        else:
            told = _problem(answer)
            if str(told.get("type")).endswith(("/outcome-unknown", "#outcome-unknown")):
                raise OutcomeUnknown("nobody knows whether the request with the key %s was executed" % key)
            if told.get("retryable") is not True or i == tries:
                return answer
            text = answer.headers.get("Retry-After") or ""
            after = float(text) if text.isdigit() and len(text) < 6 else 0.0
        time.sleep(max(after, 0.1 * 2 ** min(i - 1, 8) * random.uniform(0.5, 1.5)))
    raise ValueError("tries is at least 1")


def _problem(answer: Answer) -> Mapping[str, Any]:
    if not (answer.headers.get("Content-Type") or "").startswith("application/problem+json"):
        return {}
    try:
        told = answer.json()
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
