"""The only place that spawns tasks: every task has a name, an owner that awaits it, and a death that is seen.

A task that dies of an exception nobody expected is a bug: it is logged once, with its name, and handed to `on_crash`
(the node stops the broker: better down than silently half alive).
"""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

log = logging.getLogger(__name__)


class TaskGroup:
    """Supervised tasks that end together. `stop()` cancels them and waits until they are gone."""

    def __init__(self, on_crash: Callable[[str, BaseException], None] | None = None) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_crash = on_crash

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("task died", extra={"task": task.get_name()}, exc_info=error)
            if self._on_crash is not None:
                self._on_crash(task.get_name(), error)

    async def stop(self) -> None:
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def begun(work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None] | None:
    """Runs `work` up to where it first waits, without a task. What is left of it, for a task, or None: it has ended."""
    try:
        awaited = work.send(None)
    except StopIteration:
        return None
    return _rest(work, awaited)


@types.coroutine
def _rest(work: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    try:
        while True:
            try:
                value = yield awaited
            except BaseException as error:
                awaited = work.throw(error)
            else:
                awaited = work.send(value)
    except StopIteration:
        return


_process_tasks = TaskGroup()


def spawn(work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
    """Spawn a task whose owner keeps it and cancels it; crashes are logged."""
    return _process_tasks.spawn(work, name=name)
