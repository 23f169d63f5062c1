"""AddOffsetsToTxn: a transaction will commit offsets of a group.

v2: PRODUCER_FENCED    v3: flexible    v4: TRANSACTION_ABORTABLE (KIP-890)

The group's partition of __consumer_offsets becomes part of the transaction, and gets a marker when that ends.
"""

from __future__ import annotations

from typing import cast

from penstock.coordinators.coordinators import partition_of
from penstock.coordinators.transaction.commands import AddOffsets
from penstock.coordinators.transaction.machine import TransactionMachine
from penstock.core.ids import TopicPartition
from penstock.core.internal_topics import GROUP_OFFSETS_TOPIC
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.internal_topics import internal_topic
from penstock.handlers.transaction_coordinator import ask
from penstock.protocol.messages.transactions import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse


async def add_offsets_to_txn(
    request: AddOffsetsToTxnRequest, context: RequestContext, broker: Broker
) -> AddOffsetsToTxnResponse:
    topic = await internal_topic(GROUP_OFFSETS_TOPIC, broker)
    partition = TopicPartition(GROUP_OFFSETS_TOPIC, partition_of(request.group_id, len(topic.partitions)))
    command = AddOffsets(request, partition)
    await broker.transactions.completed(request.transactional_id)
    answer = await ask(TransactionMachine.add_offsets, command, request.transactional_id, context, broker)
    return cast(AddOffsetsToTxnResponse, answer)
