"""Fetch sessions between replicas, both ends of them: whatever happens, what the leader has comes to the follower, and
what has come is not told again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicId
from penstock.replication.fetch_session import MAX_EPOCH, Asking, Key, NextRequest, Served, Serving, ServingSessions
from penstock.replication.follower import NextFetch

TOPIC = TopicId(bytes(16))
FOLLOWER = BrokerId(2)
KEYS: list[Key] = [(TOPIC, index) for index in range(4)]
MAX_BYTES = 100


def at(offset: int, epoch: int = 1) -> NextFetch:
    return NextFetch(offset, epoch if offset else -1, epoch, 0, 0, 0)


def served(session: Serving, key: Key, offset: int, epoch: int = 1) -> Served:
    partition = session.names(key)
    partition.asks(offset, -1, epoch, MAX_BYTES, 0)
    return partition


def test_given_a_session_when_nothing_has_changed_then_a_request_names_nothing() -> None:
    asking = Asking()
    asking.start_over(KEYS)

    first = asking.request(lambda key: at(0))
    asking.answered(session_id=7)
    second = asking.request(lambda key: at(0))

    assert (first.session_id, first.session_epoch, list(first.wanted)) == (0, 0, KEYS)
    assert second == NextRequest(7, 1, {}, [])


def test_given_a_partition_that_is_not_to_be_asked_for_when_the_leader_has_it_then_it_is_forgotten_once() -> None:
    asking = Asking()
    asking.start_over(KEYS[:2])
    asking.request(lambda key: at(0))
    asking.answered(session_id=7)

    asking.look_at(KEYS[0])
    forgets = asking.request(lambda key: None)
    asking.look_at(KEYS[0])
    again = asking.request(lambda key: None)

    assert forgets.forgotten == [KEYS[0]]
    assert again.forgotten == []
    assert len(asking) == 1


def test_given_an_answer_that_was_not_used_then_the_same_question_is_asked_again() -> None:
    asking = Asking()
    asking.start_over(KEYS[:1])
    asking.request(lambda key: at(5))
    asking.answered(session_id=7)

    asking.dropped(KEYS[0])

    request = asking.request(lambda key: at(5))
    assert (request.wanted, request.forgotten) == ({KEYS[0]: at(5)}, [KEYS[0]])


def test_given_a_high_watermark_that_the_follower_did_not_use_then_it_is_told_again() -> None:
    ends = TwoEnds()
    ends.append(KEYS[0], 1)
    ends.settle()
    ends.commit(KEYS[0])
    ends.exchange(is_lost=False, is_used=True)
    ends.commit(KEYS[0])

    ends.append(KEYS[0], 1)
    ends.exchange(is_lost=False, is_used=True)
    ends.commit(KEYS[0])
    ends.exchange(is_lost=False, is_used=False)

    ends.settle()


def test_given_sessions_when_the_follower_begins_another_then_the_last_one_waits_for_nothing_any_more() -> None:
    sessions = ServingSessions(seed=0)
    waiters: dict[Served, None] = {}
    before = sessions.begin(FOLLOWER)
    served(before, KEYS[0], 0).joins(waiters)
    woken: list[str] = []
    before.resume = lambda: woken.append("before")

    after = sessions.begin(FOLLOWER)

    assert woken == ["before"]
    assert not waiters
    assert sessions.find(FOLLOWER, after.session_id) is after
    with pytest.raises(BrokerError) as refused:
        sessions.find(FOLLOWER, before.session_id)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_given_a_request_that_was_lost_when_the_next_comes_then_it_is_refused() -> None:
    session = ServingSessions(seed=0).begin(FOLLOWER)
    session.begin_request(0)

    with pytest.raises(BrokerError) as refused:
        session.begin_request(2)

    assert refused.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_given_the_last_epoch_then_both_ends_go_on_with_the_first() -> None:
    session, asking = Serving(FOLLOWER, 1), Asking()
    session.epoch = asking.epoch = MAX_EPOCH

    session.begin_request(MAX_EPOCH)
    asking.answered(session_id=1)

    assert session.epoch == asking.epoch == 1


def test_given_a_follower_in_a_hurry_when_its_request_is_there_or_comes_then_it_does_not_wait() -> None:
    session = Serving(FOLLOWER, 1)
    session.begin_request(0)
    woken: list[int] = []
    session.resume = lambda: woken.append(0)

    session.hurry(0)
    session.hurry(1)
    session.begin_request(1)

    assert woken == [0]
    assert session.is_hurried
    session.begin_request(2)
    assert not session.is_hurried


def test_given_a_request_that_waits_when_records_come_then_it_is_resumed_and_not_for_a_high_watermark() -> None:
    session = Serving(FOLLOWER, 1)
    partition = served(session, KEYS[0], 0)
    session.told(partition)
    woken: list[str] = []
    session.resume = lambda: woken.append("resumed")

    partition.committed()
    assert (woken, session.new()) == ([], [partition])
    partition.arrived(10)

    assert woken == ["resumed"]


def test_given_consumers_at_the_follower_when_something_is_committed_then_it_is_told_at_once() -> None:
    session = Serving(FOLLOWER, 1, wakes_on_commit=True)
    partition = served(session, KEYS[0], 0)
    session.told(partition)
    woken: list[str] = []
    session.resume = lambda: woken.append("resumed")

    partition.committed()

    assert (woken, session.new()) == (["resumed"], [partition])


def test_given_a_new_leader_epoch_when_a_partition_is_asked_for_then_it_is_answered_though_nothing_is_new() -> None:
    session = Serving(FOLLOWER, 1)
    partition = served(session, KEYS[0], 5, epoch=1)
    assert partition.is_news(5, 0)
    assert not partition.is_news(5, 0)

    served(session, KEYS[0], 5, epoch=2)

    assert partition.is_untold
    assert partition.is_news(5, 0)


@dataclass
class Leader:
    end: int = 0
    high_watermark: int = 0
    log_start: int = 0
    epoch: int = 1
    waiters: dict[Served, None] = field(default_factory=dict)


@dataclass
class Replica:
    end: int = 0
    high_watermark: int = 0
    log_start: int = 0
    epoch: int = 1
    is_followed: bool = True
    is_paused: bool = False


class TwoEnds(RuleBasedStateMachine):
    """A leader and a follower of a few partitions, as their shells drive the session. An answer takes one partition's
    records at most, up to two of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.leader = {key: Leader() for key in KEYS}
        self.replica = {key: Replica() for key in KEYS}
        self.sessions = ServingSessions(seed=1)
        self.asking = Asking()
        self.asking.start_over(KEYS)

    # The leader

    @rule(key=st.sampled_from(KEYS), count=st.integers(1, 3))
    def append(self, key: Key, count: int) -> None:
        self.leader[key].end += count
        for waiter in list(self.leader[key].waiters):
            waiter.arrived(count)

    @rule(key=st.sampled_from(KEYS))
    def commit(self, key: Key) -> None:
        self.leader[key].high_watermark = self.leader[key].end
        for waiter in self.leader[key].waiters:
            waiter.committed()

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key: Key) -> None:
        """As far as the follower has come; the leader's shell looks at it from time to time."""
        partition = self.leader[key]
        partition.log_start = min(partition.high_watermark, self.replica[key].end)
        for waiter in partition.waiters:
            waiter.log_starts_at(partition.log_start)

    @rule(key=st.sampled_from(KEYS))
    def begin_epoch(self, key: Key) -> None:
        """Before the follower hears of it."""
        self.leader[key].epoch += 1

    # The follower

    @rule(key=st.sampled_from(KEYS))
    def hear_of_epoch(self, key: Key) -> None:
        if self.replica[key].epoch != self.leader[key].epoch:
            self.replica[key].epoch = self.leader[key].epoch
            self.asking.look_at(key)

    @rule(key=st.sampled_from(KEYS), is_followed=st.booleans())
    def follow(self, key: Key, is_followed: bool) -> None:
        self.replica[key].is_followed = is_followed
        self.asking.look_at(key)

    @rule(key=st.sampled_from(KEYS))
    def pause(self, key: Key) -> None:
        """It could not append, and waits for a while."""
        self.replica[key].is_paused = True
        self.asking.look_at(key)

    @rule(key=st.sampled_from(KEYS))
    def go_on(self, key: Key) -> None:
        self.replica[key].is_paused = False
        self.asking.look_at(key)

    @rule()
    def lose_the_connection(self) -> None:
        self.asking.start_over(KEYS)

    @rule()
    def leader_starts_anew(self) -> None:
        self.sessions = ServingSessions(seed=self.sessions._next_id + 10)
        for partition in self.leader.values():
            partition.waiters.clear()

    @rule(is_lost=st.booleans(), is_used=st.booleans())
    def exchange(self, is_lost: bool, is_used: bool) -> None:
        self.round(is_lost=is_lost, is_used=is_used)

    def question(self, key: Key) -> NextFetch | None:
        replica = self.replica[key]
        return at(replica.end, replica.epoch) if replica.is_followed and not replica.is_paused else None

    def round(self, *, is_lost: bool = False, is_used: bool = True) -> list[Key]:
        """One request and its answer, which names these partitions."""
        request = self.asking.request(self.question)
        try:
            session, rows = self.serve(request)
        except BrokerError:
            self.asking.start_over(KEYS)
            return []
        if is_lost:
            self.asking.start_over(KEYS)
            return []
        self.asking.answered(session.session_id)
        for key, (error, records, high_watermark, log_start) in rows.items():
            self.take(key, error, records, high_watermark, log_start, is_used=is_used)
        return list(rows)

    def serve(self, request: NextRequest) -> tuple[Serving, dict[Key, tuple[bool, int, int, int]]]:
        if request.session_epoch == 0:
            session = self.sessions.begin(FOLLOWER)
        else:
            session = self.sessions.find(FOLLOWER, request.session_id)
        session.begin_request(request.session_epoch)
        for key in request.forgotten:
            session.drop(key)
        for key, wanted in request.wanted.items():
            session.names(key).asks(
                wanted.fetch_offset, wanted.last_fetched_epoch, wanted.current_leader_epoch, MAX_BYTES, 0
            )
        rows: dict[Key, tuple[bool, int, int, int]] = {}
        has_room = True
        for each in session.new():
            partition = self.leader[each.key]
            if each.leader_epoch != partition.epoch:
                session.drop(each.key)
                rows[each.key] = (True, 0, -1, -1)
                continue
            each.is_asked = False
            each.joins(partition.waiters)
            left = partition.end - each.fetch_offset
            records = min(2, left) if has_room else 0
            has_room = has_room and not records
            is_news = each.is_news(partition.high_watermark, partition.log_start)
            if records or not left:
                session.told(each)
            if records or is_news:
                rows[each.key] = (False, records, partition.high_watermark, partition.log_start)
        return session, rows

    def take(self, key: Key, error: bool, records: int, high_watermark: int, log_start: int, *, is_used: bool) -> None:
        replica, question = self.replica[key], self.asking.question(key)
        if question is None:
            return
        is_of_now = question == self.question(key)
        if error or not is_of_now or not is_used:
            self.asking.dropped(key)
            return
        replica.end += records
        replica.high_watermark = max(replica.high_watermark, min(high_watermark, replica.end))
        replica.log_start = max(replica.log_start, min(log_start, replica.high_watermark))
        if records:
            self.asking.look_at(key)

    @invariant()
    def the_follower_has_nothing_that_the_leader_has_not(self) -> None:
        assert all(self.replica[key].end <= self.leader[key].end for key in KEYS)

    @precondition(lambda self: True)
    @rule()
    def settle(self) -> None:
        """When nothing more happens, all that is followed comes, and then there is nothing left to say."""
        for key in KEYS:
            self.hear_of_epoch(key)
            self.go_on(key)
        rounds = 0
        while self.round() or rounds < 2:
            rounds += 1
            assert rounds < 1_000, "an answer is never empty"
        for key, replica in self.replica.items():
            partition = self.leader[key]
            if replica.is_followed:
                has = (replica.end, replica.high_watermark, replica.log_start)
                assert has == (partition.end, partition.high_watermark, partition.log_start), key
        assert self.asking.request(self.question)[2:] == ({}, [])
        self.asking.answered(self.asking.session_id)
        self.asking.start_over(KEYS)  # that request was not sent


TwoEnds.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestTwoEnds: Any = TwoEnds.TestCase
