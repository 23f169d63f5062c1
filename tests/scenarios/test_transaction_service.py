"""Transactions as their users and operators feel them: the next one begins at once, and /metrics tells how they go."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from penstock.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
)
from tests.testkit import Broker, RawClient, eventually
from tests.testkit.asking import a_batch, create_usable_topic, fetch, produce, records_of

TOPIC = "orders"
TRANSACTIONS = 0x01
READ_COMMITTED = 1


class Transacting:
    """A producer with a transactional id, of clients that know version 1 of transactions, or version 2."""

    def __init__(self, client: RawClient, transactional_id: str, *, version: int = 1, timeout_ms: int = 60_000) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.version = version
        request = FindCoordinatorRequest(key_type=TRANSACTIONS, coordinator_keys=[transactional_id])
        client.exchange(request, 4, FindCoordinatorResponse)
        given = eventually(lambda: self._init(timeout_ms))
        self.producer_id, self.producer_epoch = given.producer_id, given.producer_epoch
        self._sequence = 0

    def _init(self, timeout_ms: int) -> InitProducerIdResponse | None:
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms)
        given = self.client.exchange(request, 4, InitProducerIdResponse)
        return None if given.error_code else given

    def add_partition(self) -> int:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
        )
        response = self.client.exchange(request, 3, AddPartitionsToTxnResponse)
        return response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

    def add_offsets(self) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id="copiers",
        )
        return self.client.exchange(request, 3, AddOffsetsToTxnResponse).error_code

    def produce(self, value: bytes) -> int:
        batch = a_batch(
            value,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self._sequence,
            is_transactional=True,
        )
        version = 12 if self.version == 2 else 11
        row = produce(self.client, TOPIC, batch, version=version, transactional_id=self.transactional_id)
        self._sequence += row.error_code == 0
        return row.error_code

    def end(self, *, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=commit,
        )
        response = self.client.exchange(request, 5 if self.version == 2 else 4, EndTxnResponse)
        assert response.error_code == 0, response
        if self.version == 2:
            self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
            self._sequence = 0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    settings: dict[str, Any] = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
    with Broker.start(tmp_path / "data", **settings) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.address) as client:
        create_usable_topic(client, TOPIC)
        yield client


def metrics(broker: Broker) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if "transaction" in line or "stable" in line]
    rows = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.removeprefix("penstock_"): float(value) for name, value in rows.items()}


# One after the other

ROUNDS = 20
# On a machine that is busy with other things markers may take longer than a request waits for them.
FEW = 5


def is_refused_first(step: Callable[[], int]) -> bool:
    """Returns when the step is taken."""
    if step() == ErrorCode.NONE:
        return False
    eventually(lambda: step() == ErrorCode.NONE)
    return True


def test_given_a_transaction_that_has_just_ended_when_the_next_adds_a_partition_then_it_is_not_refused(
    client: RawClient,
) -> None:
    producer = Transacting(client, "copier")
    refused = 0

    for number in range(ROUNDS):
        refused += is_refused_first(producer.add_partition)
        assert producer.produce(b"%d" % number) == ErrorCode.NONE
        producer.end(commit=number % 3 > 0)

    assert refused < FEW


def test_given_a_transaction_that_has_just_ended_when_the_next_adds_offsets_then_it_is_not_refused(
    client: RawClient,
) -> None:
    producer = Transacting(client, "copier")
    eventually(lambda: producer.add_offsets() == ErrorCode.NONE)
    refused = 0

    for _ in range(ROUNDS):
        producer.end(commit=True)
        refused += is_refused_first(producer.add_offsets)

    assert refused < FEW


def test_given_a_transaction_of_version_2_that_has_just_ended_when_the_next_writes_then_it_is_not_refused(
    client: RawClient,
) -> None:
    producer = Transacting(client, "copier", version=2)
    refused = 0

    for _ in range(ROUNDS):
        refused += is_refused_first(lambda: producer.produce(b"x"))
        producer.end(commit=True)

    assert refused < FEW


def test_given_aborted_and_committed_transactions_when_read_in_small_pieces_then_each_tells_of_its_own_aborts(
    client: RawClient,
) -> None:
    producer = Transacting(client, "copier", version=2)
    for number in range(ROUNDS):
        is_refused_first(lambda: producer.produce(b"x"))
        producer.end(commit=number % 3 > 0)
    eventually(lambda: fetch(client, TOPIC).last_stable_offset == 2 * ROUNDS)

    for number in range(ROUNDS):
        row = fetch(client, TOPIC, 2 * number, partition_max_bytes=1, isolation_level=READ_COMMITTED)
        told = [each.first_offset for each in row.aborted_transactions or []]
        assert (2 * number in told) == (number % 3 == 0)
        assert [record.offset for record in records_of(row)][:1] == [2 * number]


# As an operator sees them


def test_given_transactions_when_metrics_are_read_then_they_tell_what_is_open_and_how_others_ended(
    broker: Broker, client: RawClient
) -> None:
    assert metrics(broker)["transactions_open"] == 0

    ended = Transacting(client, "ended")
    for commit in (True, True, False):
        is_refused_first(ended.add_partition)
        assert ended.produce(b"x") == ErrorCode.NONE
        ended.end(commit=commit)
    eventually(lambda: metrics(broker).get('transactional_ids{state="CompleteAbort"}') == 1)
    still_open = Transacting(client, "still open")
    still_open.add_partition()
    still_open.produce(b"x")
    still_open.produce(b"y")

    found = metrics(broker)
    assert found["transactions_open"] == found['transactional_ids{state="Ongoing"}'] == 1
    assert 0 < found["transaction_oldest_open_seconds"] < 60
    assert found["transaction_commits_total"] == 2
    assert found["transaction_aborts_total"] == 1
    assert found["transaction_timeouts_total"] == 0
    assert found["transaction_markers_pending"] == 0
    assert found["transaction_partitions_loading"] == 0
    assert found['last_stable_offset_lag{partition="0",topic="orders"}'] == 2

    still_open.end(commit=True)
    eventually(lambda: not any(name.startswith("last_stable_offset_lag") for name in metrics(broker)))
    assert metrics(broker)["transaction_oldest_open_seconds"] == 0


def test_given_a_transaction_that_takes_too_long_when_it_is_aborted_then_timeouts_and_late_writes_are_counted(
    broker: Broker, client: RawClient
) -> None:
    producer = Transacting(client, "slow", timeout_ms=50)
    producer.add_partition()
    eventually(lambda: metrics(broker).get('transactional_ids{state="CompleteAbort"}') == 1)

    assert producer.produce(b"too late") != ErrorCode.NONE

    found = metrics(broker)
    assert found["transaction_timeouts_total"] == found["transaction_aborts_total"] == 1
    assert found["transaction_verification_failures_total"] == 1
    assert found["transaction_commits_total"] == 0
