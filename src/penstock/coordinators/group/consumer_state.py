"""A group that speaks the new protocol (KIP-848): its members, what they are meant to have, and what they have.

Three epochs: the group's goes up when anything an assignment depends on changes; the target's says for which of them
the assignment was computed; a member's says up to which it has come. A partition belongs to the member that has it
assigned or still has to give it up. Nobody else gets it before that member's record says it is gone, so each has one
owner.

Everything but what is marked soft changes only by `consumer_records.apply`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from penstock.coordinators.group.assignors import NOTHING, Assignment
from penstock.coordinators.group.records import ClassicMemberMetadata
from penstock.coordinators.group.state import TopicFacts
from penstock.core.ids import TopicId

JOINING = 0
LEAVING = -1
LEAVING_FOR_NOW = -2
"""A static member that will be back: what it has stays its own."""


class MemberState(IntEnum):
    """As written in records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    member_epoch: int = JOINING
    previous_member_epoch: int = JOINING
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str = ""
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    """Of a member that speaks the classic protocol."""
    assigned: Assignment = field(default_factory=lambda: NOTHING)
    pending_revocation: Assignment = field(default_factory=lambda: NOTHING)

    @property
    def uses_classic_protocol(self) -> bool:
        return self.classic is not None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch


class ResolvedRegex(NamedTuple):
    topics: frozenset[str]
    version: int
    timestamp: int


@dataclass(slots=True)
class ConsumerGroup:
    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = -1
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    """Instance id to member id."""
    targets: dict[str, Assignment] = field(default_factory=dict)
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    owners: dict[TopicId, dict[int, str]] = field(default_factory=dict)
    """Of each partition that is somebody's, the member id."""
    has_old_metadata_record: bool = False
    """Kafka before 4.1 wrote what the metadata hash stands for now; it is to be taken away."""

    changed_ms: int = -1
    """When members last went, by the wall clock; after a replay, when the epoch last changed. So it is exact for a
    group that has become empty, which is what it is for.
    """
    metadata_is_current: bool = False
    """Soft: whether no topic has changed since the metadata hash was computed."""
    changed_topics: set[str] = field(default_factory=set)
    """Soft: topics that came or went since the regular expressions were resolved."""
    regexes_resolved_ms: int | None = None
    """Soft: when all of them were last looked at, on the monotonic clock."""
    topic_hashes: dict[str, tuple[TopicFacts, int]] = field(default_factory=dict)
    """Soft: a cache."""
    subscribed: frozenset[str] | None = None
    """Soft: a cache of what `subscribed_topics` answers."""

    def static_member(self, instance_id: str | None) -> Member | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def target_of(self, member: Member) -> Assignment:
        """A static member that came back under a new id takes over what was meant for the old one."""
        if member.instance_id is None:
            return self.targets.get(member.member_id, NOTHING)
        return self.targets.get(self.static_members.get(member.instance_id, ""), NOTHING)

    def is_owned(self, topic_id: TopicId, partition: int) -> bool:
        return partition in self.owners.get(topic_id, ())

    def put_member(self, member: Member) -> None:
        before = self.members.get(member.member_id)
        if before is None or before.instance_id != member.instance_id:
            self._forget_instance(before)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._move_ownership(before, member)
        self._subscriptions_changed(before, member)

    def remove_member(self, member_id: str) -> None:
        before = self.members.pop(member_id, None)
        if before is not None:
            self._forget_instance(before)
            self._move_ownership(before, None)
            self.subscribed = None

    def put_regex(self, regex: str, resolved: ResolvedRegex | None) -> None:
        if resolved is None:
            self.regexes.pop(regex, None)
        else:
            self.regexes[regex] = resolved
        self.subscribed = None

    def _subscriptions_changed(self, before: Member | None, member: Member) -> None:
        if before is None or before.subscribed_topic_names != member.subscribed_topic_names:
            self.subscribed = None

    def _forget_instance(self, member: Member | None) -> None:
        # The records of a replaced member come in an order in which the instance may already be somebody else's.
        instance_id = None if member is None else member.instance_id
        if member is not None and instance_id is not None and self.static_members.get(instance_id) == member.member_id:
            del self.static_members[instance_id]

    def _move_ownership(self, before: Member | None, after: Member | None) -> None:
        if before is not None and after is not None and _have_same(before, after):
            return
        if before is not None:
            for topic_id, partition in holdings(before):
                owners = self.owners.get(topic_id, {})
                if owners.get(partition) == before.member_id:
                    del owners[partition]
                    if not owners:
                        del self.owners[topic_id]
        if after is not None:
            for topic_id, partition in holdings(after):
                self.owners.setdefault(topic_id, {})[partition] = after.member_id


def _have_same(one: Member, other: Member) -> bool:
    """At a glance: most changes of a member leave what it has untouched."""
    return one.assigned is other.assigned and one.pending_revocation is other.pending_revocation


def holdings(member: Member) -> Iterator[tuple[TopicId, int]]:
    for assignment in (member.assigned, member.pending_revocation):
        for topic_id, partitions in assignment.items():
            for partition in partitions:
                yield topic_id, partition


def state_name(group: ConsumerGroup) -> str:
    if not group.members:
        return "Empty"
    if group.epoch > group.target_epoch:
        return "Assigning"
    if all(member.is_reconciled_to(group.target_epoch) for member in group.members.values()):
        return "Stable"
    return "Reconciling"


def preferred_assignor(members: Iterable[Member], offered: tuple[str, ...]) -> str:
    """What most of those that name one want; the broker's first if none does, and between equals its earlier."""
    votes = Counter(member.server_assignor for member in members if member.server_assignor in offered)
    return max(offered, key=lambda name: votes[name])


def topics_of(member: Member, regexes: Mapping[str, ResolvedRegex]) -> frozenset[str]:
    """A regular expression that is not resolved yet stands for nothing."""
    resolved = regexes.get(member.subscribed_topic_regex) if member.subscribed_topic_regex else None
    return member.subscribed_topic_names if resolved is None else member.subscribed_topic_names | resolved.topics


def subscribed_topics(group: ConsumerGroup) -> frozenset[str]:
    if group.subscribed is None:
        names: set[str] = set()
        for topics in {member.subscribed_topic_names for member in group.members.values()}:
            names |= topics
        for resolved in group.regexes.values():
            names |= resolved.topics
        group.subscribed = frozenset(names)
    return group.subscribed
