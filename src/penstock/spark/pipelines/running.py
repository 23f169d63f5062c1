"""Running a streaming query: how far it has come, what each batch took, and how it ends.

Whoever asks it to stop once gets the batch that runs finished; asked a second time it stops at once. Either way
nothing is lost or doubled: a batch that was cut off is done again by the next run.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import FrameType

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.spark.pipelines.batches import Batch, Totals, finished_batches
from penstock.spark.pipelines.errors import PipelineError, why
from penstock.spark.pipelines.progress import Progress

log = logging.getLogger(__name__)

DEFAULT_INTERVAL_S = 1.0
_POLL_S = 0.2
_TOGETHER_S = 0.2


@dataclass(frozen=True, slots=True)
class Running:
    """How a query runs: up to what is there now, or on and on with a batch every so often.

    `rows_of` knows how many rows a batch had, where Spark counts those twice that are read twice; it may have none.
    """

    name: str
    checkpoint: str
    follow: bool = False
    interval_s: float = DEFAULT_INTERVAL_S
    rows_of: Callable[[int], int | None] = field(default=lambda batch_id: None)


@dataclass(frozen=True, slots=True)
class Ended:
    rows: int
    batches: int
    seconds: float
    was_stopped: bool = False

    def __str__(self) -> str:
        rate = f", {self.rows / self.seconds:,.0f} rows/s" if self.rows and self.seconds else ""
        stopped = ", stopped on request" if self.was_stopped else ""
        return f"{self.rows:,} rows in {self.batches} batches, {self.seconds:.1f} s{rate}{stopped}"


class StopRequest:
    """Whether somebody has asked to stop, and whether they have asked again.

    Terminals, `timeout` and systemd signal several times at once: what comes together is one request. Where one listens
    within another, as a query does within a command, both have the same.
    """

    def __init__(self) -> None:
        self.is_made = False
        self.is_urgent = False
        self._last_s = 0.0

    def make(self, now_s: float) -> bool:
        """Whether it is one of its own, and not the last one once more."""
        if self.is_made and now_s - self._last_s < _TOGETHER_S:
            return False
        self.is_urgent = self.is_made
        self.is_made, self._last_s = True, now_s
        return True


class _Listener:
    def __init__(self, heard: Callable[[StopRequest], object]) -> None:
        around = signal.getsignal(signal.SIGTERM)
        self.stop: StopRequest = around.stop if isinstance(around, _Listener) else StopRequest()
        self._heard = heard

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.stop.make(time.monotonic()):
            self._heard(self.stop)


@contextmanager
def listening(heard: Callable[[StopRequest], object] = lambda stop: None) -> Iterator[StopRequest]:
    """SIGINT and SIGTERM are requests while it lasts. Only the main thread may listen to signals; others get none."""
    if threading.current_thread() is not threading.main_thread():
        yield StopRequest()
        return
    listener = _Listener(heard)
    before = {each: signal.signal(each, listener) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield listener.stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stopping_on_signals(when_urgent: Callable[[], object] = lambda: None) -> Iterator[StopRequest]:
    """What runs meanwhile looks at the request by itself."""
    with listening(lambda stop: stop.is_urgent and when_urgent()) as stop:
        yield stop


def run(writer: DataStreamWriter, how: Running) -> Ended:
    """Starts the query and returns when it has ended. Raises PipelineError with the reason when it fails."""
    begun_s = time.monotonic()
    with stopping_on_signals() as stop, Progress(how.name, how.follow) as progress:
        try:
            query = _started(writer, how)
        except PySparkException as error:
            raise PipelineError(f"{how.name}: {why(error)}") from error
        watched = _Watched(query, how, progress)
        _until_ended(watched, stop)
    totals = watched.totals
    ended = Ended(totals.rows, totals.batches, time.monotonic() - begun_s, stop.is_made)
    log.info("pipeline ended", extra={"pipeline": how.name, "rows": ended.rows, "batches": ended.batches})
    return ended


def _started(writer: DataStreamWriter, how: Running) -> StreamingQuery:
    named = writer.queryName(how.name).option("checkpointLocation", how.checkpoint)
    if how.follow:
        return named.trigger(processingTime=f"{int(how.interval_s * 1_000)} milliseconds").start()
    return named.trigger(availableNow=True).start()


class _Watched:
    """A query, and the batches that were told of already."""

    def __init__(self, query: StreamingQuery, how: Running, progress: Progress) -> None:
        self.query = query
        self.how = how
        self.totals = Totals()
        self._progress = progress
        self._seen = ""

    def look(self) -> None:
        for batch in finished_batches(self.query, self._seen):
            self._seen = batch.begun
            rows = self.how.rows_of(batch.id)
            if rows is not None:
                batch = replace(batch, rows=rows)
            self.totals = self.totals.and_then(batch)
            self._tell(batch)
        self._progress.show(self.totals)

    def _tell(self, batch: Batch) -> None:
        facts = {"pipeline": self.how.name, "batch": batch.id, "rows": batch.rows, "ms": batch.milliseconds}
        facts |= {"rows_per_s": round(batch.rows_per_second)}
        if batch.lag is not None:
            facts["lag"] = batch.lag
        if batch.bad:
            facts["bad"] = batch.bad
        log.info("batch done", extra=facts)


def _until_ended(watched: _Watched, stop: StopRequest) -> None:
    query, batches_when_asked = watched.query, None
    try:
        while not _has_ended(query):
            watched.look()
            if not stop.is_made:
                continue
            if batches_when_asked is None:
                batches_when_asked = watched.totals.batches
                log.info("stopping after this batch", extra={"pipeline": watched.how.name})
            is_between = not query.status["isTriggerActive"] or watched.totals.batches > batches_when_asked
            if stop.is_urgent or is_between:
                query.stop()
                break
        watched.look()
    except KeyboardInterrupt:  # where signals are somebody else's, as in a notebook
        stop.make(time.monotonic())
        query.stop()
        watched.look()
    except (PySparkException, Py4JError, ConnectionError) as error:
        # Whoever asked us to stop may have asked Spark's processes as well: they may be gone by now.
        if stop.is_made:
            with suppress(PySparkException, Py4JError, ConnectionError):
                watched.look()
        elif isinstance(error, PySparkException):
            raise PipelineError(f"{watched.how.name}: {why(error)}") from error
        else:
            raise
    except BaseException:
        query.stop()
        raise


def _has_ended(query: StreamingQuery) -> bool:
    return bool(query.awaitTermination(timeout=_POLL_S))  # type: ignore[arg-type] # Spark takes fractions as well
