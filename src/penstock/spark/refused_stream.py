"""A stream that cannot be: it says why as soon as Spark asks it anything.

Spark 4.3 loses an error that is raised while it makes a reader of a stream, and reports one of its own instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from penstock.spark.errors import plainly

Json = dict[str, Any]


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, why: Exception) -> None:
        self._why = why

    def _refuse(self) -> NoReturn:
        with plainly():
            raise self._why

    def prepareForTriggerAvailableNow(self) -> None:
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        self._refuse()

    def initialOffset(self) -> Json:
        self._refuse()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        self._refuse()

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        self._refuse()
