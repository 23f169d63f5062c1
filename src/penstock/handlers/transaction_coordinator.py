"""What the handlers of transactional requests share: asking the coordinator of a transactional id, and verification.

A partition takes a transactional batch only while its transaction is open, and says so to the coordinator or hears it
from there (KIP-890): a batch that was delayed until after its transaction had ended would otherwise open one that
nobody ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from penstock.coordinators.decision import Caller, Decision, Now, Producer
from penstock.coordinators.shard import Shard
from penstock.coordinators.transaction.commands import NeedsProducerId
from penstock.coordinators.transaction.machine import TransactionMachine
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import TopicPartition
from penstock.handlers.context import Broker, Done, RequestContext
from penstock.protocol.messages.transactions import AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction
from penstock.replication.partition import Partition

Work = Callable[[TransactionMachine, Any, Caller, Now, Decision], None]

# As brokers send them: what clients send is an older version.
_VERIFICATION_VERSION = 5
_COME_BACK = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class WithProducerId(Protocol):
    """A command that may need a new producer id."""

    def __call__(self, request: Any, new_producer_id: int | None = None) -> object: ...


async def ask(work: Work, request: object, transactional_id: str, context: RequestContext, broker: Broker) -> Any:
    """Raises BrokerError when this broker does not coordinate the transactional id, or not yet."""
    return await ask_shard(broker.transactions.shard_of(transactional_id, broker.image), work, request, context)


async def ask_shard(shard: Shard[TransactionMachine], work: Work, request: object, context: RequestContext) -> Any:
    return await shard.ask(
        work,
        request,
        api_version=context.api_version,
        client_id=context.client_id or "",
        client_host=f"/{context.session.client_host}",
    )


def submit(
    work: Work,
    request: object,
    transactional_id: str,
    context: RequestContext,
    broker: Broker,
    done: Callable[[Any], None],
) -> None:
    """`ask` without a task, for requests that come often: `done` gets the answer, or the BrokerError."""
    try:
        broker.transactions.shard_of(transactional_id, broker.image).submit(
            work, request, done, context.api_version, context.client_id or "", f"/{context.session.client_host}"
        )
    except BrokerError as error:
        done(error)


async def ask_with_producer_id(
    work: Work, command: WithProducerId, request: Any, context: RequestContext, broker: Broker
) -> Any:
    answer = await ask(work, command(request), request.transactional_id, context, broker)
    if isinstance(answer, NeedsProducerId):
        new = command(request, await broker.producer_ids.next())
        answer = await ask(work, new, request.transactional_id, context, broker)
    return answer


def submit_with_producer_id(
    work: Work, command: WithProducerId, request: Any, context: RequestContext, broker: Broker, done: Done
) -> None:
    """The same without a task, unless it takes a new producer id."""

    def answered(answer: Any) -> None:
        if isinstance(answer, NeedsProducerId):
            broker.tasks.spawn(again(), name="new-producer-id")
        else:
            done(answer)

    async def again() -> None:
        try:
            done(await ask_with_producer_id(work, command, request, context, broker))
        except BrokerError as error:
            done(error)

    submit(work, command(request), request.transactional_id, context, broker, answered)


async def verify(
    transactional_id: str,
    producer: Producer,
    partition: Partition,
    broker: Broker,
    *,
    adds: bool,
    knows_abortable: bool,
) -> bool:
    """Returns when the partition is part of the producer's open transaction; with `adds` it becomes that.

    False: a marker came here meanwhile, so it may be the transaction before it that was open. Raises the error that the
    producer gets. `knows_abortable`: it understands TRANSACTION_ABORTABLE.
    """
    if not adds and not broker.config.bool("transaction.partition.verification.enable"):
        return True
    if adds:
        # Before the question: the marker that comes meanwhile is the last transaction's.
        await broker.transactions.completed(transactional_id)
    guard = partition.begin_verification(producer.producer_id)
    try:
        code = await _asked(transactional_id, producer, partition.topic_partition, broker, adds=adds)
        if code is not ErrorCode.NONE:
            broker.transactions.transaction_metrics.verification_failures += code not in _COME_BACK
            told = _for_producers(code, knows_abortable=knows_abortable)
            raise BrokerError(told, f"not in a transaction: {code.name}")
    finally:
        is_current = partition.end_verification(producer.producer_id, guard)
    return is_current


async def _asked(
    transactional_id: str, producer: Producer, partition: TopicPartition, broker: Broker, *, adds: bool
) -> ErrorCode:
    request = AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        verify_only=not adds,
        topics=[AddPartitionsToTxnTopic(name=partition.topic, partitions=[partition.partition])],
    )
    try:
        shard = broker.transactions.shard_of(transactional_id, broker.image)
        result = await shard.ask(
            TransactionMachine.add_partitions,
            request,
            api_version=_VERIFICATION_VERSION,
            client_id="",
            client_host="",
        )
    except BrokerError as error:
        return error.code
    [topic] = result.topic_results
    [asked] = topic.results_by_partition
    return ErrorCode(asked.partition_error_code)


def _for_producers(code: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """Older ones do not retry all that may be retried: NOT_ENOUGH_REPLICAS they do, without new metadata."""
    if code in _COME_BACK:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return code
