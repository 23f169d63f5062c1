"""Idempotence and transactions: what a partition knows of its producers, so that no retry is appended twice.

For each producer the last five batches are kept, as many as a client may have in flight. What must stay true:
- An exact repetition of one of the five is not appended and is answered with the original offsets.
- A batch all of whose sequence numbers were appended before is refused as a duplicate (46), which a client takes for
  success; so the answer is given only when it is true. Anything else out of order is refused (45).
- Entries are immutable. Undoing an append is putting the previous entry back, and a snapshot is a copy of the dict.
- A transaction begins with its first batch here and ends with its marker, which also raises the producer's epoch: what
  the producer sent before is refused from then on. `transactions` says the same as the entries, ordered by offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.batch import CONTROL_BIT, MAX_SEQUENCE, TRANSACTIONAL_BIT, BatchHeader, ReadableBuffer
from penstock.protocol.control import EndMarker, read_end_marker
from penstock.storage.transactions import EndedTransaction, Transactions

WINDOW_BATCHES = 5
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1
# From here on a marker's epoch is above that of the transaction it ends (KIP-890).
EPOCH_BUMP_TRANSACTION_VERSION = 2

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
    # Oldest first, at most five. Empty when all there is of this epoch is a marker or batches without a sequence.
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


class RepeatedBatch(BrokerError):
    """Appended before, where is not known any more: below `before_offset`. Clients take it for the success it is."""

    def __init__(self, text: str, before_offset: int) -> None:
        super().__init__(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, text)
        self.before_offset = before_offset


class Producers:
    __slots__ = ("entries", "transactions")

    def __init__(self, entries: dict[int, ProducerEntry] | None = None) -> None:
        self.entries: dict[int, ProducerEntry] = entries if entries is not None else {}
        self.transactions = Transactions()
        for producer_id, entry in self.entries.items():
            if entry.current_txn_first_offset != NO_OFFSET:
                self.transactions.begin(producer_id, entry.current_txn_first_offset)

    def accept(
        self, header: BatchHeader, base_offset: int, now_ms: int, is_transactional: bool = False
    ) -> ProducerEntry | None:
        """The batch goes to `base_offset`. Returns the entry to restore should it not come to that.

        Raises DuplicateBatch, or BrokerError with code 45, 46, 47, 48, 59 or 87; then nothing changed.
        """
        producer_id = header.producer_id
        base_sequence = header.base_sequence
        delta = header.last_offset_delta
        if base_sequence < 0:
            return self._accept_unnumbered(header, base_offset, now_ms, is_transactional)
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
                and (txn_first_offset >= 0) is is_transactional
            ):
                # The next batch, as nearly all are; spelled out because every idempotent append comes through here.
                known += delta + 1
                if known > _HALF_CIRCLE:
                    known = _HALF_CIRCLE
                batches = (*batches[1 - WINDOW_BATCHES :], batch)
                entries[producer_id] = _new_tuple(
                    ProducerEntry, (epoch, batches, known, now_ms, coordinator_epoch, txn_first_offset)
                )
                return previous
            _check(previous, header, base_sequence, last_sequence)
            if not is_transactional:
                _check_outside(previous, producer_id)
        entry = _following(previous, header.producer_epoch, batch, now_ms)
        self._put(producer_id, entry, base_offset, is_transactional)
        return previous

    def _accept_unnumbered(
        self, header: BatchHeader, base_offset: int, now_ms: int, is_transactional: bool
    ) -> ProducerEntry | None:
        """What a coordinator writes in the name of a producer: it repeats nothing, so only the epoch is checked."""
        producer_id = header.producer_id
        if not is_transactional:
            raise BrokerError(ErrorCode.INVALID_RECORD, f"a batch of producer {producer_id} has no sequence number")
        previous = self.entries.get(producer_id)
        if previous is not None:
            _check_not_fenced(previous, producer_id, header.producer_epoch)
        self._put(producer_id, _without_batch(previous, header.producer_epoch, now_ms), base_offset, True)
        return previous

    def _put(self, producer_id: int, entry: ProducerEntry, base_offset: int, is_transactional: bool) -> None:
        if is_transactional and entry.current_txn_first_offset == NO_OFFSET:
            self.transactions.begin(producer_id, base_offset)
            entry = entry._replace(current_txn_first_offset=base_offset)
        self.entries[producer_id] = entry

    def accept_transactional(
        self, batch: ReadableBuffer, header: BatchHeader, base_offset: int, now_ms: int, transaction_version: int
    ) -> tuple[ProducerEntry | None, EndedTransaction | None]:
        """The same for a batch of a transaction or the marker that ends one, and what it ended."""
        if not header.is_control:
            return self.accept(header, base_offset, now_ms, True), None
        try:
            marker = read_end_marker(batch)
        except ValueError as error:
            raise BrokerError(ErrorCode.INVALID_RECORD, str(error)) from None
        if marker is None:
            raise BrokerError(ErrorCode.INVALID_RECORD, "a control record that ends no transaction")
        return self.end_transaction(marker, base_offset, now_ms, transaction_version)

    def end_transaction(
        self, marker: EndMarker, base_offset: int, now_ms: int, transaction_version: int
    ) -> tuple[ProducerEntry | None, EndedTransaction | None]:
        """The marker goes to `base_offset`. Returns the entry to restore, and what ended if anything was open.

        Raises BrokerError with code 47 for a marker of an earlier transaction, 52 for one of a coordinator that was
        replaced; then nothing changed.
        """
        previous = self.entries.get(marker.producer_id)
        if previous is not None:
            _check_not_fenced(previous, marker.producer_id, marker.producer_epoch)
            if (
                transaction_version >= EPOCH_BUMP_TRANSACTION_VERSION
                and marker.producer_epoch == previous.producer_epoch
                and previous.current_txn_first_offset != NO_OFFSET
            ):
                raise BrokerError(
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                    f"a marker with epoch {marker.producer_epoch} does not end the transaction of the same epoch"
                    f" of producer {marker.producer_id}",
                )
            if marker.coordinator_epoch < previous.coordinator_epoch:
                raise BrokerError(
                    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                    f"a marker for producer {marker.producer_id} has coordinator epoch {marker.coordinator_epoch},"
                    f" {previous.coordinator_epoch} was seen",
                )
        return previous, self.replay_marker(marker, base_offset, now_ms)

    def restore(self, producer_id: int, entry: ProducerEntry | None) -> None:
        undone = self.entries.pop(producer_id, None)
        is_open = undone is not None and undone.current_txn_first_offset != NO_OFFSET
        was_open = entry is not None and entry.current_txn_first_offset != NO_OFFSET
        if is_open and not was_open:
            self.transactions.forget(producer_id)
        if entry is not None:
            self.entries[producer_id] = entry
            if was_open and not is_open:
                self.transactions.reopen(producer_id, entry.current_txn_first_offset)

    def before(self, staged: Sequence[StagedBatch]) -> dict[int, ProducerEntry]:
        """The entries as they were before these batches, the newest of all."""
        entries = dict(self.entries)
        for batch in reversed(staged):
            if batch.previous_entry is not None:
                entries[batch.producer_id] = batch.previous_entry
            elif batch.producer_id >= 0:
                del entries[batch.producer_id]
        return entries

    def replay(self, header: BatchHeader, now_ms: int) -> None:
        """A batch that is in the log: it was checked when it was appended, so it is taken as it is."""
        if header.producer_id < 0 or header.attributes & CONTROL_BIT:
            return
        is_transactional = bool(header.attributes & TRANSACTIONAL_BIT)
        previous = self.entries.get(header.producer_id)
        if header.base_sequence >= 0:
            batch = AppendedBatch(
                header.base_sequence, header.last_sequence, header.base_offset, header.last_offset, header.max_timestamp
            )
            entry = _following(previous, header.producer_epoch, batch, now_ms)
        elif is_transactional:
            entry = _without_batch(previous, header.producer_epoch, now_ms)
        else:
            return
        self._put(header.producer_id, entry, header.base_offset, is_transactional)

    def replay_marker(self, marker: EndMarker, offset: int, now_ms: int) -> EndedTransaction | None:
        """A marker that is in the log. Returns the transaction that it ended, if any was open."""
        producer_id = marker.producer_id
        entry = _without_batch(self.entries.get(producer_id), marker.producer_epoch, now_ms)
        self.entries[producer_id] = entry._replace(
            coordinator_epoch=marker.coordinator_epoch, current_txn_first_offset=NO_OFFSET
        )
        if entry.current_txn_first_offset == NO_OFFSET:
            return None
        return self.transactions.end(producer_id, offset, is_commit=marker.is_commit)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forgets producers not seen for that long; open transactions keep theirs. Returns how many went."""
        gone = [
            producer_id
            for producer_id, entry in self.entries.items()
            if now_ms - entry.last_update_ms >= expiration_ms and entry.current_txn_first_offset == NO_OFFSET
        ]
        for producer_id in gone:
            del self.entries[producer_id]
        return len(gone)


def _check(entry: ProducerEntry, header: BatchHeader, base_sequence: int, last_sequence: int) -> None:
    producer_id, producer_epoch = header.producer_id, header.producer_epoch
    _check_not_fenced(entry, producer_id, producer_epoch)
    if producer_epoch != entry.producer_epoch or not entry.batches:
        if base_sequence != 0:
            raise BrokerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} begins epoch {producer_epoch} with sequence number {base_sequence}",
            )
        return
    expected = (entry.batches[-1].last_sequence + 1) & MAX_SEQUENCE
    if base_sequence == expected:
        return
    for batch in entry.batches:
        if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
            if header.attributes & TRANSACTIONAL_BIT and not _is_of_open_transaction(entry, batch):
                break
            raise DuplicateBatch(batch)
    producer = f"producer {producer_id}"
    if header.attributes & TRANSACTIONAL_BIT and _was_appended(entry, base_sequence, base_sequence, expected):
        raise BrokerError(
            ErrorCode.UNKNOWN_PRODUCER_ID,
            f"{producer} sent {base_sequence} in this transaction, which an earlier one had; {expected} comes next",
        )
    if _was_appended(entry, base_sequence, last_sequence, expected):
        text = f"{producer}: {base_sequence} to {last_sequence} were appended before"
        raise RepeatedBatch(text, entry.batches[-1].last_offset + 1)
    raise BrokerError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{producer} sent {base_sequence}, expected {expected}")


def _check_not_fenced(entry: ProducerEntry, producer_id: int, producer_epoch: int) -> None:
    if producer_epoch < entry.producer_epoch:
        raise BrokerError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {producer_id} has epoch {producer_epoch}, {entry.producer_epoch} was seen",
        )


def _check_outside(entry: ProducerEntry, producer_id: int) -> None:
    if entry.current_txn_first_offset != NO_OFFSET:
        raise BrokerError(
            ErrorCode.INVALID_TXN_STATE,
            f"producer {producer_id} sent a batch of no transaction, its own is open"
            f" since offset {entry.current_txn_first_offset}",
        )


def _is_of_open_transaction(entry: ProducerEntry, batch: AppendedBatch) -> bool:
    """Only such a batch can be sent again: a transaction is ended by a producer that waits for no answer any more.

    A number that comes again later is librdkafka's, which after an abort gives the numbers of records that it had not
    heard of to new ones (its "ADVBASE"). Told that those are in the log, it would lose them; told that its numbers are
    not known, it aborts and takes a new epoch.
    """
    return 0 <= entry.current_txn_first_offset <= batch.base_offset


def is_before(sequence: int, other: int) -> bool:
    """In the order in which a producer numbers its records, which begins anew at the end of the circle."""
    return 0 < (other - sequence) & MAX_SEQUENCE <= _HALF_CIRCLE


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


def _without_batch(previous: ProducerEntry | None, producer_epoch: int, now_ms: int) -> ProducerEntry:
    """After something of this epoch that has no sequence number."""
    if previous is None:
        return ProducerEntry(producer_epoch, (), 0, now_ms)
    if previous.producer_epoch != producer_epoch:
        previous = previous._replace(producer_epoch=producer_epoch, batches=(), known_sequences=0)
    return previous._replace(last_update_ms=now_ms)
