"""How compaction tells committed records from aborted ones, and when a marker may go.

Everything that compaction touches lies below the last stable offset, so every transaction in it is decided: it is in an
index of aborted transactions, perhaps of a later segment, or it was committed. What must stay true (trap D3):
- A marker stays while any batch of its transaction is in the log, be it without records: a batch without its marker is
  an open transaction to whoever reads the log next, and one whose abort is forgotten is a committed one.
- Batches are looked at from the first of the log on, in order: those of a transaction come before its marker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping

from penstock.protocol.batch import BatchHeader
from penstock.storage.producers import ProducerEntry
from penstock.storage.txn_index import TxnIndexEntry


class CleanedTransactions:
    """Of one round."""

    __slots__ = ("_aborted", "_epochs", "_with_batches")

    def __init__(self, aborted: Iterable[TxnIndexEntry], producers: Mapping[int, ProducerEntry]) -> None:
        """`aborted` in the order of their markers."""
        self._aborted: dict[int, list[TxnIndexEntry]] = defaultdict(list)
        for entry in aborted:
            self._aborted[entry.producer_id].append(entry)
        # Producers of whose epoch there is nothing but markers: these keep those of earlier epochs out.
        self._epochs = {
            producer_id: entry.producer_epoch for producer_id, entry in producers.items() if not entry.batches
        }
        # Producers of whose transaction a batch has passed since its last marker.
        self._with_batches: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Of a batch of a transaction. Those of one producer do not overlap, so the next marker decides."""
        entries = self._aborted.get(header.producer_id)
        if entries is None:
            return False
        at = bisect_left(entries, header.base_offset, key=lambda entry: entry.last_offset)
        return at < len(entries) and entries[at].first_offset <= header.last_offset

    def passed_batch(self, header: BatchHeader) -> None:
        self._with_batches.add(header.producer_id)

    def passed_marker(self, header: BatchHeader) -> bool:
        """Whether its transaction has batches in the log."""
        has_batches = header.producer_id in self._with_batches
        self._with_batches.discard(header.producer_id)
        return has_batches

    def is_last_word(self, header: BatchHeader) -> bool:
        """Whether the marker is what remains of its producer's epoch."""
        return self._epochs.get(header.producer_id) == header.producer_epoch
