"""The broker dies between two writes of one commit, at each of them in turn: all of it is there, or nothing.

A commit is a row of writes: the decision, the markers of two partitions and of the group's, the completion. The kill
comes with the n-th of them, which is not carried out. Which one that is follows from the order of the writes alone: no
timing has a part in it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from penstock.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tests.chaos.conftest import FULL
from tests.chaos.faults import inject, strace_or_skip
from tests.testkit import Broker, RawClient, eventually, lasting_port
from tests.testkit.asking import a_batch, create_usable_topic, fetch, produce

TOPIC = "t"
PARTITIONS = (0, 1)
TV1, TV2 = 1, 2
PRODUCE_VERSIONS = {TV1: 11, TV2: 12}
OFFSETS_VERSIONS = {TV1: 4, TV2: 5}
END_VERSIONS = {TV1: 4, TV2: 5}
COMMITTED_OFFSET = 7

# The decision, a marker for each partition and for the group's, the completion.
WRITES = 1 + len(PARTITIONS) + 1 + 1


@dataclass
class Attempt:
    """A transaction, and a group of its own whose offset it commits."""

    broker: Broker
    version: int
    name: str
    producer_id: int = -1
    epoch: int = -1
    is_told: bool = field(default=False, init=False)

    @property
    def value(self) -> bytes:
        return self.name.encode()

    def init(self) -> None:
        with RawClient(self.broker.address) as client:
            eventually(lambda: self._init(client), 20, "no producer id")

    def _init(self, client: RawClient) -> bool:
        client.exchange(FindCoordinatorRequest(key_type=1, coordinator_keys=[self.name]), 4, FindCoordinatorResponse)
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
        answer = client.exchange(request, 5, InitProducerIdResponse)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return answer.error_code == 0

    def write(self) -> None:
        names: dict[str, Any] = {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }
        batch = a_batch(
            self.value,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=0,
            is_transactional=True,
        )
        with RawClient(self.broker.address) as client:
            if self.version == TV1:
                fields = {f"v3_and_below_{name}": value for name, value in names.items()}
                topics = [AddPartitionsToTxnTopic(name=TOPIC, partitions=list(PARTITIONS))]
                adding = AddPartitionsToTxnRequest(v3_and_below_topics=topics, **fields)
                client.exchange(adding, 3, AddPartitionsToTxnResponse)
                client.exchange(AddOffsetsToTxnRequest(group_id=self.name, **names), 4, AddOffsetsToTxnResponse)
            version = PRODUCE_VERSIONS[self.version]
            for partition in PARTITIONS:
                answer = produce(client, TOPIC, batch, partition=partition, version=version, transactional_id=self.name)
                assert answer.error_code == 0, answer
            client.exchange(
                FindCoordinatorRequest(key_type=0, coordinator_keys=[self.name]), 4, FindCoordinatorResponse
            )
            position = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=COMMITTED_OFFSET)
            topic = TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[position])
            request = TxnOffsetCommitRequest(group_id=self.name, topics=[topic], **names)

            def is_committed() -> bool:
                answer = client.exchange(request, OFFSETS_VERSIONS[self.version], TxnOffsetCommitResponse)
                ((row,),) = (each.partitions for each in answer.topics)
                return row.error_code == 0

            eventually(is_committed, 10, "the offset is refused")

    def commit(self) -> ErrorCode | None:
        """None when the broker dies instead of answering."""
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, committed=True
        )
        try:
            with RawClient(self.broker.address) as client:
                code = client.exchange(request, END_VERSIONS[self.version], EndTxnResponse).error_code
        except ConnectionError:
            return None
        self.is_told |= code == 0
        return ErrorCode(code)

    def is_seen(self) -> set[bool]:
        """Of each partition, and of the group: whether there is something of it."""
        with RawClient(self.broker.address) as client:
            for partition in PARTITIONS:
                eventually(lambda at=partition: _is_settled(client, at), 20, "a transaction hangs")  # type: ignore[misc]
        seen = _committed_values(self.broker.bootstrap)
        position = _position(self.broker.bootstrap, self.name)
        return {self.value in seen[partition] for partition in PARTITIONS} | {position == COMMITTED_OFFSET}


def _is_settled(client: RawClient, partition: int) -> bool:
    data = fetch(client, TOPIC, partition=partition)
    return data.last_stable_offset == data.high_watermark


def _committed_values(bootstrap: str) -> dict[int, list[bytes | None]]:
    """What a client that reads committed data gets of each partition."""
    values: dict[int, list[bytes | None]] = {partition: [] for partition in PARTITIONS}
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "never-joined",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,  # which would be one more write
            "log_level": 0,
        }
    )
    reader.assign([TopicPartition(TOPIC, partition, 0) for partition in PARTITIONS])
    unfinished = set(PARTITIONS)

    def is_read() -> bool:
        message = reader.poll(1)
        if message is not None:
            partition = message.partition()
            assert partition is not None
            if message.error() is None:
                values[partition].append(message.value())
            else:
                unfinished.discard(partition)
        return not unfinished

    eventually(is_read, 20, "not read to the end")
    reader.close()
    return values


def _position(bootstrap: str, group: str) -> int:
    member = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_committed", "log_level": 0}
    )

    def told() -> list[TopicPartition]:
        try:
            return [each for each in member.committed([TopicPartition(TOPIC, 0)], timeout=5) if each.error is None]
        except KafkaException:
            return []

    (position,) = eventually(told, 20, "no position")
    member.close()
    return position.offset


CASES = [(TV1, False), (TV2, True), *([(TV1, True), (TV2, False)] if FULL else [])]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("version", "comes_again"),
    CASES,
    ids=[f"v{version}-{'asks again' if again else 'new instance'}" for version, again in CASES],
)
def test_given_a_commit_when_the_broker_is_killed_before_each_of_its_writes_then_all_of_it_is_there_or_nothing(
    tmp_path: Path, version: int, comes_again: bool
) -> None:
    strace = strace_or_skip()
    settings: dict[str, Any] = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2}
    with Broker.start(tmp_path / "data", port=lasting_port(), **settings) as broker:
        with RawClient(broker.address) as client:
            create_usable_topic(client, TOPIC, len(PARTITIONS))

        for killed_at in itertools.count(1):
            attempt = Attempt(broker, version, f"attempt-{killed_at}")
            attempt.init()
            attempt.write()
            tracer = inject(strace, broker.pid, f"pwritev,pwritev2:signal=SIGKILL:when={killed_at}")
            attempt.commit()
            if killed_at > WRITES:
                assert attempt.is_seen() == {True} and broker.is_running, "there are more writes than we know of"
                tracer.terminate()
                tracer.wait(10)
                break
            eventually(lambda: not broker.is_running, 10, "there are fewer writes than we know of")
            tracer.wait(10)
            broker.restart(same_port=True)
            was_told = attempt.is_told

            if comes_again:
                eventually(lambda a=attempt: a.commit() is ErrorCode.NONE, 20, "the commit is refused")  # type: ignore[misc]
                expected = True
            else:
                attempt.init()
                expected = killed_at > 1  # from the second on the decision is in the log

            assert attempt.is_seen() == {expected}
            assert expected or not was_told
