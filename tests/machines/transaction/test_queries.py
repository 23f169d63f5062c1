"""ListTransactions and DescribeTransactions."""

from __future__ import annotations

import pytest
from tests.machines.transaction.dialogue import P0, P1, TIMEOUT_MS, V1, WALL_MS, Dialogue

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.transactions import DescribedTransaction, DescribedTransactionTopic, ListedTransaction


@pytest.fixture
def talk() -> Dialogue:
    """One id that is idle, one in a transaction for 10 s, and one that is being committed."""
    talk = Dialogue()
    talk.init("idle")
    opened = talk.init("open-1").producer
    talk.add(opened, P1, P0, P1._replace(partition=0), transactional_id="open-1")
    talk.pass_ms(10_000)
    ending = talk.init("ending-1").producer
    talk.add(ending, transactional_id="ending-1")
    talk.commit(ending, V1, transactional_id="ending-1")
    return talk


def listed(talk: Dialogue, **filters: object) -> list[str]:
    return [each.transactional_id for each in talk.listed(**filters).transaction_states]


def test_given_no_filter_when_they_are_listed_then_all_are_there_with_their_status(talk: Dialogue) -> None:
    assert talk.listed().transaction_states == [
        ListedTransaction(transactional_id="idle", producer_id=1_001, transaction_state="Empty"),
        ListedTransaction(transactional_id="open-1", producer_id=1_002, transaction_state="Ongoing"),
        ListedTransaction(transactional_id="ending-1", producer_id=1_003, transaction_state="PrepareCommit"),
    ]


def test_given_filters_when_they_are_listed_then_only_what_passes_all_of_them_is(talk: Dialogue) -> None:
    assert listed(talk, state_filters=["Ongoing", "Empty"]) == ["idle", "open-1"]
    assert listed(talk, producer_id_filters=[1_003, 1_002, 5]) == ["open-1", "ending-1"]
    assert listed(talk, duration_filter=9_999) == ["idle", "open-1"]
    assert listed(talk, duration_filter=10_000) == ["idle"], "longer than that"
    assert listed(talk, duration_filter=0, state_filters=["Ongoing"]) == ["open-1"]
    assert listed(talk, duration_filter=-1, transactional_id_pattern="") == ["idle", "open-1", "ending-1"]
    assert listed(talk, transactional_id_pattern=".*-1") == ["open-1", "ending-1"]
    assert listed(talk, transactional_id_pattern="open") == [], "whole ids"


def test_given_a_status_that_does_not_exist_when_it_is_filtered_by_then_it_is_named_and_matches_nothing(
    talk: Dialogue,
) -> None:
    answer = talk.listed(state_filters=["ongoing", "Dead"])

    assert (answer.unknown_state_filters, answer.transaction_states) == (["ongoing"], [])
    assert listed(talk, state_filters=["nonsense", "Empty"]) == ["idle"]


def test_given_an_expression_that_is_none_when_it_is_filtered_by_then_that_is_said(talk: Dialogue) -> None:
    answer = talk.listed(transactional_id_pattern="(")

    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert not answer.transaction_states


def test_given_an_open_transaction_when_it_is_described_then_its_partitions_are_by_topic(talk: Dialogue) -> None:
    assert talk.describe("open-1") == DescribedTransaction(
        transactional_id="open-1",
        transaction_state="Ongoing",
        transaction_timeout_ms=TIMEOUT_MS,
        transaction_start_time_ms=WALL_MS,
        producer_id=1_002,
        producer_epoch=0,
        topics=[
            DescribedTransactionTopic(topic="a", partitions=[0]),
            DescribedTransactionTopic(topic="b", partitions=[0, 1]),
        ],
    )


def test_given_an_id_that_nobody_has_when_it_is_described_then_it_is_not_found(talk: Dialogue) -> None:
    assert talk.describe("nobody's") == DescribedTransaction(
        transactional_id="nobody's", error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    )
