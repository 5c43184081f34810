"""Machines for tests: network namespaces on one bridge, whose lines can be cut, and whose processes can be killed and stopped.

All of it is in a network, mount, IPC and process namespace of its own, which the kernel removes with everything in it when the
programme ends, however it ends. Nothing on the host's interfaces changes.
"""
import contextlib
import os
import signal
import subprocess
import sys
import tempfile

DISKS = "/run/disks"
ROOT_NEEDED = "tests/partition makes network namespaces, which needs root: sudo make partition"


def isolate():
    """Start this program again in namespaces of its own."""
    if os.environ.get("IDEM_PARTITION") == "inside":
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
        run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
        os.mkdir(DISKS)
        tempfile.tempdir = "/run"
        run("ip", "link", "set", "lo", "up")
        return
    if os.geteuid() != 0:
        sys.exit(ROOT_NEEDED)
    os.environ["IDEM_PARTITION"] = "inside"
    os.execvp("setpriv", ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc",
                          sys.executable, *sys.argv])  # and it dies with its parent


def run(*command, check=True):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if check and done.returncode != 0:
        raise RuntimeError("%s: %s" % (" ".join(command), done.stdout))
    return done.stdout


class Machine:
    """The place of one or more servers; see Loopback in tests/support/servers.py."""

    def __init__(self, number, disk_mib=None):
        self.name, self.address = "m%d" % number, "10.77.0.%d" % number
        self.prefix = ("nsenter", "--net=/run/netns/" + self.name)
        self.disk = os.path.join(DISKS, self.name)
        self.env = {}
        os.mkdir(self.disk)
        if disk_mib:
            run("mount", "-t", "tmpfs", "-o", "mode=755,size=%dm" % disk_mib, "tmpfs", self.disk)
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        run("ip", "link", "set", self.name, "master", "bridge", "up")
        self.ip("link", "set", "lo", "up")
        self.ip("address", "add", self.address + "/24", "dev", "eth0")
        self.ip("link", "set", "eth0", "up")

    def ip(self, *words):
        run("ip", "-netns", self.name, *words)

    def rule(self, *words):
        run(*self.prefix, "iptables", "--wait", *words)

    def deaf_to(self, others):
        """Packets from them do not arrive any more. Connections that are open stay, and know nothing of it."""
        if others:
            self.rule("-A", "INPUT", "-s", ",".join(m.address for m in others if m is not self), "-j", "DROP")

    def hears(self):
        self.rule("-F", "INPUT")

    def slow(self, ms):
        """What it sends arrives later. Without netem in the kernel: on a line whose queue is that long under load."""
        device = (*self.prefix, "tc", "qdisc", "replace", "dev", "eth0", "root")
        try:
            run(*device, "netem", "delay", "%dms" % ms, "%dms" % (ms // 2))
        except RuntimeError:
            run(*device, "tbf", "rate", "250kbit", "burst", "2kb", "latency", "%dms" % (4 * ms))

    def fast(self):
        run(*self.prefix, "tc", "qdisc", "del", "dev", "eth0", "root", check=False)

    def take(self, address):
        """It answers for this address too, from now on; and whoever had another machine's for it asks again."""
        self.ip("address", "add", address + "/24", "dev", "eth0")
        for name in run("ip", "netns", "list").split("\n"):
            if name:
                run("ip", "-netns", name.split()[0], "neigh", "flush", "to", address)

    def give_up(self, address):
        self.ip("address", "del", address + "/24", "dev", "eth0")

    def pids(self):
        return [int(pid) for pid in run("ip", "netns", "pids", self.name).split()]

    def send(self, number):
        """To every process of the machine; again, until none has been started meanwhile."""
        seen = set()
        while new := set(self.pids()) - seen:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            seen |= new

    def kill(self):
        self.send(signal.SIGKILL)

    def pause(self):
        self.send(signal.SIGSTOP)

    def go_on(self):
        self.send(signal.SIGCONT)


class Network:
    """One bridge. machine() makes the next machine; the programme itself has an address that nobody is ever cut from."""

    def __init__(self):
        run("ip", "link", "add", "bridge", "type", "bridge")
        run("ip", "address", "add", "10.77.0.254/24", "dev", "bridge")
        run("ip", "link", "set", "bridge", "up")
        self.all = []

    def machine(self, disk_mib=None):
        self.all.append(Machine(len(self.all) + 1, disk_mib))
        return self.all[-1]

    def cut(self, here, there):
        """Between these and those; both ways."""
        self.cut_one_way(here, there)
        self.cut_one_way(there, here)

    @staticmethod
    def cut_one_way(sender, receiver):
        for machine in receiver:
            machine.deaf_to([m for m in sender if m is not machine])

    def heal(self):
        for machine in self.all:
            machine.hears()
            machine.fast()
