"""What a producer makes of answers that a sound leader gives seldom, or never."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest

import penstock.wire.producing
from penstock.core.errors import ErrorCode
from penstock.core.ids import TopicPartition
from penstock.wire.connection import Connection, with_answers
from penstock.wire.errors import NotNow, NotWritten, TimedOut
from tests.testkit import eventually
from tests.wire.odd_broker import TOPIC, Producing, an_odd_broker
from tests.wire.producing import a_producer, rows
from tests.wire.reading import a_client

OF_TEN = 10
# One batch for every ten rows.
TENS: dict[str, Any] = {"batch_size": 61 + OF_TEN * 12}


def in_turn(*answers: int | bytes | None) -> Producing:
    """Then success."""
    left: Iterator[int | bytes | None] = iter(answers)
    return lambda _: next(left, ErrorCode.NONE)


def written(producing: Producing, batches: int = 1, **settings: Any) -> Sequence[int]:
    """The sequences of the batches as they came."""
    with an_odd_broker(producing=producing) as broker, a_producer(broker.bootstrap, **{**TENS, **settings}) as producer:
        for _ in range(batches):
            producer.put(TOPIC, 1, rows(*[b"value"] * OF_TEN))
        producer.flush()
        return broker.produced


@pytest.mark.parametrize(
    "passing",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        pytest.param(None, id="says nothing of the partition"),
        pytest.param(b"", id="closes the connection"),
        pytest.param(b"\0\0\0\4\0\0\0\0", id="answers something else"),
        pytest.param(b"HTTP/1.1 400 Bad Request", id="is no broker"),
    ],
)
def test_given_what_passes_when_a_batch_is_written_then_it_is_sent_again_as_it_was(passing: int | bytes | None) -> None:
    assert written(in_turn(ErrorCode.NONE, passing, passing), batches=2) == [0, 10, 10, 10]


def test_given_a_leader_that_has_a_batch_already_when_it_says_so_then_it_is_written() -> None:
    assert written(in_turn(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)) == [0]


def test_given_a_batch_that_fails_when_others_are_under_way_then_all_are_sent_again_in_order() -> None:
    taken: list[int] = []
    refusals = iter([ErrorCode.NOT_ENOUGH_REPLICAS])

    def producing(sequence: int) -> int:
        if sequence != OF_TEN * len(taken):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if sequence == OF_TEN and (refusal := next(refusals, None)) is not None:
            return refusal
        taken.append(sequence)
        return ErrorCode.NONE

    came = written(producing, batches=5)

    assert taken == [0, 10, 20, 30, 40]
    assert came.count(OF_TEN) == 2


@pytest.mark.parametrize(
    "final",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_RECORD,
        ErrorCode.TRANSACTION_ABORTABLE,
    ],
)
def test_given_what_is_final_when_a_batch_is_written_then_it_is_said_and_not_tried_again(final: ErrorCode) -> None:
    with pytest.raises(NotWritten, match=final.name) as refused:
        written(in_turn(final))

    assert refused.value.code is final


def test_given_an_error_of_the_future_when_a_batch_is_written_then_it_is_final_and_its_number_is_said() -> None:
    with pytest.raises(NotWritten, match="error 3000"):
        written(in_turn(3_000))


def test_given_what_never_passes_when_a_batch_is_written_then_it_gives_up_with_the_reason() -> None:
    with pytest.raises(TimedOut, match=r"writing to orders-0: nothing was acknowledged for 0\.5 s.*NOT_LEADER"):
        written(lambda _: ErrorCode.NOT_LEADER_OR_FOLLOWER, delivery_timeout_ms=500)


def test_given_a_leader_that_refuses_a_batch_and_takes_the_next_then_nobody_believes_that_both_are_there() -> None:
    answers = iter((ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS))
    all_are_put = threading.Event()

    def producing(sequence: int) -> int:
        assert all_are_put.wait(10)
        return next(answers, ErrorCode.NONE)

    with an_odd_broker(producing=producing) as broker, a_producer(broker.bootstrap, **TENS) as producer:
        for _ in range(3):
            producer.put(TOPIC, 1, rows(*[b"value"] * OF_TEN))
        all_are_put.set()

        with pytest.raises(NotWritten, match=r"orders-0: the broker has refused a batch and taken the next one"):
            producer.flush()


def test_given_partitions_without_a_leader_when_all_are_asked_for_then_the_cluster_is_asked_once() -> None:
    with an_odd_broker(leaders=[-1] * 50) as broker, a_client(broker.bootstrap, retry_backoff_ms=10_000) as cluster:
        for partition in range(50):
            with pytest.raises(NotNow, match="no leader"):
                cluster.leader_of(TopicPartition(TOPIC, partition))

        assert broker.looked_up == 1


def test_given_a_partition_to_be_tried_again_when_its_leader_is_busy_then_the_producer_waits_and_does_not_spin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = itertools.count()
    looks = itertools.count()
    spins = threading.Event()

    def producing(_: int) -> int:
        number = next(requests)
        if number == 1:
            spins.wait(0.5)  # several times as long as the other partition waits for its next try
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if number == 0 else ErrorCode.NONE

    def watched(asked: Collection[Connection], timeout_s: float) -> list[Connection]:
        if next(looks) == 1_000:
            spins.set()
        return with_answers(asked, timeout_s)

    monkeypatch.setattr(penstock.wire.producing, "with_answers", watched)
    settings = {"max_in_flight_requests_per_connection": 1, **TENS}
    with (
        an_odd_broker(producing=producing, leaders=[1, 1]) as broker,
        a_producer(broker.bootstrap, client={"retry_backoff_ms": 100}, **settings) as producer,
    ):
        for partition in (1, 0):
            producer.put(TOPIC, 2, rows(*[b"value"] * OF_TEN, partition=partition))
        producer.flush()

    assert not spins.is_set()


def test_given_a_leader_that_is_silent_when_another_one_is_busy_then_it_is_given_up_in_time_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = 200
    all_are_put, is_asked_again = threading.Event(), threading.Event()
    answered_by_then: list[int] = []

    def busy(_: int) -> int:
        assert all_are_put.wait(10)
        is_asked_again.wait(0.02)
        return ErrorCode.NONE

    def silent(_: int) -> int:
        if len(second.produced) == 1:
            is_asked_again.wait(30)
        answered_by_then.append(len(first.produced))
        is_asked_again.set()
        return ErrorCode.NONE

    def watched(asked: Collection[Connection], timeout_s: float) -> list[Connection]:
        """Whoever looks finds an answer of the busy one, as long as it has something to do."""
        return with_answers(asked, 10 if len(asked) > 1 and all_are_put.is_set() else timeout_s)

    monkeypatch.setattr(penstock.wire.producing, "with_answers", watched)
    client = {"request_timeout_ms": 1_000}
    with (
        an_odd_broker(producing=silent) as second,
        an_odd_broker(producing=busy, leaders=[1, 2], others={2: second}) as first,
        a_producer(first.bootstrap, client=client, **TENS) as producer,
    ):
        producer.put(TOPIC, 2, rows(*[b"value"] * OF_TEN, partition=1))
        producer.put(TOPIC, 2, rows(*[b"value"] * OF_TEN * batches))
        all_are_put.set()
        producer.flush()

        assert answered_by_then[0] < batches


def test_given_answers_that_came_while_nobody_looked_when_they_are_old_then_they_are_taken_all_the_same() -> None:
    all_are_put = threading.Event()

    def producing(sequence: int) -> int:
        assert sequence == 0 or all_are_put.wait(10)
        return ErrorCode.NONE

    client = {"request_timeout_ms": 300, "fetch_max_wait_ms": 100}
    with an_odd_broker(producing=producing) as broker, a_producer(broker.bootstrap, client=client, **TENS) as producer:
        producer.put(TOPIC, 1, rows(*[b"value"] * OF_TEN))
        producer.flush()
        for _ in range(4):
            producer.put(TOPIC, 1, rows(*[b"value"] * OF_TEN))
        (line,) = producer._lines.values()
        assert len(line.under_way) > 1
        all_are_put.set()
        eventually(lambda: time.monotonic() - line.under_way[-1].sent_at_s > 0.3)
        producer.flush()

        assert list(producer._lines.values()) == [line]
    assert broker.produced == [0, 10, 20, 30, 40]


def test_given_a_full_buffer_when_the_last_answer_under_way_has_come_then_the_rest_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_full = threading.Event()

    def producing(_: int) -> int:
        assert is_full.wait(10)
        return ErrorCode.NONE

    def watched(asked: Collection[Connection], timeout_s: float) -> list[Connection]:
        """The answer to the first batch, which goes alone, comes in the look that does not wait for it."""
        if is_full.is_set() or producer._unacknowledged_bytes <= producer._unacknowledged_limit:
            return with_answers(asked, timeout_s)
        is_full.set()
        return with_answers(asked, 10)

    monkeypatch.setattr(penstock.wire.producing, "with_answers", watched)
    settings: dict[str, Any] = {"batch_size": 15_000, "buffer_memory": 80_000}
    with an_odd_broker(producing=producing) as broker, a_producer(broker.bootstrap, **settings) as producer:
        producer.put(TOPIC, 1, rows(b"alone"))
        for _ in range(10):
            producer.put(TOPIC, 1, rows(*[bytes(1_000)] * 20))
        producer.flush()

    assert is_full.is_set()
    assert len(broker.produced) > 10
