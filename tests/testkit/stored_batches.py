"""What a broker keeps of what it was sent: the record batches of a Fetch, before any client unpacks them."""

import struct
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from tests.testkit.broker_process import BrokerProcess
from tests.testkit.raw_client import RawClient

# base offset, batch length, leader epoch, magic, CRC, attributes, last offset delta, first and last timestamp,
# producer id, producer epoch, base sequence, record count
_HEADER = struct.Struct(">qiibIhiqqqhii")
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class StoredBatch:
    base_offset: int
    codec: str
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    leader_epoch: int
    raw: bytes


def stored_batches(broker: BrokerProcess, topic: str, *, partition: int = 0, offset: int = 0) -> list[StoredBatch]:
    """Every whole batch from `offset` on, as far as one Fetch of 16 MiB goes."""
    with RawClient(broker.address) as client:
        (answered,) = client.ask(_fetch_request(topic, partition, offset)).responses
    (data,) = answered.partitions
    assert data.error_code == 0, data.error_code
    return _split(bytes(data.records or b""))


def _fetch_request(topic: str, partition: int, offset: int) -> FetchRequest:
    asked = FetchPartition(partition=i32(partition), fetch_offset=i64(offset), partition_max_bytes=i32(1 << 24))
    return FetchRequest(
        max_wait=i32Timedelta.parse(timedelta(0)),
        min_bytes=i32(0),
        topics=(FetchTopic(topic=TopicName(topic), partitions=(asked,)),),
        forgotten_topics_data=(),
    )


def _split(records: bytes) -> list[StoredBatch]:
    batches: list[StoredBatch] = []
    position = 0
    while position + _HEADER.size <= len(records):
        header = _HEADER.unpack_from(records, position)
        end = position + 12 + header[1]
        if end > len(records):
            break
        batches.append(
            StoredBatch(
                base_offset=header[0],
                codec=_CODECS[header[5] & 7],
                producer_id=header[9],
                producer_epoch=header[10],
                base_sequence=header[11],
                record_count=header[12],
                leader_epoch=header[2],
                raw=records[position:end],
            )
        )
        position = end
    return batches
