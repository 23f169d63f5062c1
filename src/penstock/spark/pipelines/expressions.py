"""Expressions of SQL in options, over the columns of a stream of records; what is wrong with one is said at once."""

from __future__ import annotations

import re
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from penstock.spark.pipelines import plan_checks
from penstock.spark.pipelines.errors import PipelineError

_NAME = re.compile(r"[A-Za-z_]\w*")


class Expression(NamedTuple):
    column: Column
    name: str
    type: DataType


def expression_of(records: DataFrame, text: str, option: str) -> Expression:
    """Of each record by itself, and the same whenever it is asked. Raises PipelineError."""
    try:
        found = records.selectExpr(text)
    except PySparkException as error:
        raise PipelineError(f"{option} {text}: {first_words(error)}") from None
    if len(found.columns) != 1 or text.strip() == "*":
        raise PipelineError(f"{option} {text}: this is more than one column")
    plan_checks.check_order(found, f"{option} {text}", "it is asked of each record by itself")
    plan_checks.check_repeatable(found, f"{option} {text}")
    return Expression(F.expr(text), found.columns[0], found.schema.fields[0].dataType)


def check_name(name: str, option: str, text: str) -> None:
    if not _NAME.fullmatch(name):
        raise PipelineError(f"{option} {text}: name it, with AS and a name of letters, digits and underscores")


def first_words(error: PySparkException) -> str:
    """What Spark says, without the plan that it draws below it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].split(" SQLSTATE")[0] if lines else type(error).__name__
