"""The cluster as the commands about brokers show it, and the plans they make for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.cli.group_view import NOTHING
from penstock.cli.terminal import counted, print_columns
from penstock.controller.balance import Layout, Move
from penstock.controller.placement import Candidate
from penstock.core.ids import BrokerId, TopicPartition

ALIVE, DRAINING, AWAY, SILENT = "alive", "draining", "away", "no answer"


@dataclass(frozen=True, slots=True)
class BrokerView:
    """`machine` is where it runs as far as one can tell. A broker that is away may be draining as well.

    One that is alive as far as the cluster knows, and does not answer, has died or is cut off just now.
    """

    id: BrokerId
    address: str
    rack: str | None
    is_alive: bool
    answers: bool
    is_draining: bool
    machine: str

    @property
    def state(self) -> str:
        if not self.is_alive:
            return f"{AWAY}, {DRAINING}" if self.is_draining else AWAY
        if not self.answers:
            return SILENT
        return DRAINING if self.is_draining else ALIVE


@dataclass(frozen=True, slots=True)
class FeatureView:
    """The version that is finalized, and the highest that all brokers know."""

    name: str
    finalized: int
    highest: int


@dataclass(frozen=True, slots=True)
class PartitionView:
    """`leader` is None while nobody leads. While it moves, `replicas` are those it is to have, `leaving` the others."""

    partition: TopicPartition
    leader: int | None
    replicas: tuple[BrokerId, ...]
    isr: tuple[int, ...]
    adding: tuple[BrokerId, ...] = ()
    leaving: tuple[BrokerId, ...] = ()

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.leaving)

    @property
    def lacks_replicas(self) -> bool:
        """Those that are still being added have never been there, as in Kafka."""
        held = (each for each in (*self.replicas, *self.leaving) if each not in self.adding)
        return any(replica not in self.isr for replica in held)

    def document(self) -> dict[str, object]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "leader": self.leader,
            "replicas": list(self.replicas),
            "isr": list(self.isr),
        }


@dataclass(frozen=True, slots=True)
class ClusterView:
    cluster_id: str
    controller: int | None
    brokers: Sequence[BrokerView]
    partitions: Sequence[PartitionView]

    def broker(self, broker_id: int) -> BrokerView | None:
        return next((each for each in self.brokers if each.id == broker_id), None)

    def stranded(self, broker_id: int) -> list[PartitionView]:
        """What that broker holds and nobody can copy: no replica that is in sync is there, so nobody will lead it."""
        answering = {each.id for each in self.brokers if each.answers}
        return [
            each
            for each in self.partitions
            if broker_id in (*each.replicas, *each.leaving) and each.leader is None and answering.isdisjoint(each.isr)
        ]

    @property
    def layout(self) -> Layout:
        return Layout(
            {each.id: Candidate(each.id, each.machine, each.rack) for each in self.brokers},
            frozenset(each.id for each in self.brokers if each.answers and not each.is_draining),
            {each.partition: each.replicas for each in self.partitions},
        )

    @property
    def leaders(self) -> Counter[int]:
        return Counter(each.leader for each in self.partitions if each.leader is not None)

    @property
    def held(self) -> Counter[int]:
        return Counter(replica for each in self.partitions for replica in (*each.replicas, *each.leaving))

    def document(self) -> dict[str, object]:
        leaders, held = self.leaders, self.held
        return {
            "cluster_id": self.cluster_id,
            "controller": self.controller,
            "brokers": [
                {
                    "id": each.id,
                    "address": each.address,
                    "rack": each.rack,
                    "alive": each.is_alive,
                    "answers": each.answers,
                    "draining": each.is_draining,
                    "leaders": leaders[each.id],
                    "replicas": held[each.id],
                }
                for each in self.brokers
            ],
            "partitions": len(self.partitions),
            "under_replicated": [each.document() for each in self.partitions if each.lacks_replicas],
            "offline": [each.document() for each in self.partitions if each.leader is None],
            "moving": [
                each.document() | {"adding": list(each.adding), "removing": list(each.leaving)}
                for each in self.partitions
                if each.is_moving
            ],
            "skew": {"replicas": self.skew(held), "leaders": self.skew(leaders)},
        }

    def skew(self, counts: Counter[int]) -> dict[str, int] | None:
        """Over the brokers that can be given work."""
        numbers = [counts[broker_id] for broker_id in self.layout.available]
        return {"least": min(numbers), "most": max(numbers)} if numbers else None


def print_cluster(view: ClusterView) -> None:
    controller = "none" if view.controller is None else str(view.controller)
    print(f"cluster {view.cluster_id}, controller {controller}")
    leaders, held = view.leaders, view.held
    print_columns(
        ("BROKER", "ADDRESS", "RACK", "STATE", "LEADERS", "REPLICAS"),
        [
            (each.id, each.address, each.rack or NOTHING, each.state, leaders[each.id], held[each.id])
            for each in view.brokers
        ],
    )
    lacking = sum(each.lacks_replicas for each in view.partitions)
    offline = sum(each.leader is None for each in view.partitions)
    moving = sum(each.is_moving for each in view.partitions)
    print(
        f"{counted(len(view.partitions), 'partition')}: {lacking} under-replicated, {offline} without a leader, "
        f"{moving} moving"
    )
    print(f"skew: {_range(view.skew(held))} replicas and {_range(view.skew(leaders))} leaders a broker")
    # Without a leader the in-sync set stays as it was, so a partition may be offline and lack nothing.
    troubled = [each for each in view.partitions if each.lacks_replicas or each.leader is None]
    if troubled:
        print_columns(
            ("IN TROUBLE", "LEADER", "REPLICAS", "ISR"),
            [
                (each.partition, "none" if each.leader is None else each.leader, _ids(each.replicas), _ids(each.isr))
                for each in troubled
            ],
        )


def _range(skew: Mapping[str, int] | None) -> str:
    return "no" if skew is None else f"{skew['least']} to {skew['most']}"


def plan_document(moves: Sequence[Move], sizes: Mapping[TopicPartition, int]) -> list[dict[str, object]]:
    return [
        {
            "topic": move.topic_partition.topic,
            "partition": move.topic_partition.partition,
            "before": list(move.before),
            "after": list(move.after),
            "bytes": sizes.get(move.topic_partition, 0) * len(move.added),
        }
        for move in moves
    ]


def print_plan(view: ClusterView, moves: Sequence[Move], sizes: Mapping[TopicPartition, int]) -> None:
    print_columns(
        ("TOPIC", "PARTITION", "FROM", "TO", "COPIES", "SIZE"),
        [
            (
                *move.topic_partition,
                _ids(move.before),
                _ids(move.after),
                _ids(move.added) or NOTHING,
                size_text(sizes.get(move.topic_partition, 0) * len(move.added)) if move.added else NOTHING,
            )
            for move in moves
        ],
    )
    after = dict(view.layout.partitions) | {move.topic_partition: move.after for move in moves}
    before_held, after_held = _counts(view.layout.partitions), _counts(after)
    before_first, after_first = _first_counts(view.layout.partitions), _first_counts(after)
    print()
    print_columns(
        ("BROKER", "REPLICAS", "", "PREFERRED", ""),
        [
            (
                each.id,
                before_held[each.id],
                f"-> {after_held[each.id]}",
                before_first[each.id],
                f"-> {after_first[each.id]}",
            )
            for each in view.brokers
        ],
    )
    copies = sum(len(move.added) for move in moves)
    total = sum(sizes.get(move.topic_partition, 0) * len(move.added) for move in moves)
    change = "1 partition changes" if len(moves) == 1 else f"{len(moves)} partitions change"
    copy = "1 replica is copied" if copies == 1 else f"{copies} replicas are copied"
    print(f"{change}, {copy} ({size_text(total)})")


def _counts(partitions: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> Counter[BrokerId]:
    return Counter(replica for replicas in partitions.values() for replica in replicas)


def _first_counts(partitions: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> Counter[BrokerId]:
    return Counter(replicas[0] for replicas in partitions.values())


def _ids(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def size_text(size_bytes: int) -> str:
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
