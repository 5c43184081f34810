"""The tutorials and the how-to pages work. Every ```sh block runs, in order, in one shell; a ```text block is what the last one printed,
or the server that it started in the background ("…": anything).

Waits more than it works.
"""
import contextlib
import os
import re
import signal
import subprocess
import time

import pytest

import servers
from lib import IDEM, ROOT, folder, free_port, listens, wait_until

FOLDER = os.path.join(ROOT, "docs")
END = "--- end of block ---"
PAGES = sorted(place + "/" + f for place in ("tutorials", "howto") for f in os.listdir(os.path.join(FOLDER, place))
               if f.endswith(".md") and not f.endswith(".zh-CN.md"))


def blocks(page):
    with open(os.path.join(FOLDER, page)) as f:
        return re.findall(r"^```(sh|text|java|python|sql)\n(.*?)^```$", f.read(), re.M | re.S)


class Shell:
    """A shell as a reader has it: an empty home, another folder to begin in, idem on the path. Ports of the page become free ones."""

    def __init__(self, home, code, env):
        self.ports = {port: str(free_port()) for port in sorted(set(re.findall(r"(?:127\.0\.0\.1:|\.py |--port )(\d{4,5})\b", code)))}
        path = os.path.dirname(IDEM) + ":" + os.environ["PATH"]
        self.home, self.before, self.log = home, 0, open(os.path.join(home, "errors"), "w+")
        os.mkdir(os.path.join(home, "clone"))
        self.process = subprocess.Popen(["bash"], cwd=os.path.join(home, "clone"), text=True, bufsize=1, start_new_session=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.log, env={**os.environ, "HOME": home, "PATH": path, "IDEM_CLONE": ROOT, **env})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, how)
                time.sleep(0.5)
            except ProcessLookupError:
                break
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.log.close()

    def run(self, code):
        """What the block prints. It is pasted whole; a server that it starts in the background is up before the next block."""
        code = re.sub(r"\b\d{4,5}\b", lambda port: self.ports.get(port.group(), port.group()), code)
        out, ports, self.before = "", [], len(self.servers())
        for part in re.split(r"(?<= &\n)", code):
            out += self.say(part.replace(" &\n", " >>$HOME/background 2>&1 &\n"))
            server = re.search(r"(?:--listen 127\.0\.0\.1:|\.py )(\d+).* &\n$", part)
            ports += [int(server.group(1))] if server else []
        wait_until(lambda: all(listens(port) for port in ports), 60)
        return out

    def servers(self):
        """What the servers of all blocks have printed."""
        try:
            with open(os.path.join(self.home, "background")) as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def server_printed(self, expected):
        """Whether a server of the last block has printed this since the block began."""
        expected = re.sub(r"\b\d{4,5}\b", lambda port: self.ports.get(port.group(), port.group()), expected)
        return len(self.servers()) > self.before and wait_until(lambda: matches(self.servers()[self.before:], expected), 10)

    def say(self, code):
        self.process.stdin.write(code + "\necho '%s'\n" % END)
        self.process.stdin.flush()
        out = []
        for line in self.process.stdout:
            if line.strip() == END:
                return "".join(out)
            out.append(line)
        self.log.seek(0)
        raise AssertionError("the shell ended:\n" + "".join(out) + self.log.read())


@contextlib.contextmanager
def database(wanted):
    server = servers.Postgres() if wanted else None
    try:
        yield {"DATABASE": server.url} if server else {}
    finally:
        if server:
            server.stop()


def matches(said, expected):
    pattern = ".*?".join(re.escape(part) for part in expected.strip().split("…"))
    return re.fullmatch(pattern, said.replace("\r", "").strip(), re.S)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_every_block_of_the_page_works(page):
    steps = blocks(page)
    assert sum(kind == "sh" for kind, _ in steps) >= 2 and sum(kind == "text" for kind, _ in steps) >= 2
    said, all_code = "", "".join(code for _, code in steps)
    with folder() as home, database("$DATABASE" in all_code) as env, Shell(home, all_code, env) as shell:
        for kind, code in steps:
            if kind == "sh":
                said = shell.run(code)
            elif kind == "text":
                shell.log.seek(0)
                assert matches(said, code) or shell.server_printed(code), "expected:\n%s\nprinted:\n%s\nerrors:\n%s" % (code, said, shell.log.read())
        wait_until(lambda: not shell.say("jobs -pr").strip(), 60)  # the page has stopped what it started
