"""The few Kafka requests that the replay clients send, encoded once before the clock starts.

Layouts: record batch v2, Produce v10 (the version librdkafka sends) and Fetch v16, both flexible. All requests of one
kind have the same size, and so have their successful responses: that is what lets the clients count by length alone.
Transactions are asked for one after the other, so their requests are encoded while the clock runs.
"""

import random
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import cramjam
from crc32c import crc32c

PRODUCE_KEY, PRODUCE_VERSION = 0, 10
FETCH_KEY, FETCH_VERSION = 1, 16
FIND_COORDINATOR_KEY, FIND_COORDINATOR_VERSION = 10, 4
INIT_PRODUCER_ID_KEY, INIT_PRODUCER_ID_VERSION = 22, 4
ADD_PARTITIONS_KEY, ADD_PARTITIONS_VERSION = 24, 3
END_TXN_KEY = 26
CLIENT_ID = b"penstock-bench"
CORRELATION_ID = 7
BATCH_HEADER_SIZE = 61
BATCH_CRC_POSITION = 17
BATCH_CRC_COVERS_FROM = 21
TIMESTAMP_MS = 1_700_000_000_000
NO_TAGS = b"\x00"

# Successful responses: length, correlation id, header tags, then the body's fields before the first error code.
FETCH_ERROR_POSITION = 4 + 4 + 1 + 4
FETCH_PARTITION_ERROR_POSITION = FETCH_ERROR_POSITION + 2 + 4 + 1 + 16 + 1 + 4
FETCH_ABORTED_POSITION = FETCH_PARTITION_ERROR_POSITION + 2 + 8 + 8 + 8
FETCH_RECORDS_POSITION = FETCH_ABORTED_POSITION + 1 + 4
# InitProducerId and EndTxn: the error code, then, since EndTxn v5, the producer id and epoch.
PRODUCER_ERROR_POSITION = 4 + 4 + 1 + 4
TRANSACTIONAL, READ_COMMITTED = 0x10, 1
# The codecs by their numbers in a batch's attributes.
CODECS = {"none": 0, "lz4": 3}


@dataclass(frozen=True, slots=True)
class Batch:
    """One encoded record batch and how many records are in it."""

    data: bytes
    records_count: int


@dataclass(frozen=True, slots=True)
class Producer:
    """Who numbers its batches; with a transactional id, they are parts of transactions."""

    producer_id: int = -1
    producer_epoch: int = -1
    transactional_id: bytes = b""


NOBODY = Producer()


def uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def varint(value: int) -> bytes:
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def compact_string(text: bytes) -> bytes:
    return uvarint(len(text) + 1) + text


def record(value: bytes, offset_delta: int, key: bytes | None = None) -> bytes:
    """A record without headers, at the batch's base timestamp."""
    key_part = varint(-1) if key is None else varint(len(key)) + key
    body = b"\x00" + varint(0) + varint(offset_delta) + key_part + varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def batch_of(values: list[bytes], codec: str = "none") -> Batch:
    records = b"".join(record(value, offset_delta) for offset_delta, value in enumerate(values))
    return batch_of_records(records, len(values), codec)


def batch_of_records(records: bytes, records_count: int, codec: str = "none") -> Batch:
    """Of records that are encoded already."""
    return _batch(_lz4(records) if codec == "lz4" else records, records_count, NOBODY, -1, CODECS[codec])


def _lz4(records: bytes) -> bytes:
    """Blocks that do not refer to each other: Java's reader knows no others."""
    compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
    compressor.compress(records)
    return bytes(compressor.finish())


def numbered(batch: Batch, producer: Producer, base_sequence: int) -> Batch:
    """The same records as a producer's batch with this number."""
    return _batch(batch.data[BATCH_HEADER_SIZE:], batch.records_count, producer, base_sequence)


def _batch(records: bytes, records_count: int, producer: Producer, base_sequence: int, codec: int = 0) -> Batch:
    attributes = codec | (TRANSACTIONAL if producer.transactional_id else 0)
    numbers = (producer.producer_id, producer.producer_epoch, base_sequence, records_count)
    fields = struct.pack(">hiqqqhii", attributes, records_count - 1, TIMESTAMP_MS, TIMESTAMP_MS, *numbers)
    checked = fields + records
    batch_length = BATCH_HEADER_SIZE - 12 + len(records)
    header = struct.pack(">qiibI", 0, batch_length, -1, 2, crc32c(checked))
    return Batch(header + checked, records_count)


def batch_of_size(batch_bytes: int, record_bytes: int) -> Batch:
    """A batch of exactly `batch_bytes`, of records with values of `record_bytes`; the last value takes up the rest."""
    randomness = random.Random(batch_bytes)
    records_count = max(1, (batch_bytes - BATCH_HEADER_SIZE) // (record_bytes + 10))
    values = [randomness.randbytes(record_bytes) for _ in range(records_count)]
    missing = batch_bytes - len(batch_of(values).data)
    # The varints before the last value may grow with it, so a second look settles the size.
    for _ in range(2):
        values[-1] = randomness.randbytes(len(values[-1]) + missing)
        missing = batch_bytes - len(batch_of(values).data)
    if missing:
        raise ValueError(f"no batch of exactly {batch_bytes} bytes with records of {record_bytes}")
    return batch_of(values)


def frame(api_key: int, api_version: int, body: bytes) -> bytes:
    header = struct.pack(">hhih", api_key, api_version, CORRELATION_ID, len(CLIENT_ID)) + CLIENT_ID + NO_TAGS
    return struct.pack(">i", len(header) + len(body)) + header + body


def produce_request(
    topic: str, partition: int, batch: Batch, acks: int, transactional_id: bytes = b"", version: int = PRODUCE_VERSION
) -> bytes:
    partition_data = struct.pack(">i", partition) + uvarint(len(batch.data) + 1) + batch.data + NO_TAGS
    topic_data = compact_string(topic.encode()) + uvarint(1 + 1) + partition_data + NO_TAGS
    text = compact_string(transactional_id) if transactional_id else b"\x00"
    timeout_ms = 30_000
    body = text + struct.pack(">hi", acks, timeout_ms) + uvarint(1 + 1) + topic_data + NO_TAGS
    return frame(PRODUCE_KEY, version, body)


def produce_error_position(topic: str) -> int:
    """Where the error code of a Produce response's only partition stands in its frame."""
    return 4 + 4 + 1 + 1 + len(compact_string(topic.encode())) + 1 + 4


def produce_response(topic: str, partition: int) -> bytes:
    """A successful response, for the stub. The offsets are of no interest to the replay client."""
    nothing_wrong = struct.pack(">ihqqq", partition, 0, 0, -1, 0) + uvarint(0 + 1) + b"\x00" + NO_TAGS
    body = uvarint(1 + 1) + compact_string(topic.encode()) + uvarint(1 + 1) + nothing_wrong + NO_TAGS
    return response_frame(body + struct.pack(">i", 0) + NO_TAGS)


def fetch_request(
    topic_id: bytes, partition: int, fetch_offset: int, max_bytes: int, isolation_level: int = 0
) -> bytes:
    """A consumer's fetch outside any session (epoch -1), which does not wait when there is nothing."""
    return fetch_partitions_request(topic_id, {partition: fetch_offset}, max_bytes, isolation_level)


def fetch_partitions_request(
    topic_id: bytes, offsets: Mapping[int, int], max_bytes_each: int, isolation_level: int = 0, max_wait_ms: int = 0
) -> bytes:
    """The same of several partitions at once, by their offsets."""
    min_bytes, max_bytes = 1, max_bytes_each * len(offsets)
    head = struct.pack(">iiibii", max_wait_ms, min_bytes, max_bytes, isolation_level, 0, -1)
    partitions = b"".join(
        struct.pack(">iiqiqi", partition, -1, fetch_offset, -1, -1, max_bytes_each) + NO_TAGS
        for partition, fetch_offset in offsets.items()
    )
    topic_data = topic_id + uvarint(len(offsets) + 1) + partitions + NO_TAGS
    no_forgotten_topics, no_rack = uvarint(0 + 1), compact_string(b"")
    return frame(FETCH_KEY, FETCH_VERSION, head + uvarint(1 + 1) + topic_data + no_forgotten_topics + no_rack + NO_TAGS)


def fetch_response(topic_id: bytes, partition: int, records: bytes) -> bytes:
    """A successful response, for the stub."""
    no_aborted_transactions, no_preferred_replica = b"\x00", -1
    partition_data = struct.pack(">ihqqq", partition, 0, 1 << 40, 1 << 40, 0) + no_aborted_transactions
    partition_data += struct.pack(">i", no_preferred_replica) + uvarint(len(records) + 1) + records + NO_TAGS
    topic_data = topic_id + uvarint(1 + 1) + partition_data + NO_TAGS
    return response_frame(struct.pack(">ihi", 0, 0, 0) + uvarint(1 + 1) + topic_data + NO_TAGS)


def find_coordinator_request(transactional_id: bytes) -> bytes:
    """Also has the coordinator's topic created."""
    of_transactions = b"\x01"
    body = of_transactions + uvarint(1 + 1) + compact_string(transactional_id) + NO_TAGS
    return frame(FIND_COORDINATOR_KEY, FIND_COORDINATOR_VERSION, body)


def init_producer_id_request(transactional_id: bytes, timeout_ms: int) -> bytes:
    """Without a transactional id, of an idempotent producer."""
    text = compact_string(transactional_id) if transactional_id else b"\x00"
    body = text + struct.pack(">iqh", timeout_ms, -1, -1) + NO_TAGS
    return frame(INIT_PRODUCER_ID_KEY, INIT_PRODUCER_ID_VERSION, body)


def add_partitions_request(producer: Producer, topic: str, partition: int) -> bytes:
    topic_data = compact_string(topic.encode()) + uvarint(1 + 1) + struct.pack(">i", partition) + NO_TAGS
    body = compact_string(producer.transactional_id)
    body += struct.pack(">qh", producer.producer_id, producer.producer_epoch)
    return frame(ADD_PARTITIONS_KEY, ADD_PARTITIONS_VERSION, body + uvarint(1 + 1) + topic_data + NO_TAGS)


def add_partitions_error_position(topic: str) -> int:
    return 4 + 4 + 1 + 4 + 1 + len(compact_string(topic.encode())) + 1 + 4


def end_txn_request(producer: Producer, version: int, *, commits: bool) -> bytes:
    body = compact_string(producer.transactional_id)
    body += struct.pack(">qh?", producer.producer_id, producer.producer_epoch, commits)
    return frame(END_TXN_KEY, version, body + NO_TAGS)


def given_producer(response: bytes, transactional_id: bytes) -> Producer:
    """What a successful response to InitProducerId, or to EndTxn v5, tells the producer to be from now on."""
    producer_id, producer_epoch = struct.unpack_from(">qh", response, PRODUCER_ERROR_POSITION + 2)
    return Producer(producer_id, producer_epoch, transactional_id)


def response_frame(body: bytes) -> bytes:
    return struct.pack(">i", 4 + 1 + len(body)) + struct.pack(">i", CORRELATION_ID) + NO_TAGS + body


def int16_at(response: bytes, position: int) -> int:
    return int(struct.unpack_from(">h", response, position)[0])


def fetched_records(response: bytes) -> bytes:
    """The records of a Fetch response's only partition; an error in it is raised."""
    for position in (FETCH_ERROR_POSITION, FETCH_PARTITION_ERROR_POSITION):
        if error_code := int16_at(response, position):
            raise RuntimeError(f"Fetch was answered with error code {error_code}")
    length, position = uvarint_at(response, FETCH_RECORDS_POSITION)
    return response[position : position + length - 1]


def uvarint_at(data: bytes, position: int) -> tuple[int, int]:
    """The number, and where the next field begins."""
    value, shift = 0, 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def fetch_error_positions(response: bytes) -> tuple[int, ...]:
    """Where the error codes of a Fetch response of one topic stand: its own, then that of every partition."""
    positions = [FETCH_ERROR_POSITION]
    count, position = uvarint_at(response, FETCH_ERROR_POSITION + 2 + 4 + 1 + 16)
    for _ in range(count - 1):
        positions.append(position + 4)
        records_position = position + FETCH_RECORDS_POSITION - FETCH_PARTITION_ERROR_POSITION + 4
        length, position = uvarint_at(response, records_position)
        position += length - 1 + len(NO_TAGS)
    return tuple(positions)


def exchange(connection: socket.socket, request: bytes) -> bytes:
    """Sends one request and returns its response, length included."""
    connection.sendall(request)
    return next_response(connection)


def next_response(connection: socket.socket) -> bytes:
    size = receive_exactly(connection, 4)
    return size + receive_exactly(connection, struct.unpack(">i", size)[0])


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        received += chunk
    return bytes(received)
