"""Control batches, against bytes made by hand, aiokafka's reading and garbage; tests/compat asks Kafka itself."""

from __future__ import annotations

from struct import pack

import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.any_marker import any_marker
from tests.protocol.every_version import examples

from penstock.protocol.batch import HEADER_BYTES, Codec, read_header, seal
from penstock.protocol.control import EndMarker, build_end_marker, read_end_marker
from penstock.protocol.records import Record, build_batch

NOW_MS = 1_700_000_000_000
COMMIT = EndMarker(producer_id=9, producer_epoch=2, is_commit=True, coordinator_epoch=17)
ABORT = COMMIT._replace(is_commit=False)


def a_control_batch(key: bytes | None, value: bytes | None, codec: Codec = Codec.NONE) -> bytearray:
    return build_batch(
        [Record(key, value, (), NOW_MS)],
        codec=codec,
        producer_id=9,
        producer_epoch=2,
        is_transactional=True,
        is_control=True,
    )


@pytest.mark.parametrize(("marker", "kind"), [(COMMIT, 1), (ABORT, 0)])
def test_given_an_end_marker_then_its_batch_has_every_byte_as_the_protocol_says(marker: EndMarker, kind: int) -> None:
    batch = build_end_marker(marker, NOW_MS)

    # Length, attributes, deltas, key length, version and type, value length, version and coordinator epoch, no headers.
    record = b"\x20\0\0\0" + b"\x08" + pack(">hh", 0, kind) + b"\x0c" + pack(">hi", 0, 17) + b"\0"
    assert batch[HEADER_BYTES:] == record
    assert batch[:17] == pack(">qiib", 0, 49 + len(record), -1, 2)
    assert batch[21:HEADER_BYTES] == pack(">hiqqqhii", 0x30, 0, NOW_MS, NOW_MS, 9, 2, -1, 1)


@pytest.mark.parametrize(("marker", "theirs"), [(COMMIT, COMMIT_MARKER), (ABORT, ABORT_MARKER)])
def test_given_an_end_marker_then_aiokafka_reads_it(marker: EndMarker, theirs: ControlRecord) -> None:
    batch = DefaultRecordBatch(bytes(build_end_marker(marker, NOW_MS)))

    assert batch.validate_crc()
    assert batch.is_control_batch and batch.is_transactional
    assert (batch.producer_id, batch.base_offset, batch.next_offset) == (9, 0, 1)
    (record,) = list(batch)
    assert ControlRecord.parse(record.key) == theirs
    assert record.timestamp == NOW_MS


@examples(100)
@given(marker=any_marker, timestamp_ms=st.integers(-1, 2**60))
def test_given_any_end_marker_when_built_and_read_then_it_is_the_same(marker: EndMarker, timestamp_ms: int) -> None:
    batch = build_end_marker(marker, timestamp_ms)

    assert read_end_marker(batch) == marker
    assert read_end_marker(memoryview(b"before" + batch + b"after"), len(b"before")) == marker


@pytest.mark.parametrize("kind", [-1, 2, 3, 6, 32767])
def test_given_another_kind_of_control_record_then_it_is_no_end_marker(kind: int) -> None:
    assert read_end_marker(a_control_batch(pack(">hh", 0, kind), b"whatever")) is None
    assert read_end_marker(a_control_batch(pack(">hh", 0, kind), None)) is None


def test_given_a_control_batch_whose_record_was_compacted_away_then_there_is_no_end_marker() -> None:
    batch = build_end_marker(COMMIT, NOW_MS)[:HEADER_BYTES]
    batch[8:12] = pack(">i", HEADER_BYTES - 12)
    batch[57:61] = pack(">i", 0)
    seal(batch, 0)

    assert read_header(batch).records_count == 0
    assert read_end_marker(batch) is None


def test_given_later_versions_of_key_and_value_then_what_follows_the_first_is_ignored() -> None:
    batch = a_control_batch(pack(">hh", 1, 1) + b"more", pack(">hi", 3, 17) + b"more")

    assert read_end_marker(batch) == COMMIT


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        (None, pack(">hi", 0, 17), "the key of a control record has 4 bytes at least, this one is null"),
        (b"\0\0\0", pack(">hi", 0, 17), "the key of a control record has 4 bytes at least, this one has 3"),
        (pack(">hh", -1, 1), pack(">hi", 0, 17), "the key of a control record cannot have version -1"),
        (pack(">hh", 0, 1), None, "the value of a control record has 6 bytes at least, this one is null"),
        (pack(">hh", 0, 0), b"\0" * 5, "the value of a control record has 6 bytes at least, this one has 5"),
        (pack(">hh", 0, 0), pack(">hi", -2, 17), "the value of a control record cannot have version -2"),
    ],
)
def test_given_a_control_record_that_makes_no_sense_then_the_complaint_says_why(
    key: bytes | None, value: bytes | None, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_end_marker(a_control_batch(key, value))


def test_given_a_compressed_control_batch_then_it_is_refused() -> None:
    with pytest.raises(ValueError, match="never compressed, this one has codec 1"):
        read_end_marker(a_control_batch(pack(">hh", 0, 1), pack(">hi", 0, 17), Codec.GZIP))


@examples(300)
@given(st.data())
def test_given_a_marker_with_bytes_changed_then_it_is_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    batch = build_end_marker(COMMIT, NOW_MS)
    for _ in range(data.draw(st.integers(1, 3))):
        # The batch's length is what the reader found it by.
        at = data.draw(st.integers(0, len(batch) - 1).filter(lambda at: not 8 <= at < 12))
        batch[at] = data.draw(st.integers(0, 255))

    try:
        marker = read_end_marker(batch)
    except ValueError as error:
        assert str(error)
    else:
        assert marker is None or isinstance(marker, EndMarker)
