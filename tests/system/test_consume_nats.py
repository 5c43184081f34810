"""NATS JetStream: what test_consume.py asks of every broker, and what is NATS's own. Waits more than it works."""
import contextlib
import os
import subprocess
import sys
import time

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import servers
from lib import IDEM, ROOT, Process, folder, wait_until
from nats import Nats
from test_consume import (check_a_broker_that_stands_still, consume, nothing_left, run_until_idle,  # noqa: F401
                          test_a_call_of_the_consumer_that_fails_repeats_and_loses_nothing,
                          test_a_command_gets_the_message_and_its_exit_status_decides,
                          test_a_letter_keeps_what_the_message_came_with,
                          test_an_endpoint_that_is_away_is_waited_for,
                          test_every_message_is_handled_once_although_published_twice,
                          test_how_far_a_consumer_is_behind_is_a_metric,
                          test_in_one_transaction_every_effect_is_there_exactly_once,
                          test_loose_with_an_idempotent_sink_handles_every_message,
                          test_sigterm_finishes_what_is_being_handled_and_puts_back_the_rest,
                          test_strict_never_handles_twice_and_names_every_doubt,
                          test_two_consumers_handle_each_message_once_between_them)


@pytest.fixture(scope="module")
def broker():
    broker = Nats()
    broker.make_stream("orders", "orders.new")
    yield broker
    broker.stop()


@pytest.fixture(autouse=True)
def nothing_comes_back(request, nothing_left):  # noqa: F811
    """A NATS server that is stopped under load forgets acknowledgements, also old ones (seen with 2.9.10: all messages were
    acknowledged, and after a restart 400 were not). What it delivers again then must not be of an earlier test."""
    if "broker" in request.fixturenames:
        request.getfixturevalue("broker").purge()


def test_work_that_takes_longer_than_the_acknowledgement_comes_once(broker):
    """ack_ms is 2 s here; the consumer says meanwhile that it is at work, so the server does not deliver again."""
    broker.publish([{"id": "long"}])
    with folder() as f:
        stats = run_until_idle(broker, "journal:" + f + "/j", "--", "sh", "-c", 'echo "$IDEM_ID" >> "$0/ran"; sleep 7', f)
        with open(f + "/ran") as ran:
            assert ran.read().split() == ["long"]
    assert stats["handled"] == 1 and stats["received"] == 1


def test_a_broker_that_stands_still_is_not_idle(broker):
    check_a_broker_that_stands_still(broker)


def test_a_consumer_that_is_slow_or_idle_asks_for_no_more_than_it_needs(broker):
    """What it has asked for and not taken would come again, when nobody acknowledges it in time."""
    broker.publish([{"id": "needed-%d" % i} for i in range(300)])
    with folder() as f:
        argv = consume(broker, "journal:" + f + "/j", "--prefetch", "10", "--", "sleep", "0.02")
        most = 0
        with Process(argv) as consumer:
            while broker.left() != 0:
                most = max(most, broker.consumer().get("num_ack_pending", 0))
                assert consumer.process.poll() is None, consumer.output()
            told = broker.consumer()
            before, start = broker.requests(), time.monotonic()
            time.sleep(3)
            asked = (broker.requests() - before) / (time.monotonic() - start)
            assert consumer.stop() == 0
    # 10 are under way. NATS also counts those whose acknowledgement it has not read yet; on a busy machine these were 12.
    assert most <= 40 and told["num_waiting"] <= 1, (most, told)
    assert asked < 40, "%d requests a second of a consumer that is idle" % asked


def refused(broker, *flags):
    with folder() as f:
        done = subprocess.run(consume(broker, "journal:" + f, "--until-idle", "1s", *flags, "--", "true"), cwd=ROOT, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode != 0
    return done.stdout


def test_letters_never_come_back_to_their_consumer():
    broker = Nats()
    try:
        assert "there is no stream orders: create it first" in refused(broker)
        broker.make_stream("orders", "orders.>")
        assert "--dead-letter" in refused(broker)
        broker.publish([{"id": "p"}])
        with folder() as f:
            run_until_idle(broker, "journal:" + f, "--dead-letter", "letters.dead", "--doubt", "letters.doubt", "--", "sh", "-c", "exit 65")
        assert broker.letters("letters.dead") == [("p", "the command exited with 65")]
        assert broker.left() == 0
    finally:
        broker.stop()


def test_a_durable_that_asks_for_no_acknowledgements_is_refused():
    broker = Nats()
    try:
        broker.make_stream("orders", "orders.new")
        told = broker.ask("$JS.API.CONSUMER.DURABLE.CREATE.orders.g", stream_name="orders", config={"durable_name": "g", "ack_policy": "none"})
        assert "error" not in told, told
        assert "not a pull consumer with explicit acknowledgement" in refused(broker)
        broker.source += "&creds=/no/such/file"
        assert "cannot connect" in refused(broker)
    finally:
        broker.stop()


def test_a_durable_that_is_deleted_is_made_again(broker):
    with folder() as f, Process(consume(broker, "journal:" + f + "/j", "--", "sh", "-c", 'echo "$IDEM_ID" >> "$0/ran"', f)) as consumer:
        def ran():
            with contextlib.suppress(OSError), open(f + "/ran") as file:
                return file.read().split()
        broker.publish([{"id": "before-deletion"}])
        assert wait_until(ran), consumer.output()
        # NATS fails if it writes into the consumer's folder while it removes this ("directory not empty").
        assert wait_until(lambda: broker.ask("$JS.API.CONSUMER.DELETE.orders.g").get("success"), 20)
        broker.publish([{"id": "after-deletion"}])
        assert wait_until(lambda: len(ran()) > 1), consumer.output()
        assert ran() == ["before-deletion", "after-deletion"] and consumer.stop() == 0


def test_a_reason_of_several_lines_fits_into_a_letter(broker):
    """It comes from the record; a header of NATS has one line."""
    with folder() as f:
        store = "journal:" + f + "/j"
        done = subprocess.run([IDEM, "settle", "orders/g", "lines", "--absent", "--as", "failed", "--result", "first\nsecond", "--store", store], cwd=ROOT,
                              timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        broker.publish([{"id": "lines"}], **{"Nats-Msg-Id": "lines"})
        run_until_idle(broker, store, "--", "false")
    assert ("lines", "first second") in broker.letters("orders.dead")
    assert broker.letter_headers["message-id"] == "lines"


def test_user_and_password_and_tls(tmp_path):
    authority, certificate, key = servers.authority(str(tmp_path), "nats")
    with_user = Nats(user=("ann", "s3cret/x"))
    with_user.source = with_user.source.replace("s3cret/x", "s3cret%2Fx")
    try:
        said = refused(with_user)
        assert "there is no stream" in said and "s3cret" not in said
        with_user.source = with_user.source.replace("s3cret", "wrong")
        assert "Authorization Violation" in refused(with_user)
    finally:
        with_user.stop()
    with_tls = Nats(tls=(authority, certificate, key))
    try:
        assert "there is no stream" not in refused(with_tls)  # without tls nothing is believed
        with_tls.source += "&ca=" + authority
        assert "there is no stream" in refused(with_tls)
    finally:
        with_tls.stop()
