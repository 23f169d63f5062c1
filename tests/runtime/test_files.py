"""File threads: what they do, somebody waits for, cancelled or not."""

from __future__ import annotations

import asyncio
import threading

from penstock.runtime.files import Files
from penstock.runtime.tasks import spawn


async def test_given_work_whose_caller_was_cancelled_then_draining_waits_for_it() -> None:
    files, may_end, has_ended = Files(1, "test"), threading.Event(), []

    def work() -> None:
        may_end.wait(10)
        has_ended.append(True)

    caller = spawn(files.run(work), name="test")
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait((caller,))
    draining = spawn(files.drain(), name="test")
    await asyncio.sleep(0)
    assert not draining.done() and not has_ended

    may_end.set()
    await draining
    assert has_ended
    assert await files.run(lambda: "goes on") == "goes on"


async def test_given_a_caller_that_is_cancelled_then_it_counts_as_busy_until_its_thread_has_ended() -> None:
    files, may_end, busy = Files(1, "test"), threading.Event(), set[object]()
    reading = spawn(files.run_among(busy, may_end.wait, 10), name="test")
    waiting = spawn(files.run_among(busy, may_end.wait, 10), name="test")
    await asyncio.sleep(0)
    assert len(busy) == 2

    for caller in (reading, waiting):
        caller.cancel()
    await asyncio.wait((reading, waiting))
    assert len(busy) == 1  # of the other no thread will ever know

    may_end.set()
    await files.drain()
    assert not busy
