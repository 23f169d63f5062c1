"""A transactional producer over a raw connection, which says what it is told to and nothing of its own accord.

`TV1` is a client that adds partitions before it writes to them and keeps its epoch, `TV2` one that leaves the first to
the broker and is given a new epoch by every end (KIP-890). What the real ones would not send is said by overriding a
field.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core.errors import ErrorCode
from penstock.protocol.batch import split
from penstock.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from penstock.protocol.messages.records import PartitionData, PartitionProduceResponse
from penstock.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    DescribedTransaction,
    DescribeProducersRequest,
    DescribeProducersRequestTopic,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ProducerState,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.protocol.records import iterate
from tests.testkit.asking import a_batch, fetch, produce
from tests.testkit.raw_client import RawClient
from tests.testkit.waiting import eventually

TV1, TV2 = 1, 2
INIT_VERSION, ADD_VERSION, ADD_OFFSETS_VERSION = 5, 3, 4
PRODUCE_VERSIONS = {TV1: 11, TV2: 12}
END_VERSIONS = {TV1: 4, TV2: 5}
OFFSETS_VERSIONS = {TV1: 4, TV2: 5}
MARKERS_VERSION = 2
READ_COMMITTED = 1

# What a coordinator says that is about to be able to answer.
NOT_YET = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


@dataclass
class TransactionalProducer:
    client: RawClient
    transactional_id: str
    version: int = TV2
    producer_id: int = -1
    producer_epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    def init(self, **fields: Any) -> ErrorCode:
        """As an instance that has just started: whoever had the transactional id before is fenced."""
        answer = init_producer_id(self.client, self.transactional_id, **fields)
        if answer.error_code == 0:
            self._becomes(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def begin_anew(self, **fields: Any) -> None:
        """`init` as clients do it: asked again while a transaction is being ended."""
        eventually(lambda: self.init(**fields) == ErrorCode.NONE, 20)

    def _becomes(self, producer_id: int, producer_epoch: int) -> None:
        if (producer_id, producer_epoch) != (self.producer_id, self.producer_epoch):
            self.sequences.clear()
        self.producer_id, self.producer_epoch = producer_id, producer_epoch

    @property
    def _names(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
        }

    def add(self, topic: str, *partitions: int, **fields: Any) -> ErrorCode:
        """Asked again while the transaction before is being ended, as clients do."""
        codes: set[ErrorCode] = set()

        def asked() -> bool:
            codes.clear()
            codes.update(self.add_once({topic: partitions or (0,)}, **fields).values())
            return ErrorCode.CONCURRENT_TRANSACTIONS not in codes

        eventually(asked)
        (code,) = codes
        return code

    def add_once(
        self, partitions: Mapping[str, tuple[int, ...]], version: int = ADD_VERSION, **fields: Any
    ) -> dict[tuple[str, int], ErrorCode]:
        values = {f"v3_and_below_{name}": value for name, value in {**self._names, **fields}.items()}
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=list(each)) for topic, each in partitions.items()]
        request = AddPartitionsToTxnRequest(v3_and_below_topics=topics, **values)
        answer = self.client.exchange(request, version, AddPartitionsToTxnResponse)
        return {
            (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        }

    def batch(self, topic: str, *values: bytes, partition: int = 0, **options: Any) -> bytearray:
        """The next one for this partition."""
        base_sequence = self.sequences.get((topic, partition), 0)
        self.sequences[topic, partition] = base_sequence + len(values)
        fields = {
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "base_sequence": base_sequence,
            "is_transactional": True,
        }
        # Of now, as markers are: far apart, each would begin a segment, and a fetch ends where a segment does.
        return a_batch(*values, timestamp=time.time_ns() // 1_000_000, **{**fields, **options})

    def produce(self, topic: str, *values: bytes, partition: int = 0, **options: Any) -> PartitionProduceResponse:
        return self.send(topic, self.batch(topic, *values, partition=partition, **options), partition=partition)

    def send(
        self, topic: str, batch: bytes | bytearray, *, partition: int = 0, **fields: Any
    ) -> PartitionProduceResponse:
        names = {"transactional_id": self.transactional_id, "version": PRODUCE_VERSIONS[self.version]}
        return produce(self.client, topic, batch, partition=partition, **{**names, **fields})

    def write(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """`add` where the version asks for it, and `produce`; both must succeed."""
        if self.version == TV1:
            assert self.add(topic, partition) == ErrorCode.NONE
        answer = self.produce(topic, *values, partition=partition)
        assert answer.error_code == 0, ErrorCode(answer.error_code)

    def add_offsets(self, group_id: str, **fields: Any) -> ErrorCode:
        request = AddOffsetsToTxnRequest(group_id=group_id, **{**self._names, **fields})
        return ErrorCode(self.client.exchange(request, ADD_OFFSETS_VERSION, AddOffsetsToTxnResponse).error_code)

    def commit_offset(
        self,
        group_id: str,
        topic: str,
        offset: int = 7,
        *,
        partition: int = 0,
        version: int | None = None,
        **fields: Any,
    ) -> ErrorCode:
        asked = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        topics = [TxnOffsetCommitRequestTopic(name=topic, partitions=[asked])]
        request = TxnOffsetCommitRequest(group_id=group_id, topics=topics, **{**self._names, **fields})
        answer = self.client.exchange(
            request, OFFSETS_VERSIONS[self.version] if version is None else version, TxnOffsetCommitResponse
        )
        ((row,),) = (each.partitions for each in answer.topics)
        return ErrorCode(row.error_code)

    def end_request(self, *, commit: bool, **fields: Any) -> EndTxnRequest:
        return EndTxnRequest(committed=commit, **{**self._names, **fields})

    def end_once(self, *, commit: bool, version: int | None = None, **fields: Any) -> ErrorCode:
        request = self.end_request(commit=commit, **fields)
        answer = self.client.exchange(
            request, END_VERSIONS[self.version] if version is None else version, EndTxnResponse
        )
        if answer.error_code == 0 and answer.producer_id >= 0 and not fields:
            self._becomes(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def end(self, *, commit: bool) -> None:
        """Returns when it is complete: with the markers written."""
        eventually(lambda: self.end_once(commit=commit) == ErrorCode.NONE)
        self.until_at_rest()

    def state(self) -> DescribedTransaction:
        return described(self.client, self.transactional_id)

    def until_at_rest(self) -> None:
        eventually(lambda: self.state().transaction_state in ("Empty", "CompleteCommit", "CompleteAbort"))


# Coordinators


def find_transaction_coordinator(client: RawClient, transactional_id: str) -> None:
    """Creates __transaction_state where it is not there yet, and waits until it is loaded."""

    def ask() -> bool:
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
        (found,) = client.exchange(request, 4, FindCoordinatorResponse).coordinators
        return found.error_code == 0 and described(client, transactional_id).error_code not in NOT_YET

    eventually(ask, 20, "no coordinator")


def init_producer_id(
    client: RawClient, transactional_id: str | None, *, version: int = INIT_VERSION, **fields: Any
) -> InitProducerIdResponse:
    values = {"transactional_id": transactional_id, "transaction_timeout_ms": 60_000, **fields}
    return client.exchange(InitProducerIdRequest(**values), version, InitProducerIdResponse)


def a_producer(client: RawClient, transactional_id: str, version: int = TV2, **fields: Any) -> TransactionalProducer:
    """One that has just been given its id, whatever there was before it."""
    producer = TransactionalProducer(client, transactional_id, version)
    producer.begin_anew(**fields)
    return producer


def described(client: RawClient, transactional_id: str) -> DescribedTransaction:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    (state,) = client.exchange(request, 0, DescribeTransactionsResponse).transaction_states
    return state


# Partitions


def write_marker(
    client: RawClient,
    topic: str,
    producer_id: int,
    producer_epoch: int,
    *,
    commit: bool,
    partition: int = 0,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
    version: int = MARKERS_VERSION,
) -> ErrorCode:
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )
    answer = client.exchange(WriteTxnMarkersRequest(markers=[marker]), version, WriteTxnMarkersResponse)
    ((row,),) = (topic.partitions for result in answer.markers for topic in result.topics)
    return ErrorCode(row.error_code)


def producers_of(client: RawClient, topic: str, partition: int = 0) -> dict[int, ProducerState]:
    asked = DescribeProducersRequestTopic(name=topic, partition_indexes=[partition])
    answer = client.exchange(DescribeProducersRequest(topics=[asked]), 0, DescribeProducersResponse)
    ((row,),) = (each.partitions for each in answer.topics)
    assert row.error_code == 0, row
    return {each.producer_id: each for each in row.active_producers}


def open_transactions_of(client: RawClient, topic: str, partition: int = 0) -> set[int]:
    """Producer ids."""
    producers = producers_of(client, topic, partition)
    return {producer_id for producer_id, each in producers.items() if each.current_txn_start_offset >= 0}


def fetch_committed(
    client: RawClient, topic: str, offset: int = 0, *, partition: int = 0, **fields: Any
) -> PartitionData:
    return fetch(client, topic, offset, partition=partition, isolation_level=READ_COMMITTED, **fields)


def committed_values(client: RawClient, topic: str, *, partition: int = 0) -> list[bytes | None]:
    """As a reader of committed data sees the partition, which leaves out what it is told was aborted."""
    data = fetch_committed(client, topic, partition=partition, min_bytes=0)
    return values_without_aborted(data)


def values_without_aborted(data: PartitionData) -> list[bytes | None]:
    """By the rule of KIP-98: a producer's batches are left out from the first offset of each aborted transaction on,
    up to the marker that ends it.
    """
    assert data.error_code == 0, data
    content = data.records
    assert isinstance(content, memoryview)
    aborted = sorted(data.aborted_transactions or [], key=lambda each: each.first_offset)
    left_out: set[int] = set()
    values: list[bytes | None] = []
    for position, header in split(content):
        while aborted and aborted[0].first_offset <= header.last_offset:
            left_out.add(aborted.pop(0).producer_id)
        if header.is_control:
            left_out.discard(header.producer_id)
        elif header.producer_id not in left_out or not header.is_transactional:
            values += [record.value for record in iterate(content, position)]
    return values
