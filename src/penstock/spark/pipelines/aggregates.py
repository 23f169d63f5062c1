"""What is computed of a window: `count`, `sum(bytes)`, `p99(duration_ms) AS slow`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import NumericType

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.expressions import check_name, expression_of

_CALL = re.compile(r"(?P<function>[a-z][a-z0-9_.]*)\s*(?:\((?P<of>.*)\))?", re.IGNORECASE | re.DOTALL)
_ALIAS = re.compile(r"^(?P<call>.*?)\s+as\s+`?(?P<name>\w+)`?\s*$", re.IGNORECASE | re.DOTALL)
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")
# Within a 1/10000 of the rank.
_ACCURACY = 10_000

# Spark has no exact count of distinct values in a stream.
_FUNCTIONS: dict[str, Callable[[Column], Column]] = {
    "count": F.count,
    "sum": F.sum,
    "avg": F.avg,
    "min": F.min,
    "max": F.max,
    "distinct": F.approx_count_distinct,
}
_OF_NUMBERS = ("sum", "avg")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`of` is an SQL expression; None counts records. `quantile` is of a percentile."""

    function: str
    of: str | None
    name: str
    quantile: float | None = None

    def column(self, records: DataFrame) -> Column:
        """Raises PipelineError."""
        if self.of is None:
            return F.count("*").alias(self.name)
        found = expression_of(records, self.of, "--aggregate")
        if (self.quantile is not None or self.function in _OF_NUMBERS) and not isinstance(found.type, NumericType):
            raise PipelineError(
                f"--aggregate: {self.function} is of numbers, and {self.of} is {found.type.simpleString()}"
            )
        if self.quantile is not None:
            return F.percentile_approx(found.column, self.quantile, _ACCURACY).alias(self.name)
        return _FUNCTIONS[self.function](found.column).alias(self.name)


def parse_aggregates(texts: Sequence[str]) -> list[Aggregate]:
    """Raises PipelineError."""
    if not texts:
        raise PipelineError("--aggregate is missing: what to compute, such as count or p99(duration_ms)")
    return [_parsed(text) for text in texts]


def _parsed(text: str) -> Aggregate:
    alias = _ALIAS.match(text)
    call = _CALL.fullmatch((alias["call"] if alias else text).strip())
    if call is None:
        raise PipelineError(f'--aggregate takes count, or a function of something such as sum(bytes), not "{text}"')
    function, of = call["function"].lower(), call["of"]
    percentile = _PERCENTILE.fullmatch(function)
    if function not in _FUNCTIONS and percentile is None:
        raise PipelineError(
            f"--aggregate: there is no {function}, only {', '.join(_FUNCTIONS)} and percentiles such as p50 and p99.9"
        )
    if of is not None and of.strip() in ("", "*") and function == "count":
        of = None
    if function != "count" and not (of or "").strip():
        raise PipelineError(f"--aggregate: {function} of what? Write {function}(field)")
    name = alias["name"] if alias else _name(function, of)
    check_name(name, "--aggregate", text)
    return Aggregate(function, of, name, None if percentile is None else float(percentile[1]) / 100)


def _name(function: str, of: str | None) -> str:
    return function.replace(".", "_") if of is None else f"{function.replace('.', '_')}_{of.strip()}"
