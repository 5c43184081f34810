"""Stores and brokers that need a library are modules: where idem looks for them, and what it says of one that is missing or is none."""
import os
import shutil
import subprocess

import pytest

from lib import IDEM, folder

MODULES = os.path.join(os.path.dirname(IDEM), "modules")
NOBODY = "redis://127.0.0.1:1"  # nobody listens there


@pytest.fixture
def place():
    with folder() as where:
        yield where


def idem(*args, modules=None, argv0=IDEM, cwd=None):
    """Exit code, and what it said. modules: IDEM_MODULES."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("IDEM_")}
    env = env if modules is None else {**env, "IDEM_MODULES": modules}
    done = subprocess.run([argv0, *args], executable=IDEM, cwd=cwd, env=env, text=True, capture_output=True, timeout=60)
    assert done.stdout == ""
    return done.returncode, done.stderr


def check(url=NOBODY, **more):
    return idem("store", "init", url, **more)


@pytest.mark.parametrize("argv0", [IDEM, "idem"], ids=["by its path", "found on the shell's path"])
@pytest.mark.parametrize("modules", [None, "", MODULES], ids=["unset", "empty", "named"])
def test_a_module_is_found_beside_the_program(place, argv0, modules):
    code, said = check(argv0=argv0, modules=modules, cwd=place)
    assert code == 20 and "Connection refused" in said, said


@pytest.mark.parametrize("name,url,package", [("redis", NOBODY, "store"), ("postgres", "postgres://127.0.0.1:1/x", "store")])
def test_a_store_that_is_not_installed_is_told_with_its_package(place, name, url, package):
    for modules in (place, place + "/none", "/" + "long/" * 900):
        code, said = check(url, modules=modules)
        assert code == 26 and "%s: this part of idem is not installed" % name in said and "install the package idem-store-%s" % name in said, said


@pytest.mark.parametrize("name,source", [("rabbitmq", "amqp://127.0.0.1:1?queue=q"), ("kafka", "kafka://127.0.0.1:1?topic=t&group=g"),
                                         ("nats", "nats://127.0.0.1:1?stream=S&durable=d")])
def test_a_broker_that_is_not_installed_is_told_with_its_package(place, name, source):
    code, said = idem("consume", source, "--store", "memory:", "--", "true", modules=place)
    assert code == 26 and "%s: this part of idem is not installed" % name in said and "install the package idem-broker-%s" % name in said, said


def test_a_file_that_is_no_module_is_refused(place):
    with open(place + "/redis.so", "w") as f:
        f.write("this is text")
    code, said = check(modules=place)
    assert code == 26 and place + "/redis.so: " in said, said


def test_a_module_of_another_version_is_refused(place):
    version = subprocess.run([IDEM, "--version"], text=True, capture_output=True, check=True).stdout.split()[1]
    with open(MODULES + "/redis.so", "rb") as f:
        data = f.read()
    other = b"8" + version.encode()[1:]
    assert b"\0" + version.encode() + b"\0" in data
    with open(place + "/redis.so", "wb") as f:
        f.write(data.replace(b"\0" + version.encode() + b"\0", b"\0" + other + b"\0"))
    code, said = check(modules=place)
    assert code == 26 and "redis.so: is of idem %s, and this is idem %s: install both from the same version" % (other.decode(), version) in said, said


def test_a_library_that_is_no_module_is_refused(place):
    libm = next(line.split()[-1] for line in subprocess.run(["ldconfig", "-p"], text=True, capture_output=True, check=True).stdout.splitlines()
                if line.split()[0] == "libm.so.6")
    os.symlink(libm, place + "/redis.so")
    code, said = check(modules=place)
    assert code == 26 and "redis.so: is of idem (unknown), and this is idem " in said, said


def test_a_module_under_another_name_is_refused(place):
    shutil.copy(MODULES + "/etcd.so", place + "/redis.so")
    code, said = check(modules=place)
    assert code == 26 and place + "/redis.so: has no idem__redis" in said and "the file is damaged" in said, said
