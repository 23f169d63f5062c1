"""Traps A1, A2: a follower cuts off what its leader has not, and nothing else, however the two logs came to differ."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.replication.truncation import EpochEnd, diverging_epoch, truncation_offset
from penstock.storage.epochs import UNDEFINED_EPOCH, LeaderEpochs

# A record is known by the epoch of its leader and by what that leader wrote.
Record = tuple[int, int]


def epochs_of(log: list[Record]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for offset, (epoch, _) in enumerate(log):
        epochs.assign(epoch, offset)
    return epochs


def answer(leader: list[Record], follower: list[Record]) -> EpochEnd | None:
    return diverging_epoch(
        epochs_of(leader),
        len(leader),
        last_fetched_epoch=follower[-1][0] if follower else UNDEFINED_EPOCH,
        fetch_offset=len(follower),
    )


def settle(leader: list[Record], follower: list[Record]) -> int:
    """Asks and cuts until the leader agrees. Returns how many rounds it took."""
    rounds = 0
    while (diverging := answer(leader, follower)) is not None:
        offset = truncation_offset(epochs_of(follower), len(follower), diverging)
        assert 0 <= offset < len(follower)
        del follower[offset:]
        rounds += 1
    return rounds


@pytest.mark.parametrize(
    ("leader", "follower", "diverging", "remains"),
    [
        pytest.param([1, 1, 1], [1, 1], None, 2, id="A: behind, in the same epoch"),
        pytest.param([1, 1, 2], [1, 1], None, 2, id="B: behind, in an earlier epoch"),
        pytest.param([1, 1], [1, 1, 1, 1], (1, 2), 2, id="C: ahead, in the same epoch"),
        pytest.param([1, 1], [1, 1, 2, 2], (1, 2), 2, id="D: ahead, in a later epoch"),
        pytest.param([1, 1, 3], [1, 1, 2], (1, 2), 2, id="E: forked, each in an epoch of its own"),
        pytest.param([1, 1], [1, 2], (1, 2), 1, id="F: forked, the leader in the common epoch"),
        pytest.param([1, 3], [2, 2], (1, 1), 0, id="G: forked, without a common epoch"),
    ],
)
def test_given_a_shape_of_divergence_when_the_follower_asks_then_it_keeps_what_both_have(
    leader: list[int], follower: list[int], diverging: EpochEnd | None, remains: int
) -> None:
    leaders = [(epoch, 0) for epoch in leader]
    followers = [(epoch, 0) for epoch in follower]

    assert answer(leaders, followers) == diverging

    assert settle(leaders, followers) == (diverging is not None)
    assert len(followers) == remains


def test_given_one_unreplicated_record_of_each_of_three_leaders_when_they_ask_then_one_round_each_is_enough() -> None:
    common = [(1, 0)]
    first, second, third = [*common, (1, 1)], [*common, (2, 1)], [*common, (3, 1)]

    assert settle(third, first) == 1
    assert settle(third, second) == 1

    assert first == second == common


def test_given_a_leader_that_has_deleted_the_epoch_when_asked_then_it_ends_where_the_log_starts() -> None:
    epochs = LeaderEpochs()
    epochs.assign(3, 0)
    epochs.assign(5, 80)
    epochs.cut_before(100)

    assert diverging_epoch(epochs, 150, last_fetched_epoch=3, fetch_offset=100) is None
    assert diverging_epoch(epochs, 150, last_fetched_epoch=3, fetch_offset=120) == (3, 100)


def test_given_an_empty_log_when_the_follower_has_records_then_it_keeps_none_behind_its_start() -> None:
    assert diverging_epoch(LeaderEpochs(), 10, last_fetched_epoch=3, fetch_offset=12) == (3, 10)
    assert diverging_epoch(LeaderEpochs(), 10, last_fetched_epoch=3, fetch_offset=10) is None
    assert diverging_epoch(LeaderEpochs(), 10, last_fetched_epoch=-1, fetch_offset=10) is None


REPLICAS = 3
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("elect"), st.integers(0, REPLICAS - 1)),
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("ask"), st.integers(0, REPLICAS - 1)),
        st.tuples(st.just("copy"), st.integers(0, 3 * REPLICAS - 1)),
    ),
    max_size=60,
)


def common_prefix(one: list[Record], other: list[Record]) -> int:
    same = [mine == theirs for mine, theirs in zip(one, other, strict=False)]
    return same.index(False) if False in same else len(same)


@given(STEPS)
@settings(max_examples=400)
def test_any_two_logs_that_grew_under_a_chain_of_leaders_keep_exactly_what_both_have(
    steps: list[tuple[str, int]],
) -> None:
    logs: list[list[Record]] = [[] for _ in range(REPLICAS)]
    leader, epoch, written = 0, 0, 0
    for step, number in steps:
        if step == "elect":  # whoever it is, as in an unclean election
            leader, epoch = number, epoch + 1
        elif step == "append":
            for _ in range(number):
                logs[leader].append((epoch, written := written + 1))
        elif step == "ask" and number != leader:  # one round, and whatever comes next may be another election
            diverging = answer(logs[leader], logs[number])
            if diverging is not None:
                del logs[number][truncation_offset(epochs_of(logs[number]), len(logs[number]), diverging) :]
        elif step == "copy" and (follower := number // 3) != leader and answer(logs[leader], logs[follower]) is None:
            assert logs[leader][: len(logs[follower])] == logs[follower]
            logs[follower] += logs[leader][len(logs[follower]) :][: 1 + number % 3]

    for follower in range(REPLICAS):
        before = list(logs[follower])
        rounds = settle(logs[leader], logs[follower])
        assert logs[follower] == logs[leader][: len(logs[follower])]
        assert len(logs[follower]) == common_prefix(before, logs[leader])
        assert rounds <= len({each for each, _ in before}) + 1
