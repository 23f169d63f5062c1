"""A broker that says what a test tells it to: answers that a sound broker gives seldom, or never."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.core.ids import TopicId
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
from penstock.protocol.messages.records import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData

TOPIC = "orders"
TOPIC_ID = TopicId(bytes(range(16)))
_REQUESTS = (ApiVersionsRequest, MetadataRequest, FetchRequest)
_FLEXIBLE_SINCE = {each.API_KEY: each.FLEXIBLE_SINCE for each in _REQUESTS}

# What to answer to a fetch of an offset: a partition, no partition at all, or bytes in place of an answer, and the end.
Answered = PartitionData | None | bytes
Answering = Callable[[int], Answered]


class OddBroker:
    def __init__(self, answering: Answering, newest_fetch: int) -> None:
        self._answering = answering
        self._newest_fetch = newest_fetch
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.fetched: list[int] = []
        self.fetch_versions: set[int] = set()

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
            partition = MetadataResponsePartition(leader_id=1, leader_epoch=5, replica_nodes=[1], isr_nodes=[1])
            topic = MetadataResponseTopic(name=TOPIC, topic_id=TOPIC_ID, partitions=[partition])
            broker = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)
            return MetadataResponse(brokers=[broker], topics=[topic])
        return self._fetch(version, body)

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
def an_odd_broker(answering: Answering, newest_fetch: int = FetchRequest.MAX_VERSION) -> Iterator[OddBroker]:
    broker = OddBroker(answering, newest_fetch)
    thread = threading.Thread(target=broker.serve)
    thread.start()
    try:
        yield broker
    finally:
        broker.close()
        thread.join()
