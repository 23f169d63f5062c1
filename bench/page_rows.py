"""A row of the result as the page sees it: parsed once, with the questions that plots and texts ask. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Self

TIMES = "\N{MULTIPLICATION SIGN}"
PENSTOCK, KAFKA = "penstock", "kafka"
SYSTEMS: Mapping[str, str] = {
    PENSTOCK: "Penstock",
    KAFKA: "Kafka",
    "nats": "NATS JetStream",
    "rabbitmq": "RabbitMQ streams",
}
# What else a goal may be held against: limits of the machine and of the client in the same run.
LIMITS: Mapping[str, str] = {"stub": "the client's limit", "machine": "the machine's limit"}
DURABILITIES: Mapping[str, str] = {
    "page-cache": "Acknowledged from the page cache",
    "fsync": "Acknowledged after fsync",
}
# In the order of the page. A row is in the first group with a pattern of its name; what no pattern fits is in the last.
LIBRARIES_GROUP, OTHER_GROUP = "Through client libraries", "More"
GROUPS: Mapping[str, Sequence[str]] = {
    "Produce": ("produce-raw-*",),
    "Consume": ("consume-raw-*", "bulk-fetch*", "limit-*"),
    "Processor time of the broker": ("cpu-*",),
    "Single-record requests": ("single-record-*",),
    "Latency": ("latency-*", "ack-*"),
    "Start, memory, recovery, disk": ("cold-start*", "memory-*", "recovery*", "size-on-disk*"),
    "Catch-up and fan-out": ("catch-up-*", "fan-out-*"),
    "Transactions, groups, compaction": ("transactions*", "group-*", "compaction*"),
    "Many partitions": ("partitions-*",),
    "Replicas and failover": ("replicated*", "failover*"),
    LIBRARIES_GROUP: ("produce-*", "consume-*"),
    OTHER_GROUP: ("*",),
}


@dataclass(frozen=True, slots=True)
class PageRow:
    """Figures are medians; `spread` is the lowest and highest repetition of a system."""

    name: str
    durability: str
    unit: str
    figures: Mapping[str, float]
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    ratio: float | None = None
    goal: Mapping[str, Any] | None = None
    is_met: bool = False
    bound: str | None = None
    higher_is_better: bool = True

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> Self:
        goal = row.get("goal")
        return cls(
            name=str(row["row"]),
            durability=str(row["durability"]),
            unit=str(row["unit"]),
            figures={system: float(row[system]) for system in (*SYSTEMS, *LIMITS) if row.get(system) is not None},
            spread={system: (low, high) for system, (low, high) in (row.get("spread") or {}).items()},
            reasons=dict(row.get("reasons") or {}),
            ratio=row.get("ratio"),
            goal=goal,
            is_met=bool(row.get("met")),
            bound=row.get("bound"),
            higher_is_better=bool(row.get("higher_is_better", goal is None or goal["direction"] == "at least")),
        )

    @property
    def advantage(self) -> float | None:
        """How many times better than Kafka, whichever way better is; below 1 is worse."""
        if not self.ratio:
            return None
        return self.ratio if self.higher_is_better else 1 / self.ratio

    @property
    def goal_advantage(self) -> float | None:
        """The goal on the same scale, where it is held against Kafka."""
        if self.goal is None or self.goal["of"] != KAFKA or not self.goal["ratio"]:
            return None
        return float(self.goal["ratio"]) if self.higher_is_better else 1 / float(self.goal["ratio"])

    @property
    def goal_figure(self) -> float | None:
        """The figure that would just meet the goal."""
        if self.goal is None:
            return None
        theirs, limit = self.figures.get(self.goal["of"]), self.goal.get("under")
        relative = None if theirs is None else theirs * float(self.goal["ratio"])
        wanted = [each for each in (relative, limit) if each is not None]
        return min(wanted, default=None) if limit is not None else relative

    @property
    def goal_text(self) -> str:
        if self.goal is None:
            return ""
        yardstick = {**SYSTEMS, **LIMITS}.get(self.goal["of"], self.goal["of"])
        limit = f", under {self.goal['under']:g} {self.unit}" if self.goal.get("under") is not None else ""
        return f"{self.goal['direction']} {self.goal['ratio']:g} {TIMES} {yardstick}{limit}"

    @property
    def group(self) -> str:
        fitting = (title for title, names in GROUPS.items() if any(fnmatchcase(self.name, each) for each in names))
        return next(fitting)


def by_group(rows: Sequence[PageRow]) -> dict[str, list[PageRow]]:
    """Only groups that have rows, in their order."""
    groups = {title: [row for row in rows if row.group == title] for title in GROUPS}
    return {title: members for title, members in groups.items() if members}


def number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def times(value: float) -> str:
    """A ratio with as many digits as it deserves."""
    if value < 0.1:
        return f"{value:.2g} {TIMES}"
    return f"{value:.2f} {TIMES}" if value < 9.95 else f"{value:,.0f} {TIMES}"
