"""The Debian packages: what their units allow, and what the page about them says. `make package-check` installs them."""
import glob
import grp
import os
import re
import subprocess

import pytest

from lib import IDEM, ROOT, Process, folder, listens, wait_until

UNITS = sorted(glob.glob(os.path.join(ROOT, "packaging/systemd/*.service")))


def text(path):
    with open(os.path.join(ROOT, path)) as f:
        return f.read()


def test_the_page_names_every_package_and_every_step():
    page = text("docs/install.md")
    for package in re.findall(r"^Package: (\S+)", text("packaging/debian/control"), re.M):
        assert "`%s`" % package in page
    steps = re.findall(r'"(.*?)"', re.search(r"^steps=\((.*?)\)$", text("scripts/package-check"), re.M | re.S).group(1))
    assert re.findall(r"^\| (.+?) \| (?:pass|not run) \| (?:pass|not run) \|$", page, re.M) == steps


def analyze(*args):
    return subprocess.run(["systemd-analyze", "--no-pager", *args], text=True, check=True, stdout=subprocess.PIPE).stdout


@pytest.mark.parametrize("unit", UNITS, ids=os.path.basename)
def test_a_unit_is_confined(unit):
    said = analyze("security", "--offline=yes", unit)
    assert float(re.search(r"Overall exposure level for \S+: ([\d.]+)", said).group(1)) <= 2


def calls(name):
    """The system calls of systemd's @name, or the one that has this name."""
    if not name.startswith("@"):
        return {name}
    lines = [line.strip() for line in analyze("syscall-filter", name).splitlines()[1:]]
    return set().union(*(calls(line) for line in lines if line and not line.startswith("#")))


def allowed(unit):
    """What is left after the unit's filters: the first says what is allowed, each further one adds or takes away."""
    left = set()
    for sign, names in re.findall(r"^SystemCallFilter=(~?)(.*)$", text(unit), re.M):
        these = set().union(*(calls(name) for name in names.split()))
        left = left - these if sign else left | these
    return left - calls("@clock") if "\nProtectClock=yes" in text(unit) else left


def test_the_server_calls_nothing_that_its_unit_forbids():
    """Also with a group for its socket, which the example of docs/server.md sets."""
    with folder() as where:
        trace, sock = os.path.join(where, "trace"), os.path.join(where, "s")
        group = grp.getgrgid(os.getgid()).gr_name
        server = Process(["strace", "-f", "-qq", "-o", trace, IDEM, "serve", "--store", "journal:" + where + "/j", "--socket", sock,
                          "--socket-group", group, "--socket-mode", "0660"])
        try:
            wait_until(lambda: listens(sock))
            subprocess.run([IDEM, "begin", "shop", "order-7", "--server", "unix:" + sock], check=True, stdout=subprocess.DEVNULL)
        finally:
            server.stop()
        assert "/proc/sys/kernel/random/boot_id" in text(trace)
        used = set(re.findall(r"^\d+ +(\w+)\(", text(trace), re.M)) - {"execve"}  # systemd's own, to start it
    assert "fdatasync" in used or "fsync" in used
    assert used - allowed("packaging/systemd/idem.service") == set()
    assert "\nProcSubset=pid" not in text("packaging/systemd/idem.service")  # it hides /proc/sys
