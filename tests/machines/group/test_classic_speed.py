"""Rebalances of large groups must not hold up the event loop, and heartbeats must not depend on the group's size."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.machines.group.classic_dialogue import DELAY_MS, Dialogue, Join, all_sync

LOOP_BUDGET_S = 0.020
METADATA = bytes(500)


def big_group(count: int) -> tuple[Dialogue, list[Join]]:
    talk = Dialogue()
    joins = [talk.join(version=3, protocols=(("range", METADATA), ("sticky", METADATA))) for _ in range(count)]
    talk.pass_ms(2 * DELAY_MS)
    return talk, joins


def fastest(work: Callable[[], object], times: int = 5) -> float:
    def once() -> float:
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun

    return min(once() for _ in range(times))


def test_given_200_members_when_the_last_joins_again_then_the_loop_is_not_held_up() -> None:
    talk, joins = big_group(200)
    all_sync(talk, joins)
    ids = [join.member_id for join in joins]
    protocols = (("range", METADATA), ("sticky", METADATA))

    def rebalance() -> float:
        for member_id in ids[:-1]:
            talk.join(member_id, protocols=protocols)
        begun = time.perf_counter()
        last = talk.join(ids[-1], protocols=(("range", METADATA), ("sticky", str(talk.requests).encode())))
        taken = time.perf_counter() - begun
        assert last.error == "ok"
        talk.classic.unsynced.clear()
        talk.sync(ids[0], last.generation, dict.fromkeys(ids, METADATA))
        assert talk.state == "Stable"
        return taken

    assert min(rebalance() for _ in range(3)) < LOOP_BUDGET_S


def test_given_200_members_when_the_leader_plans_then_the_loop_is_not_held_up() -> None:
    def plan() -> float:
        talk, joins = big_group(200)
        plan = {join.member_id: METADATA for join in joins}
        for join in joins[1:]:
            talk.sync(join.member_id, 1)
        begun = time.perf_counter()
        talk.sync(joins[0].member_id, 1, plan)
        taken = time.perf_counter() - begun
        assert talk.state == "Stable"
        return taken

    assert min(plan() for _ in range(3)) < LOOP_BUDGET_S


def test_given_ten_times_the_members_when_they_send_heartbeats_then_each_takes_as_long() -> None:
    def taken(count: int) -> float:
        talk, joins = big_group(count)
        member_id = joins[count // 2].member_id
        return fastest(lambda: [talk.heartbeat(member_id, 1) for _ in range(200)])

    assert taken(1_000) < 5 * taken(100)
