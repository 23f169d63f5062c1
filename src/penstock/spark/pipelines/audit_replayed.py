"""A topic that was replayed to, compared with what was selected of the archive: rows, contents and their order.

Offsets are new in it and so say nothing; the order of records does. Where records may have gone to other partitions
than they came from, only all of them together can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from penstock.core.ids import TopicPartition
from penstock.spark.pipelines.audit_measure import (
    Measured,
    OrderSums,
    Stretches,
    Zone,
    block_of_ranks,
    measured,
    order_sums,
)
from penstock.spark.pipelines.audit_result import ReplayedAudit, hexadecimal


def audit_replayed(selected: DataFrame, replayed: DataFrame, topic: str, keeps_partitions: bool) -> list[ReplayedAudit]:
    """`topic` is what was replayed to."""
    wanted, found = (_by_partition(measured(each, at_offsets=False)) for each in (selected, replayed))
    if not keeps_partitions:
        return [_together(topic, wanted, found)]
    comparable = {each for each in wanted.keys() & found.keys() if _rows(wanted[each]) == _rows(found[each])}
    one = order_sums(selected, {each: wanted[each] for each in comparable})
    other = order_sums(replayed, {each: found[each] for each in comparable})
    return [
        _partition(topic, each, wanted.get(each, {}), found.get(each, {}), one, other)
        for each in sorted(wanted.keys() | found.keys())
    ]


def _by_partition(of: Measured) -> dict[int, Stretches]:
    return {each.partition: zones[Zone.COMPARED] for each, zones in of.items()}


def _partition(
    topic: str, partition: int, wanted: Stretches, found: Stretches, one: OrderSums, other: OrderSums
) -> ReplayedAudit:
    differences = _differences(wanted, found)
    is_in_order = None
    if not differences:
        expected, seen = one.get(partition, {}), other.get(partition, {})
        differing = sorted(block for block in expected.keys() | seen.keys() if expected.get(block) != seen.get(block))
        is_in_order = not differing
        if differing:
            first, end = block_of_ranks(differing[0])
            differences = [f"records are in another order: the first is between record {first} and {end} of it"]
    return _audit(TopicPartition(topic, partition), wanted, found, is_in_order, differences)


def _together(topic: str, wanted: Mapping[int, Stretches], found: Mapping[int, Stretches]) -> ReplayedAudit:
    one, other = (
        dict(enumerate(stretch for each in of.values() for stretch in each.values())) for of in (wanted, found)
    )
    return _audit(topic, one, other, None, _differences(one, other))


def _audit(
    where: TopicPartition | str, wanted: Stretches, found: Stretches, is_in_order: bool | None, differences: list[str]
) -> ReplayedAudit:
    is_one = isinstance(where, TopicPartition)
    return ReplayedAudit(
        topic=where.topic if isinstance(where, TopicPartition) else where,
        partition=where.partition if isinstance(where, TopicPartition) else None,
        archive_rows=_rows(wanted),
        replayed_rows=_rows(found),
        archive_checksum=hexadecimal(_checksum(wanted)),
        replayed_checksum=hexadecimal(_checksum(found)),
        is_in_order=is_in_order if is_one else None,
        differences=tuple(differences),
    )


def _differences(wanted: Stretches, found: Stretches) -> list[str]:
    if _rows(wanted) != _rows(found):
        return [f"{_rows(found):,} records, and {_rows(wanted):,} were to be replayed"]
    if _checksum(wanted) != _checksum(found):
        return ["as many records as were to be replayed, and not the same ones"]
    return []


def _rows(stretches: Stretches) -> int:
    return sum(stretch.rows for stretch in stretches.values())


def _checksum(stretches: Stretches) -> int:
    return sum(stretch.checksum for stretch in stretches.values())
