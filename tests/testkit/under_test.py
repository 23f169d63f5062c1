"""Which broker the tests are about."""

import os

from tests.testkit.broker import Broker
from tests.testkit.broker_process import BrokerProcess
from tests.testkit.kafka_broker import KafkaBroker


def broker_under_test() -> type[BrokerProcess]:
    """Ours, or Apache Kafka with `PENSTOCK_TEST_AGAINST=kafka`, which tells whether a test itself is right."""
    return KafkaBroker if os.environ.get("PENSTOCK_TEST_AGAINST") == "kafka" else Broker
