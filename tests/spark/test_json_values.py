"""JSON values as columns: which schemas there can be, and what is told of values that are not of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.json_values import parse_schema
from penstock.spark.pipelines.values import taken_apart, value_format

EMPTY = {"type": "record", "name": "Nothing", "fields": []}
LONG = {"type": "bytes", "logicalType": "decimal", "precision": 50}


@pytest.mark.parametrize(
    ("ddl", "refused"),
    [
        ("id INT, c VARCHAR(5)", r"c cannot be varchar\(5\)"),
        ("c CHAR(5)", r"c cannot be char\(5\)"),
        ("v VARIANT", "v cannot be variant"),
        ("m MAP<INT, STRING>", "m cannot be map<int,string>"),
        ("at TIME", "at cannot be time"),
        ("took INTERVAL DAY TO SECOND", "took cannot be interval"),
        ("nothing VOID", "nothing cannot be void"),
        ("s STRUCT<>", "s cannot be struct<>"),
        ("a ARRAY<STRUCT<c: VARCHAR(3)>>", r"a\.element\.c cannot be varchar"),
        ("m MAP<STRING, VARIANT>", r"m\.value cannot be variant"),
        ("s STRUCT<a: INT, A: INT>", r'column "s\.a" is there 2 times'),
        ("id INT, ID INT", 'column "id" is there 2 times'),
    ],
)
def test_given_a_type_that_values_or_tables_cannot_have_when_a_schema_is_parsed_then_it_is_refused_by_its_column(
    spark: SparkSession, ddl: str, refused: str
) -> None:
    with pytest.raises(PipelineError, match=f"^--schema: {refused}"):
        parse_schema(ddl)


def test_given_types_that_cannot_be_in_json_or_avro_when_the_format_is_made_then_they_are_refused_too(
    spark: SparkSession,
) -> None:
    variant = {"name": "v", "type": "variant", "nullable": True, "metadata": {}}
    spark_schema = json.dumps({"type": "struct", "fields": [variant]})

    def refused(kind: str, schema: str, why: str) -> None:
        with pytest.raises(PipelineError, match=f"^schema: {why}"):
            value_format(Files(spark), kind, [schema])

    refused("json", spark_schema, "v cannot be variant")
    refused("json", json.dumps({"type": "struct", "fields": [variant, variant]}), 'column "v" is there 2 times')
    refused("json", json.dumps({"type": "struct", "fields": []}), "no columns")
    refused("avro", json.dumps(EMPTY), "no columns")
    refused("avro", json.dumps(a_record(field=EMPTY)), "field cannot be struct<>")
    refused("avro", json.dumps(a_record(field=LONG)), r"field cannot be decimal\(50,0\)")
    refused("avro", json.dumps(a_record(a="int", A="int")), 'column "a" is there 2 times')


def test_given_a_file_whose_path_has_spaces_when_it_is_the_schema_then_it_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "my schema.ddl"
    path.write_text("id BIGINT, tags ARRAY<STRUCT<k: STRING>>\n")

    of_file = value_format(Files(spark), "json", [str(path)])
    of_text = value_format(Files(spark), "json", [path.read_text()])

    assert of_file == of_text
    with pytest.raises(PipelineError, match="is no list of columns"):
        value_format(Files(spark), "json", [f"{path}.gone"])


def test_given_values_that_are_not_one_object_when_taken_apart_then_each_has_a_reason(spark: SparkSession) -> None:
    good = [b'{"id":1}', b' {"id":2, "inner":{"k":"}"}}\n', b'{"id":3,"id":4}', b"{'id':5}"]
    bad = [b'{"id":1}{"id":2}', b'{"id":1} {"id":2}', b'{"id":1},{"id":2}', b'{"id":1},', b'{"id":1} garbage']
    bad += [b'{"id":1}}', b'{"id":1}]', b'[{"id":1}]', b'{"id":1', b'{"id":1,"inner":{"k":"x"}', b'{"id":"1"}']
    bad += [b"", b" ", b"null", b"1", b'""', b'{"inner":[]}', b'\xef\xbb\xbf{"id":1}']
    not_text = b'{"id":1,"inner":{"k":"\xff"}}'
    records = spark.createDataFrame([(value,) for value in [*good, *bad, not_text, None]], "value binary")

    found = taken_apart(
        records, value_format(Files(spark), "json", ["id BIGINT NOT NULL, inner STRUCT<k: STRING>"])
    ).collect()

    assert [row["fields"] and row["fields"]["id"] for row in found[: len(good)]] == [1, 2, 4, 5]
    reasons = {bytes(row["value"]): row["reason"] for row in found if row["reason"] is not None}
    assert reasons.keys() == {*bad, not_text}
    assert reasons.pop(not_text) == "it is not UTF-8"
    assert set(reasons.values()) == {"it is not JSON of id bigint, inner struct<k:string>"}
    assert all(row["fields"] is None for row in found[len(good) :])
    assert found[-1]["reason"] is None


def a_record(**fields: object) -> dict[str, object]:
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": each} for name, each in fields.items()],
    }
