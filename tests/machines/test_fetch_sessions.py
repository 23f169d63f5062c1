"""Incremental fetch sessions against a client that remembers everything it was told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.fetch_sessions import EVICTION_MS, MAX_CACHED_PARTITIONS, FetchPartition, FetchSessions


def wanting(*indexes: int) -> list[FetchPartition]:
    return [FetchPartition("orders", index, 0, 1000, -1) for index in indexes]


def test_given_an_unknown_session_when_used_then_70() -> None:
    sessions = FetchSessions(max_sessions=2, seed=1)

    with pytest.raises(BrokerError) as refused:
        sessions.use(7, 1, [], [], now_ms=0, by_id=False)

    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_given_a_session_when_used_with_another_epoch_then_71_and_the_right_one_still_works() -> None:
    sessions = FetchSessions(max_sessions=2, seed=1)
    session = sessions.open(wanting(0), now_ms=0, by_id=False)
    assert session is not None

    with pytest.raises(BrokerError) as refused:
        sessions.use(session.session_id, 5, [], [], now_ms=0, by_id=False)

    assert refused.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.use(session.session_id, 1, [], [], now_ms=0, by_id=False) is session
    assert session.epoch == 2


def test_given_the_last_epoch_when_used_then_the_next_one_is_1_and_never_0() -> None:
    sessions = FetchSessions(max_sessions=2, seed=1)
    session = sessions.open(wanting(0), now_ms=0, by_id=False)
    assert session is not None
    session.epoch = 2**31 - 1

    sessions.use(session.session_id, 2**31 - 1, [], [], now_ms=0, by_id=False)

    assert session.epoch == 1


def test_given_all_slots_in_use_when_another_is_wanted_then_only_an_idle_one_gives_way() -> None:
    sessions = FetchSessions(max_sessions=1, seed=1)
    first = sessions.open(wanting(0), now_ms=0, by_id=False)
    assert first is not None

    assert sessions.open(wanting(0), now_ms=EVICTION_MS - 1, by_id=False) is None
    second = sessions.open(wanting(0), now_ms=EVICTION_MS, by_id=False)

    assert second is not None
    assert len(sessions) == 1


def test_given_a_session_that_grows_past_the_bound_then_it_is_given_up() -> None:
    sessions = FetchSessions(max_sessions=2, seed=1)
    session = sessions.open(wanting(0), now_ms=0, by_id=False)
    assert session is not None

    with pytest.raises(BrokerError) as refused:
        sessions.use(session.session_id, 1, wanting(*range(MAX_CACHED_PARTITIONS + 1)), [], now_ms=0, by_id=False)

    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 0


def test_given_a_served_partition_then_the_others_come_first_next_time() -> None:
    sessions = FetchSessions(max_sessions=1, seed=1)
    session = sessions.open(wanting(0, 1, 2), now_ms=0, by_id=False)
    assert session is not None

    session.served(session.partitions[("orders", 0)])

    assert [each.index for each in session.partitions.values()] == [1, 2, 0]


def test_given_an_error_when_it_is_over_then_the_client_is_told_again() -> None:
    (partition,) = wanting(0)
    assert partition.is_news(5, 0, has_records=False, error_code=0)
    assert not partition.is_news(5, 0, has_records=False, error_code=0)
    assert partition.is_news(-1, -1, has_records=False, error_code=3)

    assert partition.is_news(5, 0, has_records=False, error_code=0)


def test_given_a_replica_that_is_nearer_when_nothing_else_changes_then_the_client_is_told() -> None:
    (partition,) = wanting(0)
    assert partition.is_news(5, 0, has_records=False, error_code=0)

    assert partition.is_news(5, 0, has_records=False, error_code=0, is_elsewhere=True)


STATES = st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([0, 0, 0, 6]))


@given(st.lists(STATES, min_size=1))
def test_a_client_that_keeps_what_it_was_told_knows_the_truth(states: list[tuple[int, int, int]]) -> None:
    (partition,) = wanting(0)
    known: tuple[int, int, int] | None = None

    for high_watermark, log_start_offset, error_code in states:
        if partition.is_news(high_watermark, log_start_offset, has_records=False, error_code=error_code):
            known = (high_watermark, log_start_offset, error_code)
        assert known is not None
        assert known[2] == error_code
        assert error_code or known[:2] == (high_watermark, log_start_offset)
