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
