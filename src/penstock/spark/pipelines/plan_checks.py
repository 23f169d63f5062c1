"""What a query may do if its output is to be in the order of its input, and the same when a batch is done again.

Looked up in Spark's plan before any data moves. Order: every partition of the topic is one task from end to end, so
nothing that brings rows of several partitions together. Exactly once: a batch that was cut off is done again and
compared with what is there, so nothing that gives another result the second time. The time is no such thing if it is
asked for as current_timestamp(), current_date() or localtimestamp(): Spark writes down the time of each batch before it
runs, and gives it again to whoever does it again. Not so with now(), in Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from penstock.spark.pipelines.errors import PipelineError

_KEEPS_ORDER = frozenset(
    {
        "CTERelationDef",
        "CTERelationRef",
        "CollectMetrics",
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "MapInArrow",
        "MapInPandas",
        "OneRowRelation",
        "PipeOperator",
        "Project",
        "StreamingRelationV2",
        "SubqueryAlias",
        "View",
        "WithCTE",
    }
)
# What Spark calls deterministic and is not: these have the time at which a batch happens to be done.
_TIMES = frozenset({"Now", "CurrentTime"})
# What a stream writes down for each of its batches, and nobody for a program that is run again.
_TIMES_OF_BATCHES = frozenset({"CurrentTimestamp", "CurrentDate", "LocalTimestamp"})
_WHAT_IT_IS = {
    "Aggregate": "groups rows",
    "Deduplicate": "drops duplicates",
    "Distinct": "drops duplicates",
    "Except": "compares rows with others",
    "FlatMapGroupsInPandas": "groups rows",
    "GlobalLimit": "counts rows",
    "Intersect": "compares rows with others",
    "Join": "joins",
    "Repartition": "moves rows to other partitions",
    "RepartitionByExpression": "moves rows to other partitions",
    "Sort": "sorts",
    "Union": "reads its input several times",
    "Window": "compares rows with others",
}


def analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


TRANSFORMS_KEEP_ORDER = (
    "a transform keeps the order of every partition, row by row; windows and groups are for the pipeline aggregate"
)


def check_order(frame: DataFrame, what: str, why: str = TRANSFORMS_KEEP_ORDER) -> None:
    """Raises PipelineError unless every row depends on one row of one partition, in turn."""
    if not frame.isStreaming:
        raise PipelineError(f"{what} reads nothing of the topic: its records are the view input")
    for node in _nodes(analyzed(frame)):
        name = str(node.nodeName())
        if name not in _KEEPS_ORDER:
            does = _WHAT_IT_IS.get(name, f"does something else than select, filter and explode ({name})")
            raise PipelineError(f"{what} {does}: {why}")
        if node.subqueries().size():
            raise PipelineError(f"{what} has a subquery, whose answer may change: a stream looks at its records only")


def check_repeatable(frame: DataFrame, what: str) -> None:
    """Raises PipelineError when it may give another result the second time."""
    for culprit in _culprits(frame, _TIMES):
        raise PipelineError(
            f"{what} is not repeatable: {culprit} gives another result when a batch is done again after a "
            "failure, so the output could not be exactly once; leave it out, derive it from the record "
            "(xxhash64(key, offset), for example; the time of a batch is current_timestamp()), or ask for "
            "--at-least-once"
        )


def check_same_in_every_run(frame: DataFrame, what: str) -> None:
    """As `check_repeatable`, where no stream writes the time down. Raises PipelineError."""
    for culprit in _culprits(frame, _TIMES | _TIMES_OF_BATCHES):
        raise PipelineError(
            f"{what} is not repeatable: {culprit} gives another result in every run, and one that was cut off could "
            "not go on; leave it out, or derive it from the record (xxhash64(key, offset), for example; a time can be "
            "written out)"
        )


def attribute_ids(frame: DataFrame) -> dict[str, int]:
    """Spark's number of each column: one that a query hands through keeps it."""
    return {str(each.name()): int(each.exprId().id()) for each in _items(analyzed(frame).output())}


def _culprits(frame: DataFrame, times: frozenset[str]) -> Iterator[str]:
    plan = analyzed(frame)
    patterns: Any = getattr(frame.sparkSession._jvm, "org.apache.spark.sql.catalyst.trees.TreePattern")
    # Nearly always there is none, and Java knows: to look at every expression from here takes a second.
    if plan.deterministic() and not plan.containsPattern(patterns.CURRENT_LIKE()):
        return
    for node in _nodes(plan):
        for expression in _items(node.expressions()):
            yield from _not_repeatable(expression, times)


def _not_repeatable(expression: Any, times: frozenset[str]) -> Iterator[str]:
    if str(expression.getClass().getSimpleName()) in times:
        yield str(expression.sql())
    children = list(_items(expression.children()))
    if not expression.deterministic() and all(child.deterministic() for child in children):
        yield str(expression.sql())
    for child in children:
        yield from _not_repeatable(child, times)


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _items(plan.children()):
        yield from _nodes(child)


def _items(sequence: Any) -> Iterator[Any]:
    """Of a Scala Seq."""
    for at in range(sequence.size()):
        yield sequence.apply(at)
