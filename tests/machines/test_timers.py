"""Timers against a dictionary of deadlines that is searched each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinators.timers import Timers

KEYS = st.sampled_from("abcde")
TIMES = st.integers(0, 50)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, TIMES),
        st.tuples(st.just("cancel"), KEYS, st.just(0)),
        st.tuples(st.just("pass"), st.just(""), st.integers(0, 10)),
    ),
    max_size=200,
)


@given(STEPS)
def test_given_any_script_then_exactly_the_due_keys_come_up_and_never_late(steps: list[tuple[str, str, int]]) -> None:
    timers: Timers[str] = Timers()
    model: dict[str, int] = {}
    now_ms = 0
    for step, key, amount in steps:
        if step == "set":
            timers.set(key, now_ms + amount)
            model[key] = now_ms + amount
        elif step == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            now_ms += amount
            expected = {each for each, deadline_ms in model.items() if deadline_ms <= now_ms}
            came_up = list(timers.due(now_ms))
            assert sorted(came_up) == sorted(expected)
            model = {each: deadline_ms for each, deadline_ms in model.items() if each not in expected}
        next_ms = timers.next_ms()
        assert not model or (next_ms is not None and next_ms <= min(model.values()))
        assert {each: timers.deadline_ms(each) for each in model} == model


def test_given_a_key_moved_many_times_then_the_heap_does_not_grow() -> None:
    timers: Timers[int] = Timers()
    for now_ms in range(10_000):
        timers.set(1, now_ms + 100)
        assert not list(timers.due(now_ms))

    for key in range(10_000):
        timers.set(key, key)
        timers.cancel(key)

    assert timers.next_ms() is None or len(list(timers.due(10**6))) <= 1
    assert len(timers._heap) < 1_000
