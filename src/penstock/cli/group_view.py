"""What `penstock group describe` shows of a group: who its members are, and how far behind it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from penstock.cli.terminal import counted, print_columns, shown
from penstock.core.ids import TopicPartition
from penstock.wire.cluster import Node

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class MemberView:
    member_id: str
    client_id: str
    host: str
    group_instance_id: str | None
    assignment: Sequence[TopicPartition]

    def document(self) -> dict[str, object]:
        return {
            "member_id": self.member_id,
            "client_id": self.client_id,
            "host": self.host,
            "group_instance_id": self.group_instance_id,
            "assignment": [{"topic": topic, "partition": partition} for topic, partition in self.assignment],
        }


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition as the group sees it. None: nothing committed, no such log, no member that has it."""

    partition: TopicPartition
    committed: int | None
    log_end_offset: int | None
    member_id: str | None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.log_end_offset is None:
            return None
        # A topic that was made anew ends before what was committed for the old one: nothing is left to read.
        return max(0, self.log_end_offset - self.committed)

    def document(self) -> dict[str, object]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "committed": self.committed,
            "log_end_offset": self.log_end_offset,
            "lag": self.lag,
            "member_id": self.member_id,
        }

    def row(self) -> tuple[object, ...]:
        """`-` for what there is not."""
        return tuple(NOTHING if value is None else value for value in self.document().values())


@dataclass(frozen=True, slots=True)
class GroupView:
    group: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    coordinator: Node
    members: Sequence[MemberView]
    partitions: Sequence[PartitionView]

    @property
    def total_lag(self) -> int:
        return sum(partition.lag or 0 for partition in self.partitions)

    def document(self) -> dict[str, object]:
        return {
            "group": self.group,
            "state": self.state,
            "type": self.type,
            "protocol_type": self.protocol_type,
            "assignor": self.assignor,
            "coordinator": asdict(self.coordinator),
            "members": [member.document() for member in self.members],
            "partitions": [partition.document() for partition in self.partitions],
            "total_lag": self.total_lag,
        }


def partition_views(
    members: Iterable[MemberView],
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    known: Mapping[str, Collection[int]],
) -> list[PartitionView]:
    """Every partition of every topic that the group has to do with."""
    owners = {partition: member.member_id for member in members for partition in member.assignment}
    return [
        PartitionView(partition, committed.get(partition), ends.get(partition), owners.get(partition))
        for partition in partitions_of_group(owners, committed, known)
    ]


def partitions_of_group(
    assigned: Iterable[TopicPartition], committed: Iterable[TopicPartition], known: Mapping[str, Collection[int]]
) -> list[TopicPartition]:
    """What is committed or assigned, and the rest of those topics: nobody may ever have read from it."""
    used = {*assigned, *committed}
    rest = {TopicPartition(topic, partition) for topic, _ in used for partition in known.get(topic, ())}
    return sorted(used | rest)


def assignment_text(assignment: Iterable[TopicPartition]) -> str:
    """`orders:0,1 payments:2`, which is also how --topic takes it."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(assignment):
        topics.setdefault(topic, []).append(partition)
    return " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in topics.items()) or NOTHING


def print_group(view: GroupView) -> None:
    protocol = f"{view.type}, {view.assignor}" if view.assignor else view.type
    print(f"{shown(view.group)}  {view.state}  {protocol}  coordinator {view.coordinator}")
    if view.members:
        rows = [
            (member.member_id, member.client_id, member.host, assignment_text(member.assignment))
            for member in view.members
        ]
        print_columns(("MEMBER", "CLIENT", "HOST", "ASSIGNMENT"), rows)
    if view.partitions:
        header = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER")
        print_columns(header, [partition.row() for partition in view.partitions])
    print(_summary(view))


def _summary(view: GroupView) -> str:
    if not view.partitions:
        return "no offsets committed"
    without_commit = sum(partition.committed is None for partition in view.partitions)
    if not without_commit:
        return f"total lag {view.total_lag}"
    without = counted(without_commit, "partition")
    return f"total lag {view.total_lag}, without {without} that nothing is committed for"
