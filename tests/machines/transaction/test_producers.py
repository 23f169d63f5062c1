"""Who gets which producer id and epoch, and who is fenced by it."""

from __future__ import annotations

import pytest
from tests.machines.transaction.dialogue import NOBODY, P0, TIMEOUT_MS, V1, V2, Dialogue, Producer, Said, begun

from penstock.coordinators.decision import Caller, Decision
from penstock.coordinators.transaction.commands import InitProducerId, NeedsProducerId
from penstock.coordinators.transaction.records import TransactionRecord, encode
from penstock.coordinators.transaction.state import EMPTY, ONGOING, TransactionConfig
from penstock.protocol.messages.producers import InitProducerIdRequest

LAST = 32766


@pytest.fixture
def talk() -> Dialogue:
    return Dialogue()


def at_epoch(epoch: int, *, is_open: bool = False) -> tuple[Dialogue, Producer]:
    status, partitions = (ONGOING, frozenset({P0})) if is_open else (EMPTY, frozenset())
    talk = Dialogue()
    record = TransactionRecord(
        "orders", 9, epoch, TIMEOUT_MS, status, partitions, talk.now.wall_ms, start_ms=talk.now.wall_ms
    )
    return Dialogue(log=[encode(record)]), Producer(9, epoch)


def test_given_nobody_when_a_producer_comes_then_it_gets_a_new_id_and_epoch_0(talk: Dialogue) -> None:
    first = talk.init("orders")
    other = talk.init("payments")

    assert first == Said("ok", Producer(1_001, 0))
    assert other == Said("ok", Producer(1_002, 0))


def test_given_no_new_id_when_one_is_needed_then_nothing_is_decided_and_the_shell_is_asked_for_one(
    talk: Dialogue,
) -> None:
    command = InitProducerId(InitProducerIdRequest(transactional_id="orders", transaction_timeout_ms=1))
    decision = Decision()

    talk.machine.init_producer_id(command, Caller(5, 5, "", "", str), talk.now, decision)

    assert decision == Decision(answers=[(5, NeedsProducerId())])


def test_given_a_producer_when_another_instance_comes_then_the_first_is_fenced_and_no_one_else(talk: Dialogue) -> None:
    first, bystander = talk.init().producer, talk.init("payments").producer

    second = talk.init().producer

    assert second == Producer(first.producer_id, 1)
    assert talk.add(first) == talk.commit(first).error == talk.init(expected=first).error == "PRODUCER_FENCED"
    assert talk.add(second) == talk.add(bystander, transactional_id="payments") == "ok"


def test_given_an_open_transaction_when_another_instance_comes_then_it_waits_for_the_abort_and_is_next(
    talk: Dialogue,
) -> None:
    first = begun(talk)

    assert talk.init().error == "CONCURRENT_TRANSACTIONS"
    assert talk.init().error == "CONCURRENT_TRANSACTIONS"
    talk.write_markers()
    second = talk.init()

    assert second == Said("ok", Producer(first.producer_id, 2))
    assert talk.history() == ["Empty", "Ongoing", "PrepareAbort", "CompleteAbort", "Empty"]
    assert talk.add(first) == talk.commit(first, V1).error == talk.commit(first).error == "PRODUCER_FENCED"


def test_given_a_fenced_instance_when_it_recovers_then_the_transaction_of_its_successor_goes_on(
    talk: Dialogue,
) -> None:
    first = talk.init().producer
    begun(talk)

    assert talk.init(expected=first) == Said("PRODUCER_FENCED", NOBODY)

    assert talk.status == "Ongoing"


@pytest.mark.parametrize(
    ("timeout_ms", "answer"),
    [
        (0, "INVALID_TRANSACTION_TIMEOUT"),
        (-1, "INVALID_TRANSACTION_TIMEOUT"),
        (1, "ok"),
        (10_000, "ok"),
        (10_001, "INVALID_TRANSACTION_TIMEOUT"),
    ],
)
def test_given_a_longest_timeout_when_a_producer_asks_for_one_then_it_is_held_to_it(
    timeout_ms: int, answer: str
) -> None:
    talk = Dialogue(TransactionConfig(transaction_max_timeout_ms=10_000))

    assert talk.init(timeout_ms=timeout_ms).error == answer


@pytest.mark.parametrize(
    ("transactional_id", "expected"), [("", NOBODY), ("orders", Producer(5, -1)), ("orders", Producer(-1, 5))]
)
def test_given_half_an_identity_when_a_producer_comes_then_the_request_is_invalid(
    talk: Dialogue, transactional_id: str, expected: Producer
) -> None:
    assert talk.init(transactional_id, expected=expected) == Said("INVALID_REQUEST", NOBODY)


def test_given_an_empty_transactional_id_when_anything_is_asked_of_it_then_the_request_is_invalid(
    talk: Dialogue,
) -> None:
    producer = Producer(1, 0)

    assert talk.add(producer, transactional_id="") == "INVALID_REQUEST"
    assert talk.add_offsets(producer, transactional_id="") == "INVALID_REQUEST"
    assert talk.verify(producer, transactional_id="") == ["INVALID_REQUEST"]
    assert talk.commit(producer, transactional_id="").error == "INVALID_REQUEST"
    assert talk.describe("").error_code == 42


def test_given_an_old_client_when_it_is_fenced_then_it_hears_so_in_words_it_knows(talk: Dialogue) -> None:
    fenced = talk.init().producer
    talk.init()

    assert talk.init(expected=fenced, version=3).error == "INVALID_PRODUCER_EPOCH"
    assert talk.add(fenced, version=1) == talk.add_offsets(fenced, version=1) == "INVALID_PRODUCER_EPOCH"
    assert talk.commit(fenced, version=1).error == "INVALID_PRODUCER_EPOCH"
    assert talk.init(expected=fenced, version=4).error == "PRODUCER_FENCED"
    assert talk.add(fenced, version=2) == talk.add_offsets(fenced, version=2) == "PRODUCER_FENCED"
    assert talk.commit(fenced, version=2).error == "PRODUCER_FENCED"


# Recovery (KIP-360)


def test_given_a_lost_answer_when_the_producer_recovers_again_then_it_gets_the_same_epoch(talk: Dialogue) -> None:
    producer = talk.init().producer
    lost = talk.init(expected=producer)

    assert talk.init(expected=producer) == talk.init(expected=producer) == lost == Said("ok", Producer(1_001, 1))


def test_given_a_new_instance_since_when_a_producer_recovers_again_then_it_is_fenced(talk: Dialogue) -> None:
    producer = talk.init().producer
    talk.init(expected=producer)
    talk.init()

    assert talk.init(expected=producer).error == "PRODUCER_FENCED"


def test_given_another_coordinator_when_a_producer_recovers_again_then_it_is_fenced_as_in_kafka(
    talk: Dialogue,
) -> None:
    producer = talk.init().producer
    recovered = talk.init(expected=producer).producer
    talk.crash()

    assert talk.init(expected=producer).error == "PRODUCER_FENCED"
    assert talk.init(expected=recovered).producer.epoch == 2


def test_given_a_timed_out_transaction_when_its_producer_recovers_then_it_may_go_on(talk: Dialogue) -> None:
    producer = begun(talk)
    talk.pass_ms(TIMEOUT_MS)
    talk.write_markers()

    recovered = talk.init(expected=producer)

    assert recovered == Said("ok", producer._replace(epoch=1))
    assert talk.add(recovered.producer) == "ok"


# Epochs that are used up


@pytest.mark.parametrize("brings_its_own", [False, True])
def test_given_the_last_epoch_when_a_producer_comes_then_it_gets_a_new_id(brings_its_own: bool) -> None:
    talk, producer = at_epoch(LAST)

    given = talk.init(expected=producer if brings_its_own else NOBODY)

    assert given == Said("ok", Producer(1_001, 0))
    assert talk.record.previous_producer_id == 9
    assert talk.add(producer) == "INVALID_PRODUCER_ID_MAPPING"


def test_given_the_answer_with_a_new_id_got_lost_when_the_producer_asks_again_then_it_gets_that() -> None:
    talk, producer = at_epoch(LAST)
    lost = talk.init(expected=producer)

    assert talk.init(expected=producer) == talk.init(expected=producer) == lost
    talk.add(lost.producer)
    assert talk.init(expected=producer).error == "PRODUCER_FENCED"


def test_given_the_epoch_before_the_last_when_a_producer_comes_then_it_gets_the_last_one_and_so_does_its_retry() -> (
    None
):
    talk, producer = at_epoch(LAST - 1)

    assert talk.init(expected=producer) == talk.init(expected=producer) == Said("ok", Producer(9, LAST))


@pytest.mark.parametrize("brings_its_own", [False, True])
def test_given_the_last_epoch_when_a_transaction_times_out_then_nobody_gets_the_one_it_was_fenced_with(
    brings_its_own: bool,
) -> None:
    talk, producer = at_epoch(LAST, is_open=True)
    talk.pass_ms(TIMEOUT_MS)
    assert talk.write_markers()[0].producer_epoch == LAST + 1

    assert talk.abort(producer).error == "PRODUCER_FENCED"
    given = talk.init(expected=producer if brings_its_own else NOBODY)

    assert given == Said("ok", Producer(1_001, 0))


@pytest.mark.parametrize("commit", [False, True])
def test_given_the_last_epoch_when_a_transaction_ends_then_the_producer_gets_a_new_id(commit: bool) -> None:
    talk, producer = at_epoch(LAST, is_open=True)

    ended = talk.end(producer, commit=commit, version=V2)

    assert ended == Said("ok", Producer(1_001, 0))
    assert talk.add(ended.producer) == talk.end(producer, commit=commit, version=V2).error == "CONCURRENT_TRANSACTIONS"
    (markers,) = talk.write_markers()
    assert (markers.producer_id, markers.producer_epoch) == (9, LAST + 1)
    assert talk.end(producer, commit=commit, version=V2) == ended, "a retry"
    assert talk.end(producer, commit=not commit, version=V2).error == "INVALID_TXN_STATE"
    earlier = producer._replace(epoch=LAST - 1)
    assert talk.end(earlier, commit=commit, version=V2).error == "INVALID_PRODUCER_ID_MAPPING"
    assert (talk.record.previous_producer_id, talk.record.next_producer_id) == (9, -1)
    assert talk.add(ended.producer) == "ok"
    assert talk.end(producer, commit=commit, version=V2).error == "INVALID_PRODUCER_ID_MAPPING"


def test_given_the_last_epoch_when_the_coordinator_dies_within_the_end_then_the_new_id_is_not_forgotten() -> None:
    talk, producer = at_epoch(LAST, is_open=True)
    ended = talk.commit(producer)

    talk.crash()
    talk.write_markers()

    assert talk.commit(producer) == ended
    talk.crash()
    assert talk.commit(producer) == ended
    assert talk.add(ended.producer) == "ok"


def test_given_a_log_with_an_open_transaction_of_an_epoch_never_given_out_when_it_ends_then_all_goes_on() -> None:
    talk, producer = at_epoch(LAST + 1, is_open=True)
    talk.pass_ms(TIMEOUT_MS)
    talk.write_markers()
    assert talk.init().producer == Producer(1_001, 0)

    talk, producer = at_epoch(LAST + 1, is_open=True)
    assert talk.commit(producer).producer == Producer(1_001, 0)
