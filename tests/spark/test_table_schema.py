"""How the columns of a table may change: without Spark."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, DataType, LongType, StructField, StructType

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.table_schema import evolved


@pytest.mark.parametrize("wrapped", [lambda inner: inner, ArrayType], ids=["struct", "array"])
def test_given_a_field_that_differs_in_case_only_when_a_table_evolves_then_it_is_refused(
    wrapped: type[ArrayType],
) -> None:
    """Spark takes the two for one, and could not read a table that has both."""
    there, now = (a_struct("row", wrapped(a_struct(name, LongType()))) for name in ("id", "ID"))

    with pytest.raises(PipelineError, match=r"row\.(element\.)?ID differs from id of the table in case only"):
        evolved(there, now)
    assert evolved(there, there) == there


def a_struct(name: str, kind: DataType) -> StructType:
    return StructType([StructField(name, kind)])
