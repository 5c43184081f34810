"""The C API from outside: C++, the example, and what the library exports."""
import glob
import os
import subprocess

from lib import ROOT, folder


def run(*args, **kwargs):
    done = subprocess.run(args, cwd=ROOT, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=120, **kwargs)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_cpp_program_uses_the_library():
    with folder() as tmp:
        program = os.path.join(tmp, "api")
        run("g++", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Iinclude",
            "tests/c/api.cpp", "-o", program, "-Lbuild", "-lidem",
            "-Wl,-rpath," + os.path.join(ROOT, "build"))
        assert run(program).split() == ["ran", "replayed"]


def test_every_public_header_stands_alone_in_c_and_cpp():
    headers = sorted(glob.glob(os.path.join(ROOT, "include/idem/*.h")))
    assert len(headers) >= 3
    for header in headers:
        name = "idem/" + os.path.basename(header)
        for compiler in (["gcc", "-std=c11", "-xc"], ["g++", "-std=c++17", "-xc++"]):
            run(*compiler, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-Iinclude",
                "-", input="#include <%s>\n#include <%s>\n" % (name, name))


def test_the_example_runs_once():
    lines = open(os.path.join(ROOT, "examples/once.c")).read().splitlines()
    assert len(lines) <= 50
    with folder() as tmp:
        once = os.path.join(ROOT, "build/examples/once")
        where = os.path.join(tmp, "shop")
        assert run(once, where, "order-7") == "ran: 1 sandwich for order-7\n"
        assert run(once, where, "order-7") == "replayed: 1 sandwich for order-7\n"
        assert run(once, where, "order-8") == "ran: 1 sandwich for order-8\n"
        idem = os.path.join(ROOT, "build/idem")
        run(idem, "begin", "shop", "claimed", "--store", "journal:" + where)
        busy = subprocess.run([once, where, "claimed"], capture_output=True, text=True, timeout=60)
        assert (busy.returncode, busy.stdout, busy.stderr) == (1, "", "once: claimed: busy\n")
        refused = subprocess.run([once, "/proc/nowhere", "x"], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True, timeout=60)
        assert refused.returncode == 1
        assert refused.stderr.startswith("once: ")


def test_the_library_exports_nothing_but_the_api():
    names = {line.split()[-1] for line in
             run("nm", "-D", "--defined-only", "build/libidem.so").splitlines() if line.split()}
    headers = "".join(open(h).read() for h in glob.glob(os.path.join(ROOT, "include/idem/*.h")))
    assert "idem_open" in names and "idem_run" in names
    for name in names:
        assert name.startswith("idem_") and not name.startswith("idem__"), name
        assert name in headers, name
