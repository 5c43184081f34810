"""The Debian packages: what their units allow, and what the page about them says. `make package-check` installs them."""
import glob
import grp
import os
import re
import subprocess

import pytest

import servers
from lib import IDEM, ROOT, Process, folder, free_port, listens, wait_until

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



@pytest.mark.parametrize("unit", ["idem", "idem-gateway@", "idem-consume@"])
def test_a_unit_is_started_again_until_its_store_is_back(unit):
    """idem ends with 1 if its store does not accept it, and with 2 if an option is wrong."""
    lines = text("packaging/systemd/%s.service" % unit).splitlines()
    unit_part = lines[:lines.index("[Service]")]
    assert "StartLimitIntervalSec=0" in unit_part, "it would give up after a few tries"
    assert {"Restart=on-failure", "RestartSec=2", "RestartPreventExitStatus=2"} <= set(lines)
    command = unit.replace("idem-", "").replace("idem", "serve").rstrip("@")
    more = {"serve": ["--listen", "127.0.0.1:%d" % free_port()], "consume": ["redis://127.0.0.1:1/orders?group=g", "--", "true"],
            "gateway": ["--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:%d" % free_port()]}[command]
    away = subprocess.run([IDEM, command, "--store", "redis://127.0.0.1:1", *more], text=True, capture_output=True, timeout=60)
    wrong = subprocess.run([IDEM, command, "--stor", "x"], text=True, capture_output=True, timeout=60)
    assert away.returncode not in (0, 2) and wrong.returncode == 2, (away, wrong)


def placed(path, where, everything):
    """A file of settings with its folders and ports replaced by our own; everything: with what is commented out, too."""
    said = text(path)
    if everything:
        said = re.sub(r"^#(?=[\w-]+ ?=)", "", said, flags=re.M)
    ports = {}
    said = re.sub(r"(/etc/idem|/run/idem|/var/lib)/", where + "/", said)
    said = re.sub(r"127\.0\.0\.1:(\d+)", lambda m: "127.0.0.1:%d" % ports.setdefault(m[1], free_port()), said)
    own = os.path.join(where, os.path.basename(path))
    with open(own, "w") as f:
        f.write(said)
    return own, ports


@pytest.mark.parametrize("everything", [False, True])
def test_the_example_configuration_of_the_server_starts(everything):
    with folder() as where:
        ca, cert, key = servers.authority(where, "ours")
        for made, name in ((cert, "server.pem"), (key, "server.key"), (ca, "clients.pem")):
            os.symlink(made, where + "/" + name)
        with open(os.open(where + "/credentials", os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("shop a-secret-of-the-shop use\n")
        config, ports = placed("packaging/etc/idem.conf", where, everything)
        said = subprocess.run([IDEM, "serve", "--config", config, "--check"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert said.returncode == 0, said.stdout
        with Process([IDEM, "serve", "--config", config], ready=where + "/idem.sock"):
            assert len(ports) == 2
            for port in ports.values():
                assert wait_until(lambda: listens(port)) if everything else not listens(port)


def test_the_example_of_the_environment_has_only_variables_that_are_read():
    for name in re.findall(r"^#?([A-Z_]+)=", text("packaging/etc/environment"), re.M):
        done = subprocess.run(["grep", "-rqw", '"%s"' % name, ROOT + "/src"])
        assert name == "IDEM_STORE" or done.returncode == 0, name


def test_the_example_configuration_of_a_gateway_starts():
    with folder() as where:
        config, ports = placed("packaging/etc/gateway-shop.conf", where, False)
        env = {"XDG_STATE_HOME": where, "XDG_RUNTIME_DIR": where}
        with Process([IDEM, "gateway", "--config", config, "--folder", where, "--store", "memory:", "--socket", where + "/s",
                      "--module", ROOT + "/build/ngx_http_idem_module.so"], ready=ports["8080"], env=env):
            said = subprocess.run(["curl", "-sS", "-o", os.devnull, "-w", "%{http_code}", "-X", "POST",
                                   "http://127.0.0.1:%d/payments" % ports["8080"]], text=True, check=True, stdout=subprocess.PIPE)
            assert said.stdout == "400"  # a payment needs a key


def test_the_example_configuration_of_a_consumer_starts():
    redis = servers.Redis()
    try:
        with folder() as where:
            config, ports = placed("packaging/etc/consume-shop", where, False)
            options = re.search(r'^OPTIONS="(.*)"$', text(config), re.M).group(1).replace(str(ports["6379"]), str(redis.port)).split()
            done = subprocess.run([IDEM, "consume", *options, "--until-idle", "1ms"], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=60)
            assert done.returncode == 0, done.stdout
            assert redis.ask("exists", "orders") == "1"  # its group was made
    finally:
        redis.stop()


def test_the_socket_that_systemd_opens_is_the_one_of_the_configuration():
    assert re.findall(r"^ListenStream=(.*)$", text("packaging/systemd/idem.socket"), re.M) == \
        re.findall(r"^socket = (.*)$", text("packaging/etc/idem.conf"), re.M)
