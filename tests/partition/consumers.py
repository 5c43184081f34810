"""Consumers of a RabbitMQ that is hit by faults. Messages that were not acknowledged are delivered again, to the other
consumer too, and a publisher that was not told sends again; each must take effect once."""
import collections
import contextlib
import json
import os
import sys
import threading
import time

import pika

import servers
from lib import IDEM, Process, free_port, patient, wait_until
from stores import NETWORK, RIGS, Rig

PER_SECOND = 100


class Publisher(threading.Thread):
    """Sends until it is told that the broker has it. Nobody cuts it off, but the broker may be gone."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.url, self.sent, self.over = url, 0, False

    def run(self):
        while not self.over:
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                self.publish(pika.BlockingConnection(pika.URLParameters(self.url + "/%2F?heartbeat=5&blocked_connection_timeout=5")))
            time.sleep(0.2)

    def publish(self, connection):
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        while not self.over:
            id = "m%d" % (self.sent + 1)
            channel.basic_publish("", "orders", json.dumps({"id": id}).encode(),
                                  pika.BasicProperties(message_id=id, delivery_mode=2, content_type="application/json"))
            self.sent += 1
            time.sleep(1 / PER_SECOND)
        connection.close()


class RabbitMQ(Rig):
    faults = (*NETWORK, "kill", "pause")

    def __init__(self, dice):
        self.broker, self.store = servers.RabbitMQ(), servers.Redis()

    def primary(self):
        return self.broker

    def consumer(self, machine, ledger):
        port = free_port()
        handler = Process([*machine.prefix, sys.executable, os.path.join(os.path.dirname(servers.__file__), "ledger.py"), str(port), ledger])
        return handler, Process([*machine.prefix, IDEM, "consume", self.broker.url + "?queue=orders", "--store", patient(self.store.url),
                                 "--lease", "60s", "--concurrency", "8", "--to", "http://127.0.0.1:%d/" % port])

    def play(self, world, fault):
        ledger = os.path.join(world.clients[0].disk, "ledger")
        publisher = Publisher(self.broker.url)
        publisher.start()
        assert wait_until(lambda: publisher.sent, 60), "nothing can be published"
        with contextlib.ExitStack() as stack:
            for machine in world.clients:
                for process in self.consumer(machine, ledger):
                    stack.enter_context(process)
            assert wait_until(lambda: sum(effects(ledger).values()) > PER_SECOND, 60), "nothing is consumed"
            try:
                fault(world, self.broker)
            finally:
                world.net.heal()
            self.recover(self.broker)
            before = publisher.sent
            assert wait_until(lambda: publisher.sent > before + PER_SECOND, 90), "nothing can be published after the fault"
            publisher.over = True
            publisher.join(60)
            complete = wait_until(lambda: len(effects(ledger)) >= publisher.sent and self.broker.messages("orders") == 0, 90, 0.5)
        done = effects(ledger)
        twice = sorted(key for key, count in done.items() if count > 1)
        why = "%d executed twice: %s; %d of %d executed" % (len(twice), twice[:5], len(done), publisher.sent)
        row = {"answers": publisher.sent, "executions": sum(done.values()), "lost": "", "refused": ""}
        return {**row, "verdict": "ok"} if complete and not twice else {**row, "verdict": "VIOLATED", "why": why}


RIGS["rabbitmq"] = RabbitMQ


def effects(path):
    """How often each message took effect."""
    if not os.path.exists(path):
        return collections.Counter()
    with open(path) as f:
        return collections.Counter(json.loads(line)["key"] for line in f if line.endswith("\n"))
