"""A broker whose groups are stable at once, and a client of it.

`PENSTOCK_TEST_AGAINST=kafka pytest tests/sdk` runs the same tests against Apache Kafka itself.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from penstock.sdk import Client
from tests.testkit import BrokerProcess, KafkaBroker, broker_under_test

_HEARTBEAT_MS = 300
_QUICK_GROUPS: Mapping[str, Any] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.heartbeat.interval.ms": _HEARTBEAT_MS,
}


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("sdk-broker") / "data"
    kind = broker_under_test()
    settings = dict(_QUICK_GROUPS)
    if kind is KafkaBroker:
        settings["group.consumer.min.heartbeat.interval.ms"] = _HEARTBEAT_MS  # Kafka's own guard, which is not ours
    with kind.start(data, **settings) as shared:
        yield shared


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: Client, topic_name: str) -> str:
    """A topic of one partition."""
    client.create_topic(topic_name, partitions=1)
    return topic_name


@pytest.fixture
def group(topic_name: str) -> str:
    return f"{topic_name}-group"
