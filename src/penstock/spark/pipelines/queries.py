"""The question that a transform asks: SQL over a view called `input`, or a function from DataFrame to DataFrame.

What a record needs and the question does not say is kept as it was. SQL that says less than all columns is asked again
with the missing ones at the end of its list: Spark's own parser says where that is.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.expressions import first_words
from penstock.spark.pipelines.plan_checks import check_order

VIEW = "input"
_ORDERS = ("Command", "ParsedStatement", "CompoundPlanStatement")

Transformation = Callable[[DataFrame], DataFrame]


class Query(Protocol):
    """`str` of it begins sentences about it."""

    def result(self, records: DataFrame, kept: Sequence[str]) -> DataFrame:
        """With the columns that it sets, and those of `kept` that it does not. Raises PipelineError."""


@dataclass(frozen=True, slots=True)
class SqlQuery:
    text: str

    def __str__(self) -> str:
        return "the SQL"

    def result(self, records: DataFrame, kept: Sequence[str]) -> DataFrame:
        with _as_view(records):
            answer = self._asked(records, self.text)
            missing = [name for name in kept if name not in _lower(answer.columns)]
            if not missing:
                return answer
            check_order(answer, str(self))  # what cannot be asked needs no further columns
            longer = self._with_columns(records, missing)
            try:
                return self._asked(records, longer)
            except PipelineError:
                raise PipelineError(
                    f"the SQL selects from something that does not hand on {', '.join(missing)} of the records: "
                    f"select them there too, or say what they are to be (CAST(NULL AS BINARY) AS key, for example)"
                ) from None

    def _with_columns(self, records: DataFrame, missing: Sequence[str]) -> str:
        """The text with further columns in the outermost SELECT."""
        plan = _parsed(records, self.text)
        while plan.nodeName() == "UnresolvedWith":
            plan = plan.child()
        if plan.nodeName() != "Project":
            raise PipelineError(
                f"the SQL is no plain SELECT, and has no {', '.join(missing)} in its result: select them as well"
            )
        columns = plan.projectList()
        end = columns.apply(columns.size() - 1).origin().stopIndex().get() + 1
        added = ", " + ", ".join(f"`{name}`" for name in missing)
        return self.text[:end] + added + self.text[end:]

    def _asked(self, records: DataFrame, text: str) -> DataFrame:
        try:
            _check_is_question(_parsed(records, text))
            return records.sparkSession.sql(text)
        except PySparkException as error:
            raise PipelineError(f"the SQL is not understood: {first_words(error)}") from None


@dataclass(frozen=True, slots=True)
class FunctionQuery:
    """`name` is what a person calls it."""

    function: Transformation
    name: str

    @classmethod
    def named(cls, path: str) -> FunctionQuery:
        """`module:function`, of a module that can be imported, from the current directory too. Raises PipelineError."""
        module_name, separator, name = path.partition(":")
        if not (separator and module_name and name):
            raise PipelineError(f'--function takes MODULE:FUNCTION, not "{path}"')
        module = _imported(module_name)
        function: Any = module
        for part in name.split("."):
            function = getattr(function, part, None)
        if not callable(function):
            raise PipelineError(f"--function: the module {module_name} has no function {name}")
        return cls(function, path)

    def __str__(self) -> str:
        return f"the function {self.name}"

    def result(self, records: DataFrame, kept: Sequence[str]) -> DataFrame:
        try:
            answer: object = self.function(records)
        except PySparkException as error:
            raise PipelineError(f"{self} is not understood by Spark: {first_words(error)}") from error
        except Exception as error:
            raise PipelineError(f"{self} fails: {type(error).__name__}: {error}") from error
        if not isinstance(answer, DataFrame):
            raise PipelineError(f"{self} gives {type(answer).__name__}, not a DataFrame")
        missing = [name for name in kept if name not in _lower(answer.columns)]
        if missing:
            raise PipelineError(
                f"{self} drops {', '.join(missing)} of the records: withColumn keeps what it does not change; "
                "what is not wanted it may set to null"
            )
        return answer


def _imported(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise PipelineError(f"--function: {name} cannot be imported: {type(error).__name__}: {error}") from error
    # What the function hands to executors travels with it: they need not have the module.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


@contextmanager
def _as_view(records: DataFrame) -> Iterator[None]:
    spark = records.sparkSession
    if VIEW in {table.name for table in spark.catalog.listTables() if table.isTemporary}:
        raise PipelineError(f"the session has a view {VIEW} already: drop it first, the records are to be called so")
    records.createTempView(VIEW)
    try:
        yield
    finally:
        spark.catalog.dropTempView(VIEW)


def _parsed(records: DataFrame, text: str) -> Any:
    return records.sparkSession._jsparkSession.sessionState().sqlParser().parsePlan(text)


def _check_is_question(plan: Any) -> None:
    """What is an order would be carried out when it is asked."""
    loader = plan.getClass().getClassLoader()
    for kind in _ORDERS:
        if loader.loadClass(f"org.apache.spark.sql.catalyst.plans.logical.{kind}").isInstance(plan):
            raise PipelineError("the SQL is an order, not a SELECT")


def _lower(names: Sequence[str]) -> set[str]:
    return {name.lower() for name in names}
