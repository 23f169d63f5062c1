"""What a producer's batch must be, code by code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.topic_config import topic_config
from penstock.protocol.batch import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Codec,
    assemble,
    crc_is_valid,
    read_header,
    seal,
)
from penstock.protocol.compression import compress, decompress
from penstock.protocol.records import Record, build_batch, iterate, spans
from penstock.protocol.validation import (
    NO_LIMIT_MS,
    BatchRefused,
    ProduceLimits,
    check_batch,
    deep_check,
    needs_deep_check,
)

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
LIMITS = ProduceLimits(max_message_bytes=1_048_588, timestamp_after_max_ms=HOUR_MS)
COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


def records(*timestamps: int) -> list[Record]:
    return [Record(b"key", b"value", [("h", b"v")], timestamp) for timestamp in timestamps or (NOW_MS, NOW_MS + 1)]


def with_header(batch: bytearray, **fields: int) -> bytearray:
    """The batch with some header fields changed, its length and CRC right."""
    return assemble(read_header(batch)._replace(**fields), batch[HEADER_BYTES:])


def check(
    batch: bytes | bytearray, limits: ProduceLimits = LIMITS, version: int = 9, now_ms: int = NOW_MS
) -> BatchHeader:
    return check_batch(memoryview(batch), limits, version, now_ms)


def refusal(act: Callable[[], Any]) -> BrokerError:
    with pytest.raises(BrokerError) as refused:
        act()
    assert refused.value.message
    return refused.value


def limits(**changed: Any) -> ProduceLimits:
    return ProduceLimits(**{"max_message_bytes": 1_048_588, **changed})


# --- what may pass ---


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("producer", [{}, {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}])
def test_given_a_sound_batch_then_it_passes_untouched(codec: Codec, producer: dict[str, int]) -> None:
    batch = build_batch(records(), codec=codec, **producer)  # type: ignore[arg-type]
    before = bytes(batch)

    header = check(batch)

    assert batch == before
    assert header == read_header(batch)
    assert isinstance(header, BatchHeader)
    assert not needs_deep_check(header, LIMITS)


@pytest.mark.parametrize("producer_id", [5, -1])
def test_given_a_transactional_batch_then_it_passes_since_the_request_decides(producer_id: int) -> None:
    fields = {"attributes": TRANSACTIONAL_BIT, "producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}

    assert check(with_header(build_batch(records()), **fields)).is_transactional


def test_given_a_batch_of_exactly_max_message_bytes_then_it_passes_and_one_byte_less_is_too_large() -> None:
    batch = build_batch(records())

    check(batch, limits(max_message_bytes=len(batch)))
    refused = refusal(lambda: check(batch, limits(max_message_bytes=len(batch) - 1)))

    assert refused.code == ErrorCode.MESSAGE_TOO_LARGE


# --- what is refused, and with which code ---


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"base_offset": 1}, ErrorCode.INVALID_RECORD),
        ({"base_offset": -1}, ErrorCode.INVALID_RECORD),
        ({"records_count": 0, "last_offset_delta": -1}, ErrorCode.INVALID_RECORD),
        ({"records_count": -1, "last_offset_delta": -2}, ErrorCode.INVALID_RECORD),
        ({"records_count": 3}, ErrorCode.INVALID_RECORD),
        ({"records_count": 3, "last_offset_delta": 2}, ErrorCode.INVALID_RECORD),
        ({"records_count": 1, "last_offset_delta": 0}, ErrorCode.INVALID_RECORD),
        ({"records_count": 2**31 - 1, "last_offset_delta": 2**31 - 2}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 2}, ErrorCode.INVALID_RECORD),
        ({"attributes": CONTROL_BIT}, ErrorCode.INVALID_RECORD),
        ({"attributes": CONTROL_BIT | LOG_APPEND_TIME_BIT}, ErrorCode.INVALID_RECORD),
        ({"attributes": LOG_APPEND_TIME_BIT}, ErrorCode.INVALID_TIMESTAMP),
        ({"attributes": DELETE_HORIZON_BIT}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 5}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 0, "producer_epoch": 0, "base_sequence": -1}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 0, "producer_epoch": -1, "base_sequence": 0}, ErrorCode.INVALID_RECORD),
        ({"attributes": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 6}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 7}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"magic": 0}, ErrorCode.INVALID_RECORD),
        ({"magic": 1}, ErrorCode.INVALID_RECORD),
        ({"magic": 3}, ErrorCode.CORRUPT_MESSAGE),
        ({"magic": -1}, ErrorCode.CORRUPT_MESSAGE),
        ({"base_timestamp": 2**63 - 1}, ErrorCode.INVALID_RECORD),
    ],
)
def test_given_a_wrong_header_field_then_kafkas_code_answers(fields: dict[str, int], code: ErrorCode) -> None:
    assert refusal(lambda: check(with_header(build_batch(records()), **fields))).code == code


@pytest.mark.parametrize("codec", list(Codec))
def test_given_an_empty_batch_then_it_is_invalid_whether_or_not_it_is_opened(codec: Codec) -> None:
    section = compress(codec, b"")
    header = read_header(build_batch(records(), codec=codec))
    empty = header._replace(records_count=0, last_offset_delta=-1, batch_length=HEADER_BYTES - 12 + len(section))

    assert refusal(lambda: check(assemble(empty, section))).code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("claimed", [-(2**31), -1, 0, 48, 49, 2**31 - 1])
def test_given_a_length_that_is_not_the_payloads_then_it_is_corrupt_or_more_than_one(claimed: int) -> None:
    batch = build_batch(records())
    batch[8:12] = claimed.to_bytes(4, "big", signed=True)

    code = refusal(lambda: check(batch)).code

    # 49 is the length of a header alone: what follows it would be a second batch.
    assert code == (ErrorCode.INVALID_RECORD if claimed == 49 else ErrorCode.CORRUPT_MESSAGE)


@pytest.mark.parametrize("second", [b"\x00", bytes(build_batch(records()))])
def test_given_more_than_one_batch_then_it_is_invalid(second: bytes) -> None:
    assert refusal(lambda: check(build_batch(records()) + second)).code == ErrorCode.INVALID_RECORD


def test_given_no_batch_then_it_is_invalid() -> None:
    assert refusal(lambda: check(b"")).code == ErrorCode.INVALID_RECORD


def test_given_a_batch_cut_at_any_byte_then_it_is_corrupt() -> None:
    batch = build_batch(records())

    for end in range(1, len(batch)):
        assert refusal(lambda end=end: check(batch[:end])).code == ErrorCode.CORRUPT_MESSAGE  # type: ignore[misc]


def test_given_a_short_message_of_an_old_format_then_it_is_told_so_and_not_called_corrupt() -> None:
    """Formats 0 and 1 have headers shorter than format 2's."""
    message = bytes(8) + (22).to_bytes(4, "big") + bytes(4) + b"\x01" + bytes(17)

    refused = refusal(lambda: check(message))

    assert refused.code == ErrorCode.INVALID_RECORD
    assert "magic 1" in refused.message


def test_given_any_flipped_bit_then_the_batch_is_refused() -> None:
    batch = bytes(build_batch(records(), codec=Codec.NONE, producer_id=1, producer_epoch=1, base_sequence=1))
    leader_epoch = range(12, 16)  # the leader writes its own there

    for bit in range(8 * len(batch)):
        if bit // 8 in leader_epoch:
            continue
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        assert isinstance(refusal(lambda flipped=flipped: check(flipped)), BatchRefused), bit  # type: ignore[misc]


@pytest.mark.parametrize(("version", "passes"), [(3, False), (6, False), (7, True), (9, True), (13, True)])
def test_given_zstd_then_produce_must_be_version_7(version: int, passes: bool) -> None:
    batch = build_batch(records(), codec=Codec.ZSTD)

    if passes:
        assert check(batch, version=version).codec == Codec.ZSTD
    else:
        assert refusal(lambda: check(batch, version=version)).code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_given_a_wrong_record_then_the_answer_says_which() -> None:
    batch = build_batch(records(NOW_MS, NOW_MS, NOW_MS))
    at = spans(batch[HEADER_BYTES:], 3)[8 + 3 - 1] - 2 + HEADER_BYTES  # the second record's offset delta
    assert batch[at] == 2
    batch[at] = 4
    seal(batch, 0)

    refused = refusal(lambda: check(batch))

    assert isinstance(refused, BatchRefused)
    assert (refused.code, refused.record_index) == (ErrorCode.INVALID_RECORD, 1)
    assert refused.message.startswith("record 1: ")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_given_damaged_bytes_with_a_right_crc_then_a_broker_error_or_a_readable_batch(data: st.DataObject) -> None:
    batch = build_batch(records(), codec=data.draw(st.sampled_from([Codec.NONE, *COMPRESSING])))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(16, len(batch) - 1))] = data.draw(st.integers(0, 255))
    seal(batch, 0)
    strict = limits(timestamp_before_max_ms=HOUR_MS, keys_required=True, compression_type=Codec.NONE)

    try:
        header = check(batch, strict)
        view, header = deep_check(memoryview(batch), header, strict, NOW_MS)
    except BrokerError:
        return

    assert len(list(iterate(view))) == header.records_count


# --- timestamps ---


@pytest.mark.parametrize("codec", list(Codec))
def test_given_a_timestamp_too_far_ahead_then_it_is_refused(codec: Codec) -> None:
    check(build_batch(records(NOW_MS, NOW_MS + HOUR_MS), codec=codec))

    refused = refusal(lambda: check(build_batch(records(NOW_MS, NOW_MS + HOUR_MS + 1), codec=codec)))

    assert isinstance(refused, BatchRefused)
    assert refused.code == ErrorCode.INVALID_TIMESTAMP
    assert refused.record_index == (1 if codec == Codec.NONE else -1)


@pytest.mark.parametrize("codec", list(Codec))
def test_given_a_timestamp_too_far_back_then_it_is_refused_also_inside_a_compressed_batch(codec: Codec) -> None:
    past = limits(timestamp_before_max_ms=HOUR_MS)

    def deep(oldest: int) -> None:
        batch = build_batch(records(NOW_MS, NOW_MS, oldest), codec=codec)
        header = check(batch, past)
        assert needs_deep_check(header, past) == (codec != Codec.NONE)
        deep_check(memoryview(batch), header, past, NOW_MS)

    deep(NOW_MS - HOUR_MS)
    refused = refusal(lambda: deep(NOW_MS - HOUR_MS - 1))

    assert isinstance(refused, BatchRefused)
    assert (refused.code, refused.record_index) == (ErrorCode.INVALID_TIMESTAMP, 2)


def test_given_records_without_a_timestamp_then_no_limit_holds_for_them() -> None:
    check(build_batch(records(-1, -1)), limits(timestamp_before_max_ms=0, timestamp_after_max_ms=0))
    check(build_batch(records(NOW_MS, -1)), limits(timestamp_before_max_ms=0, timestamp_after_max_ms=0))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_given_a_topic_with_log_append_time_then_the_batch_is_stamped_and_limits_do_not_hold(codec: Codec) -> None:
    batch = build_batch(records(1, NOW_MS * 2), codec=codec)
    append_time = limits(is_log_append_time=True, timestamp_before_max_ms=0, timestamp_after_max_ms=0)

    header = check(batch, append_time)

    assert header == read_header(batch)
    assert crc_is_valid(batch, 0, header)
    assert (header.is_log_append_time, header.max_timestamp) == (True, NOW_MS)
    assert [record.timestamp for record in iterate(batch)] == [NOW_MS, NOW_MS]
    assert not needs_deep_check(header, append_time)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_given_a_maximum_timestamp_that_is_a_lie_when_the_records_are_seen_then_it_is_put_right(codec: Codec) -> None:
    batch = with_header(build_batch(records(5, 9, 7), codec=codec), max_timestamp=1)
    keyed = limits(keys_required=True)

    header = check(batch, keyed)
    view, header = deep_check(memoryview(batch), header, keyed, NOW_MS)

    assert header.max_timestamp == 9
    assert header == read_header(view)
    assert crc_is_valid(view, 0, header)


# --- keys ---


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_given_a_compacted_topic_when_a_record_has_no_key_then_it_is_refused(codec: Codec) -> None:
    keyed = limits(keys_required=True)
    batch = build_batch([Record(b"k", b"v", (), NOW_MS), Record(None, b"v", (), NOW_MS)], codec=codec)

    def enter() -> None:
        header = check(batch, keyed)
        assert needs_deep_check(header, keyed)
        deep_check(memoryview(batch), header, keyed, NOW_MS)

    refused = refusal(enter)

    assert isinstance(refused, BatchRefused)
    assert (refused.code, refused.record_index) == (ErrorCode.INVALID_RECORD, 1)


# --- recompression ---


@pytest.mark.parametrize("target", list(Codec))
@pytest.mark.parametrize("source", list(Codec))
def test_given_the_topics_codec_then_a_batch_is_recompressed_only_when_it_has_another(
    source: Codec, target: Codec
) -> None:
    given_records = records(*range(NOW_MS, NOW_MS + 50))
    batch = build_batch(given_records, codec=source, producer_id=4, producer_epoch=1, base_sequence=9)
    topic = limits(compression_type=target)
    header = check(batch, topic)

    assert needs_deep_check(header, topic) == (source != target)
    view, after = deep_check(memoryview(batch), header, topic, NOW_MS)

    assert (view.obj is batch) == (source == target)
    assert not view.readonly
    assert after == read_header(view)
    assert after.codec == target
    assert after.size == len(view)
    assert after[5:] == header._replace(attributes=target)[5:]
    theirs = DefaultRecordBatch(bytes(view))
    assert theirs.validate_crc()
    assert [(r.timestamp, r.key, r.value, r.headers) for r in theirs] == [
        (r.timestamp, r.key, r.value, list(r.headers)) for r in given_records
    ]


def test_given_log_append_time_when_recompressed_then_the_stamp_stays() -> None:
    topic = limits(compression_type=Codec.GZIP, is_log_append_time=True)
    batch = build_batch(records(1, 2), codec=Codec.LZ4)

    view, header = deep_check(memoryview(batch), check(batch, topic), topic, NOW_MS + 5)

    assert (header.codec, header.is_log_append_time, header.max_timestamp) == (Codec.GZIP, True, NOW_MS)
    assert [record.timestamp for record in iterate(view)] == [NOW_MS, NOW_MS]


def test_given_a_level_then_recompression_uses_it() -> None:
    batch = build_batch([Record(None, str(number * number).encode(), (), NOW_MS) for number in range(2000)])
    sizes = [
        len(deep_check(memoryview(batch), check(batch, topic), topic, NOW_MS)[0])
        for topic in (limits(compression_type=Codec.GZIP, compression_level=level) for level in (1, 9))
    ]

    assert sizes[1] < sizes[0]


def test_given_a_batch_that_grows_beyond_max_message_bytes_when_recompressed_then_it_is_too_large() -> None:
    batch = build_batch([Record(None, bytes(10_000), (), NOW_MS)], codec=Codec.GZIP)
    topic = limits(compression_type=Codec.NONE, max_message_bytes=5_000)
    header = check(batch, topic)

    assert refusal(lambda: deep_check(memoryview(batch), header, topic, NOW_MS)).code == ErrorCode.MESSAGE_TOO_LARGE


def test_given_a_bomb_when_it_must_be_opened_then_it_is_refused_and_otherwise_passed_through() -> None:
    section = compress(Codec.ZSTD, bytes(70 * 1024 * 1024))
    header = read_header(build_batch(records(), codec=Codec.ZSTD))
    batch = assemble(header._replace(batch_length=49 + len(section)), section)
    topic = limits(compression_type=Codec.LZ4)

    check(batch)

    assert refusal(lambda: deep_check(memoryview(batch), header, topic, NOW_MS)).code == ErrorCode.MESSAGE_TOO_LARGE


def test_given_records_that_are_wrong_inside_a_compressed_batch_when_it_is_opened_then_it_is_refused() -> None:
    whole = build_batch(records(), codec=Codec.GZIP)
    section = compress(Codec.GZIP, bytes(decompress(Codec.GZIP, whole[HEADER_BYTES:]))[:-1])
    batch = assemble(read_header(whole)._replace(batch_length=49 + len(section)), section)
    topic = limits(compression_type=Codec.NONE)

    refused = refusal(lambda: deep_check(memoryview(batch), check(batch, topic), topic, NOW_MS))

    assert isinstance(refused, BatchRefused)
    assert (refused.code, refused.record_index) == (ErrorCode.INVALID_RECORD, 1)


# --- limits ---


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"compression.type": "producer"}, {"compression_type": None, "compression_level": None}),
        ({"compression.type": "uncompressed"}, {"compression_type": Codec.NONE, "compression_level": None}),
        ({"compression.type": "snappy"}, {"compression_type": Codec.SNAPPY, "compression_level": None}),
        (
            {"compression.type": "gzip", "compression.gzip.level": "2"},
            {"compression_type": Codec.GZIP, "compression_level": 2},
        ),
        ({"compression.type": "zstd"}, {"compression_type": Codec.ZSTD, "compression_level": 3}),
        ({"compression.type": "lz4"}, {"compression_type": Codec.LZ4, "compression_level": 9}),
        ({"message.timestamp.type": "LogAppendTime"}, {"is_log_append_time": True}),
        ({"message.timestamp.before.max.ms": "7"}, {"timestamp_before_max_ms": 7}),
        ({"message.timestamp.after.max.ms": "8"}, {"timestamp_after_max_ms": 8}),
        ({"max.message.bytes": "9"}, {"max_message_bytes": 9}),
        ({"cleanup.policy": "compact"}, {"keys_required": True}),
        ({}, {"keys_required": False, "is_log_append_time": False, "timestamp_before_max_ms": NO_LIMIT_MS}),
    ],
)
def test_given_a_topics_configuration_then_its_limits_follow(
    overrides: dict[str, str], expected: dict[str, Any]
) -> None:
    made = ProduceLimits.of(topic_config(overrides, BrokerConfig(())))

    assert {name: getattr(made, name) for name in expected} == expected
