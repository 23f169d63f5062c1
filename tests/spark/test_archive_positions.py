"""How far an archive has come, which of its files are merged, and how its columns may change: without Spark."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.types import DataType, DateType, IntegerType, LongType, StringType, StructField, StructType

from penstock.core.ids import TopicId, TopicPartition
from penstock.spark.offsets_json import StreamOffsets
from penstock.spark.pipelines import archived
from penstock.spark.pipelines.avro_values import struct_of
from penstock.spark.pipelines.batches import Totals, batch_of
from penstock.spark.pipelines.data_files import DataFile
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.merging import FileSizes, SizedFile, due
from penstock.spark.pipelines.progress import described
from penstock.spark.pipelines.table_schema import RECORD, evolved, with_fields

ORDERS = TopicPartition("orders", 0)
ID, OTHER_ID = TopicId(bytes(15) + b"\1"), TopicId(bytes(15) + b"\2")


def test_given_files_of_a_batch_when_they_are_archived_then_each_partition_has_come_to_its_last_offset() -> None:
    files = [a_file(ORDERS, 10, 19), a_file(ORDERS, 20, 25), a_file(TopicPartition("orders", 1), 0, 3)]

    ends = archived.after(StreamOffsets({ORDERS: 10}, {"orders": ID}), files)

    assert ends == StreamOffsets({ORDERS: 26, TopicPartition("orders", 1): 4}, {"orders": ID})


def test_given_an_archive_when_a_query_without_a_checkpoint_begins_then_it_begins_where_the_archive_ends() -> None:
    text = archived.starting_offsets(StreamOffsets({ORDERS: 26}, {"orders": ID}), {"orders": 2, "new": 1})

    assert json.loads(text) == {
        "orders": {"0": 26, "1": -2},
        "new": {"0": -2},
        "#topic-ids": {"orders": "AAAAAAAAAAAAAAAAAAAAAQ"},
    }


def test_given_a_topic_that_was_created_anew_when_it_is_archived_then_it_is_refused_by_its_ids() -> None:
    with pytest.raises(PipelineError, match="was deleted and created anew since it was archived: its id is"):
        archived.with_topics(StreamOffsets({}, {"orders": ID}), {"orders": OTHER_ID})


def test_given_how_far_an_archive_has_come_when_written_down_then_it_is_read_as_it_was() -> None:
    ends = StreamOffsets({ORDERS: 26}, {"orders": ID})

    assert archived.from_text(archived.to_text(ends), "the table") == ends
    with pytest.raises(PipelineError, match="the table is damaged"):
        archived.from_text("{", "the table")


def test_given_days_with_small_files_when_asked_then_those_with_enough_of_them_are_due() -> None:
    sizes, megabyte = FileSizes(target_bytes=128 << 20, small_files=3), 1 << 20
    few = [SizedFile(f"a{at}", "2026-01-01", 10, 1) for at in range(2)]
    many = [SizedFile(f"b{at}", "2026-01-02", 10 * at, 1) for at in range(3)]
    large = [SizedFile(f"c{at}", "2026-01-03", 64 * megabyte, 1) for at in range(9)]
    merged_before = [SizedFile(f"d{at}", "2026-01-02", 20 * megabyte, 1) for at in range(2)]

    assert due([*few, *many, *large, *merged_before], sizes) == many
    assert due([*merged_before, SizedFile("e", "2026-01-02", 5 * megabyte, 1)], sizes)[-1].path == "e"


def test_given_a_schema_with_more_fields_when_a_table_evolves_then_they_are_behind_what_it_had() -> None:
    table = with_fields(a_struct(id=IntegerType(), inner=a_struct(a=StringType()), gone=StringType()))
    inner = a_struct(b=IntegerType(), a=StringType())
    wanted = with_fields(a_struct(new=DateType(), id=LongType(), inner=inner))

    found = evolved(table, wanted)["fields"].dataType

    assert found.simpleString() == "struct<id:bigint,inner:struct<a:string,b:int>,gone:string,new:date>"
    assert evolved(RECORD, table) == table


def test_given_a_field_of_another_type_when_a_table_evolves_then_it_is_refused_by_its_name() -> None:
    table, wanted = (with_fields(a_struct(inner=a_struct(a=each))) for each in (StringType(), IntegerType()))

    with pytest.raises(PipelineError, match=r"fields\.inner\.a is string there, and int now"):
        evolved(table, wanted)


def test_given_avro_types_when_they_become_columns_then_unions_with_null_are_what_else_they_may_be() -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A"]}},
            {"name": "others", "type": {"type": "array", "items": "Kind"}},
            {"name": "tags", "type": {"type": "map", "values": "int"}},
            {"name": "either", "type": ["int", "long"]},
        ],
    }

    assert struct_of([json.dumps(schema)]).simpleString() == (
        "struct<id:bigint,note:string,at:timestamp,price:decimal(9,2),kind:string,others:array<string>,"
        "tags:map<string,int>,either:bigint>"
    )


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{", "this is not an Avro schema"),
        ('{"type": "record"}', "this is not an Avro schema"),
        ('"long"', "so it is a record"),
        (
            '{"type":"record","name":"R","fields":[{"name":"x","type":["int","string"]}]}',
            r"schema\.x: a union of 2 types",
        ),
    ],
)
def test_given_an_avro_schema_that_cannot_be_columns_when_parsed_then_it_is_refused(schema: str, why: str) -> None:
    with pytest.raises(PipelineError, match=why):
        struct_of([schema])


def test_given_a_batch_that_spark_tells_of_when_read_then_lag_is_what_lies_behind_what_was_read() -> None:
    source = {"endOffset": '{"orders": {"0": 5, "1": 7}, "#topic-ids": {"orders": "x"}}'}
    source |= {"latestOffset": {"orders": {"0": 9, "1": 7, "2": 3}}}  # type: ignore[dict-item]
    told = {"batchId": 4, "timestamp": "t", "numInputRows": 50, "durationMs": {"addBatch": 9, "triggerExecution": 100}}

    batch = batch_of({**told, "sources": [source]})

    assert batch is not None
    assert (batch.id, batch.rows, batch.lag, batch.rows_per_second) == (4, 50, 7, 500)
    assert batch_of({**told, "durationMs": {}, "sources": []}) is None
    totals = Totals().and_then(batch)
    assert described(totals, elapsed_s=10, follows=False) == "50 rows, 500 rows/s, lag 7, 0:01 left"
    assert described(totals, elapsed_s=10, follows=True) == "50 rows, 500 rows/s, lag 7"


def a_struct(**types: DataType) -> StructType:
    return StructType([StructField(name, data_type) for name, data_type in types.items()])


def a_file(partition: TopicPartition, first: int, last: int) -> DataFile:
    return DataFile("part.parquet", "2026-01-01", 100, last - first + 1, {partition: (first, last)})
