"""Batches that wait before they can be appended: in order for each producer, and in nobody else's way."""

import asyncio

import pytest

from penstock.replication.admission import AdmissionLanes
from penstock.runtime.tasks import TaskGroup


def never(name: str, error: BaseException) -> None:
    raise AssertionError(name) from error


async def test_given_a_batch_that_waits_then_its_producer_waits_behind_it_and_others_do_not() -> None:
    tasks = TaskGroup(on_crash=never)
    lanes = AdmissionLanes(tasks, "orders-0")
    appended: list[str] = []
    coordinator = asyncio.Event()

    async def append(name: str, *, waits: bool = False) -> None:
        if waits:
            await coordinator.wait()
        appended.append(name)

    assert lanes.submit(1, append("first of one", waits=True))
    assert lanes.submit(1, append("second of one"))
    assert not lanes.submit(2, append("first of two"))
    assert appended == ["first of two"]
    assert set(lanes.waiting) == {1}

    coordinator.set()
    async with asyncio.timeout(20):
        while lanes.waiting:  # noqa: ASYNC110  # its task has its turns
            await asyncio.sleep(0)
    assert appended == ["first of two", "first of one", "second of one"]
    await tasks.stop()


async def test_given_an_append_that_waits_several_times_then_what_it_waits_for_reaches_it() -> None:
    tasks = TaskGroup(on_crash=never)
    lanes = AdmissionLanes(tasks, "orders-0")
    heard: list[object] = []
    waited_for = [asyncio.get_running_loop().create_future() for _ in range(3)]

    async def append() -> None:
        for each in waited_for:
            try:
                heard.append(await each)
            except ValueError as error:
                heard.append(error)

    lanes.submit(1, append())
    for outcome, each in zip(("one", error := ValueError("two"), "three"), waited_for, strict=True):
        if isinstance(outcome, ValueError):
            each.set_exception(outcome)
        else:
            each.set_result(outcome)
    async with asyncio.timeout(20):
        while lanes.waiting:  # noqa: ASYNC110  # its task has its turns
            await asyncio.sleep(0)

    assert heard == ["one", error, "three"]
    await tasks.stop()


async def test_given_a_stop_while_batches_wait_then_nothing_is_left_behind(recwarn: pytest.WarningsRecorder) -> None:
    tasks = TaskGroup(on_crash=never)
    lanes = AdmissionLanes(tasks, "orders-0")

    async def append() -> None:
        await asyncio.Event().wait()

    for _ in range(3):
        lanes.submit(1, append())
    await asyncio.sleep(0)
    await tasks.stop()

    assert not lanes.waiting
    assert not recwarn.list  # of coroutines that nobody awaited
