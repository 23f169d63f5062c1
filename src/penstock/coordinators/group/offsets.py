"""Committed offsets: committing, fetching, deleting, and letting them expire.

A commit of a member is checked against its membership first: one that was thrown out may not move the group's position
(trap E1). Offsets expire only after their group has had no member for the whole retention; while it has some, only
those of topics that nobody in it subscribes to do (trap E2, KIP-211).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.coordinators.decision import Caller, Decision, Now
from penstock.coordinators.group import classic, consumer
from penstock.coordinators.group.records import OffsetCommitRecord, OffsetTombstone, encode
from penstock.coordinators.group.state import CommittedOffset, Group
from penstock.core.errors import ErrorCode
from penstock.core.ids import NO_TOPIC_ID, TopicPartition
from penstock.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

if TYPE_CHECKING:
    from penstock.coordinators.group.machine import GroupMachine

NO_OFFSET = -1
NO_EPOCH = -1
MEMBER_EPOCHS_SINCE = 9
EXPIRY_TIMER = ("offsets-expiry",)


# Committing


def commit(machine: GroupMachine, request: OffsetCommitRequest, caller: Caller, now: Now, decision: Decision) -> None:
    """Names, not ids, in the request: who serves it has looked them up."""
    group = machine.groups.get(request.group_id)
    refusal = _commit_refusal(machine, group, request, caller, now)
    expire_timestamp = -1 if request.retention_time_ms < 0 else now.wall_ms + request.retention_time_ms
    response = OffsetCommitResponse()
    for topic in request.topics:
        answered = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(answered)
        for partition in topic.partitions:
            code = refusal
            if code is ErrorCode.NONE and _metadata_bytes(partition) > machine.config.offset_metadata_max_bytes:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if code is ErrorCode.NONE:
                record = _commit_record(request.group_id, topic, partition, now.wall_ms, expire_timestamp)
                decision.records.append(encode(record))
            answered.partitions.append(
                OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
            )
    decision.answer(caller.ticket, response)


def _commit_refusal(
    machine: GroupMachine, group: Group | None, request: OffsetCommitRequest, caller: Caller, now: Now
) -> ErrorCode:
    if group is not None and group.consumer is not None:
        return consumer.check_commit(machine, group, request, caller, now)
    if group is not None and group.classic is not None:
        return classic.check_commit(machine, group, request, caller, now)
    if request.generation_id_or_member_epoch < 0:
        return ErrorCode.NONE  # offsets without members: a consumer that assigns partitions to itself
    if caller.api_version >= MEMBER_EPOCHS_SINCE:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.ILLEGAL_GENERATION


def _metadata_bytes(partition: OffsetCommitRequestPartition) -> int:
    return len((partition.committed_metadata or "").encode(errors="surrogatepass"))


def _commit_record(
    group_id: str,
    topic: OffsetCommitRequestTopic,
    partition: OffsetCommitRequestPartition,
    commit_timestamp: int,
    expire_timestamp: int,
) -> OffsetCommitRecord:
    return OffsetCommitRecord(
        group_id=group_id,
        topic=topic.name,
        partition=partition.partition_index,
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=commit_timestamp,
        expire_timestamp=expire_timestamp,
        topic_id=topic.topic_id,
    )


def apply_commit(machine: GroupMachine, record: OffsetCommitRecord) -> None:
    group = machine.group_or_new(record.group_id)
    group.offsets[TopicPartition(record.topic, record.partition)] = CommittedOffset(
        record.offset,
        record.leader_epoch,
        record.metadata,
        record.commit_timestamp,
        record.expire_timestamp,
        record.topic_id,
    )


def apply_tombstone(machine: GroupMachine, record: OffsetTombstone) -> None:
    group = machine.groups.get(record.group_id)
    if group is not None:
        group.offsets.pop(TopicPartition(record.topic, record.partition), None)
        machine.forget_if_empty(group)


# Fetching


def fetch(
    machine: GroupMachine, request: OffsetFetchRequestGroup, caller: Caller, now: Now, decision: Decision
) -> None:
    group = machine.groups.get(request.group_id)
    answer = OffsetFetchResponseGroup(group_id=request.group_id)
    decision.answer(caller.ticket, answer)
    if group is not None and group.consumer is not None:
        code = consumer.check_fetch(machine, group, request, caller, now)
        if code is not ErrorCode.NONE:
            answer.error_code = code
            return
    offsets = {} if group is None else group.offsets
    if request.topics is None:
        answer.topics = _all_topics(offsets)
        return
    for topic in request.topics:
        answer.topics.append(
            OffsetFetchResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    _fetched(index, offsets.get(TopicPartition(topic.name, index))) for index in topic.partition_indexes
                ],
            )
        )


def _all_topics(offsets: dict[TopicPartition, CommittedOffset]) -> list[OffsetFetchResponseTopic]:
    topics: dict[str, OffsetFetchResponseTopic] = {}
    for (name, index), committed in sorted(offsets.items()):
        topic = topics.setdefault(name, OffsetFetchResponseTopic(name=name))
        topic.partitions.append(_fetched(index, committed))
    return list(topics.values())


def _fetched(index: int, committed: CommittedOffset | None) -> OffsetFetchResponsePartition:
    if committed is None:
        return OffsetFetchResponsePartition(
            partition_index=index, committed_offset=NO_OFFSET, committed_leader_epoch=NO_EPOCH
        )
    return OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


# Deleting


def delete(machine: GroupMachine, request: OffsetDeleteRequest, caller: Caller, now: Now, decision: Decision) -> None:
    group = machine.groups.get(request.group_id)
    response = OffsetDeleteResponse()
    decision.answer(caller.ticket, response)
    if group is None:
        response.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        return
    subscribed = machine.subscribed_topics(group)
    if subscribed is None:
        # Members that do not say what they subscribe to, because they are no consumers.
        response.error_code = ErrorCode.NON_EMPTY_GROUP
        return
    for topic in request.topics:
        answered = OffsetDeleteResponseTopic(name=topic.name)
        response.topics.append(answered)
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic.name in subscribed else ErrorCode.NONE
        for partition in topic.partitions:
            index = partition.partition_index
            answered.partitions.append(OffsetDeleteResponsePartition(partition_index=index, error_code=code))
            if code is ErrorCode.NONE and TopicPartition(topic.name, index) in group.offsets:
                forget(group, [TopicPartition(topic.name, index)], decision)


def forget(group: Group, partitions: Iterable[TopicPartition], decision: Decision) -> None:
    for topic, index in partitions:
        decision.records.append(encode(OffsetTombstone(group.group_id, topic, index)))


def forget_topics_that_are_gone(machine: GroupMachine, decision: Decision) -> None:
    """Deleted, or deleted and created anew: what was committed is about other records than those it would point to."""
    for group in machine.groups.values():
        gone = [each for each, committed in group.offsets.items() if not _is_there(machine, each, committed)]
        forget(group, gone, decision)


def _is_there(machine: GroupMachine, partition: TopicPartition, committed: CommittedOffset) -> bool:
    facts = machine.topics.get(partition.topic)
    return facts is not None and committed.topic_id in (NO_TOPIC_ID, facts.topic_id)


# Expiring


def expire(machine: GroupMachine, now: Now, decision: Decision) -> None:
    for group in list(machine.groups.values()):
        expired = list(_expired(machine, group, now.wall_ms))
        forget(group, expired, decision)
        if len(expired) == len(group.offsets) and machine.is_empty(group):
            machine.delete_group_records(group, decision)
    machine.timers.set(EXPIRY_TIMER, now.monotonic_ms + machine.config.offsets_retention_check_interval_ms)


def _expired(machine: GroupMachine, group: Group, now_ms: int) -> Iterator[TopicPartition]:
    empty_since_ms = machine.empty_since_ms(group) if machine.is_empty(group) else 0
    subscribed = machine.subscribed_topics(group)
    if subscribed is None:
        return
    for partition, committed in group.offsets.items():
        if partition.topic in subscribed:
            continue
        if committed.expire_timestamp >= 0:
            expires_ms = committed.expire_timestamp
        else:
            # Without members the retention counts from when the last one left, or from a later commit.
            since_ms = max(committed.commit_timestamp, empty_since_ms)
            expires_ms = since_ms + machine.config.offsets_retention_ms
        if expires_ms <= now_ms:
            yield partition
