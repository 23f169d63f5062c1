"""One partition in broker and archive: from what was measured to what is said about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.core.ids import TopicPartition
from penstock.spark.pipelines.audit_compare import Offsets, compared, duplicates, gaps, offsets_of
from penstock.spark.pipelines.audit_measure import Measured, Stretch, Stretches, Zone
from penstock.spark.pipelines.audit_result import PartitionAudit, Place, hexadecimal

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Facts:
    """`bounds` are the offsets that were compared, None where the broker has no such partition; `broker_end` is where
    it ends there, `archived` how far the archive has come, 0 where it has not begun.
    """

    kept: Mapping[Zone, Stretches]
    broker: Stretches
    bounds: tuple[int, int] | None
    broker_end: int
    archived: int
    changed: Sequence[int]
    is_compacted: bool
    why_not: str | None


def audit_partition(partition: TopicPartition, facts: Facts) -> PartitionAudit:
    before, both, after = (facts.kept.get(zone, {}) for zone in Zone)
    first, end = facts.bounds or (0, 0)
    difference = compared(facts.broker, both)
    others = offsets_of(facts.changed)
    holes = gaps(both, first, end)
    unseen = _unseen(before, min(first, facts.archived) if facts.bounds else facts.archived)
    lost = _lost(facts)
    twice = sum(duplicates(each.values()) for each in facts.kept.values())
    everything = [stretch for zone in facts.kept.values() for stretch in zone.values()]
    behind = 0 if facts.bounds is None else max(0, facts.broker_end - max(facts.archived, first))
    explained = holes.count - difference.missing.count
    extra_after = sum(stretch.rows for stretch in after.values())
    return PartitionAudit(
        topic=partition.topic,
        partition=partition.partition,
        archive=_place(everything),
        broker=None if facts.bounds is None else _place(list(facts.broker.values())),
        retired=sum(stretch.rows for stretch in before.values()),
        behind=behind,
        duplicates=twice,
        missing=difference.missing,
        extra=difference.extra,
        other=others,
        lost=lost,
        gaps=holes,
        explained_gaps=explained,
        strip=_strip(facts, difference.stretches),
        differences=tuple(_differences(lost, difference.missing, difference.extra, others, twice, extra_after, facts)),
        notes=tuple(_notes(facts, before, behind, explained, unseen, difference.extra)),
    )


def _differences(
    lost: Offsets, missing: Offsets, extra: Offsets, others: Offsets, twice: int, extra_after: int, facts: Facts
) -> list[str]:
    found = []
    if lost.count:
        found.append(f"{lost.count:,} offsets were deleted on the broker before they were archived: {lost.told()}")
    if missing.count:
        found.append(f"{missing.count:,} records of the broker are not in the archive: offsets {missing.told()}")
    if extra.count and not facts.is_compacted:
        found.append(f"{extra.count:,} records of the archive are not on the broker: offsets {extra.told()}")
    if others.count:
        found.append(f"{others.count:,} records have other contents in the archive: offsets {others.told()}")
    if twice:
        found.append(f"{twice:,} records are in the archive more than once")
    if extra_after:
        found.append(
            f"{extra_after:,} records of the archive lie behind offset {facts.broker_end}, where the broker ends"
        )
    return found


def _notes(facts: Facts, before: Stretches, behind: int, explained: int, unseen: Offsets, extra: Offsets) -> list[str]:
    found = [] if facts.why_not is None else [f"{facts.why_not}: nothing to compare with"]
    retired = sum(stretch.rows for stretch in before.values())
    if retired and facts.why_not is None:
        found.append(f"{retired:,} records are not on the broker any more")
    if behind:
        found.append(f"{behind:,} offsets are not archived yet")
    by = "compaction, or transactions" if facts.is_compacted else "markers of transactions, and aborted ones"
    if explained:
        found.append(f"{explained:,} offsets have no record on the broker either: {by}")
    if unseen.count:
        found.append(f"{unseen.count:,} offsets have no record, from before what the broker has: {unseen.told()}")
    if extra.count and facts.is_compacted:
        found.append(f"{extra.count:,} records were compacted away on the broker since they were archived")
    return found


def _lost(facts: Facts) -> Offsets:
    """What retention took before the archive came to it. Whether all of it had records nobody can tell any more."""
    if facts.bounds is None or not facts.archived:
        return Offsets()
    return gaps({}, facts.archived, facts.bounds[0])


def _unseen(before: Stretches, end: int) -> Offsets:
    if not before:
        return Offsets()
    return gaps(before, min(stretch.first for stretch in before.values()), end)


def _place(stretches: Sequence[Stretch]) -> Place:
    if not stretches:
        return Place(0, 0, 0, hexadecimal(0))
    return Place(
        rows=sum(stretch.rows for stretch in stretches),
        first=min(stretch.first for stretch in stretches),
        end=max(stretch.last for stretch in stretches) + 1,
        checksum=hexadecimal(sum(stretch.checksum for stretch in stretches)),
    )


def _strip(facts: Facts, differing: Sequence[int]) -> str:
    """A letter for each stretch: r retired, = the same, ! not the same, space for nothing."""
    letters: dict[int, str] = dict.fromkeys(facts.kept.get(Zone.BEFORE, {}), "r")
    letters |= dict.fromkeys(facts.kept.get(Zone.COMPARED, {}), "=")
    letters |= dict.fromkeys(facts.kept.get(Zone.AFTER, {}), "!")
    letters |= dict.fromkeys(differing, "!")
    if not letters:
        return ""
    return "".join(letters.get(number, " ") for number in range(min(letters), max(letters) + 1))


def rows_by_hour(of: Measured) -> dict[int, int]:
    """By the hour in which each stretch begins."""
    found: dict[int, int] = {}
    for zones in of.values():
        for stretch in (each for zone in zones.values() for each in zone.values()):
            hour_ms = stretch.earliest_ms // _HOUR_MS * _HOUR_MS
            found[hour_ms] = found.get(hour_ms, 0) + stretch.rows
    return dict(sorted(found.items()))
