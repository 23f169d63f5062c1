"""One producer at a steady rate and consumers that wait for it, in one process with one clock: end-to-end latency.

A message's latency counts from the moment it was due, whatever the broker did meanwhile, until a consumer has it.
Requests are due at equal intervals, a thousand a second at most: at a higher rate each brings several messages. Every
consumer has one fetch waiting at the broker all the time.

With a core for itself the client never sleeps (`patience_s`).
"""

import gc
import select
import socket
import struct
import time
from dataclasses import dataclass

from bench import wire
from bench.open_loop import patience_s

WARM_UP_S = 1.0
STALL_S = 30
MAX_WAIT_MS = 500
FETCH_BYTES = 1 << 20
# In a request of `fetch_partitions_request` with one partition: behind its offset are 8 + 4 + 8 + 4 bytes and the rest.
OFFSET_FROM_END = 8 + 4 + 8 + 4 + len(wire.NO_TAGS) + len(wire.NO_TAGS) + 1 + 1 + len(wire.NO_TAGS)
_BATCH_LENGTH_POSITION, _LAST_OFFSET_DELTA_POSITION = 8, 23


@dataclass(frozen=True, slots=True)
class Steady:
    """So many requests a second for so long, each with a batch of so many records; and how many read along."""

    requests_per_s: int
    records_per_request: int
    seconds: float
    consumers_count: int = 1


def end_to_end_latencies_ms(
    address: tuple[str, int], produce_request: bytes, error_position: int, topic_id: bytes, offset: int, steady: Steady
) -> list[float]:
    """Of every request that was due after the warm-up, for every consumer. `offset` is the topic's end at the start."""
    producer = _Producer(address, produce_request, error_position)
    consumers = [_Consumer(address, topic_id, offset) for _ in range(steady.consumers_count)]
    by_descriptor = {each.socket.fileno(): each for each in (producer, *consumers)}
    count = int(steady.requests_per_s * (WARM_UP_S + steady.seconds))
    due_from = int(steady.requests_per_s * WARM_UP_S)
    latencies: list[float] = []
    gc.disable()
    started, sent = time.perf_counter(), 0
    while any(each.records_seen(offset) < count * steady.records_per_request for each in consumers):
        end = started + count / steady.requests_per_s + STALL_S
        next_due = started + sent / steady.requests_per_s if sent < count else end
        readable, _, _ = select.select(by_descriptor, (), (), patience_s(next_due))
        for descriptor in readable:
            for seen in by_descriptor[descriptor].receive(offset, steady.records_per_request):
                if seen >= due_from:
                    due = started + seen / steady.requests_per_s
                    latencies.append((time.perf_counter() - due) * 1_000)
        now = time.perf_counter()
        if now > end:
            raise TimeoutError(f"a consumer has not seen all of {count} requests after {STALL_S} s")
        while sent < count and started + sent / steady.requests_per_s <= now:
            producer.socket.sendall(produce_request)
            sent += 1
    for each in by_descriptor.values():
        each.socket.close()
    return latencies


class _Frames:
    """A connection's whole responses."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def _arrived(self) -> list[bytes]:
        chunk = self.socket.recv(1 << 20)
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        self._received += chunk
        frames = []
        while len(self._received) >= 4:
            size = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < size:
                break
            frames.append(bytes(self._received[:size]))
            del self._received[:size]
        return frames

    def receive(self, first_offset: int, records_per_request: int) -> list[int]:
        raise NotImplementedError


class _Producer(_Frames):
    def __init__(self, address: tuple[str, int], request: bytes, error_position: int) -> None:
        super().__init__(address)
        self._error_position = error_position

    def receive(self, first_offset: int, records_per_request: int) -> list[int]:
        for response in self._arrived():
            if error_code := wire.int16_at(response, self._error_position):
                raise RuntimeError(f"Produce was answered with error code {error_code}")
        return []


class _Consumer(_Frames):
    def __init__(self, address: tuple[str, int], topic_id: bytes, offset: int) -> None:
        super().__init__(address)
        self._request = bytearray(
            wire.fetch_partitions_request(topic_id, {0: offset}, FETCH_BYTES, max_wait_ms=MAX_WAIT_MS)
        )
        self._offset_position = len(self._request) - OFFSET_FROM_END
        self._offset = offset
        self.socket.sendall(self._request)

    def records_seen(self, first_offset: int) -> int:
        return self._offset - first_offset

    def receive(self, first_offset: int, records_per_request: int) -> list[int]:
        """The numbers of the requests whose records have come, and the next fetch is on its way."""
        before = self._offset
        for response in self._arrived():
            self._offset = next_offset(wire.fetched_records(response), self._offset)
            struct.pack_into(">q", self._request, self._offset_position, self._offset)
            self.socket.sendall(self._request)
        first, last = ((each - first_offset) // records_per_request for each in (before, self._offset))
        return list(range(first, last))


def next_offset(records: bytes, offset: int) -> int:
    """After the last batch of a fetch; a waiting fetch may have brought nothing."""
    position = 0
    while position < len(records):
        base_offset, batch_length = struct.unpack_from(">qi", records, position)
        (last_delta,) = struct.unpack_from(">i", records, position + _LAST_OFFSET_DELTA_POSITION)
        offset = base_offset + last_delta + 1
        position += _BATCH_LENGTH_POSITION + 4 + batch_length
    return offset
