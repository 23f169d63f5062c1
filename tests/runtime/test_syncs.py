"""Flushing beside the loop, by threads that do not know Python. That it reaches the disk is shown by the power cuts."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.runtime.syncs import Syncs
from tests.testkit.waiting import eventually

THREADS = 4

pytestmark = pytest.mark.skipif(not Syncs.are_there(), reason="built without a C compiler: Python's threads flush")


@pytest_asyncio.fixture
async def syncs() -> AsyncIterator[Syncs]:
    syncs = Syncs(THREADS)
    yield syncs
    syncs.close()


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"content")
    yield descriptor
    os.close(descriptor)


async def ended(syncs: Syncs, descriptor: int) -> OSError | None:
    outcome: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    syncs.start(descriptor, outcome.set_result)
    async with asyncio.timeout(20):
        return await outcome


async def test_given_more_than_threads_when_started_then_each_is_told_once(syncs: Syncs, descriptor: int) -> None:
    assert await asyncio.gather(*(ended(syncs, descriptor) for _ in range(500))) == [None] * 500


async def test_given_a_sync_that_fails_then_only_its_caller_hears_of_it(syncs: Syncs, descriptor: int) -> None:
    gone = os.dup(descriptor)
    os.close(gone)

    first, second, third = await asyncio.gather(*(ended(syncs, each) for each in (descriptor, gone, descriptor)))

    assert (first, third) == (None, None)
    assert second is not None and second.errno == errno.EBADF


async def test_given_a_callback_that_raises_then_the_others_are_told(syncs: Syncs, descriptor: int) -> None:
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))

    def fail(_: OSError | None) -> None:
        raise ValueError("a bug")

    syncs.start(descriptor, fail)
    assert await ended(syncs, descriptor) is None

    async with asyncio.timeout(20):
        while not raised:
            assert await ended(syncs, descriptor) is None
    assert isinstance(raised[0], ValueError)


async def test_given_syncs_under_way_when_closed_then_they_are_done_and_no_thread_is_left(descriptor: int) -> None:
    before = threads()
    syncs = Syncs(THREADS)
    for _ in range(50):
        syncs.start(descriptor, lambda _: None)

    syncs.close()

    eventually(lambda: threads() <= before, 20)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))
