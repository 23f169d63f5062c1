"""What the commands about transactions show. `None`, printed as `-`, stands for what there is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Self

from penstock.cli.group_view import NOTHING, assignment_text
from penstock.cli.terminal import print_columns, shown
from penstock.core.ids import TopicPartition
from penstock.protocol.messages.transactions import ProducerState
from penstock.wire.cluster import Node

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
ONGOING = "Ongoing"
BEING_ENDED = ("PrepareCommit", "PrepareAbort")
RUNNING = (ONGOING, *BEING_ENDED)
ABORTED = ("PrepareAbort", "CompleteAbort")


@dataclass(frozen=True, slots=True)
class ListedView:
    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionView:
    """While it is being ended, the partitions are those whose markers are still to be written."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    coordinator: Node
    timeout_ms: int
    start_time_ms: int | None
    partitions: Sequence[TopicPartition]

    def document(self) -> dict[str, object]:
        partitions = [{"topic": topic, "partition": partition} for topic, partition in self.partitions]
        return asdict(self) | {"partitions": partitions}


@dataclass(frozen=True, slots=True)
class ProducerView:
    """A producer as a partition remembers it; `start_offset` is where its open transaction begins."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_timestamp: int
    coordinator_epoch: int
    start_offset: int | None

    @classmethod
    def of(cls, partition: TopicPartition, state: ProducerState) -> Self:
        return cls(
            partition=partition,
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            last_sequence=_unless_negative(state.last_sequence),
            last_timestamp=state.last_timestamp,
            coordinator_epoch=state.coordinator_epoch,
            start_offset=_unless_negative(state.current_txn_start_offset),
        )

    def document(self) -> dict[str, object]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "coordinator_epoch": _unless_negative(self.coordinator_epoch),
            "last_sequence": self.last_sequence,
            "last_timestamp": _unless_negative(self.last_timestamp),
            "current_transaction_start_offset": self.start_offset,
        }


@dataclass(frozen=True, slots=True)
class HangingSearch:
    """What was found in the partitions of these leaders, and how much more hangs that was written to of late."""

    leaders: Mapping[TopicPartition, Node]
    found: Sequence[ProducerView]
    too_young: int


def print_listed(views: Sequence[ListedView]) -> None:
    rows = [(view.transactional_id, view.state, view.producer_id, view.coordinator) for view in views]
    print_columns(("TRANSACTIONAL-ID", "STATE", "PRODUCER", "COORDINATOR"), rows)


def print_transaction(view: TransactionView, now_ms: int) -> None:
    print(
        f"{shown(view.transactional_id)}  {view.state}  producer {view.producer_id}, epoch {view.producer_epoch}  "
        f"coordinator {view.coordinator}"
    )
    if view.state not in RUNNING or view.start_time_ms is None:
        print(f"timeout {view.timeout_ms} ms, no transaction open")
        return
    running_ms = max(0, now_ms - view.start_time_ms)
    print(f"timeout {view.timeout_ms} ms, running for {running_ms} ms, since {time_text(view.start_time_ms)}")
    print(f"partitions {assignment_text(view.partitions)}")


def print_producers(views: Sequence[ProducerView]) -> None:
    header = ("TOPIC", "PARTITION", "PRODUCER", "EPOCH", "COORDINATOR-EPOCH", "SEQUENCE", "WRITTEN", "OPEN-FROM")
    print_columns(header, [_row(view) for view in views])


def _row(view: ProducerView) -> tuple[object, ...]:
    document = view.document() | {"last_timestamp": time_text(view.last_timestamp)}
    return tuple(NOTHING if value is None else value for value in document.values())


def time_text(time_ms: int) -> str | None:
    """2026-01-31T12:00:00.000Z"""
    if time_ms < 0:
        return None
    return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _unless_negative(number: int) -> int | None:
    return number if number >= 0 else None
