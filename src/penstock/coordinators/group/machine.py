"""The groups of one partition of __consumer_offsets: what is asked of them, what is remembered of them.

The functions of `classic`, `consumer` and `offsets` decide; this is what they have in common: finding a group, telling
which protocol it speaks, applying records, and what concerns groups of either kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import ModuleType

from penstock.coordinators.decision import Caller, Decision, LogRecord, Now
from penstock.coordinators.group import classic, consumer, consumer_classic, offsets, pending_offsets
from penstock.coordinators.group.records import (
    ConsumerGroupMetadata,
    GroupMetadataRecord,
    GroupTombstone,
    OffsetCommitRecord,
    OffsetTombstone,
    Record,
    decode,
)
from penstock.coordinators.group.state import Group, GroupConfig, TopicFacts
from penstock.coordinators.timers import Timers
from penstock.core.errors import ErrorCode, message_of
from penstock.core.ids import TopicPartition
from penstock.protocol.messages.groups import (
    DeletableGroupResult,
    DescribedGroup,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
)

EMPTY, DEAD = "Empty", "Dead"
CLASSIC, CONSUMER = "classic", "consumer"
NOT_FOUND_IS_AN_ERROR_SINCE = 6


class GroupMachine:
    def __init__(self, config: GroupConfig, topics: Mapping[str, TopicFacts]) -> None:
        self.config = config
        self.topics = topics
        """Kept current by whoever gave it, and shared with other machines."""

        self.groups: dict[str, Group] = {}
        self.open_transactions: dict[int, set[tuple[str, TopicPartition]]] = {}
        """Durable: to each producer with pending offsets, where in which groups they are."""

        self.timers: Timers[tuple[str, ...]] = Timers()

    # Durable state

    def apply(self, record: LogRecord) -> None:
        decoded: Record | None = record.meaning or decode(record)
        match decoded:
            case None:
                return  # of a kind that a newer broker wrote
            case OffsetCommitRecord():
                offsets.apply_commit(self, decoded)
            case OffsetTombstone():
                offsets.apply_tombstone(self, decoded)
            case GroupMetadataRecord() | GroupTombstone():
                classic.apply(self, decoded)
            case _:
                consumer.apply(self, decoded)
                if isinstance(decoded, ConsumerGroupMetadata) and record.timestamp >= 0:
                    consumer.was_changed_at(self.groups[decoded.group_id], record.timestamp)

    def apply_pending(self, record: LogRecord, producer_id: int) -> None:
        decoded: Record | None = record.meaning or decode(record)
        if isinstance(decoded, OffsetCommitRecord):
            pending_offsets.add(self, decoded, producer_id)
        else:
            self.apply(record)  # nobody writes any other into a transaction; if so, it means what it always does

    def transaction_ended(self, producer_id: int, *, committed: bool) -> None:
        pending_offsets.end(self, producer_id, committed=committed)

    def group_or_new(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id)
        return group

    def forget_if_empty(self, group: Group) -> None:
        if not group.offsets and not group.pending and group.classic is None and group.consumer is None:
            self.groups.pop(group.group_id, None)

    # Time

    def loaded(self, now: Now, decision: Decision) -> None:
        for group in list(self.groups.values()):
            if group.classic is not None:
                classic.loaded(self, group, now)
            elif group.consumer is not None:
                consumer.loaded(self, group, now)
        self.timers.set(offsets.EXPIRY_TIMER, now.monotonic_ms + self.config.offsets_retention_check_interval_ms)
        offsets.forget_topics_that_are_gone(self, decision)

    def due(self, now: Now, decision: Decision) -> None:
        key = self.timers.pop_due(now.monotonic_ms)
        if key is None:
            return
        if key == offsets.EXPIRY_TIMER:
            offsets.expire(self, now, decision)
        elif key[0].startswith(CLASSIC):
            classic.due(self, key, now, decision)
        else:
            consumer.due(self, key, now, decision)

    def next_deadline_ms(self) -> int | None:
        return self.timers.next_ms()

    def topics_changed(self, names: Collection[str], now: Now, decision: Decision, *, deleted: bool) -> None:
        """`deleted`: some of them, which is what makes a look at every offset worth it."""
        if deleted:
            offsets.forget_topics_that_are_gone(self, decision)
        consumer.topics_changed(self, names, now, decision)

    # Members

    def join_group(self, request: JoinGroupRequest, caller: Caller, now: Now, decision: Decision) -> None:
        self._of_classic_members(request.group_id).join(self, request, caller, now, decision)

    def sync_group(self, request: SyncGroupRequest, caller: Caller, now: Now, decision: Decision) -> None:
        self._of_classic_members(request.group_id).sync(self, request, caller, now, decision)

    def heartbeat(self, request: HeartbeatRequest, caller: Caller, now: Now, decision: Decision) -> None:
        self._of_classic_members(request.group_id).heartbeat(self, request, caller, now, decision)

    def leave_group(self, request: LeaveGroupRequest, caller: Caller, now: Now, decision: Decision) -> None:
        self._of_classic_members(request.group_id).leave(self, request, caller, now, decision)

    def _of_classic_members(self, group_id: str) -> ModuleType:
        """Members that speak the classic protocol may be in a consumer group that is being migrated."""
        group = self.groups.get(group_id)
        return classic if group is None or group.consumer is None else consumer_classic

    # Groups of either kind

    def is_empty(self, group: Group) -> bool:
        """Whether it has no members."""
        if group.consumer is not None:
            return consumer.is_empty(group)
        return group.classic is None or classic.is_empty(group)

    def empty_since_ms(self, group: Group) -> int:
        if group.consumer is not None:
            return consumer.empty_since_ms(group)
        return 0 if group.classic is None else classic.empty_since_ms(group)

    def subscribed_topics(self, group: Group) -> set[str] | None:
        """What its members subscribe to; None when they do not say."""
        if self.is_empty(group):
            return set()
        return consumer.subscribed_topics(group) if group.consumer is not None else classic.subscribed_topics(group)

    def delete_group_records(self, group: Group, decision: Decision) -> None:
        """What takes the group itself away, after its offsets."""
        if group.consumer is not None:
            consumer.delete(group, decision)
        elif group.classic is not None:
            classic.delete(group, decision)

    def delete_group(self, group_id: str, caller: Caller, now: Now, decision: Decision) -> None:
        group = self.groups.get(group_id)
        if group is None:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        elif not self.is_empty(group):
            code = ErrorCode.NON_EMPTY_GROUP
        else:
            code = ErrorCode.NONE
            offsets.forget(group, offsets.committed_or_pending(group), decision)
            self.delete_group_records(group, decision)
        decision.answer(caller.ticket, DeletableGroupResult(group_id=group_id, error_code=code))

    def list_groups(self, request: ListGroupsRequest, caller: Caller, now: Now, decision: Decision) -> None:
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        listed = [self._listed(group) for group in self.groups.values()]
        response = ListGroupsResponse(
            groups=[
                each
                for each in listed
                if (not states or each.group_state.lower() in states) and (not types or each.group_type in types)
            ]
        )
        decision.answer(caller.ticket, response)

    def _listed(self, group: Group) -> ListedGroup:
        if group.consumer is not None:
            protocol_type, kind = CONSUMER, CONSUMER
        else:
            protocol_type, kind = "" if group.classic is None else classic.protocol_type(group), CLASSIC
        return ListedGroup(
            group_id=group.group_id, protocol_type=protocol_type, group_state=self.state_name(group), group_type=kind
        )

    def state_name(self, group: Group) -> str:
        if group.consumer is not None:
            return consumer.state_name(group)
        return EMPTY if group.classic is None else classic.state_name(group)

    def describe_consumer_group(self, group_id: str, caller: Caller, now: Now, decision: Decision) -> None:
        decision.answer(caller.ticket, consumer.describe(self, group_id))

    def describe_group(self, group_id: str, caller: Caller, now: Now, decision: Decision) -> None:
        """As DescribeGroups sees it, which knows classic groups only."""
        group = self.groups.get(group_id)
        if group is not None and group.classic is not None:
            described = classic.describe(group)
        elif group is not None and group.consumer is None:
            described = DescribedGroup(group_id=group_id, group_state=EMPTY)
        else:
            described = DescribedGroup(group_id=group_id, group_state=DEAD)
            if caller.api_version >= NOT_FOUND_IS_AN_ERROR_SINCE:
                described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                kind = "is no classic group" if group is not None else "does not exist"
                described.error_message = message_of(f"the group {group_id!r} {kind}")
        decision.answer(caller.ticket, described)
