"""Clients of the simulation: they speak the protocol over simulated connections, and write down what they were told.

Each finds out who leads as a client does, from a broker whose view may be old.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicPartition
from penstock.core.internal_topics import GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.metadata.image import PartitionImage
from penstock.net.channel import Channel
from penstock.protocol.batch import HEADER_BYTES, read_header
from penstock.protocol.codec import Request, Response
from penstock.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from penstock.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from penstock.protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.protocol.messages.transactions import EndTxnRequest, EndTxnResponse
from penstock.protocol.records import Record, build_batch, iterate
from tests.simulation.broker import SimulatedBroker, host_of
from tests.simulation.checker import Violation
from tests.simulation.loop import Process
from tests.simulation.network import CLIENT_PORT

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster

PRODUCE_VERSION, FETCH_VERSION, COMMIT_VERSION, OFFSET_FETCH_VERSION = 9, 12, 8, 8
INIT_VERSION, TRANSACTIONAL_PRODUCE_VERSION, END_VERSION = 5, 12, 5
TRANSACTION_TIMEOUT_MS = 5_000
TIMEOUT_MS = 1_500
# Above what the controller gives to those who ask, as transactions do.
NEVER_ALLOCATED = 1 << 40
PAUSE_S = (0.01, 0.5)
MAX_UNDER_WAY = 5

_R = TypeVar("_R", bound=Response)


class Client:
    def __init__(self, name: str, cluster: SimulatedCluster) -> None:
        self.name = name
        self.process = Process(name, cluster.seed)
        self.luck = self.process.luck
        self.cluster = cluster
        self.is_wanted = True
        self._channels: dict[str, Channel] = {}
        self._opening = asyncio.Lock()
        self._views: dict[TopicPartition, PartitionImage] = {}

    async def run(self) -> None:
        """Runs until it is not wanted any more."""
        raise NotImplementedError

    async def pause(self) -> None:
        await asyncio.sleep(self.luck.uniform(*PAUSE_S))

    def view(self, where: TopicPartition) -> PartitionImage | None:
        """As one of the brokers that run sees it, unless this client knows of a later leader."""
        running = self.cluster.serving()
        seen = self.luck.choice(running).follower.image.partition(where) if running else None
        known = self._views.get(where)
        if seen is not None and (known is None or seen.leader_epoch >= known.leader_epoch):
            self._views[where] = seen
        return self._views.get(where)

    async def ask(self, host: str, request: Request, version: int, response: type[_R]) -> _R:
        """Raises BrokerError when there is no answer."""
        channel = self._channels.get(host)
        if channel is None or not channel.is_open:
            async with self._opening:  # what is asked at the same time goes one way, in this order
                channel = self._channels.get(host)
                if channel is None or not channel.is_open:
                    channel = self._channels[host] = await self.cluster.network.open_channel(
                        self.name, self.process, (host, CLIENT_PORT), timeout_ms=TIMEOUT_MS
                    )
        body = await channel.request(request, version, timeout_ms=TIMEOUT_MS)
        return response.decode(body, version)


class Producer(Client):
    """Writes one batch after the other, each until it is acknowledged. With acks=1 it promises nothing."""

    # A batch may come again after five others.
    may_be_old = False

    def __init__(
        self, name: str, cluster: SimulatedCluster, where: TopicPartition, number: int, acks: int = -1
    ) -> None:
        super().__init__(name, cluster)
        self.where = where
        self.acks = acks
        self.producer_id = NEVER_ALLOCATED + number if acks == -1 else -1
        self.sequence = 0
        self.acknowledged = 0

    async def run(self) -> None:
        while self.is_wanted:
            values = self.next_values()
            await self.write(values)
            self.sequence += len(values)
            await self.pause()

    def next_values(self) -> list[bytes]:
        return [b"%s:%d" % (self.name.encode(), self.sequence + at) for at in range(self.luck.randint(1, 3))]

    async def write(self, values: list[bytes]) -> None:
        while self.is_wanted or self.acks == -1:
            offset = await self.attempt(self.sequence, values)
            if offset is not None:
                self.acknowledged += 1
                if self.acks == -1:
                    self.cluster.trace(f"{self.name} was told that {values} are at {offset}")
                    self.cluster.checker.was_acknowledged(self.where, offset, values)
                    self.cluster.look()
                return
            if self.acks != -1:
                return
            await self.pause()

    async def attempt(self, sequence: int, values: list[bytes]) -> int | None:
        """The offset; None when it has to be tried again."""
        state = self.view(self.where)
        if state is None or state.leader is None:
            return None
        return await self.send(state.leader, sequence, values)

    async def send(self, leader: BrokerId, sequence: int, values: list[bytes]) -> int | None:
        """The offset, -1 if it is not known any more; None when it has to be tried again."""
        batch = build_batch(
            [Record(None, value, timestamp=self.cluster.now_ms()) for value in values],
            producer_id=self.producer_id,
            producer_epoch=0 if self.producer_id >= 0 else -1,
            base_sequence=sequence if self.producer_id >= 0 else -1,
        )
        data = PartitionProduceData(index=self.where.partition, records=memoryview(batch))
        request = ProduceRequest(
            acks=self.acks,
            timeout_ms=TIMEOUT_MS // 2,
            topic_data=[TopicProduceData(name=self.where.topic, partition_data=[data])],
        )
        try:
            answer = await self.ask(host_of(leader), request, PRODUCE_VERSION, ProduceResponse)
        except BrokerError:
            return None
        row = answer.responses[0].partition_responses[0]
        code = ErrorCode(row.error_code)
        if code is ErrorCode.NONE:
            return row.base_offset
        if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and self.may_be_old:
            return -1
        if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            raise Violation(f"{self.name} is told {code.name} of {sequence}")
        return None


class Pipeliner(Producer):
    """Has several batches under way, as librdkafka has: one that is taken vouches for all before it. What is refused is
    sent again when all are answered, in order.

    It must never be told that one is out of order: librdkafka would send all of them again under new numbers.
    """

    may_be_old = True

    def __init__(self, name: str, cluster: SimulatedCluster, where: TopicPartition, number: int) -> None:
        super().__init__(name, cluster, where, number)
        self.written: list[bytes] = []

    async def run(self) -> None:
        unheard: list[tuple[int, list[bytes]]] = []
        while self.is_wanted or unheard:
            while self.is_wanted and len(unheard) < MAX_UNDER_WAY:
                values = self.next_values()
                unheard.append((self.sequence, values))
                self.sequence += len(values)
                self.written += values
            taken = await self._taken(unheard)
            self.acknowledged += taken
            del unheard[:taken]
            await self.pause()

    async def _taken(self, batches: list[tuple[int, list[bytes]]]) -> int:
        """How many of them need not be sent again."""
        state = self.view(self.where)
        if state is None or state.leader is None:
            return 0
        offsets = await asyncio.gather(*(self.send(state.leader, *each) for each in batches))
        taken = 0
        for count, ((sequence, values), offset) in enumerate(zip(batches, offsets, strict=True), 1):
            if offset is None:
                continue
            taken = count
            if offset >= 0:
                self.cluster.trace(f"{self.name} was told that {sequence} is at {offset}")
                self.cluster.checker.was_acknowledged(self.where, offset, values)
        if taken:
            self.cluster.look()
        return taken

    def check(self, values: list[bytes]) -> None:
        """In the end: what it wrote, in order."""
        found = [value for value in values if value.startswith(self.name.encode())]
        if found != self.written:
            lost, strange = set(self.written) - set(found), set(found) - set(self.written)
            raise Violation(f"of {self.name} are lost {lost}, strange {strange}, and else in another order")


class Consumer(Client):
    """Reads from the beginning on, and again; what it was given at an offset must never be something else."""

    def __init__(self, name: str, cluster: SimulatedCluster, where: TopicPartition) -> None:
        super().__init__(name, cluster)
        self.where = where
        self.offset = 0
        self.read = 0

    async def run(self) -> None:
        while self.is_wanted:
            await self.poll()
            if self.luck.random() < 0.02:
                self.offset = 0
            await self.pause()

    async def poll(self) -> None:
        state = self.view(self.where)
        if state is None or state.leader is None:
            return
        wanted = FetchPartition(
            partition=self.where.partition,
            fetch_offset=self.offset,
            current_leader_epoch=state.leader_epoch,
            partition_max_bytes=16 * 1024,
        )
        request = FetchRequest(
            max_wait_ms=self.luck.choice((0, 200)),
            min_bytes=1,
            topics=[FetchTopic(topic=self.where.topic, partitions=[wanted])],
        )
        try:
            answer = await self.ask(host_of(state.leader), request, FETCH_VERSION, FetchResponse)
        except BrokerError:
            return
        row = answer.responses[0].partitions[0]
        code = ErrorCode(row.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            raise Violation(f"{self.name} has read up to {self.offset}, and that is out of range")
        if code is not ErrorCode.NONE:
            return
        content = row.records
        assert isinstance(content, memoryview)
        while len(content) >= HEADER_BYTES and (header := read_header(content)).size <= len(content):
            for record in () if header.is_control else iterate(content[: header.size]):
                if record.offset >= self.offset:
                    self.cluster.checker.was_read(self.where, record.offset, record.value or b"")
                    self.read += 1
            self.offset = max(self.offset, header.last_offset + 1)
            content = content[header.size :]
        if self.read:
            self.cluster.look()


class Committer(Client):
    """Commits rising offsets for a group. What it then asks for is what it was last told was done, or was trying."""

    def __init__(self, name: str, cluster: SimulatedCluster, topic: str) -> None:
        super().__init__(name, cluster)
        self.topic = topic
        self.tried = -1
        self.done = -1
        # Without an answer: a request may arrive at any time yet.
        self.unknown: set[int] = set()
        self.acknowledged = 0

    async def run(self) -> None:
        while self.is_wanted:
            await (self.commit() if self.luck.random() < 0.6 else self.fetch())
            await self.pause()

    async def _coordinator(self) -> str | None:
        """It is made when it is first asked for."""
        where = TopicPartition(GROUP_OFFSETS_TOPIC, 0)
        state = self.view(where)
        return None if state is None or state.leader is None else host_of(state.leader)

    async def commit(self) -> None:
        host = await self._coordinator()
        if host is None:
            return
        self.tried += 1
        offset = OffsetCommitRequestPartition(partition_index=0, committed_offset=self.tried)
        request = OffsetCommitRequest(
            group_id=self.name, topics=[OffsetCommitRequestTopic(name=self.topic, partitions=[offset])]
        )
        try:
            answer = await self.ask(host, request, COMMIT_VERSION, OffsetCommitResponse)
        except BrokerError:
            self.unknown.add(self.tried)
            return
        if answer.topics[0].partitions[0].error_code:
            self.unknown.add(self.tried)
        else:
            self.done = self.tried
            self.acknowledged += 1

    async def fetch(self) -> None:
        host = await self._coordinator()
        if host is None:
            return
        done = self.done
        wanted = OffsetFetchRequestTopic(name=self.topic, partition_indexes=[0])
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=self.name, topics=[wanted])])
        try:
            answer = await self.ask(host, request, OFFSET_FETCH_VERSION, OffsetFetchResponse)
        except BrokerError:
            return
        group = answer.groups[0]
        if group.error_code or group.topics[0].partitions[0].error_code:
            return
        found = group.topics[0].partitions[0].committed_offset
        if found < done and found not in self.unknown:
            raise Violation(f"{self.name} had committed {done}, and is told {found}")


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    # Asked for, and not answered: all of it is there, or nothing.
    UNKNOWN = "unknown"


class Transactor(Client):
    """Writes the same value to two partitions in each transaction, and ends it one way or the other."""

    def __init__(self, name: str, cluster: SimulatedCluster, partitions: tuple[TopicPartition, ...]) -> None:
        super().__init__(name, cluster)
        self.partitions = partitions
        self.outcomes: dict[bytes, Outcome] = {}
        self.acknowledged = 0
        self._producer: tuple[int, int] | None = None

    async def run(self) -> None:
        while self.is_wanted:
            if self._producer is None:
                await self._begin_anew()
            else:
                await self._transaction(b"%s:%d" % (self.name.encode(), len(self.outcomes)))
            await self.pause()
        while not await self._begin_anew():  # which ends what is open
            await self.pause()

    async def _begin_anew(self) -> bool:
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        answer = await self._ask_coordinator(request, INIT_VERSION, InitProducerIdResponse)
        if answer is None or answer.error_code:
            return False
        self._producer = (answer.producer_id, answer.producer_epoch)
        return True

    async def _transaction(self, value: bytes) -> None:
        self.outcomes[value] = Outcome.ABORTED  # as long as nobody has asked for anything else
        is_written = all([await self._write(where, value) for where in self.partitions])
        await self._end(value, commit=is_written and self.luck.random() < 0.7)

    async def _write(self, where: TopicPartition, value: bytes) -> bool:
        assert self._producer is not None
        producer_id, producer_epoch = self._producer
        for _ in range(4):
            state = self.view(where)
            if state is None or state.leader is None:
                await self.pause()
                continue
            batch = build_batch(
                [Record(None, value, timestamp=self.cluster.now_ms())],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=0,
                is_transactional=True,
            )
            data = PartitionProduceData(index=where.partition, records=memoryview(batch))
            request = ProduceRequest(
                transactional_id=self.name,
                acks=-1,
                timeout_ms=TIMEOUT_MS // 2,
                topic_data=[TopicProduceData(name=where.topic, partition_data=[data])],
            )
            try:
                answer = await self.ask(host_of(state.leader), request, TRANSACTIONAL_PRODUCE_VERSION, ProduceResponse)
            except BrokerError:
                await self.pause()
                continue
            if answer.responses[0].partition_responses[0].error_code == 0:
                return True
            await self.pause()
        return False

    async def _end(self, value: bytes, *, commit: bool) -> None:
        assert self._producer is not None
        producer_id, producer_epoch = self._producer
        self._producer = None
        if commit:
            self.outcomes[value] = Outcome.UNKNOWN
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=producer_id, producer_epoch=producer_epoch, committed=commit
        )
        answer = await self._ask_coordinator(request, END_VERSION, EndTxnResponse)
        if answer is None or answer.error_code:
            return
        self._producer = (answer.producer_id, answer.producer_epoch)
        self.outcomes[value] = Outcome.COMMITTED if commit else Outcome.ABORTED
        self.acknowledged += 1

    async def _ask_coordinator(self, request: Request, version: int, response: type[_R]) -> _R | None:
        state = self.view(TopicPartition(TRANSACTIONS_TOPIC, 0))
        if state is None or state.leader is None:
            return None
        try:
            return await self.ask(host_of(state.leader), request, version, response)
        except BrokerError:
            return None

    def check(self, broker: SimulatedBroker) -> None:
        """In the end, on any of the replicas."""
        found = [self.cluster.checker.outcomes(broker, where) for where in self.partitions]
        for value, outcome in self.outcomes.items():
            committed = [value in here for here, _ in found]
            expected = {
                Outcome.COMMITTED: all(committed),
                Outcome.ABORTED: not any(committed),
                Outcome.UNKNOWN: all(committed) or not any(committed),
            }
            if not expected[outcome]:
                raise Violation(f"{value!r} is {outcome.value}, and committed in {committed} of {self.partitions}")
