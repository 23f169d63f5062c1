"""What the shell asks of the machine beyond a client's own words, and what the machine asks of the shell."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.ids import TopicPartition
from penstock.protocol.messages.producers import InitProducerIdRequest
from penstock.protocol.messages.transactions import AddOffsetsToTxnRequest, EndTxnRequest
from penstock.protocol.schema import Struct


@dataclass(frozen=True, slots=True)
class InitProducerId:
    request: InitProducerIdRequest
    new_producer_id: int | None = None
    """One that was never given out. Few requests need one: without it, those are answered with NeedsProducerId."""


@dataclass(frozen=True, slots=True)
class EndTransaction:
    request: EndTxnRequest
    new_producer_id: int | None = None
    """As for InitProducerId."""


@dataclass(frozen=True, slots=True)
class AddOffsets:
    request: AddOffsetsToTxnRequest
    partition: TopicPartition
    """Of __consumer_offsets, where the group is."""


class NeedsProducerId(Struct):
    """The answer to a command that is to be asked again, with a new producer id. Nothing was decided."""


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """The effect of a decision to end a transaction: every partition gets a marker, however often that is tried.

    When all have it, this very object goes to `TransactionMachine.markers_written`, and not a copy: with a client that
    keeps its epoch, nothing else tells this transaction's markers from the next one's.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    partitions: tuple[TopicPartition, ...]
    transaction_version: int
    """2: the epoch is one that no data was written with, as it was bumped for this (KIP-890)."""
