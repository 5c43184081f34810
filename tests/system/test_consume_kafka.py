"""Kafka, on librdkafka's mock cluster in a process of its own: what test_consume.py asks of every broker, with consumers
killed and the broker away for a while. Waits more than it works."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from test_consume import (Kafka, test_a_letter_keeps_what_the_message_came_with,  # noqa: F401
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
    broker = Kafka()
    yield broker
    broker.stop()
