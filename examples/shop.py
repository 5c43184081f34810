#!/usr/bin/python3
"""A little shop that is NOT idempotent: every POST /orders is a new order. Put idem in front of it.

    examples/shop.py 9000          POST /orders   GET /orders
"""
import http.server
import json
import sys
import threading
import time

orders, lock = [], threading.Lock()


class Shop(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, value, **headers):
        body = json.dumps(value).encode() + b"\n"
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        wanted = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode(errors="replace")
        time.sleep(0.05)  # the work
        with lock:
            orders.append(wanted)
            number = len(orders)
        self.answer(201, {"order": number, "wanted": wanted}, Location="/orders/%d" % number)

    def do_GET(self):
        with lock:
            self.answer(200, {"orders": len(orders)})


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 512
    daemon_threads = True


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 9000), Shop).serve_forever()
