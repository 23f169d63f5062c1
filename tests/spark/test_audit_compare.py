"""What an audit says of stretches of offsets that were measured: without Spark."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import TopicPartition
from penstock.spark.pipelines.audit_compare import compared, duplicates, gaps
from penstock.spark.pipelines.audit_measure import STRETCH, Stretch, Stretches, Zone
from penstock.spark.pipelines.audit_partition import Facts, audit_partition
from penstock.spark.pipelines.audit_plots import bars, over_time, strips
from penstock.spark.pipelines.audit_report import page
from penstock.spark.pipelines.audit_result import AuditResult, PartitionAudit

PARTITION = TopicPartition("orders", 0)
OFFSETS = st.lists(st.integers(0, 3 * STRETCH), max_size=40)


@given(OFFSETS, OFFSETS)
def test_given_two_copies_when_compared_then_every_offset_that_only_one_has_is_found(
    wanted: list[int], found: list[int]
) -> None:
    difference = compared(stretches_of(set(wanted)), stretches_of(set(found)))

    assert expanded(difference.missing.ranges) == set(wanted) - set(found)
    assert expanded(difference.extra.ranges) == set(found) - set(wanted)
    assert difference.missing.count == len(set(wanted) - set(found))


@given(OFFSETS, st.integers(0, 2 * STRETCH), st.integers(1, STRETCH))
def test_given_a_partition_when_gaps_are_looked_for_then_they_are_all_offsets_without_a_record(
    there: list[int], first: int, size: int
) -> None:
    wanted = {offset for offset in there if first <= offset < first + size}

    holes = gaps(stretches_of(wanted), first, first + size)

    assert holes.count == size - len(wanted)
    assert expanded(holes.ranges).isdisjoint(wanted)


@given(OFFSETS)
def test_given_records_that_are_there_twice_when_counted_then_each_is_a_duplicate(offsets: list[int]) -> None:
    assert duplicates(stretches_of(offsets).values()) == len(offsets) - len(set(offsets))


def test_given_a_record_that_only_the_broker_has_when_audited_then_it_is_a_difference_by_its_offset() -> None:
    audited = an_audit(broker=range(100), archive=[*range(40), *range(41, 100)])

    assert audited.differences == ("1 records of the broker are not in the archive: offsets 40",)


def test_given_offsets_that_neither_has_when_audited_then_transactions_explain_them() -> None:
    there = [*range(40), *range(42, 100)]

    audited = an_audit(broker=there, archive=there)

    assert not audited.differences
    assert audited.explained_gaps == 2
    assert audited.notes == (
        "2 offsets have no record on the broker either: markers of transactions, and aborted ones",
    )


def test_given_a_compacted_topic_when_the_archive_has_more_then_compaction_explains_it() -> None:
    audited = an_audit(broker=range(50, 100), archive=range(100), is_compacted=True)

    assert not audited.differences
    assert "50 records were compacted away on the broker since they were archived" in audited.notes


def test_given_a_topic_that_is_not_compacted_when_the_archive_has_more_then_it_is_a_difference() -> None:
    audited = an_audit(broker=range(50, 100), archive=range(100))

    assert audited.differences == ("50 records of the archive are not on the broker: offsets 0-49",)


def test_given_records_twice_and_others_changed_when_audited_then_both_are_differences() -> None:
    audited = an_audit(broker=range(10), archive=[*range(10), 4], changed=[7])

    assert audited.differences == (
        "1 records have other contents in the archive: offsets 7",
        "1 records are in the archive more than once",
    )


def test_given_what_retention_took_and_what_is_not_archived_yet_when_audited_then_it_is_told_and_no_difference() -> (
    None
):
    facts = Facts(
        kept={Zone.BEFORE: stretches_of([*range(30), *range(31, 60)]), Zone.COMPARED: stretches_of(range(60, 100))},
        broker=stretches_of(range(60, 100)),
        bounds=(60, 100),
        broker_end=140,
        archived=100,
        changed=(),
        is_compacted=False,
        why_not=None,
    )

    audited = audit_partition(PARTITION, facts)

    assert not audited.differences
    assert (audited.retired, audited.behind, audited.archive.rows) == (59, 40, 99)
    assert audited.notes == (
        "59 records are not on the broker any more",
        "40 offsets are not archived yet",
        "1 offsets have no record, from before what the broker has: 30",
    )


def test_given_offsets_that_were_deleted_before_they_were_archived_when_audited_then_they_are_a_difference() -> None:
    kept = {Zone.BEFORE: stretches_of(range(100))}
    behind = Facts(kept, {}, (150, 150), broker_end=200, archived=100, changed=(), is_compacted=False, why_not=None)

    audited = audit_partition(PARTITION, behind)
    not_begun = audit_partition(PARTITION, replace(behind, kept={}, archived=0))

    assert audited.differences == ("50 offsets were deleted on the broker before they were archived: 100-149",)
    assert (audited.lost.count, audited.behind) == (50, 50)
    assert audited.notes == ("100 records are not on the broker any more", "50 offsets are not archived yet")
    assert not not_begun.differences and not_begun.notes == ("50 offsets are not archived yet",)


def test_given_an_archive_that_goes_on_where_the_broker_ends_when_audited_then_it_is_a_difference() -> None:
    facts = Facts(
        kept={Zone.COMPARED: stretches_of(range(10)), Zone.AFTER: stretches_of(range(10, 15))},
        broker=stretches_of(range(10)),
        bounds=(0, 10),
        broker_end=10,
        archived=15,
        changed=(),
        is_compacted=False,
        why_not=None,
    )

    assert audit_partition(PARTITION, facts).differences == (
        "5 records of the archive lie behind offset 10, where the broker ends",
    )


def test_given_a_result_with_names_of_any_kind_when_it_becomes_a_page_then_it_is_escaped_and_whole() -> None:
    partition = an_audit(broker=range(3), archive=range(2))
    odd = AuditResult("<archive>", "host:9092", "2026-01-01T00:00:00Z", (partition,), rows_by_time={"archive": {0: 3}})

    shown = page(odd)

    assert "<archive>" not in shown and "&lt;archive&gt;" in shown
    assert shown.count("<svg") == 3 and shown.rstrip().endswith("</html>")
    assert "1 records of the broker are not in the archive" in shown
    assert "src=" not in shown and "href=" not in shown


def test_given_nothing_when_plotted_then_there_is_a_plot_all_the_same() -> None:
    assert bars([], ["archive"]).startswith("<svg") and strips([("orders-0", "")]).startswith("<svg")
    assert over_time({}) == ""


def an_audit(
    broker: Iterable[int], archive: Iterable[int], changed: Iterable[int] = (), is_compacted: bool = False
) -> PartitionAudit:
    facts = Facts(
        kept={Zone.COMPARED: stretches_of(archive)},
        broker=stretches_of(broker),
        bounds=(0, 100) if 99 in set(broker) else (0, max(broker) + 1),
        broker_end=max(broker) + 1,
        archived=max(archive) + 1,
        changed=list(changed),
        is_compacted=is_compacted,
        why_not=None,
    )
    return audit_partition(PARTITION, facts)


def stretches_of(offsets: Iterable[int]) -> Stretches:
    """As Spark measures them."""
    by_number: dict[int, list[int]] = {}
    for offset in sorted(offsets):
        by_number.setdefault(offset // STRETCH, []).append(offset)
    found = {}
    for number, there in by_number.items():
        distinct = sorted(set(there))
        bits = np.zeros(STRETCH, dtype=np.bool_)
        bits[[offset - number * STRETCH for offset in distinct]] = True
        is_whole = len(distinct) == distinct[-1] - distinct[0] + 1
        packed = None if is_whole else np.packbits(bits, bitorder="little").tobytes()
        checksum = sum(zlib.crc32(str(offset).encode()) for offset in there)
        found[number] = Stretch(number, len(there), there[0], there[-1], len(distinct), checksum, 0, packed)
    return found


def expanded(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {offset for first, last in ranges for offset in range(first, last + 1)}
