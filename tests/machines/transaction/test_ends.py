"""How transactions begin and end: by their producers, by time, and with a coordinator that dies after each record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.machines.transaction.dialogue import (
    OFFSETS,
    ORDERS,
    P0,
    P1,
    TIMEOUT_MS,
    V1,
    V2,
    WALL_MS,
    Dialogue,
    Producer,
    Said,
    begun,
    records_of,
    replayed,
)

from penstock.coordinators.decision import LogRecord
from penstock.coordinators.transaction.commands import WriteMarkers
from penstock.coordinators.transaction.records import TransactionRecord, TransactionStatus, encode
from penstock.coordinators.transaction.state import TransactionConfig
from penstock.protocol.messages.transactions import AddPartitionsToTxnTransaction

HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def talk() -> Dialogue:
    return Dialogue()


# Beginning


def test_given_a_producer_when_it_adds_partitions_then_the_record_has_all_that_must_survive(talk: Dialogue) -> None:
    producer = talk.init().producer
    talk.pass_ms(5)
    talk.add(producer, P0)
    talk.pass_ms(5)
    talk.add_offsets(producer)

    assert replayed(talk) == {
        ORDERS: TransactionRecord(
            ORDERS,
            1_001,
            0,
            TIMEOUT_MS,
            TransactionStatus.ONGOING,
            frozenset({P0, OFFSETS}),
            last_update_ms=WALL_MS + 10,
            start_ms=WALL_MS + 5,
        )
    }


def test_given_partitions_in_a_transaction_when_they_are_verified_then_each_is_told_from_those_that_are_not(
    talk: Dialogue,
) -> None:
    producer = begun(talk, P0)

    assert talk.verify(producer, P0, P1) == ["ok", "TRANSACTION_ABORTABLE"]
    assert talk.history() == ["Empty", "Ongoing"]


def test_given_more_partitions_than_a_record_takes_when_they_are_added_then_none_is_and_the_rest_can_end() -> None:
    talk = Dialogue(TransactionConfig(max_record_bytes=300))
    producer = begun(talk, P0)
    many = [P1._replace(partition=each) for each in range(100)]

    assert talk.add(producer, *many) == "UNKNOWN_SERVER_ERROR"

    assert talk.record.partitions == {P0}
    assert talk.commit(producer).error == "ok"


@pytest.mark.parametrize(("version", "recorded"), [(3, 0), (4, 2), (5, 2)])
def test_given_who_adds_partitions_when_it_is_written_then_so_is_the_version_of_the_transaction(
    talk: Dialogue, version: int, recorded: int
) -> None:
    begun(talk, version=version)

    assert talk.record.client_transaction_version == recorded


def test_given_no_partitions_when_they_are_added_then_nothing_begins(talk: Dialogue) -> None:
    producer = talk.init().producer
    request = AddPartitionsToTxnTransaction(
        transactional_id=ORDERS, producer_id=producer.producer_id, producer_epoch=producer.epoch
    )

    answer = talk._ask(talk.machine.add_partitions, request, 3)

    assert (answer.topic_results, talk.status) == ([], "Empty")


# Ending


@pytest.mark.parametrize("commit", [False, True])
def test_given_a_client_that_keeps_its_epoch_when_it_ends_then_the_markers_have_that_epoch(
    talk: Dialogue, commit: bool
) -> None:
    producer = begun(talk, P1, P0)

    ended = talk.end(producer, commit=commit, version=V1)

    assert ended == Said("ok", Producer(-1, -1))
    assert talk.effects == [WriteMarkers(ORDERS, 1_001, 0, commit, 3, (P0, P1), 0)]
    talk.write_markers()
    assert talk.add(producer) == "ok", "the next one, with the same epoch"


@pytest.mark.parametrize("commit", [False, True])
def test_given_a_client_with_an_epoch_for_every_transaction_when_it_ends_then_the_next_one_has_another(
    talk: Dialogue, commit: bool
) -> None:
    producer = begun(talk, P0, version=5)

    ended = talk.end(producer, commit=commit, version=V2)

    assert ended == Said("ok", Producer(1_001, 1))
    assert talk.effects == [WriteMarkers(ORDERS, 1_001, 1, commit, 3, (P0,), 2)]
    assert talk.add(ended.producer) == "CONCURRENT_TRANSACTIONS", "until the markers are written"
    talk.write_markers()
    assert talk.add(ended.producer) == "ok"


def test_given_prepared_records_when_markers_are_handed_out_then_it_is_by_the_decision_that_writes_them(
    talk: Dialogue,
) -> None:
    producer = begun(talk)

    talk.commit(producer)

    decision = talk.decisions[-1]
    assert (len(decision.records), len(decision.effects)) == (1, 1), "the shell does what it says when it is committed"


def test_given_a_delayed_end_when_the_next_transaction_is_open_then_that_is_not_touched(talk: Dialogue) -> None:
    producer = begun(talk)
    following = talk.commit(producer).producer
    talk.write_markers()
    talk.add(following)

    assert talk.commit(producer).error == talk.abort(producer).error == "PRODUCER_FENCED"
    assert talk.commit(producer, V1).error == talk.abort(producer, V1).error == "PRODUCER_FENCED"

    assert talk.status == "Ongoing"


def test_given_a_delayed_add_when_its_transaction_has_ended_then_it_begins_none(talk: Dialogue) -> None:
    producer = begun(talk)
    talk.abort(producer)
    talk.write_markers()

    assert talk.add(producer, P1) == talk.add_offsets(producer) == "PRODUCER_FENCED"
    assert talk.verify(producer, P0) == ["PRODUCER_FENCED"]


def test_given_a_zombie_when_its_successor_keeps_its_epoch_then_it_is_not_told_that_it_committed(
    talk: Dialogue,
) -> None:
    zombie = talk.init().producer
    successor = begun(talk)
    talk.commit(successor, V1)
    talk.write_markers()

    assert talk.commit(zombie).error == "PRODUCER_FENCED"


def test_given_nothing_begun_when_it_is_aborted_then_that_ends_at_once_and_fences_what_is_on_its_way(
    talk: Dialogue,
) -> None:
    producer = talk.init().producer

    aborted = talk.abort(producer)

    assert aborted == Said("ok", Producer(1_001, 1))
    assert (talk.history(1), talk.effects) == (["PrepareAbort", "CompleteAbort"], [])
    assert talk.abort(producer) == aborted, "a retry"
    assert talk.add(producer) == "PRODUCER_FENCED"


# Markers


@pytest.mark.parametrize("elected", [False, True])
def test_given_markers_of_an_earlier_load_when_they_are_written_then_only_those_told_last_count(
    talk: Dialogue, elected: bool
) -> None:
    producer = begun(talk)
    talk.commit(producer, V1)
    (earlier,) = talk.effects
    talk.crash(elected=elected)
    (told_again,) = talk.effects
    assert told_again == replace(earlier, coordinator_epoch=3 + elected)
    # Whoever still tries to write the earlier ones has to stop: they could end the next transaction.
    assert talk.machine.waits_for(told_again)
    assert not talk.machine.waits_for(earlier)

    talk.markers_written(earlier)
    assert talk.status == "PrepareCommit"
    talk.markers_written(told_again)
    assert talk.status == "CompleteCommit"
    assert not talk.machine.waits_for(told_again)

    # The next one of the same producer looks the same.
    talk.add(producer)
    talk.commit(producer, V1)
    written = len(talk.log)
    talk.markers_written(told_again)
    talk.markers_written(earlier)
    assert (talk.status, len(talk.log)) == ("PrepareCommit", written)


def test_given_markers_of_an_id_that_is_gone_when_they_are_written_then_nothing_happens(talk: Dialogue) -> None:
    talk.markers_written(WriteMarkers("gone", 1, 0, True, 0, (P0,), 0))

    assert not talk.log


# Time


def test_given_a_silent_producer_when_its_time_is_over_then_it_is_aborted_and_fenced(talk: Dialogue) -> None:
    producer = begun(talk)
    talk.pass_ms(TIMEOUT_MS - 1)
    talk.add(producer, OFFSETS)
    assert talk.status == "Ongoing"

    talk.pass_ms(1)

    assert talk.effects == [WriteMarkers(ORDERS, 1_001, 1, False, 3, tuple(sorted((P0, P1, OFFSETS))), 2)]
    talk.write_markers()
    assert talk.add(producer) == talk.commit(producer, V1).error == "PRODUCER_FENCED"
    assert talk.commit(producer).error == "INVALID_TXN_STATE"
    assert talk.abort(producer) == Said("ok", Producer(1_001, 1)), "as Kafka: it may go on"


def test_given_ends_in_time_when_the_time_is_over_then_nothing_happens(talk: Dialogue) -> None:
    for version in (V1, V2):
        talk.commit(begun(talk), version)
        talk.write_markers()
    written = len(talk.log)

    talk.pass_ms(2 * TIMEOUT_MS)

    assert len(talk.log) == written


def test_given_the_next_transaction_when_it_begins_then_its_time_does(talk: Dialogue) -> None:
    producer = begun(talk)
    talk.pass_ms(TIMEOUT_MS - 1)
    talk.commit(producer, V1)
    talk.write_markers()

    talk.add(producer)
    talk.pass_ms(TIMEOUT_MS - 1)
    assert talk.status == "Ongoing"

    talk.pass_ms(1)
    assert talk.status == "PrepareAbort"


@pytest.mark.parametrize(
    ("away_ms", "left_ms"),
    [(0, TIMEOUT_MS - 10), (20_000, TIMEOUT_MS - 20_010), (2 * TIMEOUT_MS, 0), (-DAY_MS, TIMEOUT_MS)],
    ids=["no time", "some time", "too long", "a clock set back"],
)
def test_given_an_open_transaction_when_a_coordinator_takes_over_then_it_has_the_time_that_is_left(
    talk: Dialogue, away_ms: int, left_ms: int
) -> None:
    begun(talk)
    talk.pass_ms(10)

    talk.crash(wall_ms=away_ms)

    if left_ms:
        talk.pass_ms(left_ms - 1)
        assert talk.status == "Ongoing"
    talk.pass_ms(1)
    assert talk.status == "PrepareAbort"


def test_given_ids_that_nobody_uses_when_they_expire_then_all_that_can_be_are_forgotten() -> None:
    talk = Dialogue(TransactionConfig(transactional_id_expiration_ms=7 * DAY_MS, transaction_max_timeout_ms=2**31 - 1))
    for each in ("idle", "open", "being ended"):
        producer = talk.init(each, timeout_ms=2**31 - 1).producer
        if each != "idle":
            talk.add(producer, transactional_id=each)
    talk.commit(producer, transactional_id="being ended")
    talk.pass_ms(DAY_MS)
    talk.init("used since")

    talk.pass_ms(6 * DAY_MS - 1)
    assert len(talk.machine.transactions) == 4
    talk.pass_ms(1)

    assert list(talk.machine.transactions) == ["open", "being ended", "used since"]
    assert replayed(talk).keys() == talk.machine.transactions.keys()
    assert talk.init("idle").producer.epoch == 0
    talk.pass_ms(DAY_MS)
    assert list(talk.machine.transactions) == ["open", "being ended", "idle"]


# Dying


def _commit(version: int) -> Callable[[Dialogue], object]:
    return lambda talk: talk.commit(begun(talk), version)


def _abort(version: int) -> Callable[[Dialogue], object]:
    return lambda talk: talk.abort(begun(talk), version)


def _fence(talk: Dialogue) -> None:
    begun(talk)
    talk.init()


def _time_out(talk: Dialogue) -> None:
    begun(talk)
    talk.pass_ms(TIMEOUT_MS)


def _abort_nothing(talk: Dialogue) -> None:
    talk.abort(talk.init().producer)


LIVES = {
    "v1 commit": (_commit(V1), "CompleteCommit"),
    "v2 commit": (_commit(V2), "CompleteCommit"),
    "v1 abort": (_abort(V1), "CompleteAbort"),
    "v2 abort": (_abort(V2), "CompleteAbort"),
    "fenced": (_fence, "CompleteAbort"),
    "timed out": (_time_out, "CompleteAbort"),
    "nothing aborted": (_abort_nothing, "CompleteAbort"),
}


@pytest.mark.parametrize("compacted", [False, True], ids=["", "compacted"])
@pytest.mark.parametrize("life", LIVES)
def test_given_a_crash_after_each_record_when_another_coordinator_goes_on_then_there_is_one_outcome(
    life: str, compacted: bool
) -> None:
    live, outcome = LIVES[life]
    whole = Dialogue()
    live(whole)
    whole.write_markers()
    assert whole.status == outcome

    for survived in range(len(whole.log) + 1):
        talk = Dialogue(log=whole.log[:survived])
        history = talk.history()
        talk.crash(compacted=compacted)
        talk.crash(compacted=compacted)
        assert records_of(talk.machine) == replayed(talk)
        told = talk.write_markers()
        is_decided = any(each.startswith("Prepare") for each in history)
        assert talk.status == (outcome if is_decided else history[-1] if history else "-")
        assert all(each.is_commit == (outcome == "CompleteCommit") for each in told)
        assert len(told) <= 1
        if history and history[-1].startswith("Prepare") and life != "nothing aborted":
            assert told, "whoever did not get a marker waits for it"
        # What was not decided is aborted, in time.
        talk.pass_ms(TIMEOUT_MS)
        talk.write_markers()
        assert talk.status in ("-", "Empty", outcome if is_decided else "CompleteAbort")


@pytest.mark.parametrize("commit", [False, True])
def test_given_a_lost_answer_when_the_end_is_asked_for_again_then_it_is_the_same_answer(
    talk: Dialogue, commit: bool
) -> None:
    producer = begun(talk)
    lost = talk.end(producer, commit=commit, version=V2)

    talk.crash()

    assert talk.end(producer, commit=commit, version=V2).error == "CONCURRENT_TRANSACTIONS"
    talk.write_markers()
    assert talk.end(producer, commit=commit, version=V2) == lost
    talk.crash()
    assert talk.end(producer, commit=commit, version=V2) == lost
    assert talk.end(producer, commit=not commit, version=V2).error == "INVALID_TXN_STATE"


# Logs that others wrote


@pytest.mark.parametrize("status", [TransactionStatus.DEAD, TransactionStatus.PREPARE_EPOCH_FENCE])
def test_given_a_record_that_no_coordinator_writes_when_it_is_applied_then_it_is_refused(
    talk: Dialogue, status: TransactionStatus
) -> None:
    producer = talk.init().producer

    with pytest.raises(ValueError, match="cannot have become"):
        talk.machine.apply(encode(talk.record._replace(status=status)))

    assert talk.producer == producer


def test_given_a_record_of_a_newer_broker_when_it_is_applied_then_it_is_passed_over(talk: Dialogue) -> None:
    talk.machine.apply(LogRecord(b"\x00\x09?", b"\x00\x00?"))

    assert not talk.machine.transactions
