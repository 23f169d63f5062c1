"""A dialogue with the coordinator of one partition: producers speak, time passes, it dies, markers get written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.coordinators.decision import Caller, Decision, LogRecord, Now
from penstock.coordinators.transaction.commands import (
    AddOffsets,
    EndTransaction,
    InitProducerId,
    NeedsProducerId,
    WriteMarkers,
)
from penstock.coordinators.transaction.machine import TransactionMachine
from penstock.coordinators.transaction.records import TransactionRecord, TransactionTombstone, decode
from penstock.coordinators.transaction.state import TransactionConfig
from penstock.core.errors import ErrorCode
from penstock.core.ids import TopicPartition
from penstock.protocol.messages.producers import InitProducerIdRequest
from penstock.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    ListTransactionsRequest,
)
from penstock.protocol.schema import Struct

ORDERS = "orders"
"""The transactional id, where one is enough."""

TIMEOUT_MS = 60_000
WALL_MS = 1_700_000_000_000
P0, P1 = TopicPartition("a", 0), TopicPartition("b", 1)
OFFSETS = TopicPartition("__consumer_offsets", 7)
V1, V2 = 4, 5
"""Versions of EndTxn: those of clients that keep their epoch, and of those that get one for every transaction."""


class Producer(NamedTuple):
    """What a producer was told to be."""

    producer_id: int
    epoch: int


NOBODY = Producer(-1, -1)


class Said(NamedTuple):
    """An answer: the name of its error, or "ok", and who the producer is from now on."""

    error: str
    producer: Producer


@dataclass
class Dialogue:
    config: TransactionConfig = field(default_factory=TransactionConfig)
    log: list[LogRecord] = field(default_factory=list)
    now: Now = field(default_factory=lambda: Now(WALL_MS, 0))
    effects: list[WriteMarkers] = field(default_factory=list)
    """Those that the shell has not carried out."""

    decisions: list[Decision] = field(default_factory=list)
    coordinator_epoch: int = 3
    producer_ids: int = 1_000

    def __post_init__(self) -> None:
        self.machine = TransactionMachine(self.config, self.coordinator_epoch)
        for record in self.log:
            self.machine.apply(record)
        self._decide(self.machine.loaded)

    # Producers speak

    def init(
        self,
        transactional_id: str = ORDERS,
        *,
        expected: Producer = NOBODY,
        timeout_ms: int = TIMEOUT_MS,
        version: int = 5,
    ) -> Said:
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=expected.producer_id,
            producer_epoch=expected.epoch,
        )
        answer = self._with_producer_id(
            lambda new_id: self._ask(self.machine.init_producer_id, InitProducerId(request, new_id), version)
        )
        return Said(_name(answer.error_code), Producer(answer.producer_id, answer.producer_epoch))

    def add(
        self, producer: Producer, *partitions: TopicPartition, transactional_id: str = ORDERS, version: int = 3
    ) -> str:
        request = _adding(transactional_id, producer, partitions or (P0,))
        return self._one_code(self._ask(self.machine.add_partitions, request, version))

    def verify(
        self, producer: Producer, *partitions: TopicPartition, transactional_id: str = ORDERS, version: int = 5
    ) -> list[str]:
        request = _adding(transactional_id, producer, partitions or (P0,), verify_only=True)
        answer = self._ask(self.machine.add_partitions, request, version)
        assert answer == self._ask(self.machine.verify, request, version)
        return _codes(answer)

    def add_offsets(self, producer: Producer, *, transactional_id: str = ORDERS, version: int = 4) -> str:
        request = AddOffsetsToTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id="g",
        )
        return _name(self._ask(self.machine.add_offsets, AddOffsets(request, OFFSETS), version).error_code)

    def end(self, producer: Producer, *, commit: bool, version: int, transactional_id: str = ORDERS) -> Said:
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )
        answer = self._with_producer_id(
            lambda new_id: self._ask(self.machine.end, EndTransaction(request, new_id), version)
        )
        return Said(_name(answer.error_code), Producer(answer.producer_id, answer.producer_epoch))

    def commit(self, producer: Producer, version: int = V2, transactional_id: str = ORDERS) -> Said:
        return self.end(producer, commit=True, version=version, transactional_id=transactional_id)

    def abort(self, producer: Producer, version: int = V2, transactional_id: str = ORDERS) -> Said:
        return self.end(producer, commit=False, version=version, transactional_id=transactional_id)

    def describe(self, transactional_id: str = ORDERS) -> Any:
        return self._ask(self.machine.describe, transactional_id, 0)

    def listed(self, **filters: Any) -> Any:
        return self._ask(self.machine.list_all, ListTransactionsRequest(**filters), 2)

    # The world

    def write_markers(self) -> list[WriteMarkers]:
        """The shell does all that it was told to."""
        done, self.effects = self.effects, []
        for markers in done:
            self.markers_written(markers)
        return done

    def markers_written(self, markers: WriteMarkers) -> None:
        self._decide(lambda now, decision: self.machine.markers_written(markers, now, decision))

    def pass_ms(self, duration_ms: int) -> None:
        """Every deadline comes when it is due."""
        end_ms = self.now.monotonic_ms + duration_ms
        while (due_ms := self.machine.next_deadline_ms()) is not None and due_ms <= end_ms:
            self._move_to(max(due_ms, self.now.monotonic_ms))
            self._decide(self.machine.due)
        self._move_to(end_ms)

    def _move_to(self, monotonic_ms: int) -> None:
        self.now = Now(self.now.wall_ms + monotonic_ms - self.now.monotonic_ms, monotonic_ms)

    def crash(self, *, compacted: bool = False, wall_ms: int = 0, elected: bool = True) -> None:
        """Another coordinator takes over, with a monotonic clock of its own. Not elected: the same loads once more."""
        if compacted:
            last = {record.key: at for at, record in enumerate(self.log)}
            self.log = [self.log[at] for at in sorted(last.values())]
        self.effects = []
        self.now = Now(self.now.wall_ms + wall_ms, self.now.monotonic_ms + 1_000_000)
        self.coordinator_epoch += elected
        self.__post_init__()

    # What happened

    @property
    def record(self) -> TransactionRecord:
        return self.machine.transactions[ORDERS].record

    @property
    def status(self) -> str:
        known = self.machine.transactions.get(ORDERS)
        return "-" if known is None else known.record.status.kafka_name

    @property
    def producer(self) -> Producer:
        return Producer(self.record.producer_id, self.record.producer_epoch)

    def history(self, since: int = 0) -> list[str]:
        """The statuses that were written; "-" for a tombstone."""
        decoded = [decode(record) for record in self.log[since:]]
        return ["-" if isinstance(each, TransactionTombstone) else each.status.kafka_name for each in decoded if each]

    def _with_producer_id(self, ask: Callable[[int | None], Any]) -> Any:
        """As the shell does: gets a producer id only when one is needed."""
        written = len(self.log)
        answer = ask(None)
        if isinstance(answer, NeedsProducerId):
            assert len(self.log) == written, "nothing was decided"
            self.producer_ids += 1
            answer = ask(self.producer_ids)
        return answer

    def _ask(self, work: Callable[[Any, Caller, Now, Decision], None], request: object, version: int) -> Any:
        caller = Caller(1, version, "client", "/host", lambda: "id")
        decision = Decision()
        work(request, caller, self.now, decision)
        self._carry_out(decision)
        ((ticket, answer),) = decision.answers
        assert ticket == caller.ticket
        return answer

    def _decide(self, work: Callable[[Now, Decision], None]) -> None:
        decision = Decision()
        work(self.now, decision)
        self._carry_out(decision)
        assert not decision.answers

    def _carry_out(self, decision: Decision) -> None:
        self.decisions.append(decision)
        for record in decision.records:
            self.machine.apply(record)
            self.log.append(LogRecord(record.key, record.value))
        self.effects += decision.effects

    def _one_code(self, answer: AddPartitionsToTxnResult) -> str:
        (code,) = set(_codes(answer))
        return code


def begun(talk: Dialogue, *partitions: TopicPartition, version: int = 3) -> Producer:
    """A producer with a transaction under way."""
    producer = talk.init().producer
    assert talk.add(producer, *(partitions or (P0, P1)), version=version) == "ok"
    return producer


def replayed(talk: Dialogue) -> dict[str, TransactionRecord]:
    machine = TransactionMachine(talk.config, 0)
    for record in talk.log:
        machine.apply(record)
    return records_of(machine)


def records_of(machine: TransactionMachine) -> dict[str, TransactionRecord]:
    return {each: transaction.record for each, transaction in machine.transactions.items()}


def _adding(
    transactional_id: str, producer: Producer, partitions: tuple[TopicPartition, ...], *, verify_only: bool = False
) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=verify_only,
        topics=[AddPartitionsToTxnTopic(name=each.topic, partitions=[each.partition]) for each in partitions],
    )


def _codes(answer: Struct) -> list[str]:
    assert isinstance(answer, AddPartitionsToTxnResult)
    return [_name(each.partition_error_code) for topic in answer.topic_results for each in topic.results_by_partition]


def _name(code: int) -> str:
    return ErrorCode(code).name if code else "ok"
