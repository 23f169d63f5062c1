"""Records measured in Spark: what there is of each stretch of offsets, small enough to be compared on the driver.

A stretch is 32,768 offsets of a partition. Of each we know how many rows it has, which offsets these have, and the sum
of their checksums, which is the same in whatever order they are read; each has its offset in it, so that contents which
have changed places are noticed. So a topic of any size is compared by one pass over it that moves a few kilobytes for
each stretch; where nothing is missing, not even those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from penstock.core.ids import TopicPartition

STRETCH = 32_768
_RANKS = 1 << 16
_LOW_BITS = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Stretch:
    """`present` has a bit for each offset, the first one lowest; None when none is missing from `first` to `last`."""

    number: int
    rows: int
    first: int
    last: int
    distinct: int
    checksum: int
    earliest_ms: int
    present: bytes | None = None


class Zone(IntEnum):
    """Where an offset lies: before what the broker has, where both are compared, or after it."""

    BEFORE = 0
    COMPARED = 1
    AFTER = 2


Stretches = dict[int, Stretch]
Measured = dict[TopicPartition, dict[Zone, Stretches]]
OrderSums = dict[int, dict[int, int]]
Bounds = Mapping[TopicPartition, tuple[int, int]]


def checksum(at_offset: bool = False) -> Column:
    """Of key, value, headers and timestamp, and of the offset if asked for. A null is told from what is empty, and from
    the null beside it.
    """
    headers = F.coalesce(F.size("headers"), F.lit(0))
    entries = F.transform("headers", lambda each: F.struct(each["key"], each["value"].isNull(), each["value"]))
    return F.xxhash64(
        *(["offset"] if at_offset else []),
        F.col("key").isNull(),
        "key",
        F.col("value").isNull(),
        "value",
        headers,
        F.when(headers > 0, entries),
        F.unix_millis("timestamp"),
    )


def measured(records: DataFrame, bounds: Bounds | None = None, at_offsets: bool = True) -> Measured:
    """`bounds` are the offsets that are compared, the last one exclusive; without them, all are. A partition that has
    none lies before everything. Without `at_offsets` contents count, and not where they are: a replay's are elsewhere.
    """
    content = checksum(at_offsets).alias("checksum")
    rows = records.select("topic", "partition", "offset", _number(), content, "timestamp")
    zoned = rows.withColumn("zone", F.lit(int(Zone.COMPARED))) if bounds is None else _zoned(rows, bounds)
    # Spark counts the bits of a bitmap from 1.
    bit = F.bitmap_bit_position(F.col("offset") + 1)
    stretches = zoned.groupBy("topic", "partition", "zone", "number").agg(
        F.count("*").alias("rows"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        F.bitmap_construct_agg(bit).alias("bits"),
        *_sums("checksum"),
        F.min(F.unix_millis("timestamp")).alias("earliest_ms"),
    )
    distinct = F.bitmap_count("bits")
    is_whole = distinct == F.col("last") - F.col("first") + 1
    told = stretches.select("*", distinct.alias("distinct"), F.when(~is_whole, F.col("bits")).alias("present"))
    found: Measured = {}
    for row in told.drop("bits").toLocalIterator():
        zones = found.setdefault(TopicPartition(row["topic"], row["partition"]), {})
        zones.setdefault(Zone(row["zone"]), {})[row["number"]] = _stretch(row)
    return found


def _zoned(rows: DataFrame, bounds: Bounds) -> DataFrame:
    known = [(each.topic, each.partition, first, end) for each, (first, end) in bounds.items()]
    edges = rows.sparkSession.createDataFrame(
        known, "topic string, partition int, from_offset bigint, to_offset bigint"
    )
    offset = F.col("offset")
    zone = F.when(F.col("to_offset").isNull() | (offset < F.col("from_offset")), int(Zone.BEFORE))
    zone = zone.when(offset < F.col("to_offset"), int(Zone.COMPARED)).otherwise(int(Zone.AFTER))
    return rows.join(F.broadcast(edges), ["topic", "partition"], "left").withColumn("zone", zone)


def _stretch(row: Row) -> Stretch:
    return Stretch(
        row["number"],
        row["rows"],
        row["first"],
        row["last"],
        row["distinct"],
        _sum(row["high"], row["low"]),
        row["earliest_ms"],
        None if row["present"] is None else bytes(row["present"]),
    )


def rows_in(of: Measured) -> int:
    return sum(stretch.rows for zones in of.values() for zone in zones.values() for stretch in zone.values())


def changed(
    one: DataFrame, other: DataFrame, stretches: Mapping[TopicPartition, Iterable[int]], limit: int
) -> dict[TopicPartition, list[int]]:
    """Offsets that both have, with other contents: looked for in these stretches only, and at most so many."""
    wanted = [(each.topic, each.partition, number) for each, numbers in stretches.items() for number in numbers]
    if not wanted:
        return {}
    where = one.sparkSession.createDataFrame(wanted, "topic string, partition int, number bigint")
    here, there = (
        records.select("topic", "partition", "offset", _number(), checksum().alias(name))
        .join(F.broadcast(where), ["topic", "partition", "number"])
        .drop("number")
        for records, name in ((one, "one"), (other, "other"))
    )
    both = here.join(there, ["topic", "partition", "offset"]).where("one <> other")
    found: dict[TopicPartition, list[int]] = {}
    for row in (
        both.select("topic", "partition", "offset").distinct().orderBy("topic", "partition", "offset").take(limit)
    ):
        found.setdefault(TopicPartition(row["topic"], row["partition"]), []).append(row["offset"])
    return found


def order_sums(records: DataFrame, stretches: Mapping[int, Mapping[int, Stretch]]) -> OrderSums:
    """Checksums that depend on the order, of one topic: by partition, and by 65,536 rows of it in turn.

    `stretches` are those of `measured` by partition: they say how many rows lie before each.
    """
    before = _rows_before(stretches)
    if not before:
        return {}
    places = records.sparkSession.createDataFrame(before, "partition int, number bigint, rows_before bigint")
    rows = records.select("partition", "offset", _number(), checksum().alias("checksum"))
    within = F.row_number().over(Window.partitionBy("partition", "number").orderBy("offset")) - 1
    ranked = rows.join(F.broadcast(places), ["partition", "number"]).withColumn("rank", F.col("rows_before") + within)
    placed = ranked.withColumn("placed", F.xxhash64("rank", "checksum")).withColumn(
        "block", F.floor(F.col("rank") / _RANKS).cast("bigint")
    )
    found: OrderSums = {}
    for row in placed.groupBy("partition", "block").agg(*_sums("placed")).toLocalIterator():
        found.setdefault(row["partition"], {})[row["block"]] = _sum(row["high"], row["low"])
    return found


def block_of_ranks(block: int) -> tuple[int, int]:
    return block * _RANKS, (block + 1) * _RANKS


def _number() -> Column:
    return F.floor(F.col("offset") / STRETCH).cast("bigint").alias("number")


def _rows_before(stretches: Mapping[int, Mapping[int, Stretch]]) -> Iterable[tuple[int, int, int]]:
    found = []
    for partition, by_number in stretches.items():
        rows = 0
        for number in sorted(by_number):
            found.append((partition, number, rows))
            rows += by_number[number].rows
    return found


def _sums(column: str) -> tuple[Column, Column]:
    """A sum of 64-bit numbers would not fit: those of their halves do, for two billion rows."""
    return (
        F.sum(F.shiftrightunsigned(column, 32)).alias("high"),
        F.sum(F.col(column).bitwiseAND(F.lit(_LOW_BITS))).alias("low"),
    )


def _sum(high: int, low: int) -> int:
    return (high << 32) + low
