"""The retrying HTTP client: python send.py URL KEY TRIES. An empty key: one of its own. Prints one JSON object."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import idem.http  # noqa: E402

url, key, tries = sys.argv[1:]
try:
    answer = idem.http.send(url, "book", key=key or None, tries=int(tries))
    print(json.dumps({"status": answer.status, "body": answer.body.decode()}))
except idem.OutcomeUnknown:
    print(json.dumps({"error": "OutcomeUnknown"}))
except OSError:
    print(json.dumps({"error": "no answer"}))
