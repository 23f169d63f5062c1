"""What a producer is told, and what the log holds afterwards."""

from __future__ import annotations

import time

import pytest

from penstock.core.errors import ErrorCode
from penstock.protocol.compression import Codec
from penstock.protocol.messages.records import ProduceResponse
from tests.testkit import Broker, RawClient
from tests.testkit.asking import (
    NOW_MS,
    PRODUCE_VERSION,
    a_batch,
    create_topic,
    fetch,
    offset_at,
    produce,
    produce_request,
    records_of,
    values_of,
)
from tests.testkit.waiting import eventually


@pytest.mark.parametrize("flush_messages", [1, 2**63 - 1])
@pytest.mark.parametrize("acks", [1, -1])
def test_given_batches_then_offsets_are_consecutive_and_records_come_back(
    broker: Broker, topic_name: str, acks: int, flush_messages: int
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, flush_messages=flush_messages)

        first = produce(client, topic_name, a_batch(b"a", b"b"), acks=acks)
        second = produce(client, topic_name, a_batch(b"c"), acks=acks)

        assert (first.error_code, first.base_offset) == (0, 0)
        assert (second.error_code, second.base_offset) == (0, 2)
        eventually(lambda: fetch(client, topic_name, 0).high_watermark == 3)
        assert values_of(fetch(client, topic_name, 0)) == [b"a", b"b", b"c"]


def test_given_acks_0_then_there_is_no_answer_and_the_records_are_there(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)

        request = produce_request(topic_name, {0: a_batch(b"a")}, acks=0)
        client.send_request(request.API_KEY, PRODUCE_VERSION, request.encode(PRODUCE_VERSION))

        # The next answer is the one to the fetch: acks=0 took no place in the order.
        eventually(lambda: fetch(client, topic_name, 0).high_watermark == 1)
        assert values_of(fetch(client, topic_name, 0)) == [b"a"]


def test_given_acks_0_when_the_append_fails_then_the_connection_is_closed(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        request = produce_request(topic_name, {0: a_batch(b"a")}, acks=0)

        client.send_request(request.API_KEY, PRODUCE_VERSION, request.encode(PRODUCE_VERSION))

        assert client.is_closed_by_broker()


def test_given_pipelined_requests_then_answers_come_in_their_order(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, partitions=3)
        sent = []
        for number in range(300):
            request = produce_request(topic_name, {number % 3: a_batch(b"%d" % number)}, acks=-1 if number % 2 else 1)
            sent.append(client.send_request(request.API_KEY, PRODUCE_VERSION, request.encode(PRODUCE_VERSION)))

        offsets = []
        for correlation_id in sent:
            body = client.receive_response(0, PRODUCE_VERSION, correlation_id)
            (partition,) = ProduceResponse.decode(body, PRODUCE_VERSION).responses[0].partition_responses
            assert partition.error_code == 0
            offsets.append(partition.base_offset)

        assert offsets == [number // 3 for number in range(300)]


def test_given_one_bad_partition_then_only_it_fails(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, partitions=2)
        request = produce_request(topic_name, {0: a_batch(b"good")})
        broken = a_batch(b"broken")
        broken[-1] ^= 1
        request.topic_data[0].partition_data += produce_request(topic_name, {1: broken}).topic_data[0].partition_data
        request.topic_data[0].partition_data += (
            produce_request(topic_name, {7: a_batch(b"?")}).topic_data[0].partition_data
        )

        (topic,) = client.exchange(request, PRODUCE_VERSION, ProduceResponse).responses

        codes = {each.index: each.error_code for each in topic.partition_responses}
        assert codes == {0: 0, 1: ErrorCode.CORRUPT_MESSAGE, 7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_given_log_append_time_then_the_broker_stamps_and_tells(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, message_timestamp_type="LogAppendTime")
        before_ms = time.time_ns() // 1_000_000

        answer = produce(client, topic_name, a_batch(b"a", b"b", timestamp=1))

        assert before_ms <= answer.log_append_time_ms <= before_ms + 60_000
        stamps = {record.timestamp for record in records_of(fetch(client, topic_name, 0))}
        assert stamps == {answer.log_append_time_ms}
        assert offset_at(client, topic_name, answer.log_append_time_ms).offset == 0


def test_given_a_batch_over_max_message_bytes_then_10(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, max_message_bytes=1000)

        assert produce(client, topic_name, a_batch(b"x" * 2000)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert produce(client, topic_name, a_batch(b"x" * 500)).base_offset == 0


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_given_a_compressed_batch_then_its_bytes_are_passed_through_untouched(
    broker: Broker, topic_name: str, codec: Codec
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        batch = a_batch(*[b"%d" % number * 20 for number in range(50)], codec=codec)

        produce(client, topic_name, batch)

        stored = fetch(client, topic_name, 0).records
        assert isinstance(stored, memoryview)
        # All but base offset and leader epoch, which the log owns.
        assert bytes(stored[8:12]) == bytes(batch[8:12])
        assert bytes(stored[16:]) == bytes(batch[16:])


def test_given_compression_type_then_batches_are_recompressed_in_the_order_they_came(
    broker: Broker, topic_name: str
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, compression_type="zstd")
        sent = []
        for number in range(40):
            codec = (Codec.NONE, Codec.GZIP, Codec.ZSTD)[number % 3]  # zstd needs no work, but must wait its turn
            request = produce_request(topic_name, {0: a_batch(b"%d" % number * 50, codec=codec)})
            sent.append(client.send_request(request.API_KEY, PRODUCE_VERSION, request.encode(PRODUCE_VERSION)))
        for correlation_id in sent:
            client.receive_response(0, PRODUCE_VERSION, correlation_id)

        data = fetch(client, topic_name, 0)

        assert values_of(data) == [b"%d" % number * 50 for number in range(40)]
        assert isinstance(data.records, memoryview)
        assert data.records[22] & 7 == Codec.ZSTD


def test_given_min_insync_replicas_above_the_number_of_replicas_then_all_of_them_are_enough(
    broker: Broker, topic_name: str
) -> None:
    """As in Kafka: otherwise a topic that is given fewer replicas could not be written to any more."""
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, min_insync_replicas=2)

        assert produce(client, topic_name, a_batch(b"a")).error_code == 0
        assert offset_at(client, topic_name, -1).offset == 1


def a_sequenced_batch(sequence: int, count: int = 1, epoch: int = 0, producer_id: int = 77_000) -> bytearray:
    values = [b"%d" % (sequence + at) for at in range(count)]
    return a_batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_given_retries_of_the_last_five_batches_then_they_get_their_first_offsets_across_restarts(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Broker.start(tmp_path_factory.mktemp("dedupe") / "data") as own:
        with RawClient(own.address) as client:
            create_topic(client, "orders")
            offsets = [produce(client, "orders", a_sequenced_batch(number)).base_offset for number in range(7)]
            assert offsets == list(range(7))

        for stop in (lambda: None, own.stop, own.kill):
            stop()
            if not own.is_running:
                own.restart()
            with RawClient(own.address) as client:
                for number in range(2, 7):
                    retried = produce(client, "orders", a_sequenced_batch(number))
                    assert (retried.error_code, retried.base_offset) == (0, number)
                older = produce(client, "orders", a_sequenced_batch(1))
                assert older.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
                gap = produce(client, "orders", a_sequenced_batch(9))
                assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                assert offset_at(client, "orders", -1).offset == 7

        with RawClient(own.address) as client:
            assert produce(client, "orders", a_sequenced_batch(0, epoch=1)).base_offset == 7
            assert produce(client, "orders", a_sequenced_batch(7)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_given_a_batch_for_a_topic_that_is_not_there_yet_when_it_is_then_what_comes_behind_it_has_to_wait_for_it(
    broker: Broker, topic_name: str
) -> None:
    with RawClient(broker.address) as client:
        early = produce(client, topic_name, a_sequenced_batch(5, producer_id=77_001), version=9)
        assert early.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        create_topic(client, topic_name)

        behind = produce(client, topic_name, a_sequenced_batch(6, producer_id=77_001))
        assert behind.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        for number in (5, 6):
            assert produce(client, topic_name, a_sequenced_batch(number, producer_id=77_001)).error_code == 0
        assert values_of(fetch(client, topic_name, 0)) == [b"5", b"6"]


def test_given_a_timestamp_far_in_the_future_then_32_with_the_record_at_fault(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        far = NOW_MS + 50 * 365 * 86_400_000

        answer = produce(client, topic_name, a_batch(b"a", timestamp=far))

        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [each.batch_index for each in answer.record_errors] == [0]
