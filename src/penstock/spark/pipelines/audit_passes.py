"""An audit's passes over the data: how far each has come, what it took, and how it is stopped.

Each runs in a thread of its own. Whoever waits for Spark in the main thread can neither show anything nor be told to
stop: a signal there breaks into the conversation with the JVM.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.spark.pipelines.errors import PipelineError, why
from penstock.spark.pipelines.progress import Progress
from penstock.spark.pipelines.running import StopRequest

log = logging.getLogger(__name__)

_POLL_S = 0.2
Found = TypeVar("Found")


class Stopped(PipelineError):
    """On request, before there was a result."""


class Passes:
    """`rows` is about how many all of them have to read; until it is known no progress is shown."""

    def __init__(self, spark: SparkSession, name: str, stop: StopRequest, progress: Progress) -> None:
        self.rows = 0
        self._context = spark.sparkContext
        self._name = name
        self._stop = stop
        self._progress = progress
        self._read = 0
        self._passed = 0

    def run(
        self, step: str, work: Callable[[], Found], rows: int = 0, counted: Callable[[Found], int] | None = None
    ) -> Found:
        """`rows` is about how many it has to read; `counted`, how many it says at the end to have found.

        Raises PipelineError; Stopped when it was cut off on request.
        """
        future: Future[Found] = Future()
        group = f"penstock-audit-{uuid.uuid4()}"

        def worked() -> None:
            self._context.setJobGroup(group, f"{self._name}: {step}")
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        if self._stop.is_made:
            raise self._stopped()
        begun_s = time.monotonic()
        thread = InheritableThread(target=worked, name=f"audit-{step}", daemon=True)
        thread.start()
        self._wait(thread, group, rows)
        try:
            found = future.result()
        except Exception as error:
            if self._stop.is_made:  # and whoever asked may have asked Spark's processes as well
                raise self._stopped() from error
            if isinstance(error, (PySparkException, Py4JError)):
                raise PipelineError(f"{self._name}: {why(error)}") from error
            raise
        self._passed += rows
        if counted is not None:
            self._tell(step, counted(found), begun_s)
        return found

    def _tell(self, step: str, rows: int, begun_s: float) -> None:
        took_ms = round((time.monotonic() - begun_s) * 1_000)
        facts = {"pipeline": self._name, "step": step, "rows": rows, "ms": took_ms}
        log.info("step done", extra=facts | {"rows_per_s": round(rows * 1_000 / max(1, took_ms))})

    def _wait(self, thread: threading.Thread, group: str, rows: int) -> None:
        read_before = self._read
        try:
            while thread.is_alive():
                thread.join(_POLL_S)
                if self._progress.is_shown and self.rows:
                    read = self._rows_read(group)
                    self._read = read_before + read
                    self._progress.show_parts(self._passed + min(read, rows), self.rows, self._read)
                # Again and again: the next job of the group may not have begun yet.
                if self._stop.is_made:
                    self._cancel(group)
        except BaseException:  # where signals are somebody else's, as in a notebook
            self._cancel(group)
            raise

    def _rows_read(self, group: str) -> int:
        """Those of tasks that have ended, and of others as far as they have told lately."""
        tracker, found = self._context.statusTracker(), 0
        stages = {
            stage
            for job in tracker.getJobIdsForGroup(group)
            if (told := tracker.getJobInfo(job)) is not None
            for stage in told.stageIds
        }
        for stage in stages:
            with suppress(Py4JJavaError):  # one that has not begun, or was not needed
                found += self._context._jsc.sc().statusStore().lastStageAttempt(stage).inputRecords()
        return found

    def _cancel(self, group: str) -> None:
        with suppress(Py4JError, OSError):  # the JVM may have been told to stop as well
            self._context.cancelJobGroup(group)

    def _stopped(self) -> Stopped:
        return Stopped(f"{self._name}: stopped on request, before everything was compared")
