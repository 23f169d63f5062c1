from __future__ import annotations

import pytest

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.replication.isr import PROPOSAL_BACKOFF_MS, Isr, Member, Proposal

LEADER, FAST, SLOW = BrokerId(1), BrokerId(2), BrokerId(3)
LAG_MAX_MS = 30_000


def an_isr(*members: BrokerId, high_watermark: int = 0, start_offset: int = 0, min_isr: int = 1) -> Isr:
    """Of a partition with three replicas, whose brokers serve in the epochs 12 and 13."""
    return Isr(
        members,
        high_watermark,
        leader=LEADER,
        replicas=(LEADER, FAST, SLOW),
        partition_epoch=7,
        start_offset=start_offset,
        min_isr=min_isr,
        lag_max_ms=LAG_MAX_MS,
        serving={LEADER: 11, FAST: 12, SLOW: 13},
        now_ms=0,
    )


def fetch(isr: Isr, replica: BrokerId, offset: int, end: int, *, now_ms: float = 0, held: int | None = None) -> bool:
    return isr.fetched(replica, 10 + replica, offset, offset if held is None else held, end, now_ms)


def ids(proposal: Proposal | None) -> list[BrokerId] | None:
    return None if proposal is None else [each.broker_id for each in proposal.members]


def test_given_one_replica_when_it_holds_more_then_the_high_watermark_is_what_it_holds() -> None:
    isr = Isr([LEADER], 5)

    assert isr.held(LEADER, 9)

    assert isr.high_watermark == 9
    assert isr.is_full


def test_given_a_slow_follower_when_others_are_ahead_then_the_high_watermark_waits_for_it() -> None:
    isr = an_isr(LEADER, FAST, SLOW)

    assert not isr.held(LEADER, 10)
    assert not fetch(isr, FAST, 10, 10)
    assert fetch(isr, SLOW, 4, 10)

    assert isr.high_watermark == 4


def test_given_a_topic_that_flushes_when_a_follower_has_fetched_more_then_what_it_flushed_counts() -> None:
    isr = an_isr(LEADER, FAST)
    isr.held(LEADER, 10)

    fetch(isr, FAST, 10, 10, held=6)

    assert isr.high_watermark == 6


def test_given_fewer_than_min_insync_replicas_when_all_hold_more_then_nothing_more_is_committed() -> None:
    isr = an_isr(LEADER, min_isr=2)
    isr.serving = {}

    assert not isr.held(LEADER, 10)

    fetch(isr, FAST, 10, 10)
    isr.serving = {FAST: 12}
    proposal = isr.propose(10, 0)
    assert ids(proposal) == [LEADER, FAST]
    assert isr.high_watermark == 0
    assert isr.committed([LEADER, FAST], 8, 10, 0)
    assert isr.high_watermark == 10


def test_given_a_silent_follower_when_lag_time_passes_then_it_is_proposed_to_leave() -> None:
    isr = an_isr(LEADER, FAST, SLOW)
    isr.held(LEADER, 10)
    fetch(isr, SLOW, 10, 10, now_ms=0)
    fetch(isr, FAST, 20, 20, now_ms=29_000)

    assert isr.propose(20, 30_000) is None
    proposal = isr.propose(20, 30_001)

    assert proposal == Proposal((Member(LEADER, -1), Member(FAST, 12)), 7)
    isr.held(LEADER, 20)
    assert isr.high_watermark == 10  # not before the store says so
    assert isr.committed([LEADER, FAST], 8, 20, 30_002)
    assert isr.high_watermark == 20


def test_given_a_follower_that_always_flushes_a_few_fetches_later_when_time_passes_then_it_is_not_behind() -> None:
    isr = an_isr(LEADER, FAST)
    for turn in range(1_000):
        end = 100 * turn
        fetch(isr, FAST, end, end + 100, held=max(0, end - 500), now_ms=100.0 * turn)

    assert isr.propose(100_000, 100_000.0) is None


def test_given_nothing_new_when_a_follower_is_silent_then_it_stays() -> None:
    isr = an_isr(LEADER, FAST)
    fetch(isr, FAST, 10, 10)

    assert isr.propose(10, 1_000_000) is None


def test_given_replicas_at_rest_for_long_when_something_is_written_then_they_are_behind_only_from_then_on() -> None:
    isr = an_isr(LEADER, FAST, SLOW)
    isr.held(LEADER, 10)
    for follower in (FAST, SLOW):
        fetch(isr, follower, 10, 10)

    assert isr.is_at_rest(10, 1_000_000)
    assert not isr.is_at_rest(20, 1_000_500)

    assert isr.propose(20, 1_000_000 + LAG_MAX_MS) is None
    assert ids(isr.propose(20, 1_000_001 + LAG_MAX_MS)) == [LEADER]


def test_given_replicas_at_rest_when_another_is_added_then_nobody_waits_for_it_before_it_has_caught_up() -> None:
    isr = an_isr(LEADER, FAST, SLOW)
    isr.held(LEADER, 10)
    for follower in (FAST, SLOW):
        fetch(isr, follower, 10, 10)
    assert isr.is_at_rest(10, 100)
    new = BrokerId(4)
    isr.serving = {**isr.serving, new: 14}
    isr.replicas_changed((LEADER, FAST, SLOW, new), 10, 200)

    fetch(isr, new, 0, 20, now_ms=300)
    isr.held(LEADER, 20)
    for follower in (FAST, SLOW):
        fetch(isr, follower, 20, 20, now_ms=300)

    assert isr.high_watermark == 20


def test_given_a_replica_that_fell_out_when_it_comes_back_behind_then_nobody_waits_for_it() -> None:
    isr = an_isr(LEADER, FAST, SLOW)
    isr.held(LEADER, 10)
    for follower in (FAST, SLOW):
        fetch(isr, follower, 10, 10)
    isr.committed([LEADER, FAST], 8, 10, 100)
    isr.serving = {**isr.serving, SLOW: 15}

    isr.fetched(SLOW, 15, 3, 3, 20, 200)
    isr.held(LEADER, 20)
    fetch(isr, FAST, 20, 20, now_ms=300)
    assert isr.high_watermark == 20

    isr.fetched(SLOW, 15, 20, 20, 20, 400)
    assert ids(isr.propose(20, 400)) == [LEADER, FAST, SLOW]


@pytest.mark.parametrize("silent", [FAST, SLOW])
def test_given_a_member_that_has_said_nothing_in_this_epoch_then_the_partition_is_not_at_rest(silent: BrokerId) -> None:
    isr = an_isr(LEADER, FAST, SLOW, high_watermark=10)
    fetch(isr, FAST if silent == SLOW else SLOW, 10, 10)

    assert not isr.is_at_rest(10, 1_000)
    assert silent not in (ids(isr.propose(10, LAG_MAX_MS + 1)) or [silent])


def test_given_a_replica_that_is_not_in_sync_then_the_partition_is_not_at_rest() -> None:
    isr = an_isr(LEADER, FAST, high_watermark=10)
    fetch(isr, FAST, 10, 10)

    assert not isr.is_at_rest(10, 1_000)


def test_given_a_follower_below_the_epochs_start_when_it_fetches_then_it_joins_only_above_it() -> None:
    isr = an_isr(LEADER, high_watermark=3, start_offset=9)

    fetch(isr, SLOW, 8, 9)
    assert isr.propose(9, 0) is None
    fetch(isr, SLOW, 9, 9)
    assert ids(isr.propose(9, 0)) == [LEADER, SLOW]


def test_given_a_caught_up_follower_when_it_is_about_to_join_then_the_high_watermark_waits_for_it() -> None:
    isr = an_isr(LEADER)
    fetch(isr, FAST, 10, 10, now_ms=0)

    assert isr.held(LEADER, 20)

    assert isr.high_watermark == 10
    assert isr.tick(20, 30_001)
    assert isr.high_watermark == 20


def test_given_another_process_of_a_broker_when_it_fetches_then_what_the_last_one_held_is_forgotten() -> None:
    isr = an_isr(LEADER)
    fetch(isr, FAST, 10, 10)

    isr.fetched(FAST, 15, 0, 0, 10, 0)

    assert isr.propose(10, 0) is None
    with pytest.raises(BrokerError) as stale:
        fetch(isr, FAST, 10, 10)
    assert stale.value.code == ErrorCode.STALE_BROKER_EPOCH


def test_given_a_broker_that_does_not_serve_when_it_is_caught_up_then_it_does_not_join() -> None:
    isr = an_isr(LEADER)
    isr.serving = {LEADER: 11, SLOW: 14}

    fetch(isr, FAST, 10, 10)
    fetch(isr, SLOW, 10, 10)

    assert isr.propose(10, 0) is None


def test_given_no_replica_when_it_fetches_then_it_is_told_to_come_again() -> None:
    with pytest.raises(BrokerError) as unknown:
        an_isr(LEADER).fetched(BrokerId(9), 1, 0, 0, 0, 0)

    assert unknown.value.code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_given_a_refused_proposal_when_nothing_is_in_doubt_then_only_the_members_count_again() -> None:
    isr = an_isr(LEADER)
    fetch(isr, FAST, 10, 10)
    proposal = isr.propose(10, 0)
    assert proposal is not None
    isr.serving = {}

    isr.held(LEADER, 30)
    assert isr.high_watermark == 10
    assert isr.refused(proposal, ErrorCode.INELIGIBLE_REPLICA, 30, 0)

    assert isr.high_watermark == 30


def test_given_a_proposal_without_an_answer_when_the_next_is_refused_then_the_first_still_counts() -> None:
    isr = an_isr(LEADER)
    fetch(isr, FAST, 10, 10)
    first = isr.propose(10, 0)
    assert first is not None
    isr.refused(first, ErrorCode.REQUEST_TIMED_OUT, 10, 0)
    isr.serving = {}
    isr.held(LEADER, 30)

    again = isr.propose(30, PROPOSAL_BACKOFF_MS)

    assert ids(again) == [LEADER]  # as it is, in a new partition epoch
    assert again is not None
    assert not isr.refused(again, ErrorCode.INELIGIBLE_REPLICA, 30, PROPOSAL_BACKOFF_MS)
    assert isr.high_watermark == 10
    assert isr.committed([LEADER], 8, 30, PROPOSAL_BACKOFF_MS)
    assert isr.high_watermark == 30


def test_given_a_pending_proposal_when_asked_again_then_there_is_one_at_a_time_and_a_pause_after_a_refusal() -> None:
    isr = an_isr(LEADER)
    fetch(isr, FAST, 10, 10)
    proposal = isr.propose(10, 0)
    fetch(isr, SLOW, 10, 10)

    assert isr.propose(10, 0) is None
    assert proposal is not None
    isr.refused(proposal, ErrorCode.INELIGIBLE_REPLICA, 10, 0)
    assert isr.propose(10, PROPOSAL_BACKOFF_MS - 1) is None
    assert ids(isr.propose(10, PROPOSAL_BACKOFF_MS)) == [LEADER, FAST, SLOW]


def test_given_a_new_leader_when_it_does_not_know_all_that_is_committed_then_it_is_not_settled() -> None:
    isr = an_isr(LEADER, FAST, high_watermark=3, start_offset=9)
    isr.held(LEADER, 9)

    fetch(isr, FAST, 8, 9)
    assert not isr.is_settled
    fetch(isr, FAST, 9, 9)
    assert isr.is_settled


def test_given_replicas_when_one_has_not_cleaned_or_not_fetched_then_nothing_behind_it_may_be_removed() -> None:
    isr = an_isr(LEADER, FAST, SLOW)
    fetch(isr, FAST, 50, 50)
    isr.flushed(FAST, 12, 50, 50, 50, 0, cleaned_offset=40)

    assert isr.cleaned_everywhere(45) == 0
    fetch(isr, SLOW, 30, 50)
    isr.flushed(SLOW, 13, 30, 30, 50, 0, cleaned_offset=45)
    assert isr.cleaned_everywhere(45) == 30


def test_given_a_replica_that_is_spoilt_then_nothing_is_kept_for_its_sake() -> None:
    isr = an_isr(LEADER, FAST)
    fetch(isr, FAST, 50, 50)
    isr.flushed(FAST, 12, 50, 50, 50, 0, cleaned_offset=40)
    assert isr.cleaned_everywhere(45) == 0

    isr.spoilt = frozenset({SLOW})

    assert isr.cleaned_everywhere(45) == 40


def test_given_replicas_when_one_out_of_sync_is_not_heard_of_then_it_is_away() -> None:
    isr = an_isr(LEADER, FAST)
    fetch(isr, FAST, 0, 10, now_ms=0)
    fetch(isr, SLOW, 0, 10, now_ms=10)

    assert isr.away(1_000, now_ms=1_010) == []
    assert isr.away(1_000, now_ms=1_011) == [SLOW]
    fetch(isr, SLOW, 0, 10, now_ms=1_011)
    assert isr.away(1_000, now_ms=1_011) == []
    isr.spoilt = frozenset({SLOW})
    assert isr.away(1_000, now_ms=9_999) == []


def test_given_a_report_that_is_overtaken_when_it_comes_late_then_the_later_one_still_counts() -> None:
    isr = an_isr(LEADER, FAST)
    isr.held(LEADER, 10)
    isr.fetched(FAST, 12, 10, None, 10, 0)
    isr.flushed(FAST, 12, 10, 8, 10, 0, cleaned_offset=6)

    isr.flushed(FAST, 12, 7, 7, 10, 0, cleaned_offset=5)

    assert isr.high_watermark == 8
    isr.held(LEADER, 12)
    isr.fetched(FAST, 12, 10, None, 12, 0)  # what it said last is 8, not 7
    isr.fetched(SLOW, 13, 12, 12, 12, 0)
    isr.flushed(SLOW, 13, 12, 12, 12, 0, cleaned_offset=7)
    assert isr.cleaned_everywhere(9) == 6
    isr.flushed(FAST, 12, 10, 10, 12, 0)
    assert isr.high_watermark == 10


def test_given_a_report_of_a_process_that_has_not_fetched_then_it_does_not_count() -> None:
    isr = an_isr(LEADER, FAST)
    isr.held(LEADER, 10)

    with pytest.raises(BrokerError, match="has not fetched"):
        isr.flushed(FAST, 12, 10, 10, 10, 0)
    isr.fetched(FAST, 12, 10, None, 10, 0)
    with pytest.raises(BrokerError, match="has not fetched"):
        isr.flushed(FAST, 15, 10, 10, 10, 0)

    assert isr.high_watermark == 0


def test_given_a_reassignment_when_replicas_change_then_the_new_one_may_join_and_the_old_one_no_more() -> None:
    isr = an_isr(LEADER, FAST)
    new = BrokerId(4)
    isr.serving = {FAST: 12, new: 14}

    isr.replicas_changed([LEADER, FAST, new], 10, 0)
    isr.fetched(new, 14, 10, 10, 10, 0)

    assert ids(isr.propose(10, 0)) == [LEADER, FAST, new]
    with pytest.raises(BrokerError):
        fetch(isr, SLOW, 10, 10)
