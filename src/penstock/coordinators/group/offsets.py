"""Committed offsets: committing, fetching, deleting, and letting them expire.

A commit of a member is checked against its membership first: one that was thrown out may not move the group's position
(trap E1). Offsets expire only after their group has had no member for the whole retention; while it has some, only
those of topics that nobody in it subscribes to do (trap E2, KIP-211). A commit in a transaction is pending until the
transaction ends (trap C11); how that goes on is told in `pending_offsets`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.coordinators.decision import Caller, Decision, Now, Producer
from penstock.coordinators.group import classic, consumer, pending_offsets
from penstock.coordinators.group.classic_membership import commit_error
from penstock.coordinators.group.records import NO_TIMESTAMP, OffsetCommitRecord, OffsetTombstone, encode
from penstock.coordinators.group.state import CommittedOffset, Group
from penstock.core.errors import ErrorCode
from penstock.core.ids import NO_TOPIC_ID, TopicId, TopicPartition
from penstock.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from penstock.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from penstock.coordinators.group.machine import GroupMachine

NO_OFFSET = -1
NO_EPOCH = -1
MEMBER_EPOCHS_SINCE = 9
EXPIRY_TIMER = ("offsets-expiry",)
END_OF_TIME_MS = 2**63 - 1


# Committing


def commit(machine: GroupMachine, request: OffsetCommitRequest, caller: Caller, now: Now, decision: Decision) -> None:
    """Names, not ids, in the request: who serves it has looked them up."""
    group = machine.groups.get(request.group_id)
    refusal = _commit_refusal(machine, group, request, caller, now)
    expire_timestamp = NO_TIMESTAMP
    if request.retention_time_ms >= 0:
        expire_timestamp = min(now.wall_ms + request.retention_time_ms, END_OF_TIME_MS)
    response = OffsetCommitResponse()
    for topic in request.topics:
        answered = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(answered)
        for partition in topic.partitions:
            code = refusal
            if code is ErrorCode.NONE and _metadata_bytes(partition) > machine.config.offset_metadata_max_bytes:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if code is ErrorCode.NONE:
                record = _commit_record(
                    request.group_id, topic.name, topic.topic_id, partition, now.wall_ms, expire_timestamp
                )
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
    if group is not None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if caller.api_version >= MEMBER_EPOCHS_SINCE:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.ILLEGAL_GENERATION


def commit_in_transaction(
    machine: GroupMachine, request: TxnOffsetCommitRequest, caller: Caller, now: Now, decision: Decision
) -> None:
    """That the transaction is open, and this partition a part of it, is seen to by who serves the request."""
    refusal = _refusal_in_transaction(machine.groups.get(request.group_id), request)
    decision.producer = Producer(request.producer_id, request.producer_epoch)
    response = TxnOffsetCommitResponse()
    for topic in request.topics:
        answered = TxnOffsetCommitResponseTopic(name=topic.name)
        response.topics.append(answered)
        facts = machine.topics.get(topic.name)
        topic_id = NO_TOPIC_ID if facts is None else facts.topic_id
        for partition in topic.partitions:
            code = refusal
            if code is ErrorCode.NONE and _metadata_bytes(partition) > machine.config.offset_metadata_max_bytes:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if code is ErrorCode.NONE:
                record = _commit_record(request.group_id, topic.name, topic_id, partition, now.wall_ms)
                decision.records.append(encode(record))
            answered.partitions.append(
                TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
            )
    decision.answer(caller.ticket, response)


def _refusal_in_transaction(group: Group | None, request: TxnOffsetCommitRequest) -> ErrorCode:
    """Producers before v3 do not say for which member they commit, which is as if there was none."""
    if group is not None and group.consumer is not None:
        return consumer.check_commit_in_transaction(group, request)
    if group is not None and group.classic is not None:
        return commit_error(
            group.classic, request.member_id, request.group_instance_id, request.generation_id, is_transactional=True
        )
    if request.generation_id < 0:
        return ErrorCode.NONE
    return ErrorCode.ILLEGAL_GENERATION if group is None else ErrorCode.UNKNOWN_MEMBER_ID


def _metadata_bytes(partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition) -> int:
    return len((partition.committed_metadata or "").encode(errors="surrogatepass"))


def _commit_record(
    group_id: str,
    topic: str,
    topic_id: TopicId,
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    commit_timestamp: int,
    expire_timestamp: int = NO_TIMESTAMP,
) -> OffsetCommitRecord:
    return OffsetCommitRecord(
        group_id=group_id,
        topic=topic,
        partition=partition.partition_index,
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=commit_timestamp,
        expire_timestamp=expire_timestamp,
        topic_id=topic_id,
    )


def apply_commit(machine: GroupMachine, record: OffsetCommitRecord) -> None:
    group = machine.group_or_new(record.group_id)
    partition = TopicPartition(record.topic, record.partition)
    group.offsets[partition] = pending_offsets.committed_offset(record)
    if group.pending:
        pending_offsets.supersede(group, partition)


def apply_tombstone(machine: GroupMachine, record: OffsetTombstone) -> None:
    group = machine.groups.get(record.group_id)
    if group is not None:
        partition = TopicPartition(record.topic, record.partition)
        group.offsets.pop(partition, None)
        pending_offsets.forget(machine, group, partition)
        machine.forget_if_empty(group)


# Fetching


def fetch(
    machine: GroupMachine, request: OffsetFetchRequestGroup, caller: Caller, now: Now, decision: Decision
) -> None:
    group = machine.groups.get(request.group_id)
    decision.answer(caller.ticket, _fetched_of(machine, group, request, caller, now, unstable=()))


def fetch_stable(
    machine: GroupMachine, request: OffsetFetchRequestGroup, caller: Caller, now: Now, decision: Decision
) -> None:
    """For who must not read an offset that an open transaction is about to replace: it asks again (KIP-447)."""
    group = machine.groups.get(request.group_id)
    unstable = () if group is None else group.pending
    decision.answer(caller.ticket, _fetched_of(machine, group, request, caller, now, unstable=unstable))


def _fetched_of(
    machine: GroupMachine,
    group: Group | None,
    request: OffsetFetchRequestGroup,
    caller: Caller,
    now: Now,
    *,
    unstable: Container[TopicPartition],
) -> OffsetFetchResponseGroup:
    answer = OffsetFetchResponseGroup(group_id=request.group_id)
    if group is not None and group.consumer is not None:
        code = consumer.check_fetch(machine, group, request, caller, now)
        if code is not ErrorCode.NONE:
            answer.error_code = code
            return answer
    offsets = {} if group is None else group.offsets
    topics = _every_topic(offsets) if request.topics is None else request.topics
    for topic in topics:
        partitions = [TopicPartition(topic.name, index) for index in topic.partition_indexes]
        answer.topics.append(
            OffsetFetchResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    _unstable(each.partition) if each in unstable else _fetched(each.partition, offsets.get(each))
                    for each in partitions
                ],
            )
        )
    return answer


def _every_topic(offsets: dict[TopicPartition, CommittedOffset]) -> list[OffsetFetchRequestTopic]:
    topics: dict[str, OffsetFetchRequestTopic] = {}
    for name, index in sorted(offsets):
        topics.setdefault(name, OffsetFetchRequestTopic(name=name)).partition_indexes.append(index)
    return list(topics.values())


def _unstable(index: int) -> OffsetFetchResponsePartition:
    answered = _fetched(index, None)
    answered.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    return answered


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
    known = committed_or_pending(group)
    for topic in request.topics:
        answered = OffsetDeleteResponseTopic(name=topic.name)
        response.topics.append(answered)
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic.name in subscribed else ErrorCode.NONE
        for partition in topic.partitions:
            index = partition.partition_index
            answered.partitions.append(OffsetDeleteResponsePartition(partition_index=index, error_code=code))
            if code is ErrorCode.NONE and TopicPartition(topic.name, index) in known:
                forget(group, [TopicPartition(topic.name, index)], decision)


def committed_or_pending(group: Group) -> dict[TopicPartition, None]:
    """In an order that is the same at every replay, as that of a set is not. A tombstone takes both away."""
    return dict.fromkeys((*group.offsets, *group.pending))


def forget(group: Group, partitions: Iterable[TopicPartition], decision: Decision) -> None:
    for topic, index in partitions:
        decision.records.append(encode(OffsetTombstone(group.group_id, topic, index)))


def forget_topics_that_are_gone(machine: GroupMachine, decision: Decision) -> None:
    """Deleted, or deleted and created anew: what was committed is about other records than those it would point to."""
    for group in machine.groups.values():
        gone = {each: None for each, committed in group.offsets.items() if not _is_there(machine, each, committed)}
        for partition, by_producer in group.pending.items():
            if not all(each is None or _is_there(machine, partition, each) for each in by_producer.values()):
                gone[partition] = None
        forget(group, gone, decision)


def _is_there(machine: GroupMachine, partition: TopicPartition, committed: CommittedOffset) -> bool:
    facts = machine.topics.get(partition.topic)
    return facts is not None and committed.topic_id in (NO_TOPIC_ID, facts.topic_id)


# Expiring


def expire(machine: GroupMachine, now: Now, decision: Decision) -> None:
    for group in list(machine.groups.values()):
        expired = list(_expired(machine, group, now.wall_ms))
        forget(group, expired, decision)
        if len(expired) == len(group.offsets) and not group.pending and machine.is_empty(group):
            machine.delete_group_records(group, decision)
    machine.timers.set(EXPIRY_TIMER, now.monotonic_ms + machine.config.offsets_retention_check_interval_ms)


def _expired(machine: GroupMachine, group: Group, now_ms: int) -> Iterator[TopicPartition]:
    empty_since_ms = machine.empty_since_ms(group) if machine.is_empty(group) else 0
    subscribed = machine.subscribed_topics(group)
    if subscribed is None:
        return
    for partition, committed in group.offsets.items():
        if partition.topic in subscribed or partition in group.pending:
            continue
        if committed.expire_timestamp >= 0:
            expires_ms = committed.expire_timestamp
        else:
            # Without members the retention counts from when the last one left, or from a later commit.
            since_ms = max(committed.commit_timestamp, empty_since_ms)
            expires_ms = since_ms + machine.config.offsets_retention_ms
        if expires_ms <= now_ms:
            yield partition
