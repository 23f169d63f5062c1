"""A producer that hears nothing before the broker dies, and so sends everything again.

A client that is answered as soon as its records are in the page cache hardly ever has to retry what is in the log: its
answer is lost only if the kill falls between the write and the send. This one does not listen, so every kill leaves it
with a whole window of batches of which it knows nothing.
"""

from __future__ import annotations

from penstock.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from penstock.protocol.messages.records import ProduceRequest
from tests.testkit.asking import (
    PRODUCE_VERSION,
    a_batch,
    create_topic,
    offset_at,
    produce,
    produce_request,
)
from tests.testkit.broker import Broker
from tests.testkit.raw_client import RawClient
from tests.testkit.waiting import eventually

TOPIC = "unheard"
WINDOW_BATCHES = 5
LATEST = -1
# With segments of a megabyte a window of batches lies across a roll.
BATCH_BYTES = 300_000


class UnheardProducer:
    """Idempotent, acks=all. Every batch holds one record, so that a batch's number is its offset and its sequence."""

    def __init__(self, broker: Broker, *, flush_messages: str) -> None:
        self._sent_for_sure = 0
        self._deaf: RawClient | None = None
        with RawClient(broker.address) as client:
            create_topic(client, TOPIC, flush_messages=flush_messages)
            answer = client.exchange(InitProducerIdRequest(transactional_id=None), 4, InitProducerIdResponse)
        self._producer_id = answer.producer_id

    def send(self, broker: Broker, *, until_written: int) -> None:
        """Sends a window of batches, and returns when that many of them can be read."""
        self._deaf = RawClient(broker.address)
        for number in self._window():
            request = produce_request(TOPIC, {0: self._batch(number)})
            self._deaf.send_request(ProduceRequest.API_KEY, PRODUCE_VERSION, request.encode(PRODUCE_VERSION))
        end = self._sent_for_sure + until_written
        with RawClient(broker.address) as client:
            eventually(lambda: offset_at(client, TOPIC, LATEST).offset >= end, message="not written")

    def send_again(self, broker: Broker) -> None:
        """Every batch of the window is answered with the offset that it has, or had all along."""
        assert self._deaf is not None
        self._deaf.close()
        with RawClient(broker.address) as client:
            answers = [produce(client, TOPIC, self._batch(number)) for number in self._window()]
            end = offset_at(client, TOPIC, LATEST).offset
        assert [(each.error_code, each.base_offset) for each in answers] == [(0, number) for number in self._window()]
        self._sent_for_sure += WINDOW_BATCHES
        assert end == self._sent_for_sure

    def _window(self) -> range:
        return range(self._sent_for_sure, self._sent_for_sure + WINDOW_BATCHES)

    def _batch(self, number: int) -> bytearray:
        value = b"%012d" % number + b"." * BATCH_BYTES
        return a_batch(value, producer_id=self._producer_id, producer_epoch=0, base_sequence=number)
