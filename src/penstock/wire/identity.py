"""Who a producer is, and its transactions as their coordinator has them.

Partitions are added before the first batch goes to them, and EndTxn is asked in the versions in which a producer keeps
its epoch from one transaction to the next: brokers of every transaction.version take both (KIP-98, KIP-890). Whatever
is asked may be asked again: who ends what has ended that way is told that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import TopicPartition
from penstock.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from penstock.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
)
from penstock.wire.cluster import Cluster, Node
from penstock.wire.errors import NoAnswer, NotNow, NotWritten, UnknownTopic, Unreachable, WireError, check, reason
from penstock.wire.patience import Patience

Result = TypeVar("Result")

_SAYS_WHO_IT_IS_SINCE = 3
_CLIENTS_ADD_UP_TO = 3
# Since v5 every transaction has its own epoch, and Produce v12 adds partitions.
_EPOCH_STAYS_UP_TO = 4
# A transaction that is being ended is so for a few milliseconds.
_FIRST_PAUSE_S = 0.02
_SAID_OF_ALL = ErrorCode.OPERATION_NOT_ATTEMPTED


class Identity(NamedTuple):
    producer_id: int
    epoch: int


_NOBODY = Identity(-1, -1)


def new_identity(cluster: Cluster) -> Identity:
    """Of a producer without transactions. Raises WireError."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)

    def attempt() -> Identity:
        answer = cluster.ask_any(request, InitProducerIdResponse)
        check(answer.error_code)
        return Identity(answer.producer_id, answer.producer_epoch)

    return _until_answered("beginning to write", attempt, Patience(cluster.settings))


class Transactions:
    """Of one transactional id. Everything raises WireError, NotWritten with the broker's code for what is final."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int, patient_for_s: float) -> None:
        self.id = transactional_id
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._patient_for_s = patient_for_s
        self._coordinator: Node | None = None
        self._identity: Identity | None = None
        self._added: set[TopicPartition] = set()

    def fence(self) -> Identity:
        """Earlier producers of this id can do nothing more, and what they left open is aborted.

        Who does so again says who it is, and is refused if somebody else has fenced it since (KIP-360): a producer that
        has slept must not take the id back. Where that one's transaction is open, Kafka aborts it before it refuses.
        """
        held = self._identity or _NOBODY
        request = InitProducerIdRequest(
            transactional_id=self.id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=held.producer_id,
            producer_epoch=held.epoch,
        )

        def attempt() -> Identity:
            answer = self._cluster.ask(self._find(), request, InitProducerIdResponse, needed=_SAYS_WHO_IT_IS_SINCE)
            check(answer.error_code)
            return Identity(answer.producer_id, answer.producer_epoch)

        patience = Patience(self._cluster.settings, first_pause_s=_FIRST_PAUSE_S)
        self._identity = self._settled(f"fencing earlier producers of {self.id}", attempt, patience)
        return self._identity

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """To the transaction, which begins with the first."""
        new = sorted(set(partitions) - self._added)
        if not new:
            return
        identity = self._known()
        topics: dict[str, list[int]] = {}
        for topic, partition in new:
            topics.setdefault(topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=rows) for name, rows in topics.items()],
        )

        def attempt() -> None:
            answer = self._cluster.ask(self._find(), request, AddPartitionsToTxnResponse, at_most=_CLIENTS_ADD_UP_TO)
            rows = [row for topic in answer.results_by_topic_v3_and_below for row in topic.results_by_partition]
            codes = [row.partition_error_code for row in rows if row.partition_error_code != ErrorCode.NONE]
            check(next((code for code in codes if code != _SAID_OF_ALL), next(iter(codes), ErrorCode.NONE)))

        named = ", ".join(map(str, new[:3])) + (f" and {len(new) - 3} more" if len(new) > 3 else "")
        self._settled(f"adding {named} to the transaction", attempt, self._patience())
        self._added |= set(new)

    def end(self, *, is_commit: bool, within_s: float | None = None) -> None:
        """One without partitions has never begun. When it is not known how it ended, it may have."""
        if not self._added:
            return
        identity = self._known()
        request = EndTxnRequest(
            transactional_id=self.id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=is_commit,
        )

        def attempt() -> None:
            answer = self._cluster.ask(self._find(), request, EndTxnResponse, at_most=_EPOCH_STAYS_UP_TO)
            check(answer.error_code)

        self._settled(f"{'committing' if is_commit else 'aborting'} a transaction", attempt, self._patience(within_s))
        self._added.clear()

    def _known(self) -> Identity:
        assert self._identity is not None, "fenced first"
        return self._identity

    def _patience(self, within_s: float | None = None) -> Patience:
        timeout_s = self._patient_for_s if within_s is None else within_s
        return Patience(self._cluster.settings, timeout_s, "delivery.timeout.ms", _FIRST_PAUSE_S)

    def _find(self) -> Node:
        self._coordinator = self._coordinator or self._cluster.coordinator_of(self.id)
        return self._coordinator

    def _settled(self, what: str, attempt: Callable[[], Result], patience: Patience) -> Result:
        return _until_answered(what, attempt, patience, self._forget)

    def _forget(self) -> None:
        """Asked for again: it may have moved."""
        self._coordinator = None


def _until_answered(
    what: str, attempt: Callable[[], Result], patience: Patience, on_trouble: Callable[[], None] = lambda: None
) -> Result:
    while True:
        trouble: WireError
        try:
            return attempt()
        except BrokerError as refused:
            if not _passes(refused.code):
                raise NotWritten(f"{what}: {reason(refused)}", refused.code) from None
            is_unknown = refused.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            trouble = (UnknownTopic if is_unknown else NotNow)(f"the broker says {reason(refused)}")
            if refused.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                on_trouble()
        except (NoAnswer, Unreachable) as error:
            trouble = error
            on_trouble()
        patience.after(what, trouble)


def _passes(code: ErrorCode) -> bool:
    return code.retriable or code in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
