"""Offsets committed in transactions that are still open.

To each partition a group has what each producer committed for it, in the order of the log. A commit marker makes them
real, an abort marker drops them. What counts between several commits is the order of their records, not that of the
markers: compaction keeps the last record of a partition, so a replay could not tell anything else. A pending offset
behind which another commit has taken effect is therefore None; for who wants to read what is stable it is pending
still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.coordinators.group.records import OffsetCommitRecord
from penstock.coordinators.group.state import CommittedOffset, Group
from penstock.core.ids import TopicPartition

if TYPE_CHECKING:
    from penstock.coordinators.group.machine import GroupMachine


def add(machine: GroupMachine, record: OffsetCommitRecord, producer_id: int) -> None:
    partition = TopicPartition(record.topic, record.partition)
    by_producer = machine.group_or_new(record.group_id).pending.setdefault(partition, {})
    by_producer.pop(producer_id, None)  # so that it becomes the last
    by_producer[producer_id] = committed_offset(record)
    machine.open_transactions.setdefault(producer_id, set()).add((record.group_id, partition))


def committed_offset(record: OffsetCommitRecord) -> CommittedOffset:
    return CommittedOffset(
        record.offset,
        record.leader_epoch,
        record.metadata,
        record.commit_timestamp,
        record.expire_timestamp,
        record.topic_id,
    )


def supersede(group: Group, partition: TopicPartition) -> None:
    """Something that was not pending was committed behind them."""
    by_producer = group.pending.get(partition, {})
    for producer_id in by_producer:
        by_producer[producer_id] = None


def forget(machine: GroupMachine, group: Group, partition: TopicPartition) -> None:
    """Deleted: their transactions may go on, but not with this."""
    for producer_id in group.pending.pop(partition, ()):
        places = machine.open_transactions[producer_id]
        places.discard((group.group_id, partition))
        if not places:
            del machine.open_transactions[producer_id]


def end(machine: GroupMachine, producer_id: int, *, committed: bool) -> None:
    for group_id, partition in machine.open_transactions.pop(producer_id, ()):
        group = machine.groups[group_id]
        by_producer = group.pending[partition]
        if committed:
            _take_effect(group, partition, by_producer, producer_id)
        del by_producer[producer_id]
        if not by_producer:
            del group.pending[partition]
        machine.forget_if_empty(group)


def _take_effect(
    group: Group, partition: TopicPartition, by_producer: dict[int, CommittedOffset | None], producer_id: int
) -> None:
    committed = by_producer[producer_id]
    if committed is None:
        return
    group.offsets[partition] = committed
    for other in by_producer:
        if other == producer_id:
            break
        by_producer[other] = None
