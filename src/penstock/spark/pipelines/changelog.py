"""Records of a changelog as changes: a key, and what it has now or that it is gone.

Plain: the value is what the key has now, none deletes it. Debezium: the value is an envelope that says what happened
(`op`), with the row `after` it, with or without its schema around it. A record that is no change keeps its bytes and
gets a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType

from penstock.spark.pipelines import json_numbers, json_values
from penstock.spark.pipelines.bad_values import REASON
from penstock.spark.pipelines.errors import PipelineError

KEY, PARTITION, OFFSET, TIMESTAMP, BUCKET = "_key", "_partition", "_offset", "_timestamp", "_bucket"
DELETED = "_deleted"
_PARSED, _ENVELOPE, _ROW = "_penstock_parsed", "_penstock_envelope", "_penstock_row"
_OURS = (KEY, PARTITION, OFFSET, TIMESTAMP, BUCKET, DELETED)
_OURS_BEGIN = "_penstock_"
_MESSAGE = "m"  # of pg_logical_emit_message: nothing has changed
_WITH_SCHEMA = r"""(?s)^\s*\{\s*"schema"\s*:\s*\{.*?\}\s*,\s*"payload"\s*:\s*(.*\S)\s*\}\s*$"""


class Envelope(StrEnum):
    PLAIN = "plain"
    DEBEZIUM = "debezium"


class KeyKind(StrEnum):
    STRING = "string"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class Changelog:
    """`fields` are columns of values that are JSON; without them a value is one column as it is."""

    envelope: Envelope
    key: KeyKind
    fields: StructType | None

    def __post_init__(self) -> None:
        for name in self.fields.fieldNames() if self.fields is not None else ():
            if name.lower() in _OURS or name.lower().startswith(_OURS_BEGIN):
                raise PipelineError(
                    f'--schema: a column cannot be called "{name}": there is one of the pipeline\'s own'
                )

    @property
    def columns(self) -> StructType:
        """Of the table, but for what is the same in all."""
        if self.fields is not None:
            return StructType([StructField(field.name, field.dataType) for field in self.fields.fields])
        kind: DataType = BinaryType() if self.envelope is Envelope.PLAIN else StringType()
        return StructType([StructField("value", kind)])

    @property
    def key_type(self) -> DataType:
        return BinaryType() if self.key is KeyKind.BINARY else StringType()

    def changes(self, records: DataFrame) -> DataFrame:
        """Columns of the table, whether the key is gone, where the record was, and a reason if it is no change."""
        return self.told(records).select(
            F.when(F.col(REASON).isNull(), F.col(KEY)).alias(KEY),
            f"{_ROW}.*",
            DELETED,
            F.col("partition").alias(PARTITION),
            F.col("offset").alias(OFFSET),
            F.coalesce(TIMESTAMP, "timestamp").alias(TIMESTAMP),
            REASON,
        )

    def told(self, records: DataFrame) -> DataFrame:
        """The records, with what they say of their keys, and a reason where that is nothing."""
        told = self._debezium(records) if self.envelope is Envelope.DEBEZIUM else self._plain(records)
        reason = F.when(F.col(KEY).isNull(), F.lit("it has no key"))
        if self.key is KeyKind.STRING:
            is_text = F.is_valid_utf8(F.col(KEY))
            reason = reason.when(~is_text, F.lit("its key is not UTF-8: --key binary takes any bytes"))
        return told.withColumn(REASON, F.coalesce(F.col(REASON), reason))

    def _plain(self, records: DataFrame) -> DataFrame:
        value = F.col("value")
        told = records.withColumns(
            {KEY: F.col("key").cast(self.key_type), DELETED: value.isNull(), TIMESTAMP: F.lit(None).cast("timestamp")}
        )
        if self.fields is None:
            return told.withColumns({_ROW: F.struct("value"), REASON: F.lit(None).cast("string")})
        text, struct = value.cast("string"), F.col(_PARSED)
        parsed = told.withColumn(_PARSED, json_values.parsed(text, self.fields))
        reason = json_values.reason_not(text, struct, self.fields)
        return parsed.withColumns({_ROW: F.struct(*json_values.fields(struct, self.fields)), REASON: reason})

    def _debezium(self, records: DataFrame) -> DataFrame:
        value, outer, envelope = F.col("value"), F.col(_PARSED), F.col(_ENVELOPE)
        text = value.cast("string")
        read = json_numbers.as_strings(text) if self.fields is None else text
        parsed = records.withColumn(_PARSED, json_values.parsed(read, self._envelope_schema()))
        inside = F.when(outer["payload"].isNotNull(), outer["payload"]).otherwise(_bare(outer))
        told = parsed.withColumn(_ENVELOPE, inside)
        after = envelope["after"]
        whole = json_numbers.as_they_were(after).alias("value")
        row = [whole] if self.fields is None else json_values.fields(after, self.fields)
        is_change = value.isNull() | ~envelope["op"].eqNullSafe(_MESSAGE)
        return told.where(is_change).withColumns(
            {
                KEY: _key(F.col("key").cast("string")).cast(self.key_type),
                DELETED: value.isNull() | envelope["op"].eqNullSafe("d"),
                TIMESTAMP: F.timestamp_millis(envelope["source"]["ts_ms"]),
                _ROW: F.struct(*row),
                REASON: F.when(value.isNotNull(), self._reason_not(text, outer, envelope)),
            }
        )

    def _reason_not(self, text: Column, outer: Column, envelope: Column) -> Column:
        op, after = envelope["op"], envelope["after"]
        not_json = json_values.reason_not(text, outer, StructType([]), "a Debezium envelope with the schema")
        reason = F.when(not_json.isNotNull(), not_json).when(op.isNull(), F.lit("it has no op: no Debezium envelope"))
        reason = reason.when(op == "t", F.lit("it empties the table (op t), which no key can say"))
        reason = reason.when(~op.isin("c", "r", "u", "d", _MESSAGE), F.concat(F.lit("it has an unknown op "), op))
        reason = reason.when(op.isin("c", "r", "u") & after.isNull(), F.lit("it has no row after the change"))
        for field in self.fields.fields if self.fields is not None else ():
            if not field.nullable:
                missing = op.isin("c", "r", "u") & after[field.name].isNull()
                reason = reason.when(missing, F.lit(f"it has no {field.name}"))
        return reason

    def _envelope_schema(self) -> StructType:
        after: DataType = StringType()
        if self.fields is not None:
            after = StructType([StructField(field.name, field.dataType) for field in self.fields.fields])
        envelope = [
            StructField("op", StringType()),
            StructField("after", after),
            StructField("source", StructType([StructField("ts_ms", LongType())])),
        ]
        return StructType([*envelope, StructField("payload", StructType(envelope))])


def _bare(outer: Column) -> Column:
    """An envelope without its schema around it."""
    return F.struct(outer["op"].alias("op"), outer["after"].alias("after"), outer["source"].alias("source"))


def _key(text: Column) -> Column:
    """Connect's JSON converter may put a schema before the key: what is inside is the same with and without.

    It is cut out as it is. Spark's functions write JSON anew, and two keys with many digits would become one.
    """
    is_inside = F.is_valid_utf8(text) & text.rlike(_WITH_SCHEMA)
    return F.when(is_inside, F.regexp_extract(text, _WITH_SCHEMA, 1)).otherwise(text)
