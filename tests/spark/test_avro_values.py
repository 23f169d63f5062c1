"""Values in Avro's binary form: what becomes columns, and what is told of those that cannot."""

from __future__ import annotations

import io
import json
import uuid
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.spark.pipelines.archive_reading import Archive
from penstock.spark.pipelines.archive_table import open_table, read_table
from penstock.spark.pipelines.avro_values import decoded, struct_of
from tests.spark.archiving import archived_to
from tests.spark.piping import Given, create, fill
from tests.testkit import BrokerProcess

UUID = {"type": "string", "logicalType": "uuid"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


@pytest.mark.parametrize(
    ("type", "written_as", "good", "value", "reason"),
    [
        ("int", "long", 1, 1 << 40, "Value 1099511627776 too large to fit in C integer type"),
        (["null", "int"], ["null", "long"], None, 1 << 40, "Value 1099511627776 too large"),
        (DECIMAL, "bytes", b"\x01", b"\x7f" * 20, "Rescaling Decimal value would cause data loss"),
        (DECIMAL, "bytes", b"\x01", (10**9).to_bytes(5, "big"), "precision"),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, [1], [1, 1 << 40], "too large"),
    ],
)
def test_given_a_value_that_its_column_cannot_take_when_decoded_then_it_gets_a_reason_and_the_others_stay(
    type: Any, written_as: Any, good: object, value: object, reason: str
) -> None:
    values = [encoded(record(written_as), {"field": each}) for each in (good, value, good)]

    first, bad, last = decode([json.dumps(record(type))], *values)

    assert first["reason"] is None and first["fields"] == last["fields"] is not None
    assert bad["fields"] is None
    assert bad["reason"].startswith("it does not fit the schema: field: ") and reason in bad["reason"]


@pytest.mark.parametrize(
    ("type", "value", "expected"),
    [
        (UUID, ID, str(ID)),
        (["null", UUID], None, None),
        ({"type": "array", "items": UUID}, [ID], [str(ID)]),
        ({"type": "map", "values": UUID}, {"a": ID}, [("a", str(ID))]),
        ({"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}, ID.bytes, ID.bytes),
    ],
)
def test_given_a_uuid_when_decoded_then_it_is_text_wherever_it_is(type: Any, value: object, expected: object) -> None:
    (found,) = decode([json.dumps(record(type))], encoded(record(type), {"field": value}))

    assert found == {"fields": {"field": expected}, "reason": None}


def test_given_a_text_that_is_no_uuid_when_decoded_then_it_gets_a_reason() -> None:
    (found,) = decode([json.dumps(record(UUID))], encoded(record("string"), {"field": "Bob"}))

    assert found["fields"] is None and "badly formed hexadecimal UUID string" in found["reason"]


def test_given_avro_values_of_a_schema_that_grows_when_archived_then_old_ones_have_null_and_bad_ones_are_in_quarantine(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    old = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}, {"name": "ref", "type": UUID}]}
    note = {"name": "note", "type": ["null", "string"], "default": None}
    new = {**old, "fields": [{"name": "id", "type": "long"}, old["fields"][1], note]}
    too_wide = encoded(new, {"id": 1 << 40, "ref": ID, "note": None})[:-1]  # as the old schema has it
    framed = b"\0\0\0\0\x07" + encoded(old, {"id": 2, "ref": ID})
    home = tmp_path / "archive"

    def archive_as(*schemas: object, **values: bytes) -> None:
        fill(broker.bootstrap, topic_name, [Given(value, key) for key, value in values.items()])
        how: dict[str, Any] = {"format": "parquet", "value": "avro", "schema": [json.dumps(each) for each in schemas]}
        archived_to(spark, broker.bootstrap, topic_name, home, **how)

    create(broker.bootstrap, topic_name)
    archive_as(old, first=encoded(old, {"id": 1, "ref": ID}), too_wide=too_wide, framed=framed)
    archive_as(
        new,
        old,
        wide=encoded(new, {"id": 1 << 40, "ref": ID, "note": "wide"}),
        late=encoded(old, {"id": 3, "ref": ID}),
    )

    archive = Archive.at(spark, str(home), {})
    found = {bytes(row["key"]).decode(): row["fields"] for row in archive.records().collect()}
    assert {key: fields and tuple(fields) for key, fields in found.items()} == {
        "first": (1, str(ID), None),
        "too_wide": None,
        "framed": None,
        "wide": (1 << 40, str(ID), "wide"),
        "late": (3, str(ID), None),
    }
    quarantine = open_table(spark, archive.home, archive.home.quarantine, None, {})
    assert quarantine is not None
    reasons = {bytes(row["value"]): row["reason"] for row in read_table(spark, quarantine).collect()}
    assert reasons.keys() == {too_wide, framed}
    assert reasons[too_wide].startswith("it does not fit the schema: id: ")
    assert reasons[framed].startswith("it is not Avro of this schema")


def record(type: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "field", "type": type}]}


def encoded(schema: dict[str, Any], value: object) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
    return buffer.getvalue()


def decode(schemas: list[str], *values: bytes) -> list[dict[str, Any]]:
    """As a worker does."""
    of_arrow = decoded(schemas, struct_of(schemas)).func  # type: ignore[attr-defined]
    return list(of_arrow(pa.array(values, pa.binary())).to_pylist())
