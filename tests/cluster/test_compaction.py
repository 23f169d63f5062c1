"""Compaction with replicas (trap D4): one that was away must not miss a tombstone and bring a deleted key back.

Nor the end of a transaction, and show what was aborted as if it belonged to the producer's next one.
"""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from penstock.protocol.records import Record, StoredRecord, build_batch
from tests.cluster.test_replication import ALL, in_sync, leader_of, write_batch
from tests.testkit import Cluster, RawClient, eventually
from tests.testkit.asking import NOW_MS, create_topic_on, fetch, records_of

GONE, OTHER, ABORTED, COMMITTED = b"gone", b"other", b"aborted", b"committed"
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": 1_024,
    "min.cleanable.dirty.ratio": 0,
    "delete.retention.ms": 0,
    "file.delete.delay.ms": 0,
    "min.insync.replicas": 1,
}
_NUMBERS = itertools.count()


def put(cluster: Cluster, topic: str, key: bytes, value: bytes | None) -> None:
    write_batch(cluster, topic, build_batch([Record(key, value, (), NOW_MS)]))


def roll(cluster: Cluster, topic: str) -> None:
    """Two segments more, so that what was written before can be compacted."""
    for _ in range(6):
        put(cluster, topic, OTHER, b"%300d" % next(_NUMBERS))


def rounds(cluster: Cluster, broker_id: int, topic: str) -> int:
    return sum("log compacted" in line and topic in line for line in cluster[broker_id].log_text().splitlines())


def all_of(cluster: Cluster, topic: str) -> list[StoredRecord]:
    leader = eventually(lambda: leader_of(cluster, topic), 30)
    found: list[StoredRecord] = []
    with RawClient(cluster[leader].address) as client:
        while records := records_of(fetch(client, topic, found[-1].offset + 1 if found else 0)):
            found += records
    return found


def write_in_transaction(producer: Producer, topic: str, key: bytes, batches: int) -> None:
    """In a new one, which stays open."""
    producer.begin_transaction()
    for number in range(batches):
        producer.produce(topic, b"%d" % number, key)
        assert producer.flush(20) == 0


def committed_view(cluster: Cluster, topic: str) -> dict[bytes | None, bytes]:
    """What each key is, to those that read what is committed."""
    view: dict[bytes | None, bytes | None] = {}
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": topic, "enable.auto.commit": False}
    reading = {"isolation.level": "read_committed", "enable.partition.eof": True, "fetch.wait.max.ms": 20}
    with closing(Consumer({**config, **reading})) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])

        def is_at_end() -> bool:
            message = consumer.poll(0.1)
            if message is None:
                return False
            if (error := message.error()) is None:
                view[message.key()] = message.value()
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
            return error is not None

        eventually(is_at_end, 30)
    return {key: value for key, value in view.items() if value is not None}


def holds(cluster: Cluster, broker_id: int, topic: str, key: bytes) -> bool:
    return any(key in path.read_bytes() for path in (cluster[broker_id].data / f"{topic}-0").glob("*.log"))


def test_given_a_replica_that_was_away_while_keys_were_deleted_aborted_and_compacted_when_it_leads_then_none_is_back(
    tmp_path: Path, topic_name: str
) -> None:
    settings = {"log.cleaner.backoff.ms": 50, "transaction.state.log.num.partitions": 3}
    with Cluster.start(tmp_path, brokers=3, **settings) as cluster:
        with RawClient(cluster[1].address) as client:
            create_topic_on(client, topic_name, replicas=ALL, **COMPACTED)
        put(cluster, topic_name, GONE, b"deleted soon")
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic_name})
        producer.init_transactions(20)
        write_in_transaction(producer, topic_name, ABORTED, 1)
        eventually(lambda: in_sync(cluster, topic_name) == [1, 2, 3], 30)
        cluster[3].kill()
        put(cluster, topic_name, GONE, None)
        producer.abort_transaction(30)
        # Batches that a producer may repeat, its last five, stay without their records, and keep their marker.
        write_in_transaction(producer, topic_name, COMMITTED, 6)
        producer.commit_transaction(30)
        # The first round that meets the tombstone says from when on it may go, which is at once.
        for _ in range(3):
            before = rounds(cluster, 1, topic_name), rounds(cluster, 2, topic_name)
            roll(cluster, topic_name)
            eventually(lambda: rounds(cluster, 1, topic_name) > before[0], 30)  # noqa: B023 - called at once
            eventually(lambda: rounds(cluster, 2, topic_name) > before[1], 30)  # noqa: B023 - called at once
        before_it_leads = committed_view(cluster, topic_name)
        assert sorted(before_it_leads, key=repr) == [COMMITTED, OTHER]
        cluster[3].restart()
        eventually(lambda: in_sync(cluster, topic_name) == [1, 2, 3], 30)

        cluster[1].kill()
        cluster[2].kill()

        eventually(lambda: leader_of(cluster, topic_name) == 3, 30)
        assert {record.key: record.value for record in all_of(cluster, topic_name)}.get(GONE) is None
        eventually(lambda: committed_view(cluster, topic_name) == before_it_leads, 30)
        cluster[1].restart()
        cluster[2].restart()
        eventually(lambda: in_sync(cluster, topic_name) == [1, 2, 3], 30)

        def is_gone_everywhere() -> bool:
            roll(cluster, topic_name)
            return not any(holds(cluster, broker_id, topic_name, key) for broker_id in ALL for key in (GONE, ABORTED))

        eventually(is_gone_everywhere, 30, "a tombstone stays though all replicas have compacted what it deleted")
