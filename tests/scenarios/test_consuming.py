"""What a consumer gets, how much of it, and when."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.records import FetchResponse, ForgottenTopic
from tests.testkit import Broker, RawClient
from tests.testkit.asking import (
    FETCH_VERSION,
    NOW_MS,
    a_batch,
    create_topic,
    fetch,
    fetch_request,
    offset_at,
    produce,
    values_of,
)
from tests.testkit.page_cache import can_be_evicted


def test_given_an_offset_inside_a_batch_then_the_whole_batch_comes(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        produce(client, topic_name, a_batch(b"a", b"b", b"c"))

        assert values_of(fetch(client, topic_name, 1)) == [b"a", b"b", b"c"]


def test_given_limits_below_the_first_batch_then_it_comes_whole_and_alone(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, partitions=2)
        for partition in (0, 1):
            produce(client, topic_name, a_batch(b"x" * 5000), partition=partition)

        request = fetch_request({topic_name: [(0, 0), (1, 0)]}, max_bytes=1, partition_max_bytes=1)
        first, second = client.exchange(request, FETCH_VERSION, FetchResponse).responses[0].partitions

        assert values_of(first) == [b"x" * 5000]
        assert second.records is not None
        assert len(second.records) == 0  # type: ignore[arg-type]


def test_given_max_bytes_then_the_answer_stays_below_it(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        for _ in range(20):
            produce(client, topic_name, a_batch(b"x" * 1000))

        data = fetch(client, topic_name, 0, partition_max_bytes=3500)

        assert isinstance(data.records, memoryview)
        assert len(data.records) <= 3500
        assert len(values_of(data)) == 3


def test_given_no_data_when_an_append_comes_then_the_waiting_fetch_is_answered_at_once(
    broker: Broker, topic_name: str
) -> None:
    with RawClient(broker.address) as consumer, RawClient(broker.address) as producer, ThreadPoolExecutor(1) as pool:
        create_topic(producer, topic_name)
        waiting = pool.submit(lambda: values_of(fetch(consumer, topic_name, 0, max_wait_ms=30_000)))

        produce(producer, topic_name, a_batch(b"news"))

        assert waiting.result(10) == [b"news"]


def test_given_min_bytes_then_the_fetch_waits_for_that_much_or_for_its_time(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as consumer, RawClient(broker.address) as producer, ThreadPoolExecutor(1) as pool:
        create_topic(producer, topic_name)
        produce(producer, topic_name, a_batch(b"x" * 1000))

        short = fetch(consumer, topic_name, 0, min_bytes=1_000_000, max_wait_ms=100)
        assert values_of(short) == [b"x" * 1000]

        waiting = pool.submit(lambda: values_of(fetch(consumer, topic_name, 0, min_bytes=3_000, max_wait_ms=30_000)))
        for _ in range(2):
            produce(producer, topic_name, a_batch(b"x" * 1000))
        assert waiting.result(10) == [b"x" * 1000] * 3


def test_given_offsets_out_of_range_then_1_and_at_the_end_nothing(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        produce(client, topic_name, a_batch(b"a"))

        assert fetch(client, topic_name, 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert fetch(client, topic_name, -1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert values_of(fetch(client, topic_name, 1)) == []


def test_given_another_leader_epoch_then_74_or_75(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        for epoch, code in ((1_000, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, ErrorCode.NONE)):
            request = fetch_request({topic_name: [(0, 0)]})
            request.topics[0].partitions[0].current_leader_epoch = epoch
            (answer,) = client.exchange(request, FETCH_VERSION, FetchResponse).responses[0].partitions
            assert answer.error_code == code


def test_given_a_session_then_only_what_changed_is_told(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, partitions=3)
        opened = client.exchange(
            fetch_request({topic_name: [(0, 0), (1, 0), (2, 0)]}, session_epoch=0), FETCH_VERSION, FetchResponse
        )
        assert opened.session_id > 0
        assert len(opened.responses[0].partitions) == 3

        quiet = client.exchange(
            fetch_request({}, session_id=opened.session_id, session_epoch=1), FETCH_VERSION, FetchResponse
        )
        assert quiet.responses == []

        produce(client, topic_name, a_batch(b"news"), partition=1)
        news = client.exchange(
            fetch_request({}, session_id=opened.session_id, session_epoch=2, max_wait_ms=5_000),
            FETCH_VERSION,
            FetchResponse,
        )
        assert [each.partition_index for each in news.responses[0].partitions] == [1]

        forgetting = fetch_request({}, session_id=opened.session_id, session_epoch=3)
        forgetting.forgotten_topics_data = [ForgottenTopic(topic=topic_name, partitions=[1])]
        assert client.exchange(forgetting, FETCH_VERSION, FetchResponse).responses == []

        wrong = client.exchange(
            fetch_request({}, session_id=opened.session_id, session_epoch=9), FETCH_VERSION, FetchResponse
        )
        assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_given_timestamps_then_offsets_are_found_to_the_record(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        produce(client, topic_name, a_batch(b"a", b"b", b"c", timestamp=NOW_MS))
        produce(client, topic_name, a_batch(b"d", timestamp=NOW_MS + 1_000))

        assert offset_at(client, topic_name, NOW_MS + 1).offset == 1
        assert offset_at(client, topic_name, NOW_MS + 3).offset == 3
        assert offset_at(client, topic_name, NOW_MS + 1_001).offset == -1
        assert offset_at(client, topic_name, -1).offset == 4
        assert offset_at(client, topic_name, -2).offset == 0
        assert offset_at(client, topic_name, -3).offset == 3
        assert offset_at(client, topic_name, -4).offset == 0
        assert offset_at(client, topic_name, -5).offset == -1
        assert offset_at(client, topic_name, -3, version=6).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_given_a_replica_id_from_a_client_then_the_fetch_is_refused(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        request = fetch_request({topic_name: [(0, 0)]})
        request.replica_id = 2

        assert (
            client.exchange(request, FETCH_VERSION, FetchResponse).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        )


@pytest.mark.timeout(60)
def test_given_many_consumers_that_do_not_read_then_memory_is_bounded_and_others_are_served(
    broker: Broker, topic_name: str
) -> None:
    with RawClient(broker.address) as good:
        create_topic(good, topic_name, flush_messages=2**63 - 1)
        for _ in range(20):
            produce(good, topic_name, a_batch(b"x" * 1_000_000), acks=1)
        before = broker.resident_bytes()
        slow = [RawClient(broker.address) for _ in range(50)]
        request = fetch_request({topic_name: [(0, 0)]}, partition_max_bytes=50_000_000)
        for client in slow:
            for _ in range(10):
                client.send_request(1, FETCH_VERSION, request.encode(FETCH_VERSION))

        assert fetch(good, topic_name, 0).error_code == 0
        assert broker.resident_bytes() - before < 64 * 1024 * 1024
        for client in slow:
            client.close()


def test_given_records_that_are_not_in_the_page_cache_then_they_are_read_from_the_disk_and_come_whole(
    tmp_path: Path,
) -> None:
    with Broker.start(tmp_path / "data") as own, RawClient(own.address) as client:
        create_topic(client, "orders", segment_bytes=1_000_000)
        sent = [b"%04d" % number * 25_000 for number in range(30)]
        for value in sent:
            produce(client, "orders", a_batch(value))
        segments = [each for each in (tmp_path / "data" / "orders-0").glob("*.log") if each.stat().st_size]
        if not all(can_be_evicted(segment) for segment in segments):
            pytest.skip("this file system keeps everything in memory")

        found: list[bytes | None] = []
        while len(found) < len(sent):
            came = values_of(fetch(client, "orders", len(found)))
            assert came, "a cold read waits for the disk, it does not answer without the records"
            found += came

        assert found == sent


def test_given_a_session_with_names_when_it_goes_on_with_topic_ids_then_it_is_begun_anew(
    broker: Broker, topic_name: str
) -> None:
    """A Java consumer does that when it learns of the ids meanwhile; answers without them would tell it nothing."""
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        opened = client.exchange(fetch_request({topic_name: [(0, 0)]}, session_epoch=0), 12, FetchResponse)
        assert opened.session_id > 0

        further = fetch_request({}, session_id=opened.session_id, session_epoch=1)
        refused = client.exchange(further, 13, FetchResponse)

        assert refused.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        assert not client.exchange(further, 12, FetchResponse).error_code
