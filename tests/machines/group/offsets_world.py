"""A group machine whose decisions are durable at once, and what clients do to its offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.coordinators.decision import Caller, Decision, LogRecord, Now
from penstock.coordinators.group import consumer, offsets
from penstock.coordinators.group.machine import GroupMachine
from penstock.coordinators.group.state import GroupConfig, TopicFacts
from penstock.core.errors import ErrorCode
from penstock.core.ids import NO_TOPIC_ID, TopicId
from penstock.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from penstock.protocol.messages.consumer_protocol import ConsumerProtocolSubscription, encode_subscription
from penstock.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from penstock.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from penstock.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

GROUP = "billing"
WALL_MS = 1_700_000_000_000
SESSION_MS = 30 * 60 * 1000
DAY_MS = 24 * 60 * 60 * 1000
ORDERS, REFUNDS = TopicId(b"orders".ljust(16)), TopicId(b"refunds".ljust(16))


class Written(NamedTuple):
    record: LogRecord
    producer_id: int = -1

    def as_read(self) -> Written:
        return Written(LogRecord(self.record.key, self.record.value), self.producer_id)


class Ended(NamedTuple):
    producer_id: int
    committed: bool


@dataclass
class Coordinator:
    """A machine whose decisions are made durable at once, in a list."""

    config: GroupConfig = field(default_factory=lambda: GroupConfig(group_initial_rebalance_delay_ms=0))
    topics: dict[str, TopicFacts] = field(
        default_factory=lambda: {"orders": TopicFacts(ORDERS, 3), "refunds": TopicFacts(REFUNDS, 3)}
    )
    log: list[Written | Ended] = field(default_factory=list)
    now: Now = field(default_factory=lambda: Now(WALL_MS, 0))
    tickets: int = 0

    def __post_init__(self) -> None:
        self.machine = GroupMachine(self.config, self.topics)
        self._decide(lambda decision: self.machine.loaded(self.now, decision))

    def ask(self, work: Any, request: object, version: int = 9) -> Any:
        self.tickets += 1
        caller = Caller(self.tickets, version, "client", "/127.0.0.1", lambda: "unique")
        answers = self._decide(lambda decision: work(self.machine, request, caller, self.now, decision))
        return answers.get(caller.ticket)

    def _decide(self, work: Any) -> dict[int, Any]:
        decision = Decision()
        work(decision)
        producer_id = -1 if decision.producer is None else decision.producer.producer_id
        for record in decision.records:
            self._write(Written(record, producer_id))
        return dict(decision.answers)

    def _write(self, entry: Written | Ended) -> None:
        self.log.append(entry)
        self._apply(entry)

    def _apply(self, entry: Written | Ended) -> None:
        if isinstance(entry, Ended):
            self.machine.transaction_ended(entry.producer_id, committed=entry.committed)
        elif entry.producer_id < 0:
            self.machine.apply(entry.record)
        else:
            self.machine.apply_pending(entry.record, entry.producer_id)

    def pass_ms(self, duration_ms: int, *, heartbeats_of: str | None = None) -> None:
        until = self.now.monotonic_ms + duration_ms
        while (deadline := self.machine.next_deadline_ms()) is not None and deadline <= until:
            self._set_clock(max(deadline, self.now.monotonic_ms))
            if heartbeats_of is not None:
                self.ask(
                    GroupMachine.heartbeat, HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=heartbeats_of)
                )
            self._decide(lambda decision: self.machine.due(self.now, decision))
        self._set_clock(until)

    def _set_clock(self, monotonic_ms: int) -> None:
        self.now = Now(WALL_MS + monotonic_ms, monotonic_ms)

    def restart(self) -> None:
        self.machine = GroupMachine(self.config, self.topics)
        for entry in self.log:
            self._apply(entry.as_read() if isinstance(entry, Written) else entry)
        self._decide(lambda decision: self.machine.loaded(self.now, decision))

    # What clients do

    def commit(
        self,
        offset: int = 7,
        *,
        topic: str = "orders",
        member_id: str = "",
        generation: int = -1,
        metadata: str | None = "",
        topic_id: TopicId | None = None,
        version: int = 9,
        group: str = GROUP,
        retention_ms: int = -1,
    ) -> ErrorCode:
        facts = self.topics.get(topic)
        partition = OffsetCommitRequestPartition(
            partition_index=1, committed_offset=offset, committed_leader_epoch=5, committed_metadata=metadata
        )
        request = OffsetCommitRequest(
            group_id=group,
            member_id=member_id,
            generation_id_or_member_epoch=generation,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=topic_id or (NO_TOPIC_ID if facts is None else facts.topic_id),
                    partitions=[partition],
                )
            ],
        )
        response = self.ask(offsets.commit, request, version)
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def commit_in_transaction(
        self,
        offset: int = 7,
        *,
        producer_id: int = 1,
        topic: str = "orders",
        member_id: str = "",
        instance_id: str | None = None,
        generation: int = -1,
        metadata: str | None = "",
        group: str = GROUP,
    ) -> ErrorCode:
        partition = TxnOffsetCommitRequestPartition(
            partition_index=1, committed_offset=offset, committed_leader_epoch=5, committed_metadata=metadata
        )
        request = TxnOffsetCommitRequest(
            transactional_id="payments",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=0,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
        )
        response = self.ask(offsets.commit_in_transaction, request, 3)
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def end(self, producer_id: int = 1, *, committed: bool = True) -> None:
        self._write(Ended(producer_id, committed))

    def fetch_stable(self, topic: str = "orders", group: str = GROUP) -> tuple[ErrorCode, int]:
        asked = OffsetFetchRequestTopic(name=topic, partition_indexes=[1])
        answer = self.ask(offsets.fetch_stable, OffsetFetchRequestGroup(group_id=group, topics=[asked]))
        [fetched] = answer.topics[0].partitions
        return ErrorCode(fetched.error_code), fetched.committed_offset

    def fetch(self, topic: str = "orders", group: str = GROUP) -> tuple[int, int, str | None]:
        asked = OffsetFetchRequestTopic(name=topic, partition_indexes=[1])
        answer = self.ask(offsets.fetch, OffsetFetchRequestGroup(group_id=group, topics=[asked]))
        assert not answer.error_code
        [fetched] = answer.topics[0].partitions
        return fetched.committed_offset, fetched.committed_leader_epoch, fetched.metadata

    def fetch_all(self) -> dict[tuple[str, int], int]:
        answer = self.ask(offsets.fetch, OffsetFetchRequestGroup(group_id=GROUP, topics=None))
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in answer.topics
            for partition in topic.partitions
        }

    def fetch_all_stable(self) -> dict[tuple[str, int], tuple[ErrorCode, int]]:
        answer = self.ask(offsets.fetch_stable, OffsetFetchRequestGroup(group_id=GROUP, topics=None))
        return {
            (topic.name, partition.partition_index): (ErrorCode(partition.error_code), partition.committed_offset)
            for topic in answer.topics
            for partition in topic.partitions
        }

    def delete_offsets(self, topic: str, group: str = GROUP) -> tuple[ErrorCode, list[ErrorCode]]:
        partitions = [OffsetDeleteRequestPartition(partition_index=1)]
        request = OffsetDeleteRequest(
            group_id=group, topics=[OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
        )
        answer = self.ask(offsets.delete, request)
        codes = [ErrorCode(each.error_code) for topic in answer.topics for each in topic.partitions]
        return ErrorCode(answer.error_code), codes

    def delete_group(self, group: str = GROUP) -> ErrorCode:
        return ErrorCode(self.ask(GroupMachine.delete_group, group).error_code)

    def become_member(self, *topics: str, protocol_type: str = "consumer", instance_id: str | None = None) -> str:
        """Of a stable group, generation 1."""
        subscription = encode_subscription(ConsumerProtocolSubscription(topics=list(topics)), 1)
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=10_000,
            protocol_type=protocol_type,
            group_instance_id=instance_id,
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
        )
        if instance_id is None:
            request.member_id = self.ask(GroupMachine.join_group, request).member_id
        self.ask(GroupMachine.join_group, request)
        self.pass_ms(0)
        classic = self.machine.groups[GROUP].classic
        assert classic is not None
        [request.member_id] = classic.members
        self.ask(
            GroupMachine.sync_group,
            SyncGroupRequest(
                group_id=GROUP,
                generation_id=1,
                member_id=request.member_id,
                group_instance_id=instance_id,
                protocol_type=protocol_type,
                protocol_name="range",
            ),
            5,
        )
        return request.member_id

    def become_consumer_member(self, topic: str) -> tuple[str, int]:
        """Of a group of the new protocol; with its epoch."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id="of-the-new-kind",
            member_epoch=0,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=[topic],
            topic_partitions=[],
        )
        answer = self.ask(consumer.heartbeat, request, 1)
        return answer.member_id, answer.member_epoch

    def leave(self, member_id: str) -> None:
        self.ask(
            GroupMachine.leave_group,
            LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id=member_id)]),
            5,
        )

    def topics_changed(self, *names: str) -> None:
        self._decide(lambda decision: self.machine.topics_changed(set(names), self.now, decision, deleted=True))

    def listed(self) -> list[tuple[str, str, str]]:
        answer = self.ask(GroupMachine.list_groups, ListGroupsRequest())
        return [(each.group_id, each.group_state, each.group_type) for each in answer.groups]
