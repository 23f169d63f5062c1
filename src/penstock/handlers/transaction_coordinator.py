"""What the handlers of transactional requests share: asking the coordinator of a transactional id, and verification.

A partition takes a transactional batch only while its transaction is open, and says so to the coordinator or hears it
from there (KIP-890): a batch that was delayed until after its transaction had ended would otherwise open one that
nobody ends. The coordinator may be another broker, which is asked then; whatever keeps it from answering is something
that a producer may try again after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from penstock.coordinators.decision import Caller, Decision, Now, Producer
from penstock.coordinators.shard import Shard
from penstock.coordinators.transaction.commands import NeedsProducerId
from penstock.coordinators.transaction.machine import TransactionMachine
from penstock.coordinators.transaction_peers import ADD_PARTITIONS_VERSION
from penstock.coordinators.transactions import COMPLETED_WITHIN_S
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.handlers.context import Broker, Done, RequestContext
from penstock.protocol.messages.transactions import (
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.replication.partition import Partition

Work = Callable[[TransactionMachine, Any, Caller, Now, Decision], None]

ASK_AGAIN_S = 0.01
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
    question = AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        verify_only=not adds,
        topics=[
            AddPartitionsToTxnTopic(
                name=partition.topic_partition.topic, partitions=[partition.topic_partition.partition]
            )
        ],
    )
    give_up_at = broker.loop.time() + COMPLETED_WITHIN_S
    while True:
        guard = partition.verification.begin(producer.producer_id)
        try:
            code = await _asked(question, broker)
        finally:
            is_current = partition.verification.end(producer.producer_id, guard)
        if code is ErrorCode.NONE and (is_current or not adds):
            return is_current
        # With `adds` the marker that came, or is still to come, may well be the last transaction's, whose coordinator
        # is another broker. To ask again is safe: each transaction has an epoch of its own.
        if not adds or code not in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS):
            break
        if broker.loop.time() >= give_up_at:
            break
        await asyncio.sleep(ASK_AGAIN_S)
    if code is ErrorCode.NONE:
        return False
    broker.transactions.transaction_metrics.verification_failures += code not in _COME_BACK
    raise BrokerError(_for_producers(code, knows_abortable=knows_abortable), f"not in a transaction: {code.name}")


async def _asked(question: AddPartitionsToTxnTransaction, broker: Broker) -> ErrorCode:
    transactional_id = question.transactional_id
    elsewhere = broker.transactions.coordinator_elsewhere(transactional_id)
    try:
        if elsewhere is not None:
            result = await _asked_of(elsewhere, question, broker)
        else:
            result = await broker.transactions.shard_of(transactional_id, broker.image).ask(
                TransactionMachine.add_partitions,
                question,
                api_version=ADD_PARTITIONS_VERSION,
                client_id="",
                client_host="",
            )
    except BrokerError as error:
        return error.code
    [topic] = result.topic_results
    [asked] = topic.results_by_partition
    code = ErrorCode(asked.partition_error_code)
    if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.REQUEST_TIMED_OUT):
        # The partition is here: whoever does not know it will soon.
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code


async def _asked_of(coordinator: BrokerId, question: AddPartitionsToTxnTransaction, broker: Broker) -> Any:
    outcome: asyncio.Future[AddPartitionsToTxnResult | BrokerError] = broker.loop.create_future()

    def done(answer: AddPartitionsToTxnResult | BrokerError) -> None:
        if not outcome.cancelled():
            outcome.set_result(answer)

    broker.transactions.peers.add_partitions(coordinator, question, done)
    answer = await outcome
    if isinstance(answer, BrokerError):
        # Nothing was said, or it was lost: the producer may come again, and find whoever coordinates then.
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, answer.message)
    return answer


def _for_producers(code: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """Older ones do not retry all that may be retried: NOT_ENOUGH_REPLICAS they do, without new metadata."""
    if code in _COME_BACK:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return code
