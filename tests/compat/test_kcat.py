"""What only kcat does: the command line of librdkafka, as Debian ships it."""

import json
import shutil

import pytest

from tests.compat.clients.interface import Client, Message
from tests.compat.clients.kcat import KcatClient
from tests.compat.topics import CreateTopic
from tests.testkit import BrokerProcess

T0_MS = 1_700_000_000_000
NODE_ID = 1


@pytest.fixture
def kcat(broker: BrokerProcess) -> KcatClient:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")
    return KcatClient(broker.bootstrap)


@pytest.fixture
def filled_topic(topic: str, writer: Client) -> str:
    """Ten records, one second apart."""
    writer.produce(topic, [Message(b"%d" % number, timestamp_ms=T0_MS + number * 1_000) for number in range(10)])
    return topic


def test_given_a_topic_when_metadata_is_listed_then_brokers_and_partitions(
    kcat: KcatClient, create_topic: CreateTopic, broker: BrokerProcess
) -> None:
    topic = create_topic(partitions=2)

    metadata = json.loads(kcat.run("-L", "-J", "-t", topic))

    assert metadata["brokers"] == [{"id": NODE_ID, "name": broker.bootstrap}]
    node = [{"id": NODE_ID}]
    assert metadata["topics"] == [
        {
            "topic": topic,
            "partitions": [
                {"partition": number, "leader": NODE_ID, "replicas": node, "isrs": node} for number in range(2)
            ],
        }
    ]


def test_given_all_topics_when_metadata_is_listed_then_this_one_among_them(kcat: KcatClient, topic: str) -> None:
    metadata = json.loads(kcat.run("-L", "-J"))

    assert topic in {listed["topic"] for listed in metadata["topics"]}


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("beginning", [0, 1, 2]),
        ("4", [4, 5, 6]),
        ("-3", [7, 8, 9]),
        (f"s@{T0_MS + 5_500}", [6, 7, 8]),
    ],
)
def test_given_a_start_when_consumed_from_it_then_the_records_there(
    kcat: KcatClient, filled_topic: str, start: str, expected: list[int]
) -> None:
    received = kcat.consume_from(filled_topic, start, 3)

    assert [record.offset for record in received] == expected


def test_given_a_span_of_time_when_consumed_then_it_ends_before_the_second_timestamp(
    kcat: KcatClient, filled_topic: str
) -> None:
    span = ["-o", f"s@{T0_MS + 2_000}", "-o", f"e@{T0_MS + 5_000}"]

    output = kcat.run("-C", "-t", filled_topic, "-p", "0", *span, "-f", "%s ", "-X", "fetch.wait.max.ms=100")

    assert output.split() == [b"2", b"3", b"4"]
