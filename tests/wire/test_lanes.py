"""Batches of a partition over a network that loses and delays, to a broker that knows sequences: once and in order."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.core.ids import TopicPartition
from penstock.protocol.batch import MAX_SEQUENCE
from penstock.wire.cluster import Node
from penstock.wire.errors import NotNow, UnknownTopic
from penstock.wire.lanes import Lane, Sealed, StateLost
from penstock.wire.producer_settings import MAX_IN_FLIGHT

WHERE = TopicPartition("orders", 0)
BACKOFF_S = 0.1
NEAR_THE_END = MAX_SEQUENCE - 10  # so that sequences begin anew after a few batches


class ModelBroker:
    """The leader's log as sequences, the last five batches of which it knows again, as Kafka's leaders do.

    One that knows nothing of a producer takes any sequence.
    """

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []
        self._forgotten = 0

    def append(self, first: int, count: int) -> bool:
        """False when it is out of order."""
        if (first, count) in self.log[max(self._forgotten, len(self.log) - MAX_IN_FLIGHT) :]:
            return True
        if self.log:
            last, records = self.log[-1]
            if first != (last + records) & MAX_SEQUENCE:
                return False
        self.log.append((first, count))
        return True

    def restart(self) -> None:
        """From its snapshot it knows the last batch only."""
        self._forgotten = max(0, len(self.log) - 1)


class LaneMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lane = Lane(WHERE, next_sequence=NEAR_THE_END)
        self.broker = ModelBroker()
        self.sequences: dict[Sealed, int] = {}
        self.wanted: list[tuple[int, int]] = []
        self.requests: deque[Sealed] = deque()  # not yet with the broker
        self.answers: deque[tuple[Sealed, bool | None]] = deque()  # accepted, out of order, or None: not the leader
        self.now_s = 0.0

    @rule(count=st.integers(1, 4))
    def gather(self, count: int) -> None:
        first = self.lane.next_sequence
        sealed = self.lane.append(memoryview(b""), count)
        self.sequences[sealed] = first
        self.wanted.append((first, count))

    @rule()
    def send(self) -> None:
        if len(self.requests) + len(self.answers) == MAX_IN_FLIGHT:
            return
        sealed = self.lane.next_batch(self.now_s)
        if sealed is not None:
            self.lane.sent(sealed)
            self.requests.append(sealed)

    @precondition(lambda self: self.requests)
    @rule(is_leader=st.booleans())
    def arrive(self, is_leader: bool) -> None:
        sealed = self.requests.popleft()
        accepted = self.broker.append(self.sequences[sealed], sealed.count) if is_leader else None
        self.answers.append((sealed, accepted))

    @precondition(lambda self: self.requests)
    @rule()
    def arrive_without_an_answer_in_time(self) -> None:
        """REQUEST_TIMED_OUT: it is in the log, and the broker does not promise that it stays."""
        sealed = self.requests.popleft()
        self.broker.append(self.sequences[sealed], sealed.count)
        self.answers.append((sealed, None))

    @precondition(lambda self: self.answers)
    @rule()
    def hear(self) -> None:
        sealed, accepted = self.answers.popleft()
        if accepted:
            self.lane.acknowledged(sealed, self.now_s)
            return
        if accepted is None:
            self.lane.failed(sealed, NotNow("later"), self.now_s, BACKOFF_S)
        else:
            # What the producer takes for the end of everything is never the network's doing.
            assert not self.lane.out_of_order(sealed, NotNow("out of order"), self.now_s, BACKOFF_S)

    @precondition(lambda self: self.requests or self.answers)
    @rule(arriving=st.integers(0, MAX_IN_FLIGHT), is_restarted=st.booleans())
    def lose_the_connection(self, arriving: int, is_restarted: bool) -> None:
        for _ in range(min(arriving, len(self.requests))):
            sealed = self.requests.popleft()
            self.broker.append(self.sequences[sealed], sealed.count)
            self.answers.append((sealed, True))
        for sealed in [*(sealed for sealed, _ in self.answers), *self.requests]:
            self.lane.failed(sealed, NotNow("gone"), self.now_s, BACKOFF_S)
        self.requests.clear()
        self.answers.clear()
        if is_restarted:
            self.broker.restart()

    @rule(passed_s=st.sampled_from((0.05, 0.3, 2.0)))
    def wait(self, passed_s: float) -> None:
        self.now_s += passed_s

    @invariant()
    def the_log_has_what_was_gathered_once_and_in_order(self) -> None:
        assert self.broker.log == self.wanted[: len(self.broker.log)]

    def teardown(self) -> None:
        """Once nothing is lost any more, everything arrives."""
        for _ in range(10 * len(self.wanted) + 10):
            while self.requests:
                self.arrive(True)
            while self.answers:
                self.hear()
            self.now_s += 2
            for _ in range(MAX_IN_FLIGHT):
                self.send()
        assert self.lane.is_idle
        assert self.broker.log == self.wanted


TestLane = LaneMachine.TestCase
TestLane.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def under_way(count: int) -> tuple[Lane, list[Sealed]]:
    """A lane whose leader knows it, with so many batches unanswered."""
    lane = Lane(WHERE)
    first, *rest = [lane.append(memoryview(b""), 1) for _ in range(1 + count)]
    lane.sent(first)
    lane.acknowledged(first, 0.0)
    for each in rest:
        lane.sent(each)
    return lane, rest


def test_given_trouble_when_it_lasts_then_pauses_grow_and_it_is_known_since_when() -> None:
    lane = Lane(WHERE)
    lane.append(memoryview(b""), 1)

    pauses = []
    now_s = 10.0
    for _ in range(6):
        lane.delayed(NotNow("later"), now_s, BACKOFF_S)
        assert lane.trouble is not None
        assert lane.next_batch(now_s) is None
        pauses.append(round(lane.trouble.retry_at_s - now_s, 3))
        now_s = lane.trouble.retry_at_s
    assert lane.next_batch(now_s) is not None

    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert lane.trouble is not None
    assert (lane.trouble.since_s, lane.trouble.unknown_since_s) == (10.0, None)


def test_given_a_leader_that_lost_what_it_acknowledged_when_batches_are_sent_again_then_that_is_noticed() -> None:
    lane, rest = under_way(3)
    for each in rest:
        lane.failed(each, NotNow("gone"), 0.0, BACKOFF_S)

    asked = []
    is_lost = False
    for now_s in range(1, 20):
        while not is_lost and (sealed := lane.next_batch(now_s)) is not None:
            lane.sent(sealed)
            asked.append(rest.index(sealed))
            is_lost = lane.out_of_order(sealed, NotNow("out of order"), now_s, BACKOFF_S)

    assert is_lost
    assert asked == [0, 2, 1, 0]


def test_given_a_leader_that_has_heard_of_nothing_when_batches_are_sent_then_the_first_goes_alone() -> None:
    lane = Lane(WHERE)
    first, second, third = [lane.append(memoryview(b""), 1) for _ in range(3)]

    lane.sent(first)
    alone = lane.next_batch(0.0)
    lane.acknowledged(first, 0.0)
    lane.sent(second)

    assert alone is None
    assert lane.next_batch(0.0) is third


def test_given_a_connection_that_breaks_while_batches_are_looked_for_then_that_begins_anew() -> None:
    lane, rest = under_way(2)
    for each in rest:
        lane.failed(each, NotNow("gone"), 0.0, BACKOFF_S)
    lane.sent(rest[0])
    assert not lane.out_of_order(rest[0], NotNow("out of order"), 1.0, BACKOFF_S)
    assert lane.next_batch(9.0) is rest[1]

    lane.sent(rest[1])
    lane.failed(rest[1], NotNow("gone"), 9.0, BACKOFF_S)

    assert lane.next_batch(99.0) is rest[0]


def test_given_a_batch_that_was_never_sent_before_when_it_is_out_of_order_then_records_are_lost() -> None:
    lane = Lane(WHERE)
    sealed = lane.append(memoryview(b""), 1)
    lane.sent(sealed)

    assert lane.out_of_order(sealed, NotNow("out of order"), 0.0, BACKOFF_S)


def test_given_a_topic_that_is_unknown_when_it_is_known_in_between_then_that_counts_anew() -> None:
    lane = Lane(WHERE)
    lane.append(memoryview(b""), 1)

    since = []
    for now_s, error in ((1.0, UnknownTopic("")), (2.0, UnknownTopic("")), (3.0, NotNow("")), (4.0, UnknownTopic(""))):
        lane.delayed(error, now_s, BACKOFF_S)
        assert lane.trouble is not None
        since.append(lane.trouble.unknown_since_s)

    assert since == [1.0, 1.0, None, 4.0]


def test_given_a_batch_that_failed_and_one_behind_it_that_did_not_then_no_trouble_is_left() -> None:
    lane, (appended, behind) = under_way(2)
    lane.failed(appended, NotNow("after append"), 1.0, BACKOFF_S)

    lane.acknowledged(behind, 2.0)

    assert lane.is_idle
    assert lane.trouble is None


def test_given_trouble_when_something_is_acknowledged_then_patience_begins_anew() -> None:
    lane, (failed, acknowledged, _) = under_way(3)
    lane.failed(failed, NotNow("after append"), 1.0, BACKOFF_S)

    lane.acknowledged(acknowledged, 5.0)

    assert lane.trouble is not None
    assert lane.trouble.since_s == 5.0


def test_given_trouble_when_nobody_tries_for_a_while_then_that_does_not_count() -> None:
    lane, (failed,) = under_way(1)
    lane.failed(failed, UnknownTopic("gone"), 1.0, BACKOFF_S)

    lane.rested(300.0)

    assert lane.trouble is not None
    assert (lane.trouble.since_s, lane.trouble.unknown_since_s) == (301.0, 301.0)


def test_given_a_batch_that_was_refused_when_the_next_one_is_taken_then_the_leader_has_lost_its_state() -> None:
    lane, (refused, taken) = under_way(2)
    lane.refused(refused, NotNow("too few replicas"), 1.0, BACKOFF_S)

    with pytest.raises(StateLost):
        lane.acknowledged(taken, 1.0)


def test_given_a_batch_that_may_have_arrived_before_when_it_is_refused_and_the_next_one_known_then_both_are_there() -> (
    None
):
    lane, batches = under_way(2)
    for each in batches:
        lane.failed(each, NotNow("gone"), 1.0, BACKOFF_S)
    first, second = batches
    lane.sent(first)
    lane.acknowledged(first, 2.0)
    lane.sent(second)
    third = lane.append(memoryview(b""), 1)
    lane.sent(third)
    lane.refused(second, NotNow("too few replicas"), 3.0, BACKOFF_S)

    assert lane.acknowledged(third, 3.0) == [second, third]


def test_given_trouble_when_it_is_over_then_the_first_goes_alone_again() -> None:
    lane, batches = under_way(2)
    for each in batches:
        lane.failed(each, NotNow("gone"), 1.0, BACKOFF_S)

    lane.sent(batches[0])

    assert lane.next_batch(99.0) is None
    lane.acknowledged(batches[0], 99.0)
    assert lane.next_batch(99.0) is batches[1]


def test_given_batches_that_are_looked_for_when_another_leads_then_that_one_is_asked_from_the_first_on() -> None:
    lane, batches = under_way(2)
    lane.led_by(Node(1, "one", 1))
    for each in batches:
        lane.failed(each, NotNow("gone"), 1.0, BACKOFF_S)
    lane.sent(batches[0])
    assert not lane.out_of_order(batches[0], NotNow("out of order"), 2.0, BACKOFF_S)
    assert lane.next_batch(99.0) is batches[1]

    lane.led_by(Node(2, "two", 2))

    assert lane.next_batch(99.0) is batches[0]
