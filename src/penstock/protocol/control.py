"""Control records: what a coordinator writes among the records of clients, to say how a transaction ended.

A control batch has one record. Its key says what it is, its value has the epoch of the coordinator that wrote it, so
that a marker of one that has been replaced can be refused. Bytes of a later version begin with those of the first, as
Kafka promises.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from penstock.protocol.batch import HEADER_BYTES, Codec, ReadableBuffer, read_header
from penstock.protocol.records import Record, build_batch, iterate

_KEY = Struct(">hh")  # version, type
_VALUE = Struct(">hi")  # version, coordinator epoch
# A whole record with these, as nearly every one is: what stands before the key, the key, the length of the value, the
# value, and how many headers there are. Lengths are varints, so they are twice what they say.
_USUAL_RECORD = Struct(">5s hh b hi b")
_BEFORE_KEY = bytes((2 * 16, 0, 0, 0, 2 * _KEY.size))
_VERSION = 0
_ABORT = 0
_COMMIT = 1


class EndMarker(NamedTuple):
    """The end of a transaction in one partition."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int


def build_end_marker(marker: EndMarker, timestamp_ms: int) -> bytearray:
    key = _KEY.pack(_VERSION, _COMMIT if marker.is_commit else _ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build_batch(
        [Record(key, value, (), timestamp_ms)],
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_end_marker(batch: ReadableBuffer, position: int = 0) -> EndMarker | None:
    """The marker in the whole control batch at `position`; ValueError when its record cannot be understood.

    None for another kind of control record, and when there is none: a compacted log keeps the last batch of a producer
    even without its record.
    """
    header = read_header(batch, position)
    if header.codec != Codec.NONE:
        raise ValueError(f"a control batch is never compressed, this one has codec {header.codec}")
    if header.size == HEADER_BYTES + _USUAL_RECORD.size and header.records_count == 1:
        before_key, key_version, kind, value_size, value_version, coordinator_epoch, headers_count = (
            _USUAL_RECORD.unpack_from(batch, position + HEADER_BYTES)
        )
        is_usual = before_key == _BEFORE_KEY and value_size == 2 * _VALUE.size and headers_count == 0
        if is_usual and kind in (_ABORT, _COMMIT) and key_version >= 0 and value_version >= 0:
            return EndMarker(header.producer_id, header.producer_epoch, kind == _COMMIT, coordinator_epoch)
    record = next(iterate(batch, position), None)
    if record is None:
        return None
    kind = _content(_KEY, record.key, "key")
    if kind not in (_ABORT, _COMMIT):
        return None
    coordinator_epoch = _content(_VALUE, record.value, "value")
    return EndMarker(header.producer_id, header.producer_epoch, kind == _COMMIT, coordinator_epoch)


def _content(layout: Struct, data: bytes | None, name: str) -> int:
    if data is None or len(data) < layout.size:
        found = "is null" if data is None else f"has {len(data)}"
        raise ValueError(f"the {name} of a control record has {layout.size} bytes at least, this one {found}")
    version, content = layout.unpack_from(data)
    if version < 0:
        raise ValueError(f"the {name} of a control record cannot have version {version}")
    return int(content)
