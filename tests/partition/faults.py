"""What happens to a store under load. A fault gets the world, hits one server for a while, and ends what it did itself; the
world heals the network, and the rig recovers."""
import contextlib
import os
import signal
import time


def others(world, victim):
    return [m for m in world.store_machines() if m is not victim.machine]


def clean(world, victim):
    """The server and one client on one side, all the others on the other side."""
    some = world.dice.choice(world.clients)
    world.net.cut([victim.machine, some], [*others(world, victim), *[c for c in world.clients if c is not some]])
    world.rig.fail_over(victim)
    world.wait()


def one_way(world, victim):
    """The server hears the others and they do not hear it, or the other way round."""
    rest = [*others(world, victim), *world.clients[1:]]
    world.net.cut_one_way(*world.dice.choice([(rest, [victim.machine]), ([victim.machine], rest)]))
    world.wait()


def flapping(world, victim):
    end = time.monotonic() + world.hold
    while time.monotonic() < end:
        world.net.cut([victim.machine], [*others(world, victim), world.dice.choice(world.clients)])
        time.sleep(world.dice.uniform(0.1, 2.5))
        world.net.heal()
        time.sleep(world.dice.uniform(0.1, 1.5))


def delay(world, victim):
    victim.machine.slow(world.dice.choice([50, 200, 500]))
    world.wait()


def kill(world, victim):
    victim.machine.kill()
    victim.process.wait()
    world.rig.fail_over(victim)
    world.wait()


def pause(world, victim):
    """And it goes on where it was, while another may have taken over."""
    victim.machine.pause()
    world.rig.fail_over(victim)
    world.wait()
    victim.machine.go_on()
    time.sleep(1)


def hang(world, victim):
    """What promotes, and the server itself runs on: there are two primaries."""
    watchers = victim.watchers()
    for pid in watchers:
        os.kill(pid, signal.SIGSTOP)
    world.wait()
    assert [node.is_writable() for node in world.rig.nodes].count(True) == 2, "there never were two"
    for pid in watchers:
        os.kill(pid, signal.SIGCONT)


def full(world, victim):
    """Its disk. Some servers stop, and are started again when there is room."""
    path = os.path.join(victim.machine.disk, "full")
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as f:
        while f.write(bytes(1 << 12)):
            pass
    world.wait()
    os.remove(path)


def clock(world, victim):
    """Its clock is set to the next month, and back."""
    machines = world.clients[:1] if world.rig.engines_have_the_clock else [victim.machine]
    for machine in machines:
        machine.clock.set("+40d")
    world.wait()
    assert any("clock_alarm:1" in str(engine.client()("INFO")) for engine in world.engines), "no engine has noticed the clock"
    for machine in machines:
        machine.clock.set("+0")


def lag(world, victim):
    """The server is lost, and the one that takes over has not got its last moments."""
    world.net.cut([victim.machine], others(world, victim))
    time.sleep(4 if world.rig.planted else world.dice.choice([0.1, 0.4, 1.5, 4]))
    victim.machine.kill()
    victim.process.wait()
    world.net.heal()
    world.rig.fail_over(victim)
    world.wait()


def rollback(world, victim):
    """Its files are those of a while ago."""
    world.rig.save()
    time.sleep(world.dice.uniform(1, 4))
    world.rig.go_back()
    world.wait()


FAULTS = {"clean": clean, "one-way": one_way, "flapping": flapping, "delay": delay, "kill": kill, "pause": pause, "hang": hang, "full": full,
          "clock": clock, "lag": lag, "rollback": rollback}
