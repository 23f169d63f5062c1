"""What must hold at any time, in words of the TLA+ models of KIP-966 (reference/how-others-test.md).

LogMatching                   the same offset and leader epoch are the same bytes, wherever they are
LeaderCompleteness            who begins to lead has everything that was committed
LeaderCandidateCompleteness   so has every process in the in-sync set or eligible, on disk where the topic flushes, and
                              when it serves where it does not
ConsistentRead                an offset that was read or acknowledged is the same record for ever
one leader                    nobody else leads in the same leader epoch
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.ids import TopicPartition
from penstock.metadata.image import ClusterImage
from penstock.protocol.batch import BatchHeader, read_header, split
from penstock.protocol.control import read_end_marker
from penstock.protocol.records import iterate
from penstock.storage.log import Log

if TYPE_CHECKING:
    from penstock.replication.partition import Partition
    from tests.simulation.broker import SimulatedBroker


class Violation(AssertionError):
    """Something that must hold does not."""


class Batch(NamedTuple):
    base_offset: int
    last_offset: int
    leader_epoch: int
    content: bytes

    @property
    def header(self) -> BatchHeader:
        return read_header(self.content)

    @property
    def values(self) -> list[bytes]:
        return [record.value or b"" for record in iterate(self.content)]


@dataclass
class _Seen:
    """How far a log has been looked at."""

    log: Log
    generation: int
    segment_base_offset: int = -1
    position: int = 0
    batches: list[Batch] = field(default_factory=list)


class Checker:
    def __init__(self) -> None:
        self._logs: dict[tuple[str, TopicPartition], _Seen] = {}
        # By partition, base offset and leader epoch.
        self._written: dict[tuple[TopicPartition, int, int], bytes] = {}
        # By partition and base offset.
        self.committed: dict[TopicPartition, dict[int, Batch]] = {}
        self.committed_end: dict[TopicPartition, int] = {}
        self._leaders: dict[tuple[TopicPartition, int], str] = {}
        self.acknowledged: dict[TopicPartition, dict[int, bytes]] = {}
        self.checks = 0

    # Logs

    def batches(self, broker: SimulatedBroker, partition: Partition) -> list[Batch]:
        """Read from the files, whatever any index says."""
        log, key = partition.log, (broker.process.name, partition.topic_partition)
        seen = self._logs.get(key)
        if partition.is_shortening or log.is_failed:
            return [] if seen is None else seen.batches
        if seen is None or seen.log is not log or seen.generation != log.generation:
            seen = self._logs[key] = _Seen(log, log.generation)
        for segment in log.segments:
            if segment.base_offset < seen.segment_base_offset:
                continue
            if segment.base_offset > seen.segment_base_offset:
                seen.segment_base_offset, seen.position = segment.base_offset, 0
            size = os.stat(segment.path).st_size
            if size > seen.position:
                with open(segment.path, "rb", buffering=0) as file:
                    file.seek(seen.position)
                    content = file.read()
                for at, header in split(content):
                    batch = Batch(
                        header.base_offset,
                        header.last_offset,
                        header.partition_leader_epoch,
                        content[at : at + header.size],
                    )
                    seen.batches.append(batch)
                    self._matching(broker, partition.topic_partition, batch)
                seen.position = size
        return seen.batches

    def _matching(self, broker: SimulatedBroker, where: TopicPartition, batch: Batch) -> None:
        key = (where, batch.base_offset, batch.leader_epoch)
        if self._written.setdefault(key, batch.content) != batch.content:
            raise Violation(
                f"LogMatching: {where} at {batch.base_offset} of epoch {batch.leader_epoch} is {batch.values} on "
                f"{broker.process.name} and something else elsewhere"
            )

    # While it runs

    def look(self, brokers: Iterable[SimulatedBroker], image: ClusterImage) -> None:
        """`brokers` are those that run, `image` is what the store has."""
        self.checks += 1
        running = [each for each in brokers if hasattr(each, "partitions")]
        for broker in running:
            for partition in broker.partitions.all():
                batches = self.batches(broker, partition)
                if partition.is_led:
                    self._one_leader(broker, partition)
                self._committed(broker, partition, batches)
        for broker in running:
            for partition in broker.partitions.all():
                state = image.partition(partition.topic_partition)
                if state is None or broker.broker_id not in (*state.isr, *state.eligible):
                    continue
                # Who may have lost its page cache resigns before it serves, and is not elected before.
                serving_epoch = image.serving().get(broker.broker_id)
                is_serving = serving_epoch is not None and serving_epoch == broker.session.epoch
                if partition.flushes or is_serving:
                    self._complete(broker, partition, "LeaderCandidateCompleteness")

    def _one_leader(self, broker: SimulatedBroker, partition: Partition) -> None:
        key = (partition.topic_partition, partition.leader_epoch)
        leader = self._leaders.setdefault(key, broker.process.name)
        if leader != broker.process.name:
            raise Violation(f"{key[0]} is led by {leader} and {broker.process.name} in leader epoch {key[1]}")

    def _committed(self, broker: SimulatedBroker, partition: Partition, batches: list[Batch]) -> None:
        """What is below a high watermark is committed, once and for all, whoever says so."""
        where, high_watermark = partition.topic_partition, partition.high_watermark.offset
        known = self.committed.setdefault(where, {})
        for batch in reversed(batches):
            if batch.last_offset >= high_watermark:
                continue
            before = known.get(batch.base_offset)
            if before is None:
                known[batch.base_offset] = batch
                self.committed_end[where] = max(self.committed_end.get(where, 0), batch.last_offset + 1)
            elif before.content != batch.content:
                raise Violation(
                    f"ConsistentRead: {where} at {batch.base_offset} was committed as {before.values} in epoch "
                    f"{before.leader_epoch} and is {batch.values} of epoch {batch.leader_epoch} below the high "
                    f"watermark {high_watermark} of {broker.process.name}"
                )
            elif len(known) == len(batches):
                break

    def _complete(self, broker: SimulatedBroker, partition: Partition, rule: str) -> None:
        where = partition.topic_partition
        if partition.is_shortening:
            return
        end_offset = self.committed_end.get(where, 0)
        held = partition.log.flushed_offset if partition.flushes else partition.log.log_end_offset
        batches = {batch.base_offset: batch for batch in self.batches(broker, partition)}
        for offset, batch in self.committed.get(where, {}).items():
            mine = batches.get(offset)
            if mine is None or mine.content != batch.content:
                raise Violation(
                    f"{rule}: {where} at {offset} was committed as {batch.values} in epoch {batch.leader_epoch}, and "
                    f"{broker.process.name} has {None if mine is None else mine.values}"
                )
        # A start counts from the last checkpoint, until it has flushed what it found.
        if held < end_offset and broker.is_serving:
            raise Violation(f"{rule}: {where} is committed up to {end_offset}, {broker.process.name} holds {held}")

    def began_leading(self, broker: SimulatedBroker, partition: Partition) -> None:
        self._one_leader(broker, partition)
        if not self._is_over(partition):
            self._complete(broker, partition, "LeaderCompleteness")

    def _is_over(self, partition: Partition) -> bool:
        """Who was cut off from the store hears late that it led an epoch, and needs not have what was committed since:
        it can commit nothing itself.
        """
        latest = max(epoch for where, epoch in self._leaders if where == partition.topic_partition)
        return partition.leader_epoch < latest

    # Clients

    def was_acknowledged(self, where: TopicPartition, offset: int, values: list[bytes]) -> None:
        known = self.acknowledged.setdefault(where, {})
        for at, value in enumerate(values, offset):
            if known.setdefault(at, value) != value:
                raise Violation(f"{where} at {at} was acknowledged as {known[at]!r} and as {value!r}")

    def was_read(self, where: TopicPartition, offset: int, value: bytes) -> None:
        known = self.acknowledged.setdefault(where, {})
        if known.setdefault(offset, value) != value:
            raise Violation(f"ConsistentRead: {where} at {offset} was {known[offset]!r} and is read as {value!r}")

    # At the end

    def final(self, brokers: list[SimulatedBroker], where: TopicPartition) -> list[bytes]:
        """All replicas are the same, byte by byte, and have all that was promised. Returns the values."""
        logs = {}
        for broker in brokers:
            partition = broker.partitions.find(where.topic, where.partition)
            logs[broker.host] = self.batches(broker, partition)
        first, *others = logs.values()
        for other in others:
            if [batch.content for batch in other] != [batch.content for batch in first]:
                raise Violation(f"replicas of {where} differ: { {host: _shape(log) for host, log in logs.items()} }")
        by_offset: dict[int, bytes] = {}
        for batch in first:
            if not batch.header.is_control:
                by_offset.update(enumerate(batch.values, batch.base_offset))
        for offset, value in self.acknowledged.get(where, {}).items():
            if by_offset.get(offset) != value:
                raise Violation(f"lost: {where} at {offset} was {value!r} and is {by_offset.get(offset)!r}")
        return list(by_offset.values())

    def outcomes(self, broker: SimulatedBroker, where: TopicPartition) -> tuple[set[bytes], set[bytes]]:
        """The values of transactions that were committed here, and of those that were aborted. None is open."""
        open_values: dict[int, set[bytes]] = {}
        committed: set[bytes] = set()
        aborted: set[bytes] = set()
        for batch in self.batches(broker, broker.partitions.find(where.topic, where.partition)):
            header = batch.header
            if header.is_control:
                marker = read_end_marker(batch.content)
                assert marker is not None
                ended = open_values.pop(header.producer_id, set())
                (committed if marker.is_commit else aborted).update(ended)
            elif header.is_transactional:
                open_values.setdefault(header.producer_id, set()).update(batch.values)
        if open_values:
            raise Violation(f"{where}: transactions are left open: {open_values}")
        return committed, aborted


def _shape(batches: list[Batch]) -> list[tuple[int, int]]:
    return [(batch.base_offset, batch.leader_epoch) for batch in batches]
