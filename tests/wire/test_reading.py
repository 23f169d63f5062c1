"""Ranges of partitions as a Spark task reads them, from real brokers.

`PENSTOCK_TEST_AGAINST=kafka pytest tests/wire` runs them against Apache Kafka itself.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock.core.ids import TopicPartition
from penstock.protocol.batch import Codec
from penstock.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.protocol.records import Record, build_batch
from penstock.wire.errors import OffsetsLost, TimedOut, TopicRecreated, UnknownTopic
from penstock.wire.offsets import at_times, earliest, latest
from penstock.wire.reading import read
from tests.testkit import BrokerProcess, RawClient, broker_under_test, eventually
from tests.testkit.asking import NOW_MS, a_batch, create_usable_topic, produce
from tests.wire.reading import COMMITTED, UNCOMMITTED, a_client, offsets_and_values, records_of

FOREVER: dict[str, Any] = {"retention_ms": -1}


@pytest.fixture
def raw(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.address) as client:
        yield client


@pytest.fixture
def topic(raw: RawClient, topic_name: str) -> str:
    create_usable_topic(raw, topic_name, **FOREVER)
    return topic_name


def write(raw: RawClient, topic: str, *batches: bytes | bytearray) -> None:
    for batch in batches:
        answer = produce(raw, topic, batch)
        assert answer.error_code == 0, answer


def delete_records(raw: RawClient, topic: str, before: int) -> None:
    wanted = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=before)])
    answer = raw.exchange(DeleteRecordsRequest(topics=[wanted], timeout_ms=10_000), 2, DeleteRecordsResponse)
    assert answer.topics[0].partitions[0].error_code == 0


def test_given_keys_headers_and_nulls_when_read_then_records_are_as_they_were_written(
    broker: BrokerProcess, raw: RawClient, topic: str
) -> None:
    records = [
        Record(b"k", b"v", (("a", b"1"), ("b", None)), NOW_MS),
        Record(None, b"", (), NOW_MS + 5),
        Record(b"", None, (), NOW_MS - 7),
    ]
    write(raw, topic, build_batch(records))

    with a_client(broker.bootstrap) as cluster:
        found = records_of(read(cluster, TopicPartition(topic, 0), 0, 3))
        without_headers = records_of(read(cluster, TopicPartition(topic, 0), 0, 3, with_headers=False))

    assert [tuple(each) for each in found] == [
        (0, NOW_MS, b"k", b"v", [("a", b"1"), ("b", None)]),
        (1, NOW_MS + 5, None, b"", []),
        (2, NOW_MS - 7, b"", None, []),
    ]
    assert [each.headers for each in without_headers] == [[], [], []]


@pytest.mark.parametrize("codec", Codec)
def test_given_batches_of_a_codec_when_any_range_is_read_then_it_has_exactly_that_range(
    broker: BrokerProcess, raw: RawClient, topic: str, codec: Codec
) -> None:
    values = [b"%d-" % number * 50 for number in range(60)]
    write(raw, topic, *(a_batch(*values[at : at + 10], codec=codec) for at in range(0, 60, 10)))

    with a_client(broker.bootstrap) as cluster:
        for start, end in ((0, 60), (0, 1), (59, 60), (9, 11), (13, 47), (20, 30), (30, 30)):
            found = offsets_and_values(cluster, topic, start, end)
            assert found == dict(enumerate(values[start:end], start)), (start, end)


def test_given_small_fetches_and_small_parts_when_read_then_all_comes_once_and_no_part_is_much_larger(
    broker: BrokerProcess, raw: RawClient, topic: str
) -> None:
    values = [random.Random(number).randbytes(100) for number in range(3_000)]
    write(raw, topic, *(a_batch(*values[at : at + 10]) for at in range(0, 3_000, 10)))

    with a_client(broker.bootstrap, max_partition_fetch_bytes=5_000) as cluster:
        by_rows = list(read(cluster, TopicPartition(topic, 0), 0, 3_000, max_rows=25))
        by_bytes = list(read(cluster, TopicPartition(topic, 0), 0, 3_000, max_bytes=2_500))

    for parts in (by_rows, by_bytes):
        assert [each.value for each in records_of(parts)] == values
        assert {part.rows for part in parts} == {30}


def test_given_a_batch_larger_than_a_fetch_when_read_then_it_comes_whole(
    broker: BrokerProcess, raw: RawClient, topic_name: str
) -> None:
    create_usable_topic(raw, topic_name, max_message_bytes=12 << 20, **FOREVER)
    large = random.Random(1).randbytes(10 << 20)
    write(raw, topic_name, a_batch(b"before"), a_batch(large), a_batch(b"after"))

    with a_client(broker.bootstrap) as cluster:
        found = offsets_and_values(cluster, topic_name, 0, 3)

    assert found == {0: b"before", 1: large, 2: b"after"}


def test_given_a_long_partition_when_it_is_read_in_a_process_then_memory_stays_within_a_few_parts(
    broker: BrokerProcess, raw: RawClient, topic: str
) -> None:
    batch = a_batch(*(random.Random(number).randbytes(1_000) for number in range(900)))
    write(raw, topic, *[batch] * 120)  # 108 MB

    arguments = [sys.executable, "-c", READER, broker.bootstrap, topic, str(900 * 120)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    finished = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=100)

    assert finished.returncode == 0, finished.stderr
    rows, grown_kilobytes = map(int, finished.stdout.split())
    assert rows == 900 * 120
    assert grown_kilobytes < 48 << 10


# Reads a partition in parts of 4 MB, and prints how many rows there were and by how many KB the process grew meanwhile.
READER = """
import sys
from pathlib import Path
from penstock.core.ids import TopicPartition
from penstock.wire.cluster import Cluster
from penstock.wire.reading import read
from penstock.wire.settings import ClientSettings

def peak():  # of this process alone: getrusage begins with that of the one that started it
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])

bootstrap, topic, end = sys.argv[1:]
cluster = Cluster(ClientSettings.parse({"bootstrap.servers": bootstrap}))
before = peak()
rows = sum(part.rows for part in read(cluster, TopicPartition(topic, 0), 0, int(end), max_bytes=4 << 20))
print(rows, peak() - before)
"""


# Transactions


def test_given_aborted_and_committed_transactions_when_read_then_committed_readers_see_just_the_committed(
    broker: BrokerProcess, raw: RawClient, topic: str
) -> None:
    write(raw, topic, a_batch(b"plain"))
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions(30)
    outcomes = [True, False, False, True, False, True]
    for number, is_committed in enumerate(outcomes):
        producer.begin_transaction()
        for each in range(5):
            producer.produce(topic, b"%d-%d" % (number, each), partition=0)
            producer.flush(30)  # a batch each
        (producer.commit_transaction if is_committed else producer.abort_transaction)(30)
    per_transaction = [
        [b"%d-%d" % (number, each) for each in range(5)] + [None] for number in range(len(outcomes))
    ]  # with its marker
    log = [b"plain", *(value for each in per_transaction for value in each), b"last"]

    with a_client(broker.bootstrap, max_partition_fetch_bytes=300) as cluster:
        partition = TopicPartition(topic, 0)
        eventually(lambda: latest(cluster, [partition]) == {partition: len(log) - 1})  # the last marker is written
        write(raw, topic, a_batch(b"last"))
        everything = offsets_and_values(cluster, topic, 0, len(log), isolation=UNCOMMITTED)
        committed = offsets_and_values(cluster, topic, 0, len(log), isolation=COMMITTED)
        suffixes = [offsets_and_values(cluster, topic, start, len(log)) for start in range(len(log))]
        aborted_only = offsets_and_values(cluster, topic, 8, 12)

    assert everything == {offset: value for offset, value in enumerate(log) if value is not None}
    expected = {
        offset: value for offset, value in everything.items() if (offset - 1) // 6 >= 6 or outcomes[(offset - 1) // 6]
    }
    assert committed == {0: b"plain", **{offset: value for offset, value in expected.items() if offset}}
    assert suffixes == [
        {offset: value for offset, value in committed.items() if offset >= start} for start in range(len(log))
    ]
    assert aborted_only == {}


def test_given_an_open_transaction_when_read_past_it_then_that_times_out_and_says_where_committed_records_end(
    broker: BrokerProcess, raw: RawClient, topic: str
) -> None:
    write(raw, topic, a_batch(b"plain"))
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(30)

    with a_client(broker.bootstrap, default_api_timeout_ms=1_000) as cluster:
        partition = TopicPartition(topic, 0)
        assert latest(cluster, [partition]) == {partition: 1}
        assert latest(cluster, [partition], UNCOMMITTED) == {partition: 2}
        assert offsets_and_values(cluster, topic, 0, 2, isolation=UNCOMMITTED) == {0: b"plain", 1: b"open"}
        parts = read(cluster, partition, 0, 2, max_rows=1)
        assert [each.value for each in records_of([next(parts)])] == [b"plain"]
        with pytest.raises(TimedOut, match=r"committed records end at offset 1, and those up to 2 were asked for"):
            next(parts)
        producer.commit_transaction(30)
        assert offsets_and_values(cluster, topic, 0, 2) == {0: b"plain", 1: b"open"}


# Gaps and losses


def test_given_a_compacted_topic_when_ranges_end_in_gaps_then_what_is_left_of_them_is_read(
    tmp_path: Path, topic_name: str
) -> None:
    """Of 30 versions of a key, the last of which is a tombstone, nothing or little is left."""
    configs: dict[str, Any] = {
        "cleanup_policy": "compact",
        "segment_ms": 100,
        "delete_retention_ms": 0,
        "retention_ms": -1,
    }
    with broker_under_test().start(tmp_path / "data", log_cleaner_backoff_ms=100) as broker, ExitStack() as stack:
        raw = stack.enter_context(RawClient(broker.address))
        create_usable_topic(raw, topic_name, min_cleanable_dirty_ratio=0.01, max_compaction_lag_ms=200, **configs)
        for number in range(30):
            value = b"%d" % number if number < 29 else None
            write(raw, topic_name, build_batch([Record(b"key", value, (), NOW_MS + 10_000 * number)]))
        cluster = stack.enter_context(a_client(broker.bootstrap))
        partition = TopicPartition(topic_name, 0)

        def compacted() -> dict[int, bytes | None] | None:
            found = offsets_and_values(cluster, topic_name, 0, 30)
            return found if len(found) < 10 else None

        left = eventually(compacted, 60)
        for start, end in ((0, 30), (0, 15), (5, 10), (28, 29), (29, 30)):
            inside = {offset: value for offset, value in left.items() if start <= offset < end}
            # The cleaner goes on meanwhile: what is read is a part of what was there.
            assert offsets_and_values(cluster, topic_name, start, end).items() <= inside.items()

        assert latest(cluster, [partition]) == {partition: 30}


def test_given_records_that_were_deleted_when_they_are_read_then_it_is_said_what_is_there_now(
    broker: BrokerProcess, raw: RawClient, topic: str
) -> None:
    write(raw, topic, *(a_batch(b"%d" % number) for number in range(10)))
    partition = TopicPartition(topic, 0)

    with a_client(broker.bootstrap, max_partition_fetch_bytes=1) as cluster:
        begun = read(cluster, partition, 0, 10, max_rows=1)
        next(begun)
        delete_records(raw, topic, 7)
        with pytest.raises(OffsetsLost) as of_new:
            next(read(cluster, partition, 3, 10))
        with pytest.raises(OffsetsLost) as of_begun:
            list(begun)
        with pytest.raises(OffsetsLost) as beyond:
            next(read(cluster, partition, 11, 12))
        assert earliest(cluster, [partition]) == {partition: 7}
        assert offsets_and_values(cluster, topic, 7, 10) == {7: b"7", 8: b"8", 9: b"9"}

    assert (of_new.value.wanted, of_new.value.first, of_new.value.end) == (3, 7, 10)
    assert str(of_new.value) == f"{partition}: offset 3 is not there any more, the first one is 7"
    # One answer was under way when the records went.
    assert of_begun.value.wanted in (1, 2) and of_begun.value.first == 7
    assert str(beyond.value) == f"{partition}: offset 11 is not there, the partition ends at 10"


def test_given_all_records_of_a_range_deleted_up_to_its_end_when_read_then_the_empty_rest_ends(
    broker: BrokerProcess, raw: RawClient, topic: str
) -> None:
    write(raw, topic, *(a_batch(b"%d" % number) for number in range(10)))
    delete_records(raw, topic, 10)

    with a_client(broker.bootstrap) as cluster:
        assert list(read(cluster, TopicPartition(topic, 0), 10, 10)) == []
        assert earliest(cluster, [TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 10}


def test_given_an_end_that_is_not_there_yet_when_records_come_then_they_are_read(
    broker: BrokerProcess, raw: RawClient, topic: str
) -> None:
    write(raw, topic, a_batch(b"0"))

    with a_client(broker.bootstrap) as cluster:
        parts = read(cluster, TopicPartition(topic, 0), 0, 2, max_rows=1)
        first = next(parts)
        write(raw, topic, a_batch(b"1"))
        rest = list(parts)

    assert [each.value for each in records_of([first, *rest])] == [b"0", b"1"]


# Topics that come and go


def test_given_a_topic_that_was_created_anew_when_its_old_offsets_are_read_then_that_is_said(
    broker: BrokerProcess, raw: RawClient, topic: str
) -> None:
    write(raw, topic, *(a_batch(b"%d" % number) for number in range(3)))

    with a_client(broker.bootstrap, max_partition_fetch_bytes=1) as cluster:
        old = cluster.look_up([topic])[topic].id
        begun = read(cluster, TopicPartition(topic, 0), 0, 1_000, max_rows=1)
        next(begun)
        delete_topic(raw, topic)
        create_again(raw, topic)
        write(raw, topic, a_batch(b"new"))

        with pytest.raises(TopicRecreated, match="was deleted and created anew"):
            list(begun)
        with pytest.raises(TopicRecreated, match="was deleted and created anew"):
            list(read(cluster, TopicPartition(topic, 0), 0, 1, topic_id=old))
        assert offsets_and_values(cluster, topic, 0, 1) == {0: b"new"}


def test_given_a_topic_that_is_deleted_or_never_was_when_it_is_read_then_it_is_named(
    broker: BrokerProcess, raw: RawClient, topic: str
) -> None:
    write(raw, topic, a_batch(b"0"))

    with a_client(broker.bootstrap, default_api_timeout_ms=2_000) as cluster:
        begun = read(cluster, TopicPartition(topic, 0), 0, 10)
        delete_topic(raw, topic)
        with pytest.raises(UnknownTopic, match=f'no topic "{topic}"'):
            list(begun)
        with pytest.raises(UnknownTopic, match=f'no topic "{topic}"; no topic "nothing-like-it"'):
            cluster.look_up([topic, "nothing-like-it"])


def delete_topic(raw: RawClient, topic: str) -> None:
    answer = raw.exchange(DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000), 5, DeleteTopicsResponse)
    assert answer.responses[0].error_code == 0


def create_again(raw: RawClient, topic: str) -> None:
    def created() -> bool:
        create_usable_topic(raw, topic, **FOREVER)
        return True

    eventually(created, 30)


# Offsets


def test_given_records_of_several_times_when_offsets_are_asked_for_then_they_are_those_of_the_times(
    broker: BrokerProcess, raw: RawClient, topic_name: str
) -> None:
    create_usable_topic(raw, topic_name, 3, **FOREVER)
    for partition in range(2):
        for number in range(4 + partition):
            batch = a_batch(b"value", timestamp=NOW_MS + 1_000 * number)
            assert produce(raw, topic_name, batch, partition=partition).error_code == 0
    each = [TopicPartition(topic_name, number) for number in range(3)]

    with a_client(broker.bootstrap) as cluster:
        assert earliest(cluster, each) == dict.fromkeys(each, 0)
        assert latest(cluster, each) == dict(zip(each, (4, 5, 0), strict=True))
        assert at_times(cluster, dict.fromkeys(each, NOW_MS + 3_001)) == dict(zip(each, (None, 4, None), strict=True))
        assert at_times(cluster, {each[0]: NOW_MS + 500, each[1]: 0}) == {each[0]: 1, each[1]: 0}
        with pytest.raises(UnknownTopic, match="the topic has 3"):
            cluster.leader_of(TopicPartition(topic_name, 3))
