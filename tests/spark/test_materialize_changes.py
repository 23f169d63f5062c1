"""What a changelog says of its keys, and what becomes of a table by it. No broker is needed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.pipelines.changelog import Changelog, Envelope, KeyKind
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.json_values import parse_schema
from penstock.spark.pipelines.latest import Found, last_in_each_partition, last_of_each_key, merged, with_bucket

RECORD = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def records(spark: SparkSession, *rows: tuple[object, object], partition: int = 0) -> DataFrame:
    """Keys and values at offsets 0, 1, ...; objects become JSON."""
    offsets = count()
    return spark.createDataFrame(
        [(_bytes(key), _bytes(value), "log", partition, next(offsets), NOW) for key, value in rows], RECORD
    )


def _bytes(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def changelog(envelope: str = "plain", schema: str | None = None, key: str = "string") -> Changelog:
    return Changelog(Envelope(envelope), KeyKind(key), None if schema is None else parse_schema(schema))


def told(log: Changelog, frame: DataFrame) -> list[tuple[Any, ...]]:
    """Key, columns of the value, whether it is gone, and the reason where it is no change."""
    columns = ["_key", *log.columns.fieldNames(), "_deleted", "_penstock_reason"]
    return [tuple(row) for row in log.changes(frame).orderBy("_offset").select(*columns).collect()]


def test_given_plain_records_when_they_are_read_then_none_deletes(spark: SparkSession) -> None:
    frame = records(spark, ("a", b"\xff1"), ("a", None), (None, "x"), (b"\xff", "y"))

    assert told(changelog(), frame) == [
        ("a", bytearray(b"\xff1"), False, None),
        ("a", None, True, None),
        (None, bytearray(b"x"), False, "it has no key"),
        (None, bytearray(b"y"), False, "its key is not UTF-8: --key binary takes any bytes"),
    ]
    assert told(changelog(key="binary"), frame)[3] == (bytearray(b"\xff"), bytearray(b"y"), False, None)


def test_given_a_schema_when_plain_records_are_read_then_values_are_columns(spark: SparkSession) -> None:
    log = changelog(schema="id BIGINT NOT NULL, tags ARRAY<STRING>")
    frame = records(spark, ("a", {"id": 1, "tags": ["x"], "more": 2}), ("b", {"id": "one"}), ("c", "{"), ("d", {}))

    assert told(log, frame) == [
        ("a", 1, ["x"], False, None),
        (None, None, None, False, "it is not JSON of id bigint, tags array<string>"),
        (None, None, None, False, "it is not JSON of id bigint, tags array<string>"),
        (None, None, None, False, "it has no id"),
    ]


def envelope(op: str, after: object = None, ts_ms: int = 1_000) -> dict[str, object]:
    return {"op": op, "before": None, "after": after, "source": {"ts_ms": ts_ms, "db": "shop"}, "ts_ms": ts_ms + 5}


def test_given_debezium_when_it_is_read_then_envelopes_say_what_happened(spark: SparkSession) -> None:
    log = changelog("debezium", "id BIGINT NOT NULL, name STRING")
    with_schema = {"schema": {"type": "struct"}, "payload": envelope("u", {"id": 1, "name": "b"})}
    frame = records(
        spark,
        ({"id": 1}, envelope("c", {"id": 1, "name": "a"})),
        ({"schema": {}, "payload": {"id": 1}}, with_schema),
        ({"id": 1}, envelope("d")),
        ({"id": 1}, None),
        (None, envelope("m")),
        ({"id": 2}, envelope("r", {"id": 2})),
        (None, envelope("t")),
        ({"id": 3}, envelope("u")),
        ({"id": 4}, envelope("x", {"id": 4})),
        ({"id": 5}, {"id": 5}),
        ({"id": 6}, "nonsense"),
        ({"id": 7}, envelope("c", {"name": "no id"})),
        ({"id": 8}, envelope("c", {"id": "eight"})),
    )

    assert told(log, frame) == [
        ('{"id": 1}', 1, "a", False, None),
        ('{"id": 1}', 1, "b", False, None),
        ('{"id": 1}', None, None, True, None),
        ('{"id": 1}', None, None, True, None),
        ('{"id": 2}', 2, None, False, None),
        (None, None, None, False, "it empties the table (op t), which no key can say"),
        (None, None, None, False, "it has no row after the change"),
        (None, 4, None, False, "it has an unknown op x"),
        (None, None, None, False, "it has no op: no Debezium envelope"),
        (None, None, None, False, "it is not JSON of a Debezium envelope with the schema"),
        (None, None, "no id", False, "it has no id"),
        (None, None, None, False, "it is not JSON of a Debezium envelope with the schema"),
    ]


def test_given_debezium_without_a_schema_when_it_is_read_then_the_row_is_json_and_its_time_the_database_s(
    spark: SparkSession,
) -> None:
    frame = records(spark, ("k", envelope("c", {"id": 1, "deep": {"a": [1]}}, ts_ms=86_400_000)))

    (row,) = changelog("debezium").changes(frame).selectExpr("value", "unix_millis(_timestamp)").collect()

    assert tuple(row) == ('{"id":1,"deep":{"a":[1]}}', 86_400_000)


def test_given_debezium_without_a_schema_when_rows_have_fractions_then_they_keep_their_digits(
    spark: SparkSession,
) -> None:
    """No double has most of these. What only looks like a number stays a string, and what is none is no JSON."""
    tabs = r"1.5\t" * 20_000
    rows = [
        '{"a":12345678901234567890.1234567890,"b":[1.10,-0.0,1E+2,1e400],"c":{"-1.5":-1,"d":12345678901234567890}}',
        r"""{"a":"1.50","b":"\\","c":2.50,"d":"\"1.5,\"","e":"'","f":3.0}""",
        f'{{"tabs":"{tabs}","a":1.0}}',
        "1.50",
    ]
    texts = [f'{{"before":{{"a":0.50}},"after":{row},"source":{{"ts_ms":1}},"op":"c"}}' for row in (*rows, "01.5")]
    wrapped = f'{{"schema": {{"default": 1.50}}, "payload": {texts[0]}}}'
    frame = records(spark, *(("k", text) for text in (*texts, wrapped)))

    found = told(changelog("debezium"), frame)

    no_json = (None, None, False, "it is not JSON of a Debezium envelope with the schema")
    assert found == [*(("k", row, False, None) for row in rows), no_json, ("k", rows[0], False, None)]


def test_given_debezium_keys_when_they_have_a_schema_around_them_then_each_is_what_it_is_without(
    spark: SparkSession,
) -> None:
    bare = [
        '{"id":12345678901234567.25}',
        '{"id":12345678901234567.75}',
        '{"b":1.10,"a":"\\u00e9}","payload":{}}',
        '"1"',
        "1",
        '{"schema":"public","payload":1,"id":2}',
    ]
    schema = '{"type":"struct","fields":[{"type":"double","field":"payload"}],"optional":false}'
    wrapped = [f'{{"schema":{schema},"payload":{key}}}' for key in bare]
    wrapped += [f' {{ "schema" : {schema} ,\n"payload" : {key} }} ' for key in bare]
    not_text = b'{"schema":{},"payload":"\xff"}'
    frame = records(spark, *((key, envelope("d")) for key in (*bare, *wrapped, not_text)))

    found = [key for key, *_ in told(changelog("debezium", key="binary"), frame)]

    assert found == [key.encode() for key in bare * 3] + [not_text]


def test_given_a_schema_with_a_column_of_ours_when_it_is_parsed_then_it_is_refused(spark: SparkSession) -> None:
    for name in ("_Offset", "_penstock_reason"):
        with pytest.raises(PipelineError, match=f'a column cannot be called "{name}"'):
            changelog(schema=f"id INT, {name} INT")


CHANGE = "_key string, value string, _deleted boolean, _partition int, _offset bigint, _timestamp timestamp"
ROW = "_key string, value string, _partition int, _offset bigint, _timestamp timestamp, _bucket int"

_keys = st.sampled_from("abc")
_values = st.one_of(st.none(), st.sampled_from("xyz"))


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    history=st.lists(st.tuples(_keys, _values), max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    again=st.integers(0, 4),
)
def test_given_any_history_when_it_is_merged_in_any_batches_then_the_table_has_each_key_s_last_value(
    spark: SparkSession, history: list[tuple[str, str | None]], cuts: list[int], again: int
) -> None:
    """Each batch may begin before the end of the last one, as a late or doubled change does."""
    changes = [
        (key, value, value is None, ord(key) % 2, offset, NOW, None) for offset, (key, value) in enumerate(history)
    ]
    edges = sorted({0, *(min(cut, len(changes)) for cut in cuts), len(changes)})
    table = spark.createDataFrame([], ROW)
    for begin, end in pairwise(edges):
        batch = spark.createDataFrame(changes[max(0, begin - again) : end], f"{CHANGE}, _penstock_reason string")
        rows = merged(table, last_of_each_key(last_in_each_partition(with_bucket(batch, 4))))
        table = spark.createDataFrame(rows.collect(), ROW)

    expected: dict[str, str] = {}
    for key, value in history:
        expected.pop(key, None)
        if value is not None:
            expected[key] = value
    # A deleted key leaves nothing that an older change could be compared with: `archived` keeps those away.
    if again == 0:
        assert {row["_key"]: row["value"] for row in table.collect()} == expected
    else:
        found = {row["_key"]: row["value"] for row in table.collect()}
        assert {key: found.get(key) for key in expected} == expected


def test_given_a_key_in_two_partitions_when_it_is_merged_then_the_later_time_counts(spark: SparkSession) -> None:
    """And the end of each partition is where its records end, whichever of them count."""
    early, late = NOW, NOW.replace(day=2)
    table = spark.createDataFrame([("a", "old", 0, 90, early, 1), ("b", "new", 0, 91, late, 2)], ROW)
    table = with_bucket_of(table)
    changes = spark.createDataFrame(
        [
            ("a", "moved", False, 3, 0, late, None),
            ("b", "late to come", False, 3, 1, early, None),
            ("c", "first", False, 0, 95, early, None),
            ("c", "second", False, 3, 2, late, None),
            ("d", None, True, 3, 3, late, None),
            ("d", "of before it was deleted", False, 0, 96, early, None),
            (None, "no change", False, 0, 97, early, "it has no key"),
            (None, "no change", False, 3, 4, early, "it has no key"),
            (None, "no change", False, 5, 7, late, "it has no key"),
        ],
        f"{CHANGE}, _penstock_reason string",
    )

    last = last_in_each_partition(with_bucket(changes, 4))
    found = Found.of(last)
    rows = merged(table, last_of_each_key(last))

    assert {row["_key"]: row["value"] for row in rows.collect()} == {"a": "moved", "b": "new", "c": "second"}
    assert (found.records, found.bad, found.ends) == (9, 3, {0: 98, 3: 5, 5: 8})


def with_bucket_of(table: DataFrame) -> DataFrame:
    return with_bucket(table.selectExpr("*", "CAST(NULL AS STRING) AS _penstock_reason"), 4).select(*table.columns)
