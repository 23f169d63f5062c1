"""The last committed marker of a task, read without waiting for anybody.

Other tasks have transactions open in the same partition all the time, and a reader of committed records would wait for
them. So everything is read up to the high watermark, and the control batches say what became of what. Whoever asks has
fenced its own task's earlier attempts first: of that task nothing is open any more, so the answer is final.

Who writes a batch without a name reads the partition from its start, and is shown what others like it left there and
nobody needs any more. It takes that away with its own marker, so they do not grow in number for ever.

What was read once is remembered in the process, per writer, and the next batch reads only what is new. A process that
knows nothing reads the partition from its start, which compaction keeps short.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import chain

from penstock.core.errors import BrokerError
from penstock.core.ids import NO_TOPIC_ID, TopicId, TopicPartition
from penstock.protocol.control import read_end_marker
from penstock.protocol.records import InvalidRecords, StoredRecord, iterate
from penstock.spark.markers import PARTITIONS, UNNAMED_KEPT_MS, Marker, MarkerKey, UnreadableMarker, is_of_unnamed
from penstock.wire.cluster import Cluster
from penstock.wire.errors import CorruptRecords, OffsetsLost, TopicRecreated, WireError
from penstock.wire.fetching import Batch
from penstock.wire.offsets import Isolation, earliest, latest
from penstock.wire.reading import Part, PartitionReader

_MAX_SCANS = 64
_MAX_OUTDATED = 500
_UNCOMMITTED = Isolation.READ_UNCOMMITTED


class StillOpen(WireError):
    """A marker's transaction has not ended although it must have."""


class MarkerScan:
    """What one writer's tasks have left in one partition, as far as it was read."""

    def __init__(self, partition: TopicPartition, writer: str) -> None:
        self._partition = partition
        # All keys of a writer begin alike: those of others are not looked at more closely.
        self._prefix = MarkerKey(writer, 0).to_bytes().removesuffix(b"0}")
        self._sees_outdated = is_of_unnamed(MarkerKey(writer, 0).to_bytes())
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._topic_id: TopicId = NO_TOPIC_ID
        self._position: int | None = None
        self._committed: dict[bytes, bytes] = {}
        self._open: dict[int, dict[bytes, bytes | None]] = {}
        self._outdated: dict[bytes, None] = {}

    @property
    def outdated(self) -> list[bytes]:
        """Keys of markers that may go, as far as it was read; not all of them, if they are many."""
        return list(self._outdated)

    def last(self, cluster: Cluster, key: MarkerKey) -> Marker | None:
        """Raises WireError, UnreadableMarker."""
        self._read_on(cluster)
        name = key.to_bytes()
        if any(name in markers for markers in self._open.values()):
            raise StillOpen(f"{self._partition}: a transaction of {key.transactional_id} has not ended")
        value = self._committed.get(name)
        return None if value is None else self._marker(name, value)

    def all(self, cluster: Cluster) -> Iterator[tuple[MarkerKey, Marker]]:
        """The last of each of the writer's tasks; behind them, what is not decided yet. Raises WireError,
        UnreadableMarker.
        """
        self._read_on(cluster)
        undecided = chain.from_iterable(markers.items() for markers in self._open.values())
        for name, value in chain(self._committed.items(), undecided):
            if value is not None:
                yield MarkerKey.from_bytes(name), self._marker(name, value)

    def _marker(self, name: bytes, value: bytes) -> Marker:
        try:
            return Marker.from_bytes(value)
        except UnreadableMarker as error:
            raise UnreadableMarker(f"{self._partition}, key {name.decode()}: {error}") from None

    def _read_on(self, cluster: Cluster) -> None:
        try:
            self._catch_up(cluster)
        except (TopicRecreated, OffsetsLost):
            # What is there now counts.
            cluster.forget(self._partition.topic)
            self._begin_anew()
            self._catch_up(cluster)

    def _catch_up(self, cluster: Cluster) -> None:
        end = latest(cluster, [self._partition], _UNCOMMITTED)[self._partition]
        topic_id = cluster.leader_of(self._partition).topic_id
        if self._position is None or topic_id != self._topic_id or end < self._position:
            self._begin_anew()
            self._topic_id = topic_id
            self._position = earliest(cluster, [self._partition])[self._partition]
        reader = PartitionReader(cluster, self._partition, self._position, end, _UNCOMMITTED, topic_id)
        with closing(reader):
            for part in reader.parts():
                for batch in part.batches:
                    self._take(part, batch)
                    self._position = max(self._position, batch.header.next_offset)
        self._position = end

    def _take(self, part: Part, batch: Batch) -> None:
        try:
            if batch.header.is_control:
                ended = read_end_marker(part.fetched.records, batch.position)
                if ended is not None:
                    self._end(ended.producer_id, is_commit=ended.is_commit)
                return
            for record in iterate(part.fetched.records, batch.position):
                if record.offset < part.first or record.key is None:
                    continue
                if record.key.startswith(self._prefix):
                    self._add(batch, record, record.key)
                elif self._sees_outdated and is_of_unnamed(record.key):
                    self._see(record, record.key)
        except (ValueError, BrokerError, InvalidRecords) as error:
            raise CorruptRecords(f"{self._partition}, offset {batch.header.base_offset}: {error}") from None

    def _add(self, batch: Batch, record: StoredRecord, key: bytes) -> None:
        if batch.header.is_transactional:
            # A producer has one transaction at a time, whatever its epoch.
            self._open.setdefault(batch.header.producer_id, {})[key] = record.value
        else:
            self._commit({key: record.value})  # by hand: to forget a writer, for example

    def _see(self, record: StoredRecord, key: bytes) -> None:
        """Whether it was committed does not matter: what was aborted is nobody's either."""
        is_old = record.timestamp < time.time() * 1_000 - UNNAMED_KEPT_MS
        if record.value is None or not is_old:
            self._outdated.pop(key, None)
        elif len(self._outdated) < _MAX_OUTDATED:
            self._outdated[key] = None

    def _end(self, producer_id: int, *, is_commit: bool) -> None:
        markers = self._open.pop(producer_id, {})
        if is_commit:
            self._commit(markers)

    def _commit(self, markers: dict[bytes, bytes | None]) -> None:
        for key, value in markers.items():
            if value is None:
                self._committed.pop(key, None)
            else:
                self._committed[key] = value


_scans: OrderedDict[tuple[object, ...], MarkerScan] = OrderedDict()


def last_marker(cluster: Cluster, topic: str, key: MarkerKey) -> Marker | None:
    """Of what was committed, when nothing of this task's can be open. Raises WireError, UnreadableMarker."""
    name = _name(cluster, topic, key)
    scan = _scans.pop(name, None) or MarkerScan(TopicPartition(topic, key.partition()), key.writer)
    found = scan.last(cluster, key)
    _scans[name] = scan  # only what has not failed is remembered
    while len(_scans) > _MAX_SCANS:
        _scans.popitem(last=False)
    return found


def markers_of(cluster: Cluster, topic: str, writer: str) -> Mapping[MarkerKey, Marker]:
    """Of all tasks that a writer has ever had, also where it is not decided yet whether they are committed. Reads the
    whole topic. Raises WireError, UnreadableMarker.
    """
    scans = (MarkerScan(TopicPartition(topic, number), writer) for number in range(PARTITIONS))
    return {key: marker for scan in scans for key, marker in scan.all(cluster)}


def outdated_markers(cluster: Cluster, topic: str, key: MarkerKey) -> list[bytes]:
    """What `last_marker` came upon: keys of markers that may go, in the partition where this task's own is."""
    scan = _scans.get(_name(cluster, topic, key))
    return [] if scan is None else scan.outdated


def _name(cluster: Cluster, topic: str, key: MarkerKey) -> tuple[object, ...]:
    return cluster.settings.bootstrap, topic, key.partition(), key.writer
