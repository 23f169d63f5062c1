"""The last change of each key, and what a table becomes by it. All of it is Spark's: no row passes through Python.

Within a partition the higher offset is the later change. A key is in one partition, so that is all there is to it,
unless the topic was given more partitions: of the changes of a key in two partitions, the one with the later time
counts. That holds within a batch, and against a row of the table; but a deleted key has no row. An older change that
comes from its other partition in a later batch puts the key back: to notice, the table would need a row for every key
that ever was, which all its readers would have to pass over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType

from penstock.spark.pipelines.bad_values import REASON
from penstock.spark.pipelines.changelog import BUCKET, DELETED, KEY, OFFSET, PARTITION, TIMESTAMP

RECORDS = "_penstock_records"
NO_BUCKET = -1


def with_bucket(changes: DataFrame, buckets: int) -> DataFrame:
    """Which part of the table a key is in: by its bytes, the same wherever and whenever it is asked."""
    bucket = F.pmod(F.crc32(F.col(KEY).cast("binary")), F.lit(buckets)).cast("int")
    return changes.withColumn(BUCKET, F.when(F.col(REASON).isNull(), bucket).otherwise(F.lit(NO_BUCKET)))


def last_in_each_partition(changes: DataFrame) -> DataFrame:
    """Of each key, with how many changes there were. What is no change is one of no key, in a bucket of its own."""
    others = [_quoted(name) for name in changes.columns if name not in (KEY, BUCKET, PARTITION)]
    # One shuffle for this and `last_of_each_key`, which need the rows of a key together.
    together = changes.repartition(BUCKET)
    last, counted = F.max_by(F.struct(*others), OFFSET).alias("row"), F.count("*").alias(RECORDS)
    of_partition = together.groupBy(BUCKET, KEY, PARTITION).agg(last, counted)
    return of_partition.select(BUCKET, KEY, PARTITION, "row.*", RECORDS)


def last_of_each_key(last: DataFrame) -> DataFrame:
    """Of the last ones in each partition."""
    others = [_quoted(name) for name in last.columns if name not in (KEY, BUCKET, RECORDS)]
    row = F.max_by(F.struct(*others), F.struct(TIMESTAMP, PARTITION)).alias("row")
    return last.where(F.col(BUCKET) != NO_BUCKET).groupBy(BUCKET, KEY).agg(row).select(BUCKET, KEY, "row.*")


@dataclass(frozen=True, slots=True)
class Found:
    """What a batch has: records, those of them that are no changes, buckets with changes, the end of each partition."""

    records: int
    bad: int
    buckets: list[int]
    ends: Mapping[int, int]

    @classmethod
    def of(cls, last: DataFrame) -> Found:
        """Of the last ones in each partition, not of each key: one may end with a change that another's overrules."""
        summed = last.groupBy(BUCKET, PARTITION).agg(F.max(OFFSET), F.sum(RECORDS)).collect()
        ends: dict[int, int] = {}
        for _, partition, offset, _ in summed:
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        return cls(
            records=sum(records for *_, records in summed),
            bad=sum(records for bucket, *_, records in summed if bucket == NO_BUCKET),
            buckets=sorted({bucket for bucket, *_ in summed if bucket != NO_BUCKET}),
            ends=ends,
        )


def merged(table: DataFrame, changes: DataFrame) -> DataFrame:
    """The table's rows after the changes, of which each key has one."""
    # Numbers may be wider in the table, and fields of a struct in another order.
    as_in_table = changes.to(StructType([*table.schema.fields, StructField(DELETED, BooleanType())]))
    before, after = table.alias("before"), as_in_table.alias("after")
    same_key = (F.col(f"before.{BUCKET}") == F.col(f"after.{BUCKET}")) & (
        F.col(f"before.{KEY}") == F.col(f"after.{KEY}")
    )
    is_changed = F.col(f"after.{KEY}").isNotNull() & (F.col(f"before.{KEY}").isNull() | _is_later())
    new, old = (
        F.struct(*(F.col(f"{side}.{_quoted(name)}").alias(name) for name in table.columns))
        for side in ("after", "before")
    )
    joined = before.join(after, same_key, "full_outer")
    left = joined.where(~is_changed | ~F.col(f"after.{DELETED}"))
    return left.select(F.when(is_changed, new).otherwise(old).alias("row")).select("row.*")


def _quoted(name: str) -> str:
    """A dot or a backtick in it is one of the name."""
    return f"`{name.replace('`', '``')}`"


def _is_later() -> Column:
    """Whether the change comes after the one that the table's row is from."""
    by_offset = F.col(f"after.{OFFSET}") > F.col(f"before.{OFFSET}")
    by_time = F.col(f"after.{TIMESTAMP}") >= F.col(f"before.{TIMESTAMP}")
    return F.when(F.col(f"after.{PARTITION}") == F.col(f"before.{PARTITION}"), by_offset).otherwise(by_time)
