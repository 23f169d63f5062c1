"""Transactions: what goes into one, how it ends, the markers that end it, and looking at those under way.

A version that differs from the one before it only in the errors that the client understands is noted all the same: who
answers must know which errors it may use.
"""

from __future__ import annotations

from penstock.protocol.codec import Request, Response
from penstock.protocol.schema import Struct, array, boolean, int8, int16, int32, int64, string


class AddPartitionsToTxnTopic(Struct):
    name: str = string()
    partitions: list[int] = array(int32)


class AddPartitionsToTxnTransaction(Struct):
    """Verify only: nothing is added, the answer says whether the partitions are in the transaction."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    verify_only: bool = boolean()
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic)


class AddPartitionsToTxnRequest(Request, api_key=24, versions="0-5", flexible=3):
    """v2: PRODUCER_FENCED    v4: several transactions, and only verifying    v5: TRANSACTION_ABORTABLE (KIP-890)

    Clients send v0 to v3, brokers v4 and later.
    """

    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, versions="4+")
    v3_and_below_transactional_id: str = string(versions="0-3")
    v3_and_below_producer_id: int = int64(versions="0-3")
    v3_and_below_producer_epoch: int = int16(versions="0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, versions="0-3")


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = int32()
    partition_error_code: int = int16()


class AddPartitionsToTxnTopicResult(Struct):
    name: str = string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(AddPartitionsToTxnPartitionResult)


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = string()
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult)


class AddPartitionsToTxnResponse(Response, to=AddPartitionsToTxnRequest):
    """v4: error of the whole request; those of a transaction are always with its partitions"""

    throttle_time_ms: int = int32()
    error_code: int = int16(versions="4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, versions="4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, versions="0-3"
    )


class AddOffsetsToTxnRequest(Request, api_key=25, versions="0-4", flexible=3):
    """v2: PRODUCER_FENCED    v4: TRANSACTION_ABORTABLE (KIP-890)"""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Response, to=AddOffsetsToTxnRequest):
    throttle_time_ms: int = int32()
    error_code: int = int16()


class EndTxnRequest(Request, api_key=26, versions="0-5", flexible=3):
    """v2: PRODUCER_FENCED    v4: TRANSACTION_ABORTABLE (KIP-890)

    v5: every transaction has its own epoch, and the answer names the next one (KIP-890, transaction.version 2)
    """

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Response, to=EndTxnRequest):
    """v5: what the producer is to use from now on; the id is another one when its epochs are used up"""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(versions="5+", default=-1)
    producer_epoch: int = int16(versions="5+", default=-1)


class WritableTxnMarkerTopic(Struct):
    name: str = string()
    partition_indexes: list[int] = array(int32)


class WritableTxnMarker(Struct):
    """A result of True commits. The version is that of the transaction: since 2, each one has its own epoch."""

    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()
    transaction_version: int = int8(versions="2+")


class WriteTxnMarkersRequest(Request, api_key=27, versions="1-2", flexible=1):
    """v2: transaction version (KIP-1228). Brokers send it to each other, and tools to end what hangs."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class WritableTxnMarkerTopicResult(Struct):
    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


class WritableTxnMarkerResult(Struct):
    producer_id: int = int64()
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


class WriteTxnMarkersResponse(Response, to=WriteTxnMarkersRequest):
    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(versions="2+", default=-1)
    committed_metadata: str | None = string(nullable="0+", default="")


class TxnOffsetCommitRequestTopic(Struct):
    name: str = string()
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


class TxnOffsetCommitRequest(Request, api_key=28, versions="0-5", flexible=3):
    """v2: leader epoch (KIP-320)    v3: member and generation, for the group to fence it (KIP-447)
    v4: TRANSACTION_ABORTABLE (KIP-890)

    v5: adds the group's offsets to the transaction itself, without an AddOffsetsToTxn before it (KIP-890,
    transaction.version 2)
    """

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32(versions="3+", default=-1)
    member_id: str = string(versions="3+")
    group_instance_id: str | None = string(versions="3+", nullable="3+")
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class TxnOffsetCommitResponseTopic(Struct):
    name: str = string()
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


class TxnOffsetCommitResponse(Response, to=TxnOffsetCommitRequest):
    """v3: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID"""

    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)


class DescribeProducersRequestTopic(Struct):
    name: str = string()
    partition_indexes: list[int] = array(int32)


class DescribeProducersRequest(Request, api_key=61, versions="0", flexible=0):
    topics: list[DescribeProducersRequestTopic] = array(DescribeProducersRequestTopic)


class ProducerState(Struct):
    """The epoch has 32 bits here, and 16 everywhere else. Start offset -1: no transaction is open."""

    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)


class DescribeProducersResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    active_producers: list[ProducerState] = array(ProducerState)


class DescribeProducersResponseTopic(Struct):
    name: str = string()
    partitions: list[DescribeProducersResponsePartition] = array(DescribeProducersResponsePartition)


class DescribeProducersResponse(Response, to=DescribeProducersRequest):
    throttle_time_ms: int = int32()
    topics: list[DescribeProducersResponseTopic] = array(DescribeProducersResponseTopic)


class DescribeTransactionsRequest(Request, api_key=65, versions="0", flexible=0):
    transactional_ids: list[str] = array(string)


class DescribedTransactionTopic(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


class DescribedTransaction(Struct):
    """While it is being ended, the topics are those whose markers are still to be written."""

    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[DescribedTransactionTopic] = array(DescribedTransactionTopic)


class DescribeTransactionsResponse(Response, to=DescribeTransactionsRequest):
    throttle_time_ms: int = int32()
    transaction_states: list[DescribedTransaction] = array(DescribedTransaction)


class ListTransactionsRequest(Request, api_key=66, versions="0-2", flexible=0):
    """v1: those that have been running for longer than so many milliseconds (KIP-994)
    v2: those whose id matches a regular expression (KIP-1152), INVALID_REGULAR_EXPRESSION

    Filters that are empty, negative or null let everything through.
    """

    state_filters: list[str] = array(string)
    producer_id_filters: list[int] = array(int64)
    duration_filter: int = int64(versions="1+", default=-1)
    transactional_id_pattern: str | None = string(versions="2+", nullable="2+")


class ListedTransaction(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class ListTransactionsResponse(Response, to=ListTransactionsRequest):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(string)
    transaction_states: list[ListedTransaction] = array(ListedTransaction)
