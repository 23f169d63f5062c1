"""What an audit has found, as people and programs read it. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.spark.pipelines.audit_compare import Offsets

NO_OFFSETS = Offsets()


@dataclass(frozen=True, slots=True)
class Place:
    """A partition in one place: the broker, the archive, or the topic that it was replayed to. `end` is exclusive."""

    rows: int
    first: int
    end: int
    checksum: str


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """`broker` has only what was compared with the archive: offsets that both have, or should have.

    `retired`: rows that only the archive has, since the broker has deleted them by retention; `behind`: offsets that
    are not archived yet. Neither is a difference; `lost` is one: offsets that retention took before they were archived.
    `strip` is the archive's stretches from the first on: a letter each.
    """

    topic: str
    partition: int
    archive: Place
    broker: Place | None = None
    retired: int = 0
    behind: int = 0
    duplicates: int = 0
    missing: Offsets = NO_OFFSETS
    extra: Offsets = NO_OFFSETS
    other: Offsets = NO_OFFSETS
    lost: Offsets = NO_OFFSETS
    gaps: Offsets = NO_OFFSETS
    explained_gaps: int = 0
    strip: str = ""
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayedAudit:
    """A partition of the topic that was replayed to, or all of them together where records may have changed theirs."""

    topic: str
    partition: int | None
    archive_rows: int
    replayed_rows: int
    archive_checksum: str
    replayed_checksum: str
    is_in_order: bool | None
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NotCompared:
    """A topic of which the broker has nothing to compare with. Nobody knows then whether its records are the same,
    unless what was replayed of it was compared, or there is a difference already.
    """

    topic: str
    why: str
    is_difference: bool

    def __str__(self) -> str:
        return f"{self.topic}: nothing was compared with the broker: {self.why}"


@dataclass(frozen=True, slots=True)
class AuditResult:
    archive: str
    bootstrap: str
    when: str
    partitions: tuple[PartitionAudit, ...]
    replayed_to: str | None = None
    selection: str = ""
    replayed: tuple[ReplayedAudit, ...] = ()
    rows_by_time: dict[str, dict[int, int]] = field(default_factory=dict)
    not_compared: tuple[NotCompared, ...] = ()

    @property
    def differences(self) -> list[str]:
        audited: list[PartitionAudit | ReplayedAudit] = [*self.partitions, *self.replayed]
        found = [f"{_name(each)}: {difference}" for each in audited for difference in each.differences]
        return [*(str(each) for each in self.not_compared if each.is_difference), *found]

    @property
    def notes(self) -> list[str]:
        return [str(each) for each in self.not_compared if not each.is_difference]

    @property
    def is_equal(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        return {"equal": self.is_equal, "differences": self.differences, **document}

    def __str__(self) -> str:
        rows = sum(each.archive.rows for each in self.partitions)
        where = f"{len(self.partitions)} partitions, {rows:,} archived records"
        verdict = "equal" if self.is_equal else f"{len(self.differences)} differences"
        return "\n".join((f"{verdict}: {where}", *self.differences, *self.notes))


def hexadecimal(checksum: int) -> str:
    return f"{checksum & (1 << 128) - 1:x}"


def _name(audited: PartitionAudit | ReplayedAudit) -> str:
    return audited.topic if audited.partition is None else f"{audited.topic}-{audited.partition}"
