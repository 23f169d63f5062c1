"""What every Kafka client does with topics: produce, and consume by assignment from where it chooses."""

import pytest

from tests.compat.clients.interface import ALL_CODECS, Client, Message
from tests.compat.topics import CreateTopic
from tests.testkit import BrokerProcess, stored_batches

NUMBERED = [Message(b"value-%d " % number * 20) for number in range(10)]


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_given_a_codec_when_produced_then_stored_in_it_untouched_and_consumed_whole(
    client: Client, codec: str, broker: BrokerProcess, topic: str
) -> None:
    if codec not in client.codecs:
        pytest.skip(f"{client.name} has no {codec} on this machine: the Python package for it is not installed")

    acknowledged = client.produce(topic, NUMBERED, codec=codec)

    received = client.consume(topic, len(NUMBERED))
    assert [record.message.value for record in received] == [message.value for message in NUMBERED]
    assert [record.offset for record in received] == list(range(len(NUMBERED)))
    assert acknowledged in ([], list(range(len(NUMBERED))))
    assert {batch.codec for batch in stored_batches(broker, topic)} == {codec}


def test_given_idempotence_when_produced_then_every_batch_carries_producer_id_and_sequence(
    client: Client, broker: BrokerProcess, topic: str
) -> None:
    client.produce(topic, NUMBERED, idempotent=True)

    batches = stored_batches(broker, topic)
    assert sum(batch.record_count for batch in batches) == len(NUMBERED)
    assert {batch.producer_id >= 0 for batch in batches} == {True}
    assert len({batch.producer_id for batch in batches}) == 1
    # One producer wrote the whole log, so its sequence numbers are the offsets.
    assert [batch.base_sequence for batch in batches] == [batch.base_offset for batch in batches]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_given_acks_when_produced_then_every_record_arrives_in_order(client: Client, acks: str, topic: str) -> None:
    client.produce(topic, NUMBERED, acks=acks)

    received = client.consume(topic, len(NUMBERED))
    assert [record.message.value for record in received] == [message.value for message in NUMBERED]


def test_given_an_offset_inside_a_batch_when_consumed_from_it_then_records_start_exactly_there(
    client: Client, broker: BrokerProcess, topic: str
) -> None:
    client.produce(topic, NUMBERED, codec="gzip")

    received = client.consume(topic, 4, offset=6)

    assert [record.offset for record in received] == [6, 7, 8, 9]
    assert [record.message.value for record in received] == [message.value for message in NUMBERED[6:]]


def test_given_timestamps_when_asked_for_a_time_then_first_offset_at_or_after_it(
    client: Client, topic: str, writer: Client
) -> None:
    writer.produce(topic, [Message(b"x", timestamp_ms=1_700_000_000_000 + second * 1_000) for second in range(10)])

    between_and_exact = [client.offset_for_time(topic, 1_700_000_000_000 + ms) for ms in (0, 2_500, 7_000)]

    assert between_and_exact == [0, 3, 7]


def test_given_timestamps_when_asked_for_a_later_time_then_no_record_is_named(
    client: Client, topic: str, writer: Client
) -> None:
    writer.produce(topic, [Message(b"x", timestamp_ms=1_700_000_000_000)])

    found = client.offset_for_time(topic, 1_700_000_000_001)

    # librdkafka answers with the end of the log, the others with nothing.
    assert found in (None, 1)


def test_given_records_when_asked_for_bounds_then_log_start_and_high_watermark(client: Client, topic: str) -> None:
    empty = client.bounds(topic)
    client.produce(topic, NUMBERED)

    filled = client.bounds(topic)

    assert empty == (0, 0)
    assert filled == (0, 10)


def test_given_several_partitions_when_produced_to_each_then_each_keeps_its_own_offsets(
    client: Client, create_topic: CreateTopic
) -> None:
    topic = create_topic(partitions=3)

    for partition in range(3):
        client.produce(topic, NUMBERED[: partition + 1], partition=partition)

    assert [client.bounds(topic, partition=partition) for partition in range(3)] == [(0, 1), (0, 2), (0, 3)]
    assert client.consume(topic, 3, partition=2)[-1].message.value == NUMBERED[2].value
