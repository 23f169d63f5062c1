"""Where partitions begin and end, and which offset a time has: of many partitions at once, one question per leader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from penstock.core.errors import ErrorCode
from penstock.core.ids import TopicPartition
from penstock.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.cluster import Cluster, Leader, Node
from penstock.wire.errors import NotNow, Refused, WireError, error_name
from penstock.wire.patience import PASSING, Patience

_EARLIEST, _LATEST = -2, -1
_CONSUMER = -1
_NONE_THAT_LATE = -1
_ISOLATION_SINCE = 2

Offsets = dict[TopicPartition, int]


class Isolation(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


def earliest(cluster: Cluster, partitions: Iterable[TopicPartition]) -> Offsets:
    return _asked(cluster, dict.fromkeys(partitions, _EARLIEST), Isolation.READ_UNCOMMITTED)


def latest(
    cluster: Cluster, partitions: Iterable[TopicPartition], isolation: Isolation = Isolation.READ_COMMITTED
) -> Offsets:
    """The offset after the last record that can be read: of committed ones, the last stable offset."""
    return _asked(cluster, dict.fromkeys(partitions, _LATEST), isolation)


def at_times(
    cluster: Cluster, times_ms: Mapping[TopicPartition, int], isolation: Isolation = Isolation.READ_COMMITTED
) -> dict[TopicPartition, int | None]:
    """Of the first record that is not older; None where there is none."""
    found = _asked(cluster, {each: max(0, time_ms) for each, time_ms in times_ms.items()}, isolation)
    return {each: None if offset == _NONE_THAT_LATE else offset for each, offset in found.items()}


def is_passing(code: int) -> bool:
    """Whether an error of a partition may be over when its leader is looked up again."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return False
    return known.retriable or known is ErrorCode.UNKNOWN_SERVER_ERROR


def _asked(cluster: Cluster, times_ms: Mapping[TopicPartition, int], isolation: Isolation) -> Offsets:
    """Asked again of who leads it then, where it fails in passing."""
    found: Offsets = {}
    patience = Patience(cluster.settings)
    while missing := {each: time_ms for each, time_ms in times_ms.items() if each not in found}:
        some, trouble = _asked_once(cluster, missing, isolation)
        found |= some
        if trouble is None:
            break
        if some:
            patience.progressed()
        for partition in missing.keys() - some.keys():
            cluster.forget(partition.topic)
        patience.after(f"offsets of {_named(missing.keys() - some.keys())}", trouble)
    return {each: found[each] for each in times_ms}


def _asked_once(
    cluster: Cluster, times_ms: Mapping[TopicPartition, int], isolation: Isolation
) -> tuple[Offsets, WireError | None]:
    """What is known now, and why not all is."""
    found: Offsets = {}
    trouble: WireError | None = None
    by_node: dict[Node, dict[TopicPartition, Leader]] = {}
    for partition in times_ms:
        try:
            leader = cluster.leader_of(partition)
            by_node.setdefault(leader.node, {})[partition] = leader
        except PASSING as error:
            trouble = error
    for node, leaders in by_node.items():
        request = _request(leaders, times_ms, isolation, int(cluster.settings.request_timeout_s * 1_000))
        needed = _ISOLATION_SINCE if isolation is Isolation.READ_COMMITTED else 0
        try:
            answer = cluster.ask(node, request, ListOffsetsResponse, needed)
        except PASSING as error:
            trouble = error
            continue
        for topic in answer.topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.name, row.partition_index)
                if row.error_code == ErrorCode.NONE:
                    found[partition] = row.offset
                elif is_passing(row.error_code):
                    trouble = NotNow(f"{partition} at broker {node}: {error_name(row.error_code)}")
                else:
                    raise Refused(f"offsets of {partition}: {error_name(row.error_code)}")
    return found, trouble


def _request(
    leaders: Mapping[TopicPartition, Leader],
    times_ms: Mapping[TopicPartition, int],
    isolation: Isolation,
    timeout_ms: int,
) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for partition, leader in leaders.items():
        topics.setdefault(partition.topic, []).append(
            ListOffsetsPartition(
                partition_index=partition.partition,
                current_leader_epoch=leader.epoch,
                timestamp=times_ms[partition],
            )
        )
    return ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=name, partitions=rows) for name, rows in topics.items()],
        timeout_ms=timeout_ms,
    )


def _named(partitions: Iterable[TopicPartition]) -> str:
    names = sorted(map(str, partitions))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
