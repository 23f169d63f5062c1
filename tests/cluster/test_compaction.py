"""Compaction with replicas (trap D4): one that was away must not miss a tombstone and bring a deleted key back."""

from __future__ import annotations

import itertools
from pathlib import Path

from penstock.protocol.records import Record, StoredRecord, build_batch
from tests.cluster.test_replication import ALL, in_sync, leader_of, write_batch
from tests.testkit import Cluster, RawClient, eventually
from tests.testkit.asking import NOW_MS, create_topic_on, fetch, records_of

GONE, OTHER = b"gone", b"other"
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


def holds(cluster: Cluster, broker_id: int, topic: str, key: bytes) -> bool:
    return any(key in path.read_bytes() for path in (cluster[broker_id].data / f"{topic}-0").glob("*.log"))


def test_given_a_replica_that_was_away_while_a_key_was_deleted_and_compacted_when_it_leads_then_it_is_still_deleted(
    tmp_path: Path, topic_name: str
) -> None:
    with Cluster.start(tmp_path, brokers=3, **{"log.cleaner.backoff.ms": 50}) as cluster:
        with RawClient(cluster[1].address) as client:
            create_topic_on(client, topic_name, replicas=ALL, **COMPACTED)
        put(cluster, topic_name, GONE, b"deleted soon")
        eventually(lambda: in_sync(cluster, topic_name) == [1, 2, 3], 30)
        cluster[3].kill()
        put(cluster, topic_name, GONE, None)
        # The first round that meets the tombstone says from when on it may go, which is at once.
        for _ in range(3):
            before = rounds(cluster, 1, topic_name), rounds(cluster, 2, topic_name)
            roll(cluster, topic_name)
            eventually(lambda: rounds(cluster, 1, topic_name) > before[0], 30)  # noqa: B023 - called at once
            eventually(lambda: rounds(cluster, 2, topic_name) > before[1], 30)  # noqa: B023 - called at once
        cluster[3].restart()
        eventually(lambda: in_sync(cluster, topic_name) == [1, 2, 3], 30)

        cluster[1].kill()
        cluster[2].kill()

        eventually(lambda: leader_of(cluster, topic_name) == 3, 30)
        assert {record.key: record.value for record in all_of(cluster, topic_name)}.get(GONE) is None
        cluster[1].restart()
        cluster[2].restart()
        eventually(lambda: in_sync(cluster, topic_name) == [1, 2, 3], 30)

        def is_gone_everywhere() -> bool:
            roll(cluster, topic_name)
            return not any(holds(cluster, broker_id, topic_name, GONE) for broker_id in ALL)

        eventually(is_gone_everywhere, 30, "a tombstone stays though all replicas have compacted what it deleted")
