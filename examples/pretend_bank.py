#!/usr/bin/env python3
"""The bank of the examples: pretend_bank.py PORT. It pays as often as it is asked and prints every payment."""
import http.server
import sys
import urllib.parse


class Bank(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        declined = float(form["amount"]) > 1000
        print("%s %s for %s" % ("declined" if declined else "paid", form["amount"], form["order"]), flush=True)
        self.send_response(402 if declined else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Bank).serve_forever()
