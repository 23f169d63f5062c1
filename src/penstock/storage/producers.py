"""Idempotence: which batches of which producers a partition has, so that a retry is never appended twice.

For each producer the last five batches are kept, as many as a client may have in flight. What must stay true:
- An exact repetition of one of the five is not appended and is answered with the original offsets.
- A batch all of whose sequence numbers were appended before is refused as a duplicate (46), which a client takes for
  success; so the answer is given only when it is true. Anything else out of order is refused (45).
- Entries are immutable. Undoing an append is putting the previous entry back, and a snapshot is a copy of the dict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.batch import CONTROL_BIT, MAX_SEQUENCE, BatchHeader

WINDOW_BATCHES = 5
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1

# Sequence numbers live on a circle of 2^31. What lies more than half of it behind is taken to lie ahead.
_HALF_CIRCLE = 2**30

# A named tuple's own constructor, without the Python function around it: half the time, on every append.
_new_tuple = tuple.__new__


class AppendedBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    # The largest timestamp of the batch: its append time on LogAppendTime topics.
    timestamp: int


class ProducerEntry(NamedTuple):
    producer_epoch: int
    # Oldest first, at most five. Empty only in a snapshot written after nothing but transaction markers.
    batches: tuple[AppendedBatch, ...]
    # So many sequence numbers of this epoch, up to the last, are known to have been appended without a gap.
    known_sequences: int
    # Wall clock: record timestamps say nothing about when a producer was last seen.
    last_update_ms: int
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    current_txn_first_offset: int = NO_OFFSET


class StagedBatch(Protocol):
    """What is needed of a batch to undo its effect."""

    @property
    def producer_id(self) -> int: ...
    @property
    def previous_entry(self) -> ProducerEntry | None: ...


class DuplicateBatch(Exception):
    """Not a failure: the batch is in the log already, at these offsets."""

    def __init__(self, original: AppendedBatch) -> None:
        super().__init__(f"already appended at {original.base_offset}")
        self.base_offset = original.base_offset
        self.last_offset = original.last_offset
        self.timestamp = original.timestamp


class Producers:
    __slots__ = ("_unwritten", "entries")

    def __init__(self, entries: dict[int, ProducerEntry] | None = None) -> None:
        self.entries: dict[int, ProducerEntry] = entries if entries is not None else {}
        # Producers whose very first batch could not be written: their epoch and its sequence number. What they had in
        # flight behind it must not get in before it.
        self._unwritten: dict[int, tuple[int, int]] = {}

    def accept(self, header: BatchHeader, base_offset: int, now_ms: int) -> ProducerEntry | None:
        """The batch goes to `base_offset`. Returns the entry to restore should it not come to that.

        Raises DuplicateBatch, or BrokerError with code 45, 46, 47 or 87; then nothing changed.
        """
        producer_id = header.producer_id
        base_sequence = header.base_sequence
        delta = header.last_offset_delta
        if base_sequence < 0:
            raise BrokerError(ErrorCode.INVALID_RECORD, f"a batch of producer {producer_id} has no sequence number")
        last_sequence = (base_sequence + delta) & MAX_SEQUENCE
        batch = _new_tuple(
            AppendedBatch, (base_sequence, last_sequence, base_offset, base_offset + delta, header.max_timestamp)
        )
        entries = self.entries
        previous = entries.get(producer_id)
        if previous is not None:
            epoch, batches, known, _, coordinator_epoch, txn_first_offset = previous
            if (
                epoch == header.producer_epoch
                and batches
                and (batches[-1].last_sequence + 1) & MAX_SEQUENCE == base_sequence
            ):
                # The next batch, as nearly all are; spelled out because every idempotent append comes through here.
                known = min(known + delta + 1, _HALF_CIRCLE)
                batches = (*batches[1 - WINDOW_BATCHES :], batch)
                entries[producer_id] = _new_tuple(
                    ProducerEntry, (epoch, batches, known, now_ms, coordinator_epoch, txn_first_offset)
                )
                return previous
            _check(previous, header, base_sequence, last_sequence)
        elif self._unwritten:
            self._check_unwritten(header)
        entries[producer_id] = _following(previous, header.producer_epoch, batch, now_ms)
        return previous

    def restore(self, producer_id: int, entry: ProducerEntry | None) -> None:
        if entry is None:
            undone = self.entries.pop(producer_id, None)
            if undone is not None and undone.batches:
                self._unwritten[producer_id] = undone.producer_epoch, undone.batches[-1].base_sequence
        else:
            self.entries[producer_id] = entry

    def before(self, staged: Sequence[StagedBatch]) -> dict[int, ProducerEntry]:
        """The entries as they were before these batches, the newest of all."""
        entries = dict(self.entries)
        for batch in reversed(staged):
            if batch.previous_entry is not None:
                entries[batch.producer_id] = batch.previous_entry
            elif batch.producer_id >= 0:
                del entries[batch.producer_id]
        return entries

    def _check_unwritten(self, header: BatchHeader) -> None:
        producer_id = header.producer_id
        epoch, first_sequence = self._unwritten.get(producer_id, (-1, -1))
        if epoch == header.producer_epoch and header.base_sequence != first_sequence:
            raise BrokerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} sent {header.base_sequence}, {first_sequence} was not written before it",
            )
        self._unwritten.pop(producer_id, None)

    def replay(self, header: BatchHeader, now_ms: int) -> None:
        """A batch that is in the log: it was checked when it was appended, so it is taken as it is."""
        if header.producer_id < 0 or header.base_sequence < 0 or header.attributes & CONTROL_BIT:
            return
        previous = self.entries.get(header.producer_id)
        batch = AppendedBatch(
            header.base_sequence, header.last_sequence, header.base_offset, header.last_offset, header.max_timestamp
        )
        self.entries[header.producer_id] = _following(previous, header.producer_epoch, batch, now_ms)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forgets producers not seen for that long; open transactions keep theirs. Returns how many went."""
        gone = [
            producer_id
            for producer_id, entry in self.entries.items()
            if now_ms - entry.last_update_ms >= expiration_ms and entry.current_txn_first_offset == NO_OFFSET
        ]
        for producer_id in gone:
            del self.entries[producer_id]
        self._unwritten.clear()
        return len(gone)


def _check(entry: ProducerEntry, header: BatchHeader, base_sequence: int, last_sequence: int) -> None:
    producer_epoch = header.producer_epoch
    if producer_epoch != entry.producer_epoch:
        _check_epoch(entry, header, base_sequence)
        return
    if not entry.batches:
        return
    expected = (entry.batches[-1].last_sequence + 1) & MAX_SEQUENCE
    if base_sequence == expected:
        return
    for batch in entry.batches:
        if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
            raise DuplicateBatch(batch)
    producer = f"producer {header.producer_id}"
    if _was_appended(entry, base_sequence, last_sequence, expected):
        raise BrokerError(
            ErrorCode.DUPLICATE_SEQUENCE_NUMBER, f"{producer}: {base_sequence} to {last_sequence} were appended before"
        )
    raise BrokerError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{producer} sent {base_sequence}, expected {expected}")


def _check_epoch(entry: ProducerEntry, header: BatchHeader, base_sequence: int) -> None:
    if header.producer_epoch < entry.producer_epoch:
        raise BrokerError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} has epoch {header.producer_epoch}, {entry.producer_epoch} was seen",
        )
    if base_sequence != 0:
        raise BrokerError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} begins epoch {header.producer_epoch} with sequence number {base_sequence}",
        )


def _was_appended(entry: ProducerEntry, base_sequence: int, last_sequence: int, expected: int) -> bool:
    behind = (expected - base_sequence) & MAX_SEQUENCE
    length = ((last_sequence - base_sequence) & MAX_SEQUENCE) + 1
    return length <= behind <= entry.known_sequences


def _following(previous: ProducerEntry | None, producer_epoch: int, batch: AppendedBatch, now_ms: int) -> ProducerEntry:
    length = batch.last_offset - batch.base_offset + 1
    if previous is None:
        return ProducerEntry(producer_epoch, (batch,), length, now_ms)
    batches = previous.batches
    if previous.producer_epoch != producer_epoch:
        batches = ()
    elif batches and batch.base_sequence == (batches[-1].last_sequence + 1) & MAX_SEQUENCE:
        length = min(previous.known_sequences + length, _HALF_CIRCLE)
    return ProducerEntry(
        producer_epoch,
        (*batches[1 - WINDOW_BATCHES :], batch),
        length,
        now_ms,
        previous.coordinator_epoch,
        previous.current_txn_first_offset,
    )
