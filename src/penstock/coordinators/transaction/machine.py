"""The transactional ids of one partition of __transaction_state: who may use them, and how their transactions end.

`producers`, `partitions` and `ends` decide; this is what they have in common: what is remembered, and time.

What must stay true:

- At most one producer, one id with one epoch, may use a transactional id; whoever came before is fenced.
- How a transaction ends is written, once, before anybody hears of it; markers are written after that, and again by
  whoever takes over before all of them are.
- A transaction that is open for longer than its producer asked for is aborted.
"""

from __future__ import annotations

from penstock.coordinators.decision import Caller, Decision, LogRecord, Now
from penstock.coordinators.timers import Timers
from penstock.coordinators.transaction import ends, partitions, producers, queries
from penstock.coordinators.transaction.commands import AddOffsets, EndTransaction, InitProducerId, WriteMarkers
from penstock.coordinators.transaction.records import (
    Record,
    TransactionRecord,
    TransactionTombstone,
    decode,
    encode,
)
from penstock.coordinators.transaction.state import (
    AT_REST,
    BEING_ENDED,
    NEXT,
    ONGOING,
    Transaction,
    TransactionConfig,
)
from penstock.core.metrics import TransactionMetrics
from penstock.protocol.messages.transactions import AddPartitionsToTxnTransaction, ListTransactionsRequest

# In the place of a transactional id, of which none is empty.
_EXPIRY_TIMER = ""


class TransactionMachine:
    def __init__(
        self, config: TransactionConfig, coordinator_epoch: int, metrics: TransactionMetrics | None = None
    ) -> None:
        """`coordinator_epoch` is the partition's leader epoch: of two coordinators, the later one's markers count."""
        self.config = config
        self.coordinator_epoch = coordinator_epoch
        self.metrics = metrics or TransactionMetrics()
        self.transactions: dict[str, Transaction] = {}
        self._timers: Timers[str] = Timers()

    # Durable state

    def apply(self, record: LogRecord) -> None:
        decoded: Record | None = record.meaning or decode(record)
        match decoded:
            case TransactionTombstone():
                self.transactions.pop(decoded.transactional_id, None)
            case TransactionRecord():
                if decoded.status not in NEXT:
                    raise ValueError(f"{decoded.transactional_id!r} cannot have become {decoded.status.kafka_name}")
                transaction = self.transactions.get(decoded.transactional_id)
                if transaction is None:
                    self.transactions[decoded.transactional_id] = Transaction(decoded)
                else:
                    transaction.record = decoded
            case None:
                return  # of a kind that a newer broker wrote

    # Time

    def loaded(self, now: Now, decision: Decision) -> None:
        for transaction in self.transactions.values():
            record = transaction.record
            if record.status is ONGOING:
                self.start_timeout(record, now, elapsed_ms=now.wall_ms - record.start_ms)
            elif record.status in BEING_ENDED:
                ends.carry_out(self, transaction, record, now, decision)
        self._look_for_expired_later(now)

    def due(self, now: Now, decision: Decision) -> None:
        key = self._timers.pop_due(now.monotonic_ms)
        if key is None:
            return
        if key == _EXPIRY_TIMER:
            self._expire(now, decision)
            self._look_for_expired_later(now)
        else:
            self.metrics.timeouts += 1
            ends.abort_and_fence(self, self.transactions[key], now, decision)

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_ms()

    def start_timeout(self, record: TransactionRecord, now: Now, *, elapsed_ms: int) -> None:
        # Whatever was done to the wall clock meanwhile, it gets no longer than it asked for.
        left_ms = min(max(record.timeout_ms - elapsed_ms, 0), record.timeout_ms)
        self._timers.set(record.transactional_id, now.monotonic_ms + left_ms)

    def stop_timeout(self, transactional_id: str) -> None:
        self._timers.cancel(transactional_id)

    def _look_for_expired_later(self, now: Now) -> None:
        interval_ms = self.config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._timers.set(_EXPIRY_TIMER, now.monotonic_ms + interval_ms)

    def _expire(self, now: Now, decision: Decision) -> None:
        """Ids that nobody has used for long. Who comes with one after that is given a new producer id."""
        before_ms = now.wall_ms - self.config.transactional_id_expiration_ms
        for transaction in self.transactions.values():
            record = transaction.record
            if record.status in AT_REST and record.last_update_ms <= before_ms:
                decision.records.append(encode(TransactionTombstone(record.transactional_id)))

    # Commands

    def init_producer_id(self, command: InitProducerId, caller: Caller, now: Now, decision: Decision) -> None:
        producers.init_producer_id(self, command, caller, now, decision)

    def add_partitions(
        self, request: AddPartitionsToTxnTransaction, caller: Caller, now: Now, decision: Decision
    ) -> None:
        partitions.add_partitions(self, request, caller, now, decision)

    def verify(self, request: AddPartitionsToTxnTransaction, caller: Caller, now: Now, decision: Decision) -> None:
        partitions.verify(self, request, caller, now, decision)

    def add_offsets(self, command: AddOffsets, caller: Caller, now: Now, decision: Decision) -> None:
        partitions.add_offsets(self, command, caller, now, decision)

    def end(self, command: EndTransaction, caller: Caller, now: Now, decision: Decision) -> None:
        ends.end(self, command, caller, now, decision)

    def markers_written(self, markers: WriteMarkers, now: Now, decision: Decision) -> None:
        ends.markers_written(self, markers, now, decision)

    def waits_for(self, markers: WriteMarkers) -> bool:
        """False: they are written, or belong to a machine that was lost."""
        transaction = self.transactions.get(markers.transactional_id)
        return transaction is not None and transaction.markers is markers

    def describe(self, transactional_id: str, caller: Caller, now: Now, decision: Decision) -> None:
        queries.describe(self, transactional_id, caller, now, decision)

    def list_all(self, request: ListTransactionsRequest, caller: Caller, now: Now, decision: Decision) -> None:
        queries.list_all(self, request, caller, now, decision)
