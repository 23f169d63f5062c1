"""How the columns of a table may change: without Spark."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructField, StructType

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.table_schema import evolved, extended


@pytest.mark.parametrize("wrapped", [lambda inner: inner, ArrayType], ids=["struct", "array"])
def test_given_a_field_that_differs_in_case_only_when_a_table_evolves_then_it_is_refused(
    wrapped: type[ArrayType],
) -> None:
    """Spark takes the two for one, and could not read a table that has both."""
    there, now = (a_struct("row", wrapped(a_struct(name, LongType()))) for name in ("id", "ID"))

    with pytest.raises(PipelineError, match=r"row\.(element\.)?ID differs from id of the table in case only"):
        evolved(there, now)
    assert evolved(there, there) == there


def test_given_columns_that_are_left_out_when_a_table_is_extended_then_it_is_refused() -> None:
    """Rows that change would lose what they have there."""
    fields = StructType([StructField("x", LongType()), StructField("y", LongType())])
    table = StructType([*a_struct("id", LongType()).fields, StructField("inner", a_map_of(fields))])

    with pytest.raises(PipelineError, match=r"more columns than --schema: id, inner\.value\.element\.y;"):
        extended(table, a_struct("inner", a_map_of(a_struct("x", LongType()))))
    assert extended(table, StructType([*table.fields[::-1], StructField("z", LongType())])).names == [
        "id",
        "inner",
        "z",
    ]


def a_map_of(inner: DataType) -> DataType:
    return MapType(StringType(), ArrayType(inner))


def a_struct(name: str, kind: DataType) -> StructType:
    return StructType([StructField(name, kind)])
