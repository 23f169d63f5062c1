"""A rate for those who catch up: kept on average, whatever is taken at a time, and never so that they stand still."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import BrokerId
from penstock.replication.throttle import SAVED_MS, Throttle, is_listed

RATES = st.integers(1, 10_000_000)
SIZES = st.integers(1, 2_000_000)
# When somebody asks next, and how much it then takes.
FETCHES = st.lists(st.tuples(st.integers(0, 3_000), SIZES), min_size=1, max_size=60)


@given(rate=RATES, fetches=FETCHES)
def test_given_fetches_that_ask_first_then_in_any_time_no_more_than_the_rate_what_was_saved_and_one_fetch_go_through(
    rate: int, fetches: list[tuple[int, int]]
) -> None:
    throttle = Throttle()
    now_ms, taken = 0, []
    for pause_ms, size in fetches:
        now_ms += pause_ms
        if not throttle.is_exceeded(rate, now_ms):
            throttle.take(size, rate, now_ms)
            taken.append((now_ms, size))

    for first, (since_ms, _) in enumerate(taken):
        total = 0
        for at_ms, size in taken[first:]:
            allowed = rate * (at_ms - since_ms + SAVED_MS) / 1000
            assert total <= allowed + 1e-6 * max(1, allowed)  # before this one, which nobody knew the size of
            total += size


@given(rate=RATES, fetches=FETCHES)
def test_given_a_debt_when_it_is_paid_off_then_the_next_fetch_goes_through(
    rate: int, fetches: list[tuple[int, int]]
) -> None:
    throttle = Throttle()
    for _, size in fetches:
        throttle.take(size, rate, 0)

    paid_ms = sum(size for _, size in fetches) * 1000 / rate
    assert not throttle.is_exceeded(rate, paid_ms + 1)


@given(rate=st.integers(1_000, 10_000_000))
def test_given_somebody_who_asks_once_a_second_then_it_gets_the_whole_rate(rate: int) -> None:
    throttle = Throttle()
    size = max(1, rate // 100)

    total = 0
    for now_ms in range(0, 60_000, 1_000):
        while not throttle.is_exceeded(rate, now_ms):
            throttle.take(size, rate, now_ms)
            total += size

    assert total >= 59 * rate


def test_given_a_rate_of_nothing_then_nothing_goes_through_before_there_is_another() -> None:
    throttle = Throttle()
    assert throttle.is_exceeded(0, 0)
    assert throttle.is_exceeded(0, 1_000_000)
    assert not throttle.is_exceeded(1, 1_001_000)


def test_given_no_limit_when_there_is_one_then_what_was_saved_before_is_worth_no_more_than_it_allows() -> None:
    throttle = Throttle()
    throttle.take(10**9, 2**63 - 1, 0)

    throttle.take(2_001, 1_000, 0)

    assert throttle.is_exceeded(1_000, 0)


def test_given_a_list_then_it_names_replicas_by_partition_and_broker_or_all() -> None:
    assert is_listed(("0:1", "3:2"), 3, BrokerId(2))
    assert not is_listed(("0:1", "3:2"), 3, BrokerId(1))
    assert not is_listed((), 0, BrokerId(1))
    assert is_listed(("*",), 7, BrokerId(9))
