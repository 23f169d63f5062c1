from __future__ import annotations

from penstock.runtime.stop_signals import TOGETHER_S, StopSignals


def test_given_signals_that_come_together_then_they_count_as_one() -> None:
    signals = StopSignals()

    assert [signals.received(now_s) for now_s in (5.0, 5.001, 5.0 + TOGETHER_S)] == [1, 0, 2]


def test_given_a_signal_in_the_first_moments_of_the_clock_then_it_counts() -> None:
    assert StopSignals().received(0.0) == 1
