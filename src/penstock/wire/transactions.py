"""Which batches of an answer belong to transactions that were aborted (KIP-98).

A Fetch answer for committed records names the aborted transactions that reach into it, each by its producer and its
first offset: from there on, what that producer wrote within transactions is left out, until its ABORT marker. The next
transaction of the producer may follow in the same answer. Every answer names all that it needs.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.protocol.batch import BatchHeader


class AbortedTransactions:
    """For the batches of one answer, in their order."""

    def __init__(self, transactions: Iterable[tuple[int, int]]) -> None:
        """Producer ids and first offsets, in any order."""
        self._to_come = sorted(transactions, key=lambda each: each[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, header: BatchHeader) -> bool:
        """Of a batch of data."""
        self._pass(header)
        return header.is_transactional and header.producer_id in self._open

    def ended(self, header: BatchHeader, *, is_abort: bool) -> None:
        """Of a control batch."""
        self._pass(header)
        if is_abort:
            self._open.discard(header.producer_id)

    def _pass(self, header: BatchHeader) -> None:
        while self._to_come and self._to_come[-1][1] <= header.last_offset:
            self._open.add(self._to_come.pop()[0])
