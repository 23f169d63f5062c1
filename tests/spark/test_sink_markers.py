"""Markers: what they say, where they are, and that nobody is held up or fooled who looks for one.

`PENSTOCK_TEST_AGAINST=kafka pytest tests/spark/test_sink_markers.py` runs them against Apache Kafka itself.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock.core.ids import TopicPartition
from penstock.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.protocol.records import StoredRecord
from penstock.spark.errors import BadOption
from penstock.spark.marker_scan import MarkerScan, StillOpen, last_marker
from penstock.spark.markers import (
    PARTITIONS,
    UNNAMED_KEPT_MS,
    Marker,
    MarkerKey,
    UnreadableMarker,
    is_of_unnamed,
    new_unnamed_writer,
)
from penstock.spark.sink_options import Kind, SinkOptions
from penstock.wire.cluster import Cluster
from penstock.wire.offsets import Isolation, latest
from penstock.wire.reading import read
from tests.spark.sinking import a_sink, an_attempt, create, records, sink_options, values, values_of, written
from tests.testkit import BrokerProcess, RawClient, broker_under_test, eventually
from tests.testkit.asking import topic_names
from tests.wire.reading import a_client, records_of
from tests.wire.test_reading import delete_records

QUERY = "6f1c2a30-8a51-4a0e-9d0f-3c5b7a9e1d24"


@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[Cluster]:
    with a_client(broker.bootstrap) as client:
        yield client


@pytest.fixture
def sink(broker: BrokerProcess, topic_name: str) -> SinkOptions:
    """With a topic of markers of its own."""
    create(broker.address, topic_name)
    return a_sink(broker.bootstrap, topic_name, markerTopic=f"markers-of-{topic_name}")


@pytest.fixture
def key() -> MarkerKey:
    return MarkerKey(str(uuid.uuid4()), 0)


def scan_of(sink: SinkOptions, key: MarkerKey) -> MarkerScan:
    """As a process that knows nothing yet has it."""
    return MarkerScan(TopicPartition(sink.marker_topic, key.partition()), key.writer)


def put(producer: Producer, sink: SinkOptions, key: MarkerKey, marker: Marker | None) -> None:
    value = None if marker is None else marker.to_bytes()
    producer.produce(sink.marker_topic, value, key.to_bytes(), key.partition())
    assert producer.flush(10) == 0


def beside(key: MarkerKey) -> MarkerKey:
    """Of another writer, in the same partition."""
    return next(
        other
        for other in (MarkerKey(f"other-{number}", 0) for number in range(1_000))
        if other.partition() == key.partition()
    )


# What they say


@pytest.mark.parametrize("marker", [Marker(0, 0, 0), Marker(2**40, 10**12, 2**64 - 1), Marker(7, 3, 1, is_whole=False)])
def test_given_a_marker_when_it_is_written_and_read_then_it_is_the_same(marker: Marker) -> None:
    assert Marker.from_bytes(marker.to_bytes()) == marker


def test_given_what_earlier_versions_wrote_when_it_is_read_then_it_is_understood() -> None:
    assert MarkerKey("5c0c", 12).to_bytes() == b'{"query":"5c0c","task":12}'
    assert MarkerKey("5c0c", 12).partition() == 3
    assert MarkerKey("5c0c", 12).transactional_id == "penstock-spark-5c0c-12"
    text = b'{"version":1,"batch":7,"rows":3,"checksum":"00000000000000ff"}'
    assert Marker.from_bytes(text) == Marker(7, 3, 255)
    assert Marker(7, 3, 255).to_bytes() == text


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b"\xff", b'{"version":1,"batch":7,"rows":3,"checksum":"x"}'])
def test_given_what_is_no_marker_when_it_is_read_then_it_is_refused(value: bytes) -> None:
    with pytest.raises(UnreadableMarker, match="is no marker"):
        Marker.from_bytes(value)


def test_given_a_marker_of_a_later_version_when_it_is_read_then_it_says_so() -> None:
    with pytest.raises(UnreadableMarker, match="version 2 is not known here"):
        Marker.from_bytes(b'{"version":2}')


# Looking for one


def test_given_transactions_of_others_that_stay_open_when_a_marker_is_looked_for_then_it_is_found_at_once(
    broker: BrokerProcess, sink: SinkOptions, key: MarkerKey
) -> None:
    other = beside(key)
    with an_attempt(sink, other.writer, other.task) as open_transaction:
        put(open_transaction, sink, other, Marker(1, 1, 1))

        first = written(sink, key.writer, key.task, 0, values(b"1"))
        again = written(sink, key.writer, key.task, 0, values(b"1"))

        assert (first.was_there, again.was_there) == (False, True)
        with a_client(broker.bootstrap) as cluster, pytest.raises(StillOpen):
            scan_of(sink, other).last(cluster, other)
        open_transaction.abort_transaction(10)


def test_given_markers_that_were_aborted_when_one_is_looked_for_then_it_is_the_last_committed_one(
    cluster: Cluster, sink: SinkOptions, key: MarkerKey
) -> None:
    with an_attempt(sink, key.writer, key.task) as producer:
        put(producer, sink, key, Marker(1, 1, 1))
        producer.commit_transaction(10)
        producer.begin_transaction()
        put(producer, sink, key, Marker(2, 2, 2))
        producer.abort_transaction(10)
    scan = scan_of(sink, key)

    found = eventually(lambda: settled(scan, cluster, key))

    assert found == Marker(1, 1, 1)
    assert scan.last(cluster, MarkerKey(key.writer, 1)) is None
    assert scan_of(sink, beside(key)).last(cluster, beside(key)) is None


def settled(scan: MarkerScan, cluster: Cluster, key: MarkerKey) -> Marker | None:
    """None while the end of a transaction is still to be written."""
    try:
        return scan.last(cluster, key)
    except StillOpen:
        return None


def test_given_a_process_that_has_read_when_it_looks_again_then_it_reads_only_what_is_new(
    broker: BrokerProcess, cluster: Cluster, topic_name: str
) -> None:
    markers = f"markers-of-{topic_name}"
    create(broker.address, topic_name)
    create(broker.address, markers, partitions=PARTITIONS)  # not compacted: its records can be taken away
    sink = sink_options(broker.bootstrap, Kind.STREAM, topic=topic_name, markerTopic=markers)
    key = next(each for each in (MarkerKey(str(uuid.uuid4()), 0) for _ in range(1_000)) if each.partition() == 0)
    written(sink, key.writer, key.task, 3, values(b"1"))
    scan = scan_of(sink, key)
    known = eventually(lambda: settled(scan, cluster, key))

    first = TopicPartition(markers, 0)
    with RawClient(broker.address) as raw:
        delete_records(raw, markers, latest(cluster, [first], Isolation.READ_UNCOMMITTED)[first])

    assert scan.last(cluster, key) == known
    assert scan_of(sink, key).last(cluster, key) is None


def test_given_a_topic_that_is_deleted_and_made_anew_when_a_process_looks_again_then_it_knows_nothing_of_the_old_one(
    broker: BrokerProcess, sink: SinkOptions, key: MarkerKey
) -> None:
    written(sink, key.writer, key.task, 3, values(b"1"))
    with a_client(broker.bootstrap) as cluster:
        assert eventually(lambda: settled_marker(cluster, sink, key)) is not None

    with RawClient(broker.address) as raw:
        raw.exchange(DeleteTopicsRequest(topic_names=[sink.marker_topic], timeout_ms=10_000), 5, DeleteTopicsResponse)
        eventually(lambda: sink.marker_topic not in topic_names(raw))
        create(broker.address, sink.marker_topic, partitions=PARTITIONS, cleanup_policy="compact")
    by_hand = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(10):  # more than there were
        put(by_hand, sink, beside(key), Marker(9, 9, 9))

    with a_client(broker.bootstrap) as cluster:
        assert last_marker(cluster, sink.marker_topic, key) is None


def settled_marker(cluster: Cluster, sink: SinkOptions, key: MarkerKey) -> Marker | None:
    try:
        return last_marker(cluster, sink.marker_topic, key)
    except StillOpen:
        return None


def test_given_markers_that_compaction_has_thinned_out_when_one_is_looked_for_then_it_is_the_last_committed_one(
    tmp_path: Path, topic_name: str, key: MarkerKey
) -> None:
    small: dict[str, Any] = {"segment_bytes": 4096, "min_cleanable_dirty_ratio": 0.01, "delete_retention_ms": 0}
    with broker_under_test().start(tmp_path / "data", log_cleaner_backoff_ms=50) as broker:
        create(broker.address, topic_name, partitions=PARTITIONS, cleanup_policy="compact", **small)
        sink = sink_options(broker.bootstrap, Kind.STREAM, topic="never-written", markerTopic=topic_name)
        with an_attempt(sink, key.writer, key.task) as producer:
            for batch_id in range(200):
                put(producer, sink, key, Marker(batch_id, 1, 1))
                if batch_id % 3:
                    producer.abort_transaction(10)
                else:
                    producer.commit_transaction(10)
                producer.begin_transaction()

        with a_client(broker.bootstrap) as cluster:
            eventually(lambda: len(everything(cluster, sink, key)) < 100, 60)
            assert scan_of(sink, key).last(cluster, key) == Marker(198, 1, 1)


def everything(cluster: Cluster, sink: SinkOptions, key: MarkerKey) -> list[StoredRecord]:
    """Of the partition, committed or not."""
    where = TopicPartition(sink.marker_topic, key.partition())
    end = latest(cluster, [where], Isolation.READ_UNCOMMITTED)[where]
    return records_of(read(cluster, where, 0, end, Isolation.READ_UNCOMMITTED))


def test_given_a_marker_that_cannot_be_read_when_it_is_looked_for_then_the_task_does_not_guess(
    sink: SinkOptions, key: MarkerKey
) -> None:
    by_hand = Producer({"bootstrap.servers": str(sink.client.bootstrap[0])})
    by_hand.produce(sink.marker_topic, b"hello", key.to_bytes(), key.partition())
    assert by_hand.flush(10) == 0

    with pytest.raises(UnreadableMarker, match=r"b'hello' is no marker"):
        written(sink, key.writer, key.task, 0, values(b"1"))


def test_given_a_marker_that_somebody_took_away_when_its_task_looks_then_it_finds_none_and_writes_again(
    broker: BrokerProcess, sink: SinkOptions, key: MarkerKey
) -> None:
    """By hand, and at their own risk: Penstock itself takes none away that anybody may look for."""
    written(sink, key.writer, key.task, 3, values(b"1"))

    put(Producer({"bootstrap.servers": broker.bootstrap}), sink, key, None)
    written(sink, key.writer, key.task, 0, values(b"2"))

    assert values_of(broker.bootstrap, str(sink.topic)) == [b"1", b"2"]


# Those of batches without a name


@pytest.mark.parametrize("writer", [QUERY, "unnamed-", "unnamed-batch", f"unnamed-{QUERY}x", 'unnamed-"', "orders"])
def test_given_a_query_or_a_name_when_its_marker_is_looked_at_then_it_is_not_taken_for_one_without_a_name(
    writer: str,
) -> None:
    assert not is_of_unnamed(MarkerKey(writer, 0).to_bytes())
    assert is_of_unnamed(MarkerKey(new_unnamed_writer(), 123).to_bytes())


def test_given_old_markers_of_batches_without_a_name_when_another_such_batch_is_written_then_they_go_and_others_stay(
    broker: BrokerProcess, cluster: Cluster, sink: SinkOptions
) -> None:
    """Else they would be more and more, since nobody else ever writes to their keys."""
    now_ms = time.time_ns() // 1_000_000
    old_ms, young_ms = now_ms - UNNAMED_KEPT_MS - 60_000, now_ms - UNNAMED_KEPT_MS + 60_000
    key = MarkerKey(new_unnamed_writer(), 0)
    old, older, renewed, young = (unnamed_beside(key) for _ in range(4))
    by_hand = Producer({"bootstrap.servers": broker.bootstrap})
    left = [(old, old_ms), (older, 1), (renewed, old_ms), (young, young_ms), (beside(key), 1), (renewed, young_ms)]
    for each, timestamp in left:
        by_hand.produce(
            sink.marker_topic, Marker(0, 1, 1).to_bytes(), each.to_bytes(), each.partition(), timestamp=timestamp
        )
    assert by_hand.flush(10) == 0

    written(sink, str(uuid.uuid4()), 0, 0, values(b"of a stream"))
    assert last_ones(broker, sink, key).keys() >= {each.to_bytes() for each, _ in left}
    written(sink, key.writer, key.task, 0, values(b"1"))

    kept = {each.to_bytes() for each in (renewed, young, beside(key), key)}
    assert {name for name, value in last_ones(broker, sink, key).items() if value is not None} >= kept
    assert [last_ones(broker, sink, key)[each.to_bytes()] for each in (old, older)] == [None, None]
    again = scan_of(sink, unnamed_beside(key))
    again.last(cluster, unnamed_beside(key))
    assert again.outdated == []


def unnamed_beside(key: MarkerKey) -> MarkerKey:
    """Of another batch without a name, in the same partition."""
    return next(
        other
        for other in (MarkerKey(new_unnamed_writer(), 0) for _ in range(1_000))
        if other.partition() == key.partition()
    )


def last_ones(broker: BrokerProcess, sink: SinkOptions, key: MarkerKey) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records(broker.bootstrap, sink.marker_topic, key.partition())}


# The topic


def test_given_no_topic_of_markers_when_several_drivers_need_it_at_once_then_it_is_made_once_and_compacted(
    broker: BrokerProcess, topic_name: str
) -> None:
    create(broker.address, topic_name)
    name = f"markers-of-{topic_name}"

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: a_sink(broker.bootstrap, topic_name, markerTopic=name), range(4)))

    with a_client(broker.bootstrap) as cluster:
        assert len(cluster.look_up([name])[name].leaders) == PARTITIONS
        assert a_sink(broker.bootstrap, topic_name, markerTopic=name).marker_topic == name


@pytest.mark.parametrize(
    ("partitions", "policy", "words"),
    [(PARTITIONS - 1, "compact", "has 15 partitions, and needs 16"), (PARTITIONS, "delete", "cleanup.policy=delete")],
)
def test_given_a_topic_that_would_lose_markers_when_it_is_to_be_used_then_it_is_refused(
    broker: BrokerProcess, topic_name: str, partitions: int, policy: str, words: str
) -> None:
    create(broker.address, topic_name)
    create(broker.address, f"markers-of-{topic_name}", partitions=partitions, cleanup_policy=policy)

    with pytest.raises(BadOption, match=words):
        a_sink(broker.bootstrap, topic_name, markerTopic=f"markers-of-{topic_name}")


def test_given_the_topic_of_the_rows_when_markers_are_to_go_there_then_it_is_refused(
    broker: BrokerProcess, topic_name: str
) -> None:
    create(broker.address, topic_name)

    with pytest.raises(BadOption, match="markers need a topic of their own"):
        a_sink(broker.bootstrap, topic_name, markerTopic=topic_name)
