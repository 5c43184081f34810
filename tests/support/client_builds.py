"""What the tests of the clients in Go, Java and Node need to have built and installed."""
import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess

from lib import ROOT

CLIENTS = os.path.join(ROOT, "clients")
BUILD = os.path.join(ROOT, "build/clients")
NODE = os.path.join(BUILD, "node")
# The files of the client lie in clients/node, and what they import beside links to them.
RUN_NODE = ["node", "--preserve-symlinks", "--preserve-symlinks-main"]


def go(*argv, **env):
    """Run the go command with clients/go as the package idem, and Debian's packages."""
    path = os.path.join(BUILD, "gopath")
    os.makedirs(path + "/src", exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.symlink(os.path.join(CLIENTS, "go"), path + "/src/idem")
    done = subprocess.run(["go", *argv], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600, cwd=path + "/src/idem",
                          env={**os.environ, "GO111MODULE": "off", "GOPATH": path + ":/usr/share/gocode", "PWD": path + "/src/idem",
                               "GOCACHE": os.path.join(ROOT, "build/gocache"), "GOFLAGS": "", **env})
    assert done.returncode == 0, done.stdout
    return done.stdout


@functools.lru_cache
def build_go(program, to):
    """A program of clients/go, as build/clients/TO. Another test may run the same program meanwhile."""
    out = os.path.join(BUILD, to)
    made = "%s.%d" % (out, os.getpid())
    go("build", "-o", made, "idem/" + program)
    os.replace(made, out)
    return out


@contextlib.contextmanager
def made_once(folder, source):
    """Whether `folder` has to be made from `source`, a text. Several test files run at a time: one of them makes it, and it stays as it is
    until the source changes."""
    made = os.path.join(folder, "made")
    os.makedirs(BUILD, exist_ok=True)
    with open(folder + ".lock", "w") as one:
        fcntl.flock(one, fcntl.LOCK_EX)
        if os.path.exists(made) and open(made).read() == source:
            yield False
            return
        yield True
        with open(made, "w") as f:
            f.write(source)


@functools.lru_cache
def build_java():
    """The client and the classes of its tests: the folder."""
    source, out = os.path.join(CLIENTS, "java"), os.path.join(BUILD, "java")
    digest = hashlib.sha256()
    for path in sorted(os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names):
        with open(path, "rb") as f:
            digest.update(path.encode() + b"\0" + f.read())
    with made_once(out, digest.hexdigest()) as wanted:
        if wanted:
            subprocess.run([os.path.join(source, "build"), "--tests", out], check=True)
    return out


@functools.lru_cache
def node_packages():
    """The packages that clients/node/package-lock.json pins, and the client itself: the folder node_modules."""
    source = os.path.join(CLIENTS, "node")
    with open(os.path.join(source, "package-lock.json")) as f:
        lock = f.read()
    with made_once(NODE, lock) as wanted:
        if wanted:
            shutil.rmtree(NODE, ignore_errors=True)
            os.makedirs(NODE)
            for name in ("package.json", "package-lock.json"):
                shutil.copy(os.path.join(source, name), NODE)
            done = subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=5"], cwd=NODE, text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900)
            assert done.returncode == 0, done.stdout
            for name in ("src", "tests"):
                os.symlink(os.path.join(source, name), os.path.join(NODE, name))
    return os.path.join(NODE, "node_modules")
