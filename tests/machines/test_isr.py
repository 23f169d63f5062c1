from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import BrokerId
from penstock.replication.isr import Isr

LEADER, FAST, SLOW = BrokerId(1), BrokerId(2), BrokerId(3)


def test_given_one_replica_when_it_holds_more_then_the_high_watermark_is_what_it_holds() -> None:
    isr = Isr([LEADER], 5)

    assert isr.held(LEADER, 9)

    assert isr.high_watermark == 9


def test_given_a_slow_follower_when_others_are_ahead_then_the_high_watermark_waits_for_it() -> None:
    isr = Isr([LEADER, FAST, SLOW], 0)

    assert not isr.held(LEADER, 10)
    assert not isr.held(FAST, 10)
    assert isr.held(SLOW, 4)

    assert isr.high_watermark == 4


@given(st.lists(st.tuples(st.sampled_from([LEADER, FAST, SLOW]), st.integers(0, 50))))
def test_the_high_watermark_never_goes_back_and_never_passes_what_all_hold(reports: list[tuple[BrokerId, int]]) -> None:
    isr = Isr([LEADER, FAST, SLOW], 0)
    held = {LEADER: 0, FAST: 0, SLOW: 0}
    highest_common = 0

    for who, offset in reports:
        before = isr.high_watermark
        isr.held(who, offset)
        held[who] = offset
        highest_common = max(highest_common, min(held.values()))
        assert isr.high_watermark >= before
        assert isr.high_watermark == highest_common
