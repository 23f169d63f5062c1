"""What follows when a member of a consumer group comes, changes or goes: the steps that both protocols share.

A change of a member is decided in this order, and written in it: the member itself, the regular expressions, the
group's epoch if anything an assignment depends on has changed, the new target, and the member's own step towards it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.coordinators.decision import Now
from penstock.coordinators.group import subscriptions
from penstock.coordinators.group.assignors import ASSIGNORS, Assignment
from penstock.coordinators.group.consumer_records import (
    current_record,
    member_record,
    member_tombstones,
    regex_record,
    target_record,
)
from penstock.coordinators.group.consumer_state import (
    JOINING,
    ConsumerGroup,
    Member,
    MemberState,
    ResolvedRegex,
    preferred_assignor,
    subscribed_topics,
    topics_of,
)
from penstock.coordinators.group.reconciliation import Goal, Owned, reconcile
from penstock.coordinators.group.records import (
    ConsumerGroupMetadata,
    ConsumerGroupPartitionMetadataTombstone,
    ConsumerGroupTargetAssignmentMetadata,
    Record,
)

if TYPE_CHECKING:
    from penstock.coordinators.group.machine import GroupMachine

SESSION, REBALANCE, JOIN, SYNC = "consumer-session", "consumer-rebalance", "consumer-join", "consumer-sync"


@dataclass(slots=True)
class Change:
    """One member's change in the making; `regexes` are as they will be after it."""

    machine: GroupMachine
    group: ConsumerGroup
    now: Now
    records: list[Record]
    before: Member
    after: Member
    replaced: Member | None
    """The static member in whose place it comes."""
    regexes: Mapping[str, ResolvedRegex]

    @property
    def group_id(self) -> str:
        return self.group.group_id

    @property
    def subscription_changed(self) -> bool:
        before, after = self.before, self.after
        return (
            before.subscribed_topic_names != after.subscribed_topic_names
            or before.subscribed_topic_regex != after.subscribed_topic_regex
        )

    def members(self) -> dict[str, Member]:
        """As they will be."""
        members = {**self.group.members, self.after.member_id: self.after}
        if self.replaced is not None:
            members.pop(self.replaced.member_id, None)
        return members


def replacement(member: Member, member_id: str) -> Member:
    """The static member under its new id. It starts over, but with what it had."""
    return replace(member, member_id=member_id, member_epoch=JOINING, previous_member_epoch=JOINING)


def replacement_records(group: ConsumerGroup, old: Member, new: Member) -> list[Record]:
    return [
        *member_tombstones(group.group_id, old.member_id),
        member_record(group.group_id, new),
        target_record(group.group_id, new.member_id, group.target_of(old)),
        current_record(group.group_id, new),
    ]


def update_member(change: Change, owned: Owned | None) -> Member:
    """Returns the member as it will be. The caller calls `settle` if the records are to be written."""
    if change.after != change.before:
        change.records.append(member_record(change.group_id, change.after))
    regexes_changed = _update_regexes(change)
    epoch = _bump_epoch(change, regexes_changed)
    if epoch > change.group.target_epoch:
        target = _update_target(change, epoch)
    else:
        epoch, target = change.group.target_epoch, change.group.target_of(change.after)
    return _reconcile(change, epoch, target, owned)


def settle(change: Change, member: Member) -> None:
    """What is not in the records: deadlines, and what no longer has to be looked at."""
    group, timers = change.group, change.machine.timers
    group.metadata_is_current = True
    group.changed_topics.clear()
    if group.regexes_resolved_ms is None or _refresh_is_due(change):
        group.regexes_resolved_ms = change.now.monotonic_ms
    if change.replaced is not None and change.replaced.member_id != member.member_id:
        cancel_timers(change.machine, group.group_id, change.replaced.member_id)
    key = REBALANCE, group.group_id, member.member_id
    if member.classic is not None or member.state is not MemberState.UNREVOKED_PARTITIONS:
        timers.cancel(key)
    elif timers.deadline_ms(key) is None or member != change.after:
        timers.set(key, change.now.monotonic_ms + member.rebalance_timeout_ms)


def cancel_timers(machine: GroupMachine, group_id: str, member_id: str) -> None:
    for kind in (SESSION, REBALANCE, JOIN, SYNC):
        machine.timers.cancel((kind, group_id, member_id))


def removal_records(machine: GroupMachine, group: ConsumerGroup, gone: Collection[Member]) -> list[Record]:
    """The members, expressions that were theirs alone, and the next epoch; the next heartbeat assigns anew."""
    records: list[Record] = []
    for member in gone:
        records += member_tombstones(group.group_id, member.member_id)
    ids = {member.member_id for member in gone}
    left = [member for member in group.members.values() if member.member_id not in ids]
    wanted = {member.subscribed_topic_regex for member in left}
    regexes = {regex: resolved for regex, resolved in group.regexes.items() if regex in wanted}
    records += [regex_record(group.group_id, regex, None) for regex in group.regexes if regex not in wanted]
    names = subscriptions.all_topics(left, regexes)
    metadata_hash = subscriptions.metadata_hash(group, names, machine.topics)
    records.append(ConsumerGroupMetadata(group.group_id, group.epoch + 1, metadata_hash))
    return records


def _refresh_is_due(change: Change) -> bool:
    resolved_ms = change.group.regexes_resolved_ms
    interval_ms = change.machine.config.consumer_regex_refresh_interval_ms
    return resolved_ms is None or change.now.monotonic_ms - resolved_ms > interval_ms


def _update_regexes(change: Change) -> bool:
    """Resolves what is new or out of date, and drops what nobody wants; returns whether any topic comes or goes."""
    group, topics, wall_ms = change.group, change.machine.topics, change.now.wall_ms
    wanted_changed = change.before.subscribed_topic_regex != change.after.subscribed_topic_regex
    all_due = _refresh_is_due(change)
    if not wanted_changed and not all_due and not (group.regexes and group.changed_topics):
        return False
    if wanted_changed and change.after.subscribed_topic_regex:
        subscriptions.compiled(change.after.subscribed_topic_regex)  # refused if it is none
    wanted = {member.subscribed_topic_regex for member in change.members().values()} - {""}
    regexes: dict[str, ResolvedRegex] = {}
    for regex in sorted(wanted):
        known = group.regexes.get(regex)
        if known is None or all_due:
            regexes[regex] = subscriptions.resolve(regex, topics, wall_ms)
        else:
            regexes[regex] = subscriptions.resolve_again(regex, known, group.changed_topics, topics, wall_ms)
        if known is None or known.topics != regexes[regex].topics:
            change.records.append(regex_record(change.group_id, regex, regexes[regex]))
        else:
            regexes[regex] = known
    dropped = group.regexes.keys() - wanted
    change.records += [regex_record(change.group_id, regex, None) for regex in sorted(dropped)]
    changed = bool(dropped) or any(regexes[regex] is not group.regexes.get(regex) for regex in wanted)
    change.regexes = regexes
    return changed


def _bump_epoch(change: Change, regexes_changed: bool) -> int:
    group, config = change.group, change.machine.config
    subscriptions_changed = change.subscription_changed or regexes_changed
    bump = group.epoch == 0 or subscriptions_changed or _assignor_changed(change, config.consumer_assignors)
    if not bump and group.metadata_is_current:
        return group.epoch
    if subscriptions_changed or change.replaced is not None:
        names = subscriptions.all_topics(change.members().values(), change.regexes)
    else:
        names = subscribed_topics(group)
    metadata_hash = subscriptions.metadata_hash(group, names, change.machine.topics)
    if group.has_old_metadata_record:
        change.records.append(ConsumerGroupPartitionMetadataTombstone(group.group_id))
    if not bump and metadata_hash == group.metadata_hash:
        return group.epoch
    change.records.append(ConsumerGroupMetadata(group.group_id, group.epoch + 1, metadata_hash))
    return group.epoch + 1


def _assignor_changed(change: Change, offered: tuple[str, ...]) -> bool:
    if change.before.server_assignor == change.after.server_assignor:
        return False
    before = preferred_assignor(change.group.members.values(), offered)
    return before != preferred_assignor(change.members().values(), offered)


def _update_target(change: Change, epoch: int) -> Assignment:
    """Writes what differs from the target before."""
    group, topics = change.group, change.machine.topics
    members = change.members()
    assignor = ASSIGNORS[preferred_assignor(members.values(), change.machine.config.consumer_assignors)]
    names = subscriptions.all_topics(members.values(), change.regexes)
    counts = {topics[name].topic_id: topics[name].partitions_count for name in names if name in topics}
    targets = assignor(subscriptions.specs(members, group, change.regexes, topics), counts)
    change.records += [
        target_record(group.group_id, member_id, target)
        for member_id, target in targets.items()
        if target != group.targets.get(member_id)
    ]
    change.records.append(ConsumerGroupTargetAssignmentMetadata(group.group_id, epoch))
    return targets[change.after.member_id]


def _reconcile(change: Change, epoch: int, target: Assignment, owned: Owned | None) -> Member:
    member = change.after
    if member.is_reconciled_to(epoch) and not change.subscription_changed:
        return member
    topics = change.machine.topics
    subscribed = {topics[name].topic_id for name in topics_of(member, change.regexes) if name in topics}
    goal = Goal(epoch, target, subscribed, change.group.is_owned)
    reconciled = reconcile(member, goal, owned, change.subscription_changed)
    if reconciled != member:
        change.records.append(current_record(change.group_id, reconciled))
    return reconciled
