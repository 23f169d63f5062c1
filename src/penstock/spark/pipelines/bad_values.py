"""What becomes of records whose values do not parse: the pipeline ends, they are left out, or they go to a topic.

In the quarantine a record is as it was, with headers that say where it came from and why it is there. It is part of
the same stream as the results, so it is written exactly once where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.spark.pipelines.batches import BAD, COUNTED, READ
from penstock.spark.pipelines.errors import PipelineError

REASON = "_penstock_reason"
_TOLD = "%s-%d offset %d: %s; --quarantine TOPIC keeps such records, --skip-bad leaves them out"


@dataclass(frozen=True, slots=True)
class BadValues:
    """Neither: the first one ends the pipeline, with where it is."""

    quarantine: str | None = None
    skip: bool = False

    def __post_init__(self) -> None:
        if self.quarantine is not None and self.skip:
            raise PipelineError("--quarantine and --skip-bad exclude each other: bad values are kept or left out")

    def __str__(self) -> str:
        if self.quarantine is not None:
            return f"to topic {self.quarantine}"
        return "are left out, and counted" if self.skip else "end the pipeline"

    def good(self, records: DataFrame, where: str = "") -> DataFrame:
        """Those without a reason; records have topic, partition and offset, perhaps in a struct, and a reason."""
        reason = F.col(REASON)
        if self.quarantine is None and not self.skip:
            told = F.format_string(_TOLD, f"{where}topic", f"{where}partition", f"{where}offset", reason)
            return records.where(F.when(reason.isNull(), F.lit(True)).otherwise(F.raise_error(told).isNotNull()))
        read, bad = F.count("*").alias(READ), F.count_if(reason.isNotNull()).alias(BAD)
        return records.observe(COUNTED, read, bad).where(reason.isNull())

    def told(self, topic: str, partition: int, offset: int, reason: str) -> str:
        """Of the record that ends the pipeline."""
        return _TOLD % (topic, partition, offset, reason)

    def quarantined(self, records: DataFrame) -> DataFrame:
        """As rows for the sink, with a column topic; none where there is no quarantine.

        They are part of a stream's plan either way: a checkpoint knows how many times its query has the source in it,
        and is to outlive the day on which somebody asks for a quarantine. What can have no rows Spark does not read
        (settings.STREAMS).
        """
        is_kept = F.lit(False) if self.quarantine is None else F.col(REASON).isNotNull()
        return records.where(is_kept).select(
            F.lit(self.quarantine).cast("string").alias("topic"),
            F.lit(None).cast("int").alias("partition"),
            F.col("key").cast("binary").alias("key"),
            F.col("value").cast("binary").alias("value"),
            F.concat(F.coalesce("headers", _no_headers()), _origin()).alias("headers"),
            "timestamp",
        )


def _no_headers() -> Column:
    return F.expr("CAST(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>)")


def _origin() -> Column:
    told = {"reason": REASON, "topic": "topic", "partition": "partition", "offset": "offset"}
    return F.array(
        *(
            F.struct(
                F.lit(f"penstock-quarantine-{name}").alias("key"),
                F.col(column).cast("string").cast("binary").alias("value"),
            )
            for name, column in told.items()
        )
    )
