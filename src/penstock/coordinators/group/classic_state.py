"""A group of the classic rebalance protocol: what of it is durable, and what its coordinator works with.

    Empty ──join──> PreparingRebalance ──all joined──> CompletingRebalance ──leader's assignment──> Stable
      ^                    │  ^                               │                                       │
      └───nobody joined────┘  └──a member joins, leaves, or is gone: everybody has to join again──────┘

Durable is `stored` alone: the last GroupMetadata record, which stands for a generation whose assignment is known, or
for an empty group. Everything else is soft. It runs ahead of `stored` while members join, and falls back to it when
another coordinator takes over.

Why generations that only lived in memory do no harm (trap E6). A generation is counted when the join phase ends, but is
written with the leader's assignment, or with the last member's leaving. A coordinator that dies in between has told the
members a number that its successor, which knows the generation before, gives out once more. Nobody held a partition
under the lost number, since assignments are sent after their record is committed; so no commit under it can be about
partitions that another member was given. What is late under the lost number is refused: with UNKNOWN_MEMBER_ID if the
sender was new in it, since member ids never repeat and the record does not have it; with ILLEGAL_GENERATION as long as
the restored generation stands; with REBALANCE_IN_PROGRESS while the number's second life waits for its assignment.
After that the sender has itself joined under that number and received its assignment. A member that was thrown out in
the lost join phase comes back with the record, as do its partitions: they had not been given to anybody else yet.
Generations that were written never repeat: the next one is counted from the last record, also from that of an empty
group. A deleted group starts from 0, but without the member ids of the old one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from penstock.coordinators.decision import Ticket
from penstock.coordinators.group.records import GroupMetadataMember, GroupMetadataRecord

NO_MEMBER_ID = ""
NO_ASSIGNMENT = b""

Protocols = tuple[tuple[str, bytes], ...]
"""The names a member supports, most wanted first, each with the member's metadata for it."""


class State(StrEnum):
    """By the names that Kafka shows."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


NEXT = {
    State.EMPTY: {State.PREPARING_REBALANCE},
    State.PREPARING_REBALANCE: {State.COMPLETING_REBALANCE, State.EMPTY},
    State.COMPLETING_REBALANCE: {State.STABLE, State.PREPARING_REBALANCE},
    State.STABLE: {State.PREPARING_REBALANCE},
}


class InitialDelay(NamedTuple):
    """The wait of a group that was empty; `remaining_ms` is how much it may still be extended by new members."""

    delay_ms: int
    remaining_ms: int


@dataclass(slots=True)
class Member:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = NO_ASSIGNMENT
    is_new: bool = False
    """It has not been in a generation yet; a client of an old version does not even know its id."""

    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None
    """Whom to answer; None when no such request waits."""

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_excused_from_heartbeats(self) -> bool:
        """While we let it wait for an answer it cannot be expected to say more; a new one may be gone for good."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)


@dataclass(slots=True)
class ClassicGroup:
    """Changed by the functions of the `classic_*` modules; the methods here keep its indexes and counts true."""

    stored: GroupMetadataRecord | None = None
    """Durable, and changed by `apply` only."""

    state: State = State.EMPTY
    current_state_timestamp: int = -1
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    """Member ids by group instance id."""

    pending_members: set[str] = field(default_factory=set)
    """Ids that were given out (MEMBER_ID_REQUIRED) and have not joined yet."""

    unsynced: set[str] = field(default_factory=set)
    """Members of this generation that have not asked for their assignment."""

    joins_waiting: int = 0
    initial_delay: InitialDelay | None = None
    """Set during the join phase of a group that was empty."""

    has_joined_in_delay: bool = False
    _support: dict[str, int] = field(default_factory=dict)
    """By protocol name, how many members know it."""

    @classmethod
    def restored(cls, record: GroupMetadataRecord) -> ClassicGroup:
        """As a new coordinator finds it: stable if it has members, and nobody waiting."""
        group = cls(
            stored=record,
            current_state_timestamp=record.current_state_timestamp,
            generation=record.generation,
            protocol_type=record.protocol_type or None,
            protocol=record.protocol,
        )
        for stored in record.members:
            member = _restored_member(stored, record.protocol or "")
            instance_id = stored.group_instance_id
            twin = None if instance_id is None else group.static_members.get(instance_id)
            if twin is not None:  # never written by a sane coordinator; the later one counts
                group.remove(twin)
            group.add(member)
        if group.members:
            group.state = State.STABLE
            group.leader = record.leader if record.leader in group.members else group.leader
        return group

    # Questions

    def has_all_joined(self) -> bool:
        return self.joins_waiting == len(self.members) and not self.pending_members

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member that knows these leaves the group with a protocol that all know."""
        if self.state is State.EMPTY:
            return bool(protocol_type) and bool(protocols)
        everybody = len(self.members)
        return protocol_type == self.protocol_type and any(
            self._support.get(name, 0) == everybody for name, _ in protocols
        )

    def elected_protocol(self, *, instead: tuple[Member, Member] | None = None) -> str:
        """Each member votes for the first of its protocols that all know. A tie goes to the oldest member's choice.
        `instead` is a member and who would vote in its place.
        """
        old, new = (None, None) if instead is None else instead
        voters = [new if new is not None and member is old else member for member in self.members.values()]
        support: dict[str, int] = {}
        for member in voters:
            for name, _ in member.protocols:
                support[name] = support.get(name, 0) + 1
        candidates = {name for name, count in support.items() if count == len(voters)}
        votes: dict[str, int] = {}
        for member in voters:
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def record(
        self,
        group_id: str,
        members: Iterable[Member],
        *,
        leader: str | None,
        assignments: dict[str, bytes] | None = None,
    ) -> GroupMetadataRecord:
        """`assignments` are those that the members are about to have; without it, those they have."""
        return GroupMetadataRecord(
            group_id=group_id,
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=leader,
            current_state_timestamp=self.current_state_timestamp,
            members=tuple(_stored_member(member, self.protocol, assignments) for member in members),
        )

    # Changes

    def move_to(self, state: State, wall_ms: int) -> None:
        assert state in NEXT[self.state], f"{self.state} -> {state}"
        self.state = state
        self.current_state_timestamp = wall_ms

    def add(self, member: Member) -> None:
        assert member.group_instance_id not in self.static_members, "replace it instead"
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.pending_members.discard(member.member_id)
        self.joins_waiting += member.join_ticket is not None
        self._count_support(member, 1)

    def remove(self, member_id: str) -> None:
        """Of one that waits for nothing any more. The oldest of the others takes over from a leader."""
        member = self.members.pop(member_id)
        assert member.join_ticket is None and member.sync_ticket is None, "answer it first"
        self._count_support(member, -1)
        self.unsynced.discard(member_id)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def replace(self, old: Member, new: Member) -> None:
        """A static member came back under another id. The old one waits for nothing any more."""
        assert old.group_instance_id is not None and old.group_instance_id == new.group_instance_id
        was_leader, was_unsynced = self.leader == old.member_id, old.member_id in self.unsynced
        self.remove(old.member_id)
        self.add(new)
        if was_leader:
            self.leader = new.member_id
        if was_unsynced:
            self.unsynced.add(new.member_id)

    def wait_for_join(self, member: Member, ticket: Ticket) -> None:
        assert member.join_ticket is None, "answer the one before first"
        member.join_ticket = ticket
        self.joins_waiting += 1

    def stop_waiting_for_join(self, member: Member) -> Ticket | None:
        """The ticket to be answered; None if none waited."""
        ticket, member.join_ticket = member.join_ticket, None
        self.joins_waiting -= ticket is not None
        return ticket

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._count_support(member, -1)
        member.protocols = protocols
        self._count_support(member, 1)

    def _count_support(self, member: Member, change: int) -> None:
        for name, _ in member.protocols:
            count = self._support.get(name, 0) + change
            if count:
                self._support[name] = count
            else:
                del self._support[name]


def _restored_member(stored: GroupMetadataMember, protocol: str) -> Member:
    session_timeout_ms = stored.session_timeout
    return Member(
        member_id=stored.member_id,
        group_instance_id=stored.group_instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        # Records of the oldest schema lack it.
        rebalance_timeout_ms=session_timeout_ms if stored.rebalance_timeout == -1 else stored.rebalance_timeout,
        session_timeout_ms=session_timeout_ms,
        protocols=((protocol, stored.subscription),),
        assignment=stored.assignment,
    )


def _stored_member(member: Member, protocol: str | None, assignments: dict[str, bytes] | None) -> GroupMetadataMember:
    assignment = member.assignment if assignments is None else assignments.get(member.member_id, NO_ASSIGNMENT)
    return GroupMetadataMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=assignment,
    )
