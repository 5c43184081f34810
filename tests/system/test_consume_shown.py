"""What idem consume shows: its progress on a terminal, its figures, and the keys of messages with any bytes in their ids."""
import http.server
import os
import pty
import re
import subprocess
import threading

import pytest
import redis

import servers
from lib import IDEM, folder


@pytest.fixture(scope="module")
def broker():
    server = servers.Redis()
    yield server
    server.stop()


def consume(broker, stream, where, *args, **more):
    port = re.search(r":(\d+)", broker.url).group(1)
    return subprocess.run([IDEM, "consume", "redis-stream://127.0.0.1:%s?stream=%s&group=g" % (port, stream), "--store", "journal:" + where + "/j", *args],
                          timeout=60, **more)


def publish(broker, stream, *ids):
    with redis.Redis.from_url(broker.url) as client:
        for id in ids:
            client.xadd(stream, {"id": id, "body": "b"})


def test_progress_is_for_a_terminal(broker):
    with folder() as where:
        publish(broker, "shown", "first")  # and then the broker knows the group, and what waits for it
        assert consume(broker, "shown", where, "--until-idle", "100ms", "--quiet", "--", "true", capture_output=True).stderr == b""
        publish(broker, "shown", "a", "b")
        ours, theirs = pty.openpty()
        done = consume(broker, "shown", where, "--until-idle", "1500ms", "--", "true", stderr=theirs, stdout=subprocess.PIPE)
        os.close(theirs)
        said = os.read(ours, 65536).decode()
        os.close(ours)
    assert done.returncode == 0 and done.stdout == b"", said
    counts = r"received 2, handled 2, duplicates 0, retries 0, dead letters 0, doubts 0, put back 0, reconnects 0"
    assert re.search(r"\r\x1b\[K%s, waiting at the broker [0-2]" % counts, said), said
    assert re.search(r"\r\x1b\[K%s\r\n\Z" % counts, said), said


def test_quiet_and_json_show_no_progress(broker):
    publish(broker, "quiet", "a")
    with folder() as where:
        for flag in ("--quiet", "--json"):
            ours, theirs = pty.openpty()
            done = consume(broker, "quiet", where, "--until-idle", "300ms", flag, "--", "true", stderr=theirs, stdout=subprocess.PIPE)
            os.set_blocking(ours, False)
            os.close(theirs)
            with pytest.raises(OSError):
                os.read(ours, 65536)
            os.close(ours)
            assert done.returncode == 0 and (b'"received":' in done.stdout) == (flag == "--json"), done


def test_a_name_of_any_bytes_is_a_label(broker):
    publish(broker, "label", "a")
    with folder() as where:
        done = consume(broker, "label", where, "--consumer", 'q"b\\s\x01ü~', "--metrics", where + "/m", "--until-idle", "200ms", "--", "true", capture_output=True)
        assert done.returncode == 0, done
        with open(where + "/m") as f:
            text = f.read()
        assert re.search(r'^idem_consume_messages_total\{scope="[^"]*q%22b%5Cs%01%C3%BC~",what="handled"\} 1$', text, re.M), text
        subprocess.run(["promtool", "check", "metrics"], input=text, text=True, check=True)
        for path in (where + "/none/m", where + "/" + "long/" * 900):
            done = consume(broker, "label", where, "--metrics", path, "--", "true", capture_output=True, text=True)
            assert done.returncode == 2 and "cannot write --metrics " in done.stderr, done


def test_an_id_of_any_bytes_is_a_key(broker):
    """A key in quotes may hold any printable character of ASCII; other ids are sent as digits."""
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.headers["Idempotency-Key"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    service = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    ids = {b"plain ~": '"plain ~"', b'quote" and \\': '"quote\\" and \\\\"', "grün".encode(): '"6772c3bc6e"', b"line\nend": '"6c696e650a656e64"', b"\x7f": '"7f"'}
    publish(broker, "keys", *ids)
    with folder() as where:
        done = consume(broker, "keys", where, "--to", "http://127.0.0.1:%d/" % service.server_port, "--until-idle", "300ms", "--concurrency", "1", capture_output=True)
    service.shutdown()
    service.server_close()
    assert done.returncode == 0 and sorted(seen) == sorted(ids.values()), (seen, done)
