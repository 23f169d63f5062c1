"""Which transactional batches a partition takes without asking, and what an answer of the coordinator is worth there.

A transactional batch enters only while its transaction is open, so that none is left behind without an end (KIP-890).
Once a marker has come, nothing counts that was asked before it.
"""

from __future__ import annotations

from penstock.protocol.batch import BatchHeader
from penstock.storage.log import Log
from penstock.storage.producers import NO_OFFSET


class Verification:
    __slots__ = ("_asking", "_log")

    def __init__(self, log: Log) -> None:
        self._log = log
        # Producers whose coordinator is being asked about their transaction.
        self._asking: dict[int, object] = {}

    def is_needed(self, batch: BatchHeader) -> bool:
        """Whether only its coordinator knows that a transactional batch belongs here: it is the first of its
        transaction, and not a repetition of one that has ended.
        """
        if self.is_in_transaction(batch.producer_id, batch.producer_epoch):
            return False
        entry = self._log.producers.entries.get(batch.producer_id)
        if entry is None or entry.producer_epoch != batch.producer_epoch:
            return True
        return all(
            each.base_sequence != batch.base_sequence or each.last_sequence != batch.last_sequence
            for each in entry.batches
        )

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has a transaction open here."""
        entry = self._log.producers.entries.get(producer_id)
        return (
            entry is not None and entry.producer_epoch == producer_epoch and entry.current_txn_first_offset != NO_OFFSET
        )

    def begin(self, producer_id: int) -> object:
        """Before the coordinator is asked. What it answers is worth nothing once a marker has come here meanwhile."""
        return self._asking.setdefault(producer_id, object())

    def end(self, producer_id: int, guard: object) -> bool:
        """Whether the answer is still worth something. Two questions of one producer at a time are one."""
        is_current = self._asking.get(producer_id) is guard
        if is_current:
            del self._asking[producer_id]
        return is_current

    def marked(self, producer_id: int) -> None:
        """A marker has come."""
        self._asking.pop(producer_id, None)
