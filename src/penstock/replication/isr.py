"""The leader's view of its replicas, for one leader epoch: who holds what, who is in sync, what is committed.

The high watermark may only cover what every replica holds that could be the next leader: on topics that flush, holds on
disk. What must stay true:
- It waits for the maximal in-sync set: the one in the store, and every one that was proposed and may be there by now or
  yet come to be (trap A4). A proposal stops counting when it was refused, or when the partition's epoch has moved on.
- It never goes back, and stands still while fewer than min.insync.replicas are in sync (KIP-966).
- A replica joins when it holds all that is committed, up to the start of this leader epoch at least (what was committed
  before may be above the high watermark that this leader knows), as it says itself in a fetch of this epoch, from the
  very process that the store knows as serving (trap A5, KIP-903).

On one node the leader is the whole set; the rules are the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId

UNKNOWN_OFFSET = -1
UNKNOWN_BROKER_EPOCH = -1
PROPOSAL_BACKOFF_MS = 200

# What tells that nothing was written. After anything else the proposal may be in the store, or still be on its way.
_REFUSALS = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)


class Member(NamedTuple):
    broker_id: BrokerId
    # The one it fetches with; -1: it was in sync before this leader heard of it.
    broker_epoch: int


class Proposal(NamedTuple):
    """Another in-sync set, to be written only if the partition is still in this epoch."""

    members: tuple[Member, ...]
    partition_epoch: int


class _Follower:
    """What a replica said in this leader epoch."""

    __slots__ = (
        "broker_epoch",
        "caught_up_ms",
        "cleaned_offset",
        "end_offset",
        "flushed_offset",
        "heard_ms",
        "held_offset",
        "log_start_offset",
        "mark_ms",
        "mark_offset",
    )

    def __init__(self, caught_up_ms: float, heard_ms: float) -> None:
        self.heard_ms = heard_ms
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.end_offset = UNKNOWN_OFFSET
        # What it has said to have on disk, beside its fetches.
        self.flushed_offset = UNKNOWN_OFFSET
        # What of it counts: as durable as the topic asks.
        self.held_offset = UNKNOWN_OFFSET
        self.cleaned_offset = 0
        self.log_start_offset = 0
        # When it last held all that the leader had.
        self.caught_up_ms = caught_up_ms
        # Where the leader's log ended a while ago. What a replica holds may always be a few fetches behind, so it is
        # asked when it reaches this, not whether it has reached the end of now.
        self.mark_offset = UNKNOWN_OFFSET
        self.mark_ms = caught_up_ms

    def reported(self, held_offset: int, leader_end_offset: int, now_ms: float) -> None:
        self.held_offset = held_offset
        if held_offset >= leader_end_offset:
            self.caught_up_ms = now_ms
        elif held_offset >= self.mark_offset:
            self.caught_up_ms = max(self.caught_up_ms, self.mark_ms)
        else:
            return
        self.mark_offset, self.mark_ms = leader_end_offset, now_ms


class Isr:
    __slots__ = (
        "_followers",
        "_held",
        "_is_in_doubt",
        "_leader",
        "_may_advance",
        "_not_before_ms",
        "_possible",
        "high_watermark",
        "lag_max_ms",
        "members",
        "min_isr",
        "partition_epoch",
        "pending",
        "serving",
        "spoilt",
        "start_offset",
    )

    def __init__(
        self,
        members: Iterable[BrokerId],
        high_watermark: int,
        *,
        leader: BrokerId | None = None,
        replicas: Collection[BrokerId] = (),
        partition_epoch: int = 0,
        start_offset: int = 0,
        min_isr: int = 1,
        lag_max_ms: int = 30_000,
        serving: Mapping[BrokerId, int] | None = None,
        now_ms: float = 0,
    ) -> None:
        """`start_offset` is where the log ended when this leader epoch began. `serving` has the broker epoch of every
        broker that serves, as the image has it; it may be shared. Without `leader` and `replicas` it is the only one.
        """
        # As in the store.
        self.members = frozenset(members)
        self.partition_epoch = partition_epoch
        self.high_watermark = high_watermark
        self.start_offset = start_offset
        self.min_isr = min_isr
        self.lag_max_ms = lag_max_ms
        self.serving: Mapping[BrokerId, int] = serving if serving is not None else {}
        # Replicas that begin anew: what they had does not matter.
        self.spoilt: frozenset[BrokerId] = frozenset()
        # The proposal that an answer is awaited for.
        self.pending: Proposal | None = None
        # All that are in proposals for this partition epoch whose outcome is not known.
        self._possible: frozenset[BrokerId] = frozenset()
        # Whether one of those was sent and no answer tells what became of it.
        self._is_in_doubt = False
        self._not_before_ms: float = 0
        self._leader = leader if leader is not None else next(iter(self.members))
        others = {*(replicas or self.members)} - {self._leader}
        self._followers = {
            each: _Follower(now_ms if each in self.members else now_ms - lag_max_ms - 1, now_ms) for each in others
        }
        # What the high watermark is the smallest of. Who is in sync holds what is committed, heard of or not.
        self._held = dict.fromkeys({*self.members, self._leader}, high_watermark)
        self._may_advance = self._has_enough()

    # Questions

    @property
    def replicas(self) -> frozenset[BrokerId]:
        return frozenset((self._leader, *self._followers))

    @property
    def maximal(self) -> frozenset[BrokerId]:
        return self.members | self._possible

    @property
    def is_full(self) -> bool:
        """Nobody is left who could join, and nothing is in doubt: only time can give reason for a proposal."""
        return len(self.members) > len(self._followers) and not self._is_in_doubt

    @property
    def is_settled(self) -> bool:
        """Whether the high watermark covers all that may have been committed before: until then the end of what is
        committed is not known to this leader (trap A11).
        """
        return self.high_watermark >= self.start_offset

    def is_silent(self, for_ms: int, now_ms: float, asked_ms: Mapping[BrokerId, float]) -> bool:
        """Whether somebody who is needed to commit has not been heard of for so long, nor has fetched anything
        (`asked_ms`): in a fetch session nobody speaks of what is idle.
        """
        needed = ((member, self._followers.get(member)) for member in self.maximal)
        return any(
            each is not None and now_ms - max(each.heard_ms, asked_ms.get(member, -math.inf)) > for_ms
            for member, each in needed
        )

    def followers_with(self, offset: int) -> dict[BrokerId, int]:
        """In-sync followers whose logs have something to say about `offset`, and where they end (KIP-392)."""
        return {
            broker_id: each.end_offset
            for broker_id, each in self._followers.items()
            if broker_id in self.members
            and self._is_serving(broker_id)
            and each.log_start_offset <= offset <= each.end_offset
        }

    def cleaned_everywhere(self, own_cleaned_offset: int) -> int:
        """Below it every replica has everything and has compacted it: markers and tombstones may go (trap D4)."""
        offsets = [
            min(each.end_offset, each.cleaned_offset)
            for replica, each in self._followers.items()
            if replica not in self.spoilt
        ]
        return max(0, min([own_cleaned_offset, *offsets]))

    def is_at_rest(self, leader_end_offset: int, now_ms: float) -> bool:
        """Whether all replicas are in sync and have said that they hold everything: time gives no reason for anything.

        To be asked from time to time, so that it is known since when they may have fallen behind.
        """
        if self.high_watermark < leader_end_offset or self.pending is not None or not self.is_full:
            return False
        followers = self._followers.values()
        for follower in followers:
            if follower.held_offset < leader_end_offset:
                return False
        for follower in followers:
            follower.caught_up_ms = now_ms
        return True

    def away(self, limit_ms: int, now_ms: float) -> list[BrokerId]:
        """Who is not in sync, and has not been heard of for so long. Nobody knows when a spoilt one comes back, nor
        needs to.
        """
        return [
            replica
            for replica, each in self._followers.items()
            if replica not in self.members and replica not in self.spoilt and now_ms - each.heard_ms > limit_ms
        ]

    # Offsets

    def held(self, member: BrokerId, offset: int) -> bool:
        """`member`, which is the leader, holds everything below `offset`. True when the high watermark rose."""
        held = self._held
        held[member] = offset
        if len(held) > 1:
            offset = min(held.values())
        if offset <= self.high_watermark or not self._may_advance:
            return False
        self.high_watermark = offset
        return True

    def fetched(
        self,
        replica: BrokerId,
        broker_epoch: int,
        fetch_offset: int,
        held_offset: int | None,
        leader_end_offset: int,
        now_ms: float,
    ) -> bool:
        """`replica` asks in this leader epoch for what follows `fetch_offset`, up to where its log agrees with ours,
        and holds what is below `held_offset` as durably as the topic asks; None: what it said last by `flushed`. True
        when the high watermark rose.

        Raises BrokerError for one that is no replica, or whose process has been replaced.
        """
        follower = self._followers.get(replica)
        if follower is None:
            # The assignment may be on its way here.
            raise BrokerError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {replica} is no replica in this epoch")
        if broker_epoch < follower.broker_epoch:
            raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, f"broker {replica} is in epoch {follower.broker_epoch}")
        if broker_epoch > follower.broker_epoch and follower.broker_epoch != UNKNOWN_BROKER_EPOCH:
            # Another process, perhaps with another disk: what the last one said is worth nothing.
            follower = self._replaced(replica, follower.caught_up_ms, now_ms)
        follower.broker_epoch = broker_epoch
        held_offset = follower.flushed_offset if held_offset is None else held_offset
        return self._reported(replica, follower, fetch_offset, held_offset, leader_end_offset, now_ms)

    def _replaced(self, replica: BrokerId, caught_up_ms: float, now_ms: float) -> _Follower:
        """Unless it is in sync, or may be by now, it has to catch up before anybody waits for it."""
        if replica not in self.maximal:
            self._held.pop(replica, None)
            caught_up_ms = now_ms - self.lag_max_ms - 1
        follower = self._followers[replica] = _Follower(caught_up_ms, now_ms)
        return follower

    def flushed(
        self,
        replica: BrokerId,
        broker_epoch: int,
        end_offset: int,
        flushed_offset: int,
        leader_end_offset: int,
        now_ms: float,
        *,
        is_needed: bool = True,
        cleaned_offset: int = 0,
    ) -> bool:
        """What `replica`, which has fetched in this leader epoch, has on disk of what it has, and has compacted. It
        holds no more than that where the topic asks for it (`is_needed`). True when the high watermark rose.

        Such a report may come after a later one. In one process, and one leader epoch, nothing that is on disk goes.
        """
        follower = self._followers.get(replica)
        if follower is None or follower.broker_epoch != broker_epoch:
            raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, f"broker {replica} has not fetched in this epoch")
        follower.flushed_offset = max(follower.flushed_offset, flushed_offset)
        follower.cleaned_offset = max(follower.cleaned_offset, cleaned_offset)
        end_offset = max(follower.end_offset, end_offset)
        held_offset = follower.flushed_offset if is_needed else end_offset
        return self._reported(replica, follower, end_offset, held_offset, leader_end_offset, now_ms)

    def _reported(
        self,
        replica: BrokerId,
        follower: _Follower,
        end_offset: int,
        held_offset: int,
        leader_end_offset: int,
        now_ms: float,
    ) -> bool:
        follower.heard_ms = now_ms
        follower.end_offset = end_offset
        follower.reported(min(held_offset, end_offset), leader_end_offset, now_ms)
        if replica in self._held or self._is_awaited(replica, leader_end_offset, now_ms):
            self._held[replica] = follower.held_offset
            return self._advance()
        return False

    def starts_at(self, replica: BrokerId, log_start_offset: int) -> None:
        """Where the log of a replica that has fetched begins."""
        self._followers[replica].log_start_offset = log_start_offset

    def _is_awaited(self, replica: BrokerId, leader_end_offset: int, now_ms: float) -> bool:
        """Whether it is so close that it is about to join. Otherwise, while others go ahead, it never could."""
        follower = self._followers[replica]
        return self._is_serving(replica) and self._is_caught_up(follower, leader_end_offset, now_ms)

    def _is_caught_up(self, follower: _Follower, leader_end_offset: int, now_ms: float) -> bool:
        if follower.held_offset >= leader_end_offset:
            return True
        return now_ms - follower.caught_up_ms <= self.lag_max_ms

    def _is_serving(self, replica: BrokerId) -> bool:
        """Whether the process that has fetched in this leader epoch is the one that the store knows."""
        broker_epoch = self._followers[replica].broker_epoch
        return broker_epoch != UNKNOWN_BROKER_EPOCH and self.serving.get(replica) == broker_epoch

    def _advance(self) -> bool:
        committed = min(self._held.values())
        if committed <= self.high_watermark or not self._may_advance:
            return False
        self.high_watermark = committed
        return True

    # Membership

    def propose(self, leader_end_offset: int, now_ms: float) -> Proposal | None:
        """What the store should say instead, if anything. One at a time: the caller tells what became of it.

        To be asked after a fetch unless `is_full`, and from time to time for those who have fallen behind.
        """
        if self.pending is not None or now_ms < self._not_before_ms:
            return None
        staying = {each for each in self.members if self._stays(each, leader_end_offset, now_ms)}
        wanted = staying | {each for each in self._followers if each not in self.members and self._may_join(each)}
        if wanted == self.members and not self._is_in_doubt:
            return None
        # In doubt the same set will do: in a new partition epoch, none of the earlier proposals can be accepted.
        members = tuple(Member(each, self._broker_epoch_of(each)) for each in sorted(wanted))
        self.pending = Proposal(members, self.partition_epoch)
        self._possible |= wanted
        self._recount(leader_end_offset, now_ms)
        return self.pending

    def _stays(self, member: BrokerId, leader_end_offset: int, now_ms: float) -> bool:
        if member == self._leader:
            return True
        follower = self._followers.get(member)
        return follower is not None and self._is_caught_up(follower, leader_end_offset, now_ms)

    def _may_join(self, replica: BrokerId) -> bool:
        needed_offset = max(self.high_watermark, self.start_offset)
        return self._followers[replica].held_offset >= needed_offset and self._is_serving(replica)

    def _broker_epoch_of(self, member: BrokerId) -> int:
        follower = self._followers.get(member)
        return follower.broker_epoch if follower is not None else UNKNOWN_BROKER_EPOCH

    def committed(
        self, members: Iterable[BrokerId], partition_epoch: int, leader_end_offset: int, now_ms: float
    ) -> bool:
        """The store says so: an accepted proposal's answer, or the image. True when the high watermark rose.

        Whatever was proposed for an earlier partition epoch is decided by that.
        """
        if partition_epoch <= self.partition_epoch:
            return False
        self.members = frozenset(members)
        self.partition_epoch = partition_epoch
        self.pending = None
        self._possible = frozenset()
        self._is_in_doubt = False
        self._not_before_ms = 0
        return self._recount(leader_end_offset, now_ms)

    def refused(self, proposal: Proposal, code: ErrorCode, leader_end_offset: int, now_ms: float) -> bool:
        """No answer, or an error, to `proposal`. True when the high watermark rose.

        What the code leaves open stays possible until the partition's epoch moves on.
        """
        if proposal is not self.pending:
            return False
        self.pending = None
        self._not_before_ms = now_ms + PROPOSAL_BACKOFF_MS
        if code not in _REFUSALS:
            self._is_in_doubt = True
        elif not self._is_in_doubt:
            self._possible = frozenset()
        return self._recount(leader_end_offset, now_ms)

    def tick(self, leader_end_offset: int, now_ms: float) -> bool:
        """Time has passed, or `serving`, `min_isr` or `lag_max_ms` have changed. True when the high watermark rose."""
        return self._recount(leader_end_offset, now_ms)

    def replicas_changed(self, replicas: Iterable[BrokerId], leader_end_offset: int, now_ms: float) -> bool:
        """A reassignment. Who is new has to catch up first. True when the high watermark rose."""
        others = {*replicas} - {self._leader}
        behind_ms = now_ms - self.lag_max_ms - 1
        self._followers = {each: self._followers.get(each) or _Follower(behind_ms, now_ms) for each in others}
        return self._recount(leader_end_offset, now_ms)

    def _recount(self, leader_end_offset: int, now_ms: float) -> bool:
        """Whom the high watermark waits for, anew."""
        awaited = {each for each in self._followers if self._is_awaited(each, leader_end_offset, now_ms)}
        self._held = {each: self._held_by(each) for each in {*self.maximal, self._leader} | awaited}
        self._may_advance = self._has_enough()
        return self._advance()

    def _held_by(self, replica: BrokerId) -> int:
        follower = self._followers.get(replica)
        if follower is None or follower.held_offset == UNKNOWN_OFFSET:
            return self._held.get(replica, self.high_watermark)
        return follower.held_offset

    def _has_enough(self) -> bool:
        return len(self.members) >= min(self.min_isr, 1 + len(self._followers))
