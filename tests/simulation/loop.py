"""An event loop with a time of its own, shared by simulated processes that can be stopped and killed.

When nothing is left to do, it is the time of the next timer. Everything that a process calls or waits for carries its
mark (a context variable, which tasks and callbacks inherit), so the callbacks of one that is stopped are kept, and
those of one that was killed are dropped: it is as if it had never come to its next instruction.

Within a process callbacks run in asyncio's order, on which code may rely.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from asyncio.events import Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from enum import Enum
from typing import Any, TypeVar

from penstock.runtime.files import Files

_T = TypeVar("_T")

START_S = 1_000.0


class ProcessState(Enum):
    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"


class Process:
    """`luck` is its own, so that what it draws does not depend on what others do meanwhile."""

    def __init__(self, name: str, seed: object) -> None:
        self.name = name
        self.luck = random.Random(f"{seed}/{name}")
        self.state = ProcessState.RUNNING
        self.held: list[Handle] = []
        self.context = copy_context()
        self.context.run(_PROCESS.set, self)
        # How long its disk takes for what it is given, in seconds.
        self.disk_s = (0.0001, 0.002)

    def disk_delay(self) -> float:
        return self.luck.uniform(*self.disk_s)


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def current_process() -> Process | None:
    return _PROCESS.get()


class NothingHappens(Exception):
    """Everybody waits for somebody else."""


class SimulatedLoop(asyncio.BaseEventLoop):
    _ready: deque[Handle]
    _scheduled: list[TimerHandle]
    _timer_cancelled_count: int

    def __init__(self) -> None:
        super().__init__()
        self._now = START_S
        self._readers: dict[int, tuple[Readable, Context, Callable[[], None]]] = {}
        self._sources: dict[int, Readable] = {}
        self.steps = 0
        # Those of a process that was killed never end, and must not be thrown away before everything is.
        self._all_tasks: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._new_task)

    def _new_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        self._all_tasks.append(task)
        return task

    def forget_tasks(self) -> None:
        """After the end: nothing that is thrown away now does or says anything."""
        self.close()
        for task in self._all_tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(Exception):
                    task.get_coro().close()
        self._all_tasks.clear()
        self._ready.clear()
        self._scheduled.clear()

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]
        if not ready:
            if not scheduled:
                raise NothingHappens
            self._now = max(self._now, scheduled[0].when())
        while scheduled and scheduled[0].when() <= self._now:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]
            if process is not None and process.state is not ProcessState.RUNNING:
                if process.state is ProcessState.STOPPED:
                    process.held.append(handle)
                continue
            self.steps += 1
            handle._run()

    def _process_events(self, event_list: object) -> None: ...

    def _write_to_self(self) -> None: ...

    def _check_closed(self) -> None:
        """Coroutines that are thrown away afterwards may still call something, which comes to nothing."""

    # Processes

    def spawn(self, process: Process, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        return self.create_task(work, name=process.name, context=process.context)

    def stop_process(self, process: Process) -> None:
        """SIGSTOP."""
        if process.state is ProcessState.RUNNING:
            process.state = ProcessState.STOPPED

    def continue_process(self, process: Process) -> None:
        if process.state is ProcessState.STOPPED:
            process.state = ProcessState.RUNNING
            self._ready.extend(process.held)
            process.held.clear()

    def kill_process(self, process: Process) -> None:
        """SIGKILL. What it had given to the network and to the page cache is there; nothing of it runs any more."""
        process.state = ProcessState.DEAD
        process.held.clear()

    # Threads: what they would do happens at once, a while later.

    def run_in_executor(self, executor: Any, func: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:  # type: ignore[override]
        future: asyncio.Future[_T] = self.create_future()
        process = current_process()

        def work() -> None:
            try:
                result = func(*args)
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(0 if process is None else process.disk_delay(), work)
        return future

    # Sockets

    def add_source(self, source: Readable) -> None:
        self._sources[source.fileno()] = source

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        self._readers[fd] = (self._sources[fd], copy_context(), callback)
        self.poll(fd)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def add_writer(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        raise AssertionError("a simulated socket takes everything at once")

    def remove_writer(self, fd: Any) -> bool:
        return False

    def poll(self, fd: int) -> None:
        """Calls whoever reads, once, if there is something to read."""
        reader = self._readers.get(fd)
        if reader is not None and reader[0].is_readable and not reader[0].is_polled:
            reader[0].is_polled = True
            self.call_soon(self._read, fd, reader[0], context=reader[1])

    def _read(self, fd: int, source: Readable) -> None:
        source.is_polled = False
        reader = self._readers.get(fd)
        if reader is not None and source.is_readable:
            reader[2]()
            self.poll(fd)


class Readable:
    """A socket, as the loop sees it."""

    is_polled = False

    def fileno(self) -> int:
        raise NotImplementedError

    @property
    def is_readable(self) -> bool:
        raise NotImplementedError


class SimulatedFiles(Files):
    """The threads of a simulated process."""

    def __init__(self, process: Process) -> None:
        super().__init__(1, "simulated")
        self._process = process

    __slots__ = ("_process",)

    async def run(self, function: Callable[..., _T], *args: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(None, lambda: function(*args))

    async def run_among(self, busy: set[object], function: Callable[..., _T], *args: object) -> _T:
        one = object()
        busy.add(one)
        try:
            return await self.run(function, *args)
        finally:
            busy.discard(one)

    def start(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        def job() -> None:
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:
                error = raised
            done(error)

        asyncio.get_running_loop().call_later(self._process.disk_delay(), job)

    async def drain(self) -> None: ...

    def close(self) -> None: ...


class SimulatedClock:
    """The wall clock may be set; nothing but what a record is stamped with should mind."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.step_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.step_ms + int(self._loop.time() * 1000)

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000)
