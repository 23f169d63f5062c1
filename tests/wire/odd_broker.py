"""A broker that says what a test tells it to: answers that a sound broker gives seldom, or never."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from penstock.core.ids import TopicId
from penstock.protocol.batch import read_header
from penstock.protocol.codec import Response
from penstock.protocol.frames import read_request_header, response_header
from penstock.protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from penstock.protocol.messages.records import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

TOPIC = "orders"
TOPIC_ID = TopicId(bytes(range(16)))
PRODUCER_ID = 7
_REQUESTS = (ApiVersionsRequest, MetadataRequest, FetchRequest, InitProducerIdRequest, ProduceRequest)
_FLEXIBLE_SINCE = {each.API_KEY: each.FLEXIBLE_SINCE for each in _REQUESTS}

# What to answer to a fetch of an offset: a partition, no partition at all, or bytes in place of an answer, and the end.
Answered = PartitionData | None | bytes
Answering = Callable[[int], Answered]
# What to answer to a batch of that base sequence: an error code, no partition at all, or bytes in place of an answer.
Producing = Callable[[int], int | bytes | None]


class OddBroker:
    def __init__(
        self,
        answering: Answering,
        newest_fetch: int,
        producing: Producing,
        leaders: Sequence[int],
        others: Mapping[int, OddBroker],
    ) -> None:
        self._answering = answering
        self._producing = producing
        self._newest_fetch = newest_fetch
        self._leaders = leaders
        self._others = others
        self._first = self
        for other in others.values():
            other._first = self  # all of a cluster say the same of it
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.fetched: list[int] = []
        self.fetch_versions: set[int] = set()
        self.produced: list[int] = []
        self.looked_up = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def serve(self) -> None:
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(channel,), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _talk(self, channel: socket.socket) -> None:
        with channel, channel.makefile("rb") as stream:
            while size := stream.read(4):
                frame = memoryview(stream.read(int.from_bytes(size, "big")))
                header = read_request_header(frame, _FLEXIBLE_SINCE)
                answer = self._answer(header.api_key, header.api_version, frame[header.body_start :])
                if isinstance(answer, bytes):
                    channel.sendall(answer)
                    return
                flexible = header.api_version >= answer.FLEXIBLE_SINCE and header.api_key != ApiVersionsRequest.API_KEY
                body = response_header(header.correlation_id, flexible=flexible) + answer.encode(header.api_version)
                channel.sendall(len(body).to_bytes(4, "big") + body)

    def _answer(self, api_key: int, version: int, body: memoryview) -> Response | bytes:
        if api_key == ApiVersionsRequest.API_KEY:
            newest = {FetchRequest.API_KEY: self._newest_fetch}
            rows = [
                ApiVersion(
                    api_key=each.API_KEY,
                    min_version=each.MIN_VERSION,
                    max_version=newest.get(each.API_KEY, each.MAX_VERSION),
                )
                for each in _REQUESTS
            ]
            return ApiVersionsResponse(api_keys=rows)
        if api_key == MetadataRequest.API_KEY:
            self.looked_up += 1
            return self._first._metadata()
        if api_key == InitProducerIdRequest.API_KEY:
            return InitProducerIdResponse(producer_id=PRODUCER_ID, producer_epoch=0)
        return self._produce(version, body) if api_key == ProduceRequest.API_KEY else self._fetch(version, body)

    def _metadata(self) -> Response:
        partitions = [
            MetadataResponsePartition(
                partition_index=index, leader_id=leader, leader_epoch=5, replica_nodes=[1], isr_nodes=[1]
            )
            for index, leader in enumerate(self._leaders)
        ]
        topic = MetadataResponseTopic(name=TOPIC, topic_id=TOPIC_ID, partitions=partitions)
        ports = {1: self.port, **{number: other.port for number, other in self._others.items()}}
        brokers = [MetadataResponseBroker(node_id=each, host="127.0.0.1", port=ports[each]) for each in ports]
        return MetadataResponse(brokers=brokers, topics=[topic])

    def _produce(self, version: int, body: memoryview) -> Response | bytes:
        request = ProduceRequest.decode(body, version)
        rows = []
        for batch in (each for topic in request.topic_data for each in topic.partition_data):
            assert batch.records is not None
            sequence = read_header(batch.records).base_sequence
            self.produced.append(sequence)
            answered = self._producing(sequence)
            if isinstance(answered, bytes):
                return answered
            if answered is not None:
                rows.append(PartitionProduceResponse(index=batch.index, error_code=answered))
        return ProduceResponse(responses=[TopicProduceResponse(name=TOPIC, partition_responses=rows)])

    def _fetch(self, version: int, body: memoryview) -> Response | bytes:
        request = FetchRequest.decode(body, version)
        ((wanted,),) = (topic.partitions for topic in request.topics)
        self.fetched.append(wanted.fetch_offset)
        self.fetch_versions.add(version)
        answered = self._answering(wanted.fetch_offset)
        if isinstance(answered, bytes):
            return answered
        rows: Sequence[FetchableTopicResponse] = (
            [] if answered is None else [FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID, partitions=[answered])]
        )
        return FetchResponse(responses=list(rows))


@contextmanager
def an_odd_broker(
    answering: Answering = lambda _: None,
    newest_fetch: int = FetchRequest.MAX_VERSION,
    producing: Producing = lambda _: None,
    leaders: Sequence[int] = (1,),
    others: Mapping[int, OddBroker] = MappingProxyType({}),
) -> Iterator[OddBroker]:
    """`leaders` are those of the topic's partitions; the broker itself is 1, it knows the others, and -1 is nobody."""
    broker = OddBroker(answering, newest_fetch, producing, leaders, others)
    thread = threading.Thread(target=broker.serve)
    thread.start()
    try:
        yield broker
    finally:
        broker.close()
        thread.join()
