"""What is staged in a turn of the loop, when it is done, and in which order."""

from __future__ import annotations

import asyncio

from penstock.runtime.tick import ROUNDS, Tick


async def test_given_work_of_one_turn_then_all_writes_come_before_the_first_send() -> None:
    tick, done = Tick(asyncio.get_running_loop()), list[str]()
    tick.send(lambda: done.append("send"))
    tick.write(lambda: done.append("write 1"))
    tick.write(lambda: done.append("write 2"))
    assert not done

    await asyncio.sleep(0)

    assert done == ["write 1", "write 2", "send"]


async def test_given_a_write_that_stages_another_then_it_is_done_in_the_same_turn_behind_the_answer() -> None:
    tick, done = Tick(asyncio.get_running_loop()), list[str]()

    def prepare() -> None:
        done.append("prepare")
        tick.write(lambda: done.append("marker"))
        tick.send(lambda: done.append("answer"))

    tick.write(prepare)
    await asyncio.sleep(0)

    assert done == ["prepare", "answer", "marker"]


async def test_given_work_without_end_then_the_loop_goes_on_beside_it() -> None:
    tick, turns = Tick(asyncio.get_running_loop()), list[int]()
    is_wanted = True

    def again() -> None:
        turns.append(1)
        if is_wanted:
            tick.write(again)

    tick.write(again)
    for turn in range(1, 4):
        await asyncio.sleep(0)
        assert len(turns) == turn * ROUNDS
    is_wanted = False


async def test_given_work_that_fails_then_what_was_staged_meanwhile_is_still_done() -> None:
    loop = asyncio.get_running_loop()
    tick, done, failures = Tick(loop), list[str](), list[object]()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fail() -> None:
        tick.write(lambda: done.append("staged meanwhile"))
        raise RuntimeError("a bug")

    tick.write(fail)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tick.write(lambda: done.append("staged later"))
    await asyncio.sleep(0)

    assert done == ["staged meanwhile", "staged later"]
    assert [str(each) for each in failures] == ["a bug"]
