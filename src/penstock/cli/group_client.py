"""What the group commands ask a broker for, in our own terms; a refusal ends the command with its reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import TYPE_CHECKING, Any

from penstock.cli.client import answer, fail, reason
from penstock.cli.group_offsets import LogRange, Offsets
from penstock.cli.group_view import GroupView, MemberView, partition_views, partitions_of_group
from penstock.cli.terminal import counted
from penstock.core.ids import TopicPartition
from penstock.wire.cluster import Node

if TYPE_CHECKING:
    from confluent_kafka.admin import (
        AdminClient,
        ConsumerGroupDescription,
        ConsumerGroupListing,
        ListConsumerGroupsResult,
        MemberDescription,
    )

# Kafka's names for what librdkafka knows; the rest (Assigning, Reconciling) it has as unknown.
STATES = {
    "Stable": "STABLE",
    "Empty": "EMPTY",
    "PreparingRebalance": "PREPARING_REBALANCING",
    "CompletingRebalance": "COMPLETING_REBALANCING",
    "Dead": "DEAD",
}
TYPES = {"classic": "CLASSIC", "consumer": "CONSUMER"}
_AGAIN_AFTER_S = 0.1

_STATE_NAMES = {member: name for name, member in STATES.items()}
_TYPE_NAMES = {member: name for name, member in TYPES.items()}


class GroupClient:
    def __init__(self, admin: AdminClient, timeout: float) -> None:
        self._admin = admin
        self._timeout = timeout

    def listed(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[ConsumerGroupListing]:
        from confluent_kafka import ConsumerGroupState, ConsumerGroupType

        filters: dict[str, Any] = {}
        if states:
            filters["states"] = {ConsumerGroupState[STATES[state]] for state in states}
        if types:
            filters["types"] = {ConsumerGroupType[TYPES[name]] for name in types}
        found: ListConsumerGroupsResult = answer(
            "groups", self._admin.list_consumer_groups(request_timeout=self._timeout, **filters)
        )
        for error in found.errors or ():
            fail(f"groups: {reason(error.args[0])}")
        return sorted(found.valid or (), key=lambda listing: listing.group_id)

    def describe(self, groups: Sequence[str]) -> list[ConsumerGroupDescription]:
        """A group that is not there is Dead, as brokers have it."""
        if not groups:
            return []

        def send(asked: Sequence[str]) -> dict[str, Future[Any]]:
            return self._admin.describe_consumer_groups(list(asked), request_timeout=self._timeout)

        futures = send(groups)
        return [self._settled(group, futures[group], lambda group: send([group])[group]) for group in groups]

    def committed(self, groups: Iterable[str]) -> dict[str, Offsets]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        def send(group: str) -> Future[Any]:
            asked = [ConsumerGroupTopicPartitions(group)]
            return self._admin.list_consumer_group_offsets(asked, request_timeout=self._timeout)[group]

        futures = {group: send(group) for group in groups}
        return {group: _offsets(group, self._settled(group, future, send)) for group, future in futures.items()}

    def topics(self) -> dict[str, list[int]]:
        """The partitions of every topic."""
        from confluent_kafka import KafkaException

        try:
            topics = self._admin.list_topics(timeout=self._timeout).topics
        except KafkaException as refused:
            fail(reason(refused.args[0]))
        return {name: sorted(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def views(self, descriptions: Sequence[ConsumerGroupDescription]) -> list[GroupView]:
        committed = self.committed(description.group_id for description in descriptions)
        missing = [
            description.group_id
            for description in descriptions
            if state_name(description.state) == "Dead" and not committed[description.group_id]
        ]
        if missing:
            fail("; ".join(f'no group "{group}"' for group in missing))
        known = self.topics()
        members = {description.group_id: _members(description) for description in descriptions}
        used = {
            partition
            for group, offsets in committed.items()
            for partition in partitions_of_group(_assigned(members[group]), offsets, known)
            if partition.partition in known.get(partition.topic, ())
        }
        ends = self._ends(used)
        return [
            _view(description, members[group], committed[group], ends, known)
            for description in descriptions
            for group in [description.group_id]
        ]

    def logs(self, partitions: Iterable[TopicPartition], time_ms: int | None) -> dict[TopicPartition, LogRange]:
        from confluent_kafka.admin import OffsetSpec

        asked = list(partitions)
        starts = self._list_offsets(asked, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        ends = self._list_offsets(asked, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        at_time: Offsets = {}
        if time_ms is not None:
            found = self._list_offsets(asked, OffsetSpec.for_timestamp(time_ms))
            at_time = {partition: offset for partition, offset in found.items() if offset >= 0}
        return {partition: LogRange(starts[partition], ends[partition], at_time.get(partition)) for partition in asked}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError
        from confluent_kafka import TopicPartition as ClientPartition

        partitions = [ClientPartition(*partition, offset) for partition, offset in offsets.items()]

        def send(group: str) -> Future[Any]:
            asked = [ConsumerGroupTopicPartitions(group, partitions)]
            return self._admin.alter_consumer_group_offsets(asked, request_timeout=self._timeout)[group]

        done = self._settled(group, send(group), send)
        refused = [found for found in done.topic_partitions if found.error is not None]
        if refused:
            joined = any(found.error.code() == KafkaError.UNKNOWN_MEMBER_ID for found in refused)
            advice = "; a consumer has joined the group, stop it first" if joined else ""
            listed = "; ".join(f"{found.topic}-{found.partition}: {reason(found.error)}" for found in refused)
            fail(f'group "{group}": {len(refused)} of {counted(len(partitions), "offset")} not set: {listed}{advice}')

    def _settled(self, group: str, future: Future[Any], send: Callable[[str], Future[Any]]) -> Any:
        """The answer about a group, asked for again while its coordinator is on the way: librdkafka does not."""
        deadline = time.monotonic() + self._timeout
        while _is_passing(future) and time.monotonic() < deadline:
            time.sleep(_AGAIN_AFTER_S)
            future = send(group)
        return answer(f'group "{group}"', future)

    def _list_offsets(self, partitions: Iterable[TopicPartition], spec: Any) -> Offsets:
        answers = self._ask_offsets(partitions, spec)
        return {partition: answer(str(partition), future).offset for partition, future in answers.items()}

    def _ends(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """A partition whose leader does not answer is left out: the others are still worth showing."""
        from confluent_kafka.admin import OffsetSpec

        answers = self._ask_offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return {partition: future.result().offset for partition, future in answers.items() if not future.exception()}

    def _ask_offsets(self, partitions: Iterable[TopicPartition], spec: Any) -> dict[TopicPartition, Future[Any]]:
        from confluent_kafka import TopicPartition as ClientPartition

        asked = {ClientPartition(*partition): spec for partition in partitions}
        if not asked:
            return {}
        futures = self._admin.list_offsets(asked, request_timeout=self._timeout)
        return {TopicPartition(found.topic, found.partition): future for found, future in futures.items()}


def _is_passing(future: Future[Any]) -> bool:
    """Whether the answer is that of a coordinator which moves or still reads its log."""
    from confluent_kafka import KafkaError, KafkaException

    error = future.exception()
    if isinstance(error, KafkaException):
        errors = [error.args[0]]
    else:
        partitions = [] if error else getattr(future.result(), "topic_partitions", [])
        errors = [partition.error for partition in partitions if partition.error is not None]
    passing = (
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    )
    return any(found.code() in passing for found in errors)


def state_name(state: Enum) -> str:
    return _STATE_NAMES.get(state.name, "Unknown")


def type_name(kind: Enum) -> str:
    return _TYPE_NAMES.get(kind.name, "unknown")


def protocol_type(group: ConsumerGroupListing | ConsumerGroupDescription) -> str:
    """Empty for a group that only offsets were committed for, by consumers that assign partitions to themselves."""
    return "" if group.is_simple_consumer_group else "consumer"


def _offsets(group: str, found: Any) -> Offsets:
    offsets: Offsets = {}
    for partition in found.topic_partitions:
        if partition.error is not None:
            fail(f'group "{group}": {partition.topic}-{partition.partition}: {reason(partition.error)}')
        if partition.offset >= 0:
            offsets[TopicPartition(partition.topic, partition.partition)] = partition.offset
    return offsets


def _members(description: ConsumerGroupDescription) -> list[MemberView]:
    members = [_member(member) for member in description.members]
    return sorted(members, key=lambda member: (member.client_id, member.member_id))


def _member(member: MemberDescription) -> MemberView:
    partitions = [TopicPartition(found.topic, found.partition) for found in member.assignment.topic_partitions]
    # Kafka writes addresses as Java does, with a slash where a host name would be.
    host = member.host.removeprefix("/")
    return MemberView(member.member_id, member.client_id, host, member.group_instance_id, sorted(partitions))


def _assigned(members: Iterable[MemberView]) -> list[TopicPartition]:
    return [partition for member in members for partition in member.assignment]


def _view(
    description: ConsumerGroupDescription,
    members: list[MemberView],
    committed: Offsets,
    ends: Offsets,
    known: Mapping[str, list[int]],
) -> GroupView:
    node = description.coordinator
    return GroupView(
        group=description.group_id,
        state=state_name(description.state),
        type=type_name(description.type),
        protocol_type=protocol_type(description),
        assignor=description.partition_assignor,
        coordinator=Node(node.id, node.host, node.port),
        members=members,
        partitions=partition_views(members, committed, ends, known),
    )
