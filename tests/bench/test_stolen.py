"""A repetition during which the host took processor time away is done again, but not for ever."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from bench.side_by_side.stolen import TRIES_AT_MOST, Ticks, parse_ticks, undisturbed

pytestmark = pytest.mark.quick


def clock(*stolen_percent: int) -> Callable[[], Ticks]:
    """Before and after each repetition, of which so much is stolen."""

    def times() -> Iterator[Ticks]:
        total = stolen = 0
        for percent in stolen_percent:
            yield Ticks(total, stolen)
            total, stolen = total + 100, stolen + percent
            yield Ticks(total, stolen)

    following = times()
    return lambda: next(following)


def counter() -> Callable[[], int]:
    numbers = itertools.count()
    return lambda: next(numbers)


def test_given_a_quiet_host_when_measured_then_the_first_repetition_counts() -> None:
    measured = undisturbed(counter(), clock(0))

    assert (measured.answer, measured.thrown_away) == (0, 0)


def test_given_a_host_that_steals_once_when_measured_then_that_repetition_is_thrown_away() -> None:
    measured = undisturbed(counter(), clock(30, 2, 1))

    assert (measured.answer, measured.thrown_away, measured.stolen_share) == (2, 2, 0.01)


def test_given_a_host_that_always_steals_when_measured_then_the_least_disturbed_counts_and_says_so() -> None:
    measured = undisturbed(counter(), clock(30, 20, 5, 40))

    assert (measured.answer, measured.thrown_away, measured.stolen_share) == (2, TRIES_AT_MOST - 1, 0.05)


def test_given_the_kernels_text_when_parsed_then_steal_is_the_eighth_field_and_guests_are_not_counted_twice() -> None:
    text = "cpu  10 20 30 40 50 60 70 80 900 1000\ncpu0 1 2 3 4 5 6 7 8 9 10\n"

    assert parse_ticks(text) == Ticks(total=360, stolen=80)
