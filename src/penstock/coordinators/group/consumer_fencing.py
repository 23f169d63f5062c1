"""Taking members out of a consumer group: they left, or did not answer in time."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.coordinators.decision import Decision, Now
from penstock.coordinators.group import migration
from penstock.coordinators.group.consumer_members import cancel_timers, removal_records
from penstock.coordinators.group.consumer_state import ConsumerGroup, Member
from penstock.coordinators.group.records import encode

if TYPE_CHECKING:
    from penstock.coordinators.group.machine import GroupMachine


def fence_members(
    machine: GroupMachine, group: ConsumerGroup, gone: Collection[Member], now: Now, decision: Decision
) -> None:
    """The partitions of the gone are free with these records. Those that stay learn of it by their heartbeats."""
    if not gone:
        return
    if migration.can_downgrade_without(machine, group, gone):
        migration.downgrade(machine, group, gone, now, decision)
    else:
        decision.records += [encode(record) for record in removal_records(machine, group, gone)]
        group.changed_ms = now.wall_ms
    for member in gone:
        cancel_timers(machine, group.group_id, member.member_id)
