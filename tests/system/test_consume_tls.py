"""Brokers over TLS: the certificate is checked, a client's own is shown. (NATS: test_consume_nats.py.)
Waits more than it works.
"""
import subprocess

import pika
import redis
import servers
from kafka_tls import Secured
from lib import IDEM, ROOT, folder, wait_until
from test_consume import Kafka


def consume(source):
    with folder() as f:
        return subprocess.run([IDEM, "consume", source, "--store", "journal:" + f, "--until-idle", "3s", "--", "cat"], cwd=ROOT,
                              timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def consume_until(source, file, word):
    """What it says until it says this."""
    def text():
        with open(file, errors="replace") as f:
            return f.read()

    with folder() as f, open(file, "w") as out:
        process = subprocess.Popen([IDEM, "consume", source, "--store", "journal:" + f, "--", "cat"], stdout=out,
                                   stderr=subprocess.STDOUT)
        try:
            assert wait_until(lambda: word in text()), text()
        finally:
            process.kill()
            process.wait()
        return text()


def test_rabbitmq_over_tls(tmp_path):
    mine, other = (servers.authority(str(tmp_path), name, "DNS:localhost") for name in ("mine", "other"))
    broker = servers.RabbitMQ(tls=mine)
    try:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url + "/%2F"))
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.basic_publish("", "orders", b"over TLS", pika.BasicProperties(message_id="one"))
        connection.close()
        url = "amqps://guest:guest@localhost:%d?queue=orders&ca=%s" % (broker.tls_port, mine[0])
        for wrong in (url,  # no certificate of its own
                      url.replace(mine[0], other[0]) + "&cert=%s&key=%s" % mine[1:],
                      url.replace("localhost", "127.0.0.1") + "&cert=%s&key=%s" % mine[1:]):
            done = consume(wrong)
            assert done.returncode != 0 and "over TLS" not in done.stdout and "guest:guest" not in done.stdout, (wrong, done.stdout)
        assert "cannot be used" in consume(url.replace(mine[0], "/no/such/file")).stdout
        done = consume(url + "&cert=%s&key=%s" % mine[1:])
        assert done.returncode == 0 and "over TLS" in done.stdout and "handled 1" in done.stdout, done.stdout
    finally:
        broker.stop()


def test_redis_streams_over_tls(tmp_path):
    mine, other = servers.authority(str(tmp_path), "mine"), servers.authority(str(tmp_path), "other")
    server = servers.Redis(tls=mine)
    try:
        redis.Redis(port=server.port).xadd("orders", {"id": "one", "body": "over TLS"})
        url = "rediss-stream://127.0.0.1:%d?stream=orders&group=g&ca=%s&cert=%s&key=%s" % (server.tls_port, *mine)
        for wrong in (url.replace(mine[0], other[0]), url.replace("127.0.0.1", "localhost"),
                      url.replace("rediss-stream", "redis-stream").split("&ca=")[0]):
            done = consume(wrong)
            assert done.returncode != 0 and "over TLS" not in done.stdout, (wrong, done.stdout)
        assert "rediss-stream://" in consume(url.replace("rediss-stream", "redis-stream")).stdout
        done = consume(url)
        assert done.returncode == 0 and "over TLS" in done.stdout and "handled 1" in done.stdout, done.stdout
    finally:
        server.stop()


def test_kafka_over_tls_with_a_login(tmp_path):
    mine, other = servers.authority(str(tmp_path), "mine"), servers.authority(str(tmp_path), "other")
    broker = Kafka()
    try:
        broker.publish([{"id": "one", "text": "over TLS"}])
        with Secured(int(broker.source.split("?")[0].rsplit(":", 1)[1]), *mine, password="s3cret") as front:
            url = "kafka://ann:s3cret@127.0.0.1:%d?topic=orders&group=g&session_ms=4000&ca=%s&cert=%s&key=%s" % (front.port, *mine)
            for wrong in (url.replace(mine[0], other[0]), url.replace("&cert=%s&key=%s" % mine[1:], ""),
                          url.replace("127.0.0.1", "localhost"), url.split("&ca=")[0], url.replace("s3cret", "guess")):
                said = consume_until(wrong, str(tmp_path / "said"), "FAIL")  # it tries again and again
                assert "over TLS" not in said and "s3cret" not in said, said
            assert set(front.logins) == {b"\0ann\0guess"}, "a login goes only to a broker whose certificate is right"
            done = consume(url)
            assert done.returncode == 0 and "over TLS" in done.stdout and "handled 1" in done.stdout, done.stdout
            assert front.logins[-1] == b"\0ann\0s3cret"
    finally:
        broker.stop()
