"""The last change of each key, and what a table becomes by it. All of it is Spark's: no row passes through Python.

Within a partition the higher offset is the later change. A key is in one partition, so that is all there is to it,
unless the topic was given more partitions: of the changes of a key in two partitions, the one with the later time
counts.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.spark.pipelines.bad_values import REASON
from penstock.spark.pipelines.changelog import BUCKET, DELETED, KEY, OFFSET, PARTITION, TIMESTAMP

RECORDS = "_records"
NO_BUCKET = -1


def with_bucket(changes: DataFrame, buckets: int) -> DataFrame:
    """Which part of the table a key is in: by its bytes, the same wherever and whenever it is asked."""
    bucket = F.pmod(F.crc32(F.col(KEY).cast("binary")), F.lit(buckets)).cast("int")
    return changes.withColumn(BUCKET, F.when(F.col(REASON).isNull(), bucket).otherwise(F.lit(NO_BUCKET)))


def last_of_each_key(changes: DataFrame) -> DataFrame:
    """With how many changes there were. What is no change counts as one of no key, in a bucket of its own."""
    others = [name for name in changes.columns if name not in (KEY, BUCKET)]
    # One shuffle for both steps, which need the rows of a key, and of a key and a partition, together.
    together = changes.repartition(BUCKET)
    row = F.struct(*others)
    counted = F.count("*").alias(RECORDS)
    of_partition = together.groupBy(BUCKET, KEY, PARTITION).agg(F.max_by(row, OFFSET).alias("row"), counted)
    when = F.struct(F.col("row")[TIMESTAMP], F.col(PARTITION))
    of_key = of_partition.groupBy(BUCKET, KEY).agg(F.max_by("row", when).alias("row"), F.sum(RECORDS).alias(RECORDS))
    return of_key.select(BUCKET, KEY, "row.*", RECORDS)


def merged(table: DataFrame, changes: DataFrame) -> DataFrame:
    """The table's rows after the changes, of which each key has one."""
    columns = table.columns
    before, after = table.alias("before"), changes.alias("after")
    same_key = (F.col(f"before.{BUCKET}") == F.col(f"after.{BUCKET}")) & (
        F.col(f"before.{KEY}") == F.col(f"after.{KEY}")
    )
    is_changed = F.col(f"after.{KEY}").isNotNull() & (F.col(f"before.{KEY}").isNull() | _is_later())
    new = F.struct(*(F.col(f"after.{name}").alias(name) for name in columns))
    old = F.struct(*(F.col(f"before.{name}").alias(name) for name in columns))
    joined = before.join(after, same_key, "full_outer")
    left = joined.where(~is_changed | ~F.col(f"after.{DELETED}"))
    return left.select(F.when(is_changed, new).otherwise(old).alias("row")).select("row.*")


def _is_later() -> Column:
    """Whether the change comes after the one that the table's row is from."""
    by_offset = F.col(f"after.{OFFSET}") > F.col(f"before.{OFFSET}")
    by_time = F.col(f"after.{TIMESTAMP}") >= F.col(f"before.{TIMESTAMP}")
    return F.when(F.col(f"after.{PARTITION}") == F.col(f"before.{PARTITION}"), by_offset).otherwise(by_time)
