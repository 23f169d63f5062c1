"""Compaction in the background: which log is cleaned next, in a thread, at the pace that the operator allows.

What must stay true:
- The dirtiest log that is due comes first. One that cannot be cleaned is said once, counted, and holds up no other.
- The loop decides and puts segments in place; everything that reads, computes or waits runs in a thread.
- When this stops, no thread is left at any log. When it dies of a bug, that is logged and counted, and it begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.core.ids import TopicPartition
from penstock.core.metrics import CleanerMetrics
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup
from penstock.storage.cleaning_state import EVERYWHERE
from penstock.storage.compaction import CleanerLimits, Cleaning, CleaningAborted, Work, plan_cleaning
from penstock.storage.compaction_plan import CleaningPlan
from penstock.storage.log import Log
from penstock.storage.log_file import DISK_FULL
from penstock.storage.pace import Pace
from penstock.storage.segment import CorruptSegment
from penstock.storage.segment_swap import RetiredFiles

log = logging.getLogger(__name__)

MAX_THREADS = 64
# Plans made by one visit of a thread: in between, others may have the interpreter.
PLANS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    is_enabled: bool
    threads: int
    limits: CleanerLimits
    max_bytes_per_s: float
    backoff_ms: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A log of a compacted topic. Nothing at or above `upper_offset`, its last stable offset, is touched, and no
    tombstone and no marker goes at or above `removable_end`.
    """

    topic_partition: TopicPartition
    log: Log
    upper_offset: int
    removable_end: int = EVERYWHERE


class Cleaner:
    def __init__(
        self,
        candidates: Callable[[], Iterable[Candidate]],
        settings: Callable[[], CleanerSettings],
        cleaned: Callable[[], Awaitable[None]],
        *,
        metrics: CleanerMetrics,
        tasks: TaskGroup,
        clock: Clock,
    ) -> None:
        """`cleaned` is awaited after every round: it writes down how far each log is cleaned."""
        self._candidates = candidates
        self._settings = settings
        self._cleaned = cleaned
        self._metrics = metrics
        self._tasks = tasks
        self._clock = clock
        # Its own threads: a round takes as long as a disk does, and nobody should queue behind it.
        self._files = Files(MAX_THREADS, "cleaner")
        self._stop = threading.Event()
        self._pace = Pace(clock.monotonic_ms, self._stop)
        self._running: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                try:
                    await self._work()
                except Exception as error:  # a bug: compaction must not stay away until the next restart
                    self._metrics.restarts += 1
                    log.error("the cleaner died and begins anew", exc_info=error)
                    await asyncio.sleep(self._settings().backoff_ms / 1000)
        finally:
            self._stop.set()
            while self._running:
                await asyncio.wait(set(self._running))
            self._files.close()

    async def _work(self) -> None:
        while True:
            settings = self._settings()
            self._pace.bytes_per_s = settings.max_bytes_per_s
            chosen = None
            if settings.is_enabled and len(self._running) < settings.threads:
                chosen = await self._choose()
            if chosen is None:
                # Not wait_for: when both happen at once it loses a cancellation, and this would go on for ever.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(settings.backoff_ms / 1000):
                        await self._wake.wait()
                self._wake.clear()
                continue
            candidate, plan = chosen
            candidate.log.cleaning.is_busy = True
            task = self._tasks.spawn(self._clean(candidate, plan, settings), name=f"clean-{candidate.topic_partition}")
            self._running.add(task)
            task.add_done_callback(partial(self._ended, candidate.log))

    # Choosing

    async def _choose(self) -> tuple[Candidate, CleaningPlan] | None:
        """The dirtiest log that is due."""
        now_ms = self._clock.now_ms()
        candidates = list(self._candidates())
        self._metrics.last_run_ms = self._clock.monotonic_ms()
        self._metrics.uncleanable_partitions = sum(each.log.cleaning.uncleanable is not None for each in candidates)
        generations = {each.log: each.log.generation for each in candidates}
        plans: list[tuple[Candidate, CleaningPlan]] = []
        for at in range(0, len(candidates), PLANS_AT_ONCE):
            free = [each for each in candidates[at : at + PLANS_AT_ONCE] if self._is_free(each.log)]
            if free:
                plans += await self._planned(free, now_ms)
        self._metrics.max_dirty_ratio = max((plan.dirty_ratio for _, plan in plans), default=0.0)
        # Planning took a while: a log may have gone since, or been cut.
        due = [
            (each, plan)
            for each, plan in plans
            if plan.is_due and self._is_free(each.log) and each.log.generation == generations[each.log]
        ]
        return max(due, key=lambda each: each[1].dirty_ratio, default=None)

    async def _planned(self, free: list[Candidate], now_ms: int) -> list[tuple[Candidate, CleaningPlan]]:
        """While a thread looks at them, nobody cuts them."""
        plans: list[tuple[Candidate, CleaningPlan]] = []
        for each in free:
            each.log.cleaning.is_busy = True
        try:
            await self._in_thread(lambda: plans.extend(_plans(free, now_ms, self._give_up)))
        finally:
            for each in free:
                each.log.cleaning.is_busy = False
        return plans

    def _is_free(self, candidate: Log) -> bool:
        state = candidate.cleaning
        return not (
            state.is_busy
            or state.uncleanable is not None
            or candidate.is_failed
            or candidate.is_being_cut
            or candidate.is_swapping
            or len(candidate.segments) < 2
            or state.not_before_ms > self._clock.monotonic_ms()
        )

    def _give_up(self, candidate: Candidate, error: BaseException) -> None:
        """Until the next restart: what is wrong does not go away on its own."""
        candidate.log.cleaning.uncleanable = str(error) or type(error).__name__
        if isinstance(error, CorruptSegment | OSError):
            candidate.log.suspect(error)
        self._metrics.uncleanable_partitions += 1
        is_bug = not isinstance(error, CorruptSegment | OSError)
        log.error(
            "partition cannot be compacted, it is left alone until a restart",
            extra={"partition": candidate.topic_partition, "reason": str(error)},
            exc_info=error if is_bug else None,
        )

    def _ended(self, cleaned: Log, task: asyncio.Task[None]) -> None:
        """Not at the task's own end: one that is cancelled before it began has none."""
        self._running.discard(task)
        cleaned.cleaning.is_busy = False
        self._wake.set()

    # Cleaning

    async def _clean(self, candidate: Candidate, plan: CleaningPlan, settings: CleanerSettings) -> None:
        state = candidate.log.cleaning
        limits = CleanerLimits(
            settings.limits.dedupe_buffer_bytes // max(1, settings.threads),
            settings.limits.load_factor,
            settings.limits.io_buffer_bytes // max(1, settings.threads),
        )
        cleaning = Cleaning(
            candidate.log, plan, limits, self._clock.now_ms(), self._pace.passed, candidate.removable_end
        )
        try:
            await self._drive(cleaning)
            await self._cleaned()
            self._tell(candidate, cleaning)
        except CleaningAborted:
            state.not_before_ms = self._clock.monotonic_ms() + settings.backoff_ms
        except OSError as error:
            state.not_before_ms = self._clock.monotonic_ms() + settings.backoff_ms
            if error.errno in DISK_FULL:
                log.error("not compacted: the disk is full", extra={"partition": candidate.topic_partition})
            elif not candidate.log.is_deleted:
                self._give_up(candidate, error)
        except Exception as error:
            self._give_up(candidate, error)
        finally:
            self._metrics.bytes_read += cleaning.stats.bytes_read
            self._metrics.bytes_written += cleaning.stats.bytes_written
            if cleaning.retired and not self._stop.is_set():
                delay_ms = candidate.log.config.file_delete_delay_ms
                self._tasks.spawn(self._remove_later(cleaning.retired, delay_ms), name="remove-segments")

    async def _drive(self, cleaning: Cleaning) -> None:
        """What a step raises is raised where the step was yielded, so that it can tidy up."""
        steps = cleaning.steps()
        work = next(steps, None)
        while work is not None:
            try:
                await self._in_thread(work)
            except BaseException as error:
                work = steps.throw(error)
            else:
                work = next(steps, None)

    async def _in_thread(self, work: Work) -> None:
        """Comes back only when the thread has: also when this is cancelled, after telling the thread to stop."""
        ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._files.start(work, ended.set_result)
        try:
            error = await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._stop.set()
            await asyncio.wait([ended])
            raise
        if error is not None:
            raise error

    def _tell(self, candidate: Candidate, cleaning: Cleaning) -> None:
        self._metrics.runs += 1
        stats = cleaning.stats
        log.info(
            "log compacted",
            extra={
                "partition": candidate.topic_partition,
                "cleaned_offset": cleaning.clean_end,
                "bytes_read": stats.bytes_read,
                "bytes_written": stats.bytes_written,
                "records_read": stats.records_read,
                "records_kept": stats.records_kept,
            },
        )

    async def _remove_later(self, retired: list[RetiredFiles], delay_ms: int) -> None:
        await asyncio.sleep(delay_ms / 1000)
        try:
            for each in retired:
                await self._files.run(each.remove)
        except OSError as error:  # the next start removes them
            log.error("segments not removed", extra={"error": error})


def _plans(
    candidates: Sequence[Candidate], now_ms: int, give_up: Callable[[Candidate, BaseException], None]
) -> list[tuple[Candidate, CleaningPlan]]:
    """Blocking."""
    plans = []
    for each in candidates:
        try:
            plan = plan_cleaning(each.log, each.upper_offset, now_ms)
        except (CorruptSegment, OSError) as error:
            give_up(each, error)
            continue
        if plan is not None:
            plans.append((each, plan))
    return plans
