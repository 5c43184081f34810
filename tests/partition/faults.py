"""What happens to a store under load. A fault gets the world, hits the rig's primary for a while, and heals what it did."""
import contextlib
import os
import signal
import time


def rest(world, victim):
    return [m for m in world.rig_machines() if m is not victim.machine]


def clean(world, victim):
    """The primary and one client on one side, all the others on the other side; then, mostly, another way."""
    some = world.dice.sample(world.clients, 1)
    others = [c for c in world.clients if c not in some]
    world.net.cut([victim.machine, *some], [*rest(world, victim), *others])
    world.rig.fail_over(victim)
    world.wait()


def one_way(world, victim):
    """The primary hears the others and they do not hear it, or the other way round."""
    others = [*rest(world, victim), *world.clients[1:]]
    ways = [(others, [victim.machine]), ([victim.machine], others)]
    world.net.cut_one_way(*world.dice.choice(ways))
    world.wait()


def flapping(world, victim):
    end = time.monotonic() + world.hold
    while time.monotonic() < end:
        world.net.cut([victim.machine], [*rest(world, victim), *world.dice.sample(world.clients, 1)])
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
    victim.machine.pause()
    world.rig.fail_over(victim)
    world.wait()
    victim.machine.go_on()


FAULTS = {"clean": clean, "one-way": one_way, "flapping": flapping, "delay": delay, "kill": kill, "pause": pause}
