"""What a leader checks of a batch that a producer sent, before it may enter the log.

`check_batch` is the produce path: header, CRC, and every record of an uncompressed batch. It leaves a compressed one
closed and changes nothing but what the log must own (LogAppendTime, a wrong maximum timestamp). `deep_check` opens and
if need be recompresses a batch, which takes CPU time in proportion to its content: the caller runs it in a worker
thread, and only where `needs_deep_check` says that the topic's configuration asks for it.

A batch is refused before anything of it is changed. Codes are Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass

from crc32c_rs import crc32c

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.topic_config import TopicConfig
from penstock.protocol.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    MAGIC_AT,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
    ReadableBuffer,
    assemble,
    correct_max_timestamp,
    read_header,
    stamp_log_append_time,
)
from penstock.protocol.compression import compress, decompress
from penstock.protocol.records import InvalidRecords, RecordsInfo, validate

ZSTD_SINCE_PRODUCE_VERSION = 7
NO_LIMIT_MS = 2**63 - 1

_PLAIN_BITS = Codec.GZIP | Codec.SNAPPY  # and both: LZ4
_BROKER_ONLY_BITS = CONTROL_BIT | LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT
_COMPRESSION_TYPES = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


@dataclass(frozen=True, slots=True)
class ProduceLimits:
    """What a topic's configuration asks of the batches that it takes."""

    max_message_bytes: int
    compression_type: Codec | None = None  # None: as the producer chose
    compression_level: int | None = None  # None: the codec's default
    is_log_append_time: bool = False
    timestamp_before_max_ms: int = NO_LIMIT_MS
    timestamp_after_max_ms: int = NO_LIMIT_MS
    keys_required: bool = False

    @classmethod
    def of(cls, config: TopicConfig) -> ProduceLimits:
        levels = {
            Codec.GZIP: config.compression_gzip_level,
            Codec.LZ4: config.compression_lz4_level,
            Codec.ZSTD: config.compression_zstd_level,
        }
        codec = _COMPRESSION_TYPES[config.compression_type]
        return cls(
            max_message_bytes=config.max_message_bytes,
            compression_type=codec,
            compression_level=None if codec is None else levels.get(codec),
            is_log_append_time=config.is_log_append_time,
            timestamp_before_max_ms=config.message_timestamp_before_max_ms,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms,
            keys_required=config.is_compacted,
        )

    @property
    def is_plain(self) -> bool:
        """Nothing asked of a sound batch but its size and that it is not from the future."""
        return (
            self.compression_type is None
            and not self.is_log_append_time
            and not self.keys_required
            and self.timestamp_before_max_ms == NO_LIMIT_MS
        )


class BatchRefused(BrokerError):
    """`record_index` is the place in the batch of the record at fault, -1 when it is the batch as a whole."""

    def __init__(self, code: ErrorCode, message: str, record_index: int = -1) -> None:
        super().__init__(code, message)
        self.record_index = record_index


def check_batch(view: memoryview, limits: ProduceLimits, api_version: int, now_ms: int) -> BatchHeader:
    """`view` is what Produce `api_version` holds for one partition, and writable. Raises BatchRefused.

    The conditions stand here bare, since this runs for every batch; why one fails is found out afterwards.
    """
    size = len(view)
    if size < HEADER_BYTES:
        raise _not_one_batch(view)
    header = BatchHeader._make(HEADER.unpack_from(view))
    (
        base_offset, length, _, magic, crc, attributes, last_delta, _, max_timestamp, producer_id, producer_epoch,
        base_sequence, count,
    ) = header  # fmt: skip
    if magic != MAGIC or length != size - LENGTH_END:
        raise _not_one_batch(view)
    if size > limits.max_message_bytes:
        raise _too_large(size, limits)
    if crc32c(view[CRC_START:]) != crc:
        raise BatchRefused(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC-32C is wrong")
    if (
        base_offset or count <= 0 or count != last_delta + 1 or attributes & ~_PLAIN_BITS
        or (producer_id >= 0 and (base_sequence < 0 or producer_epoch < 0))
    ):  # fmt: skip
        _check_header(header, api_version)
    if not attributes & CODEC_MASK:
        header = _check_records(view, header, view[HEADER_BYTES:], limits, now_ms)
    elif max_timestamp - now_ms > limits.timestamp_after_max_ms and not limits.is_log_append_time:
        raise _out_of_range(max_timestamp, -1, limits, now_ms)
    if limits.is_log_append_time:
        stamp_log_append_time(view, 0, now_ms)
        return read_header(view)
    return header


def needs_deep_check(header: BatchHeader, limits: ProduceLimits) -> bool:
    """Of a batch that `check_batch` let pass."""
    codec = header.attributes & CODEC_MASK
    if limits.compression_type is not None and limits.compression_type != codec:
        return True
    if codec == Codec.NONE:
        return False
    return limits.keys_required or (limits.timestamp_before_max_ms != NO_LIMIT_MS and not limits.is_log_append_time)


def deep_check(
    view: memoryview, header: BatchHeader, limits: ProduceLimits, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """The batch to append and its header: `view` itself, or a new one in the topic's codec. Raises BrokerError.

    Takes what `check_batch` let pass. CPU-bound, with at most 64 MiB of content.
    """
    section: ReadableBuffer = view[HEADER_BYTES:]
    if header.codec != Codec.NONE:
        section = decompress(header.codec, section)
        header = _check_records(view, header, section, limits, now_ms)
    if limits.compression_type is None or limits.compression_type == header.codec:
        return view, header
    return _recompressed(header, section, limits.compression_type, limits)


def _recompressed(
    header: BatchHeader, section: ReadableBuffer, codec: Codec, limits: ProduceLimits
) -> tuple[memoryview, BatchHeader]:
    section = compress(codec, section, limits.compression_level)
    size = HEADER_BYTES + len(section)
    if size > limits.max_message_bytes:
        raise _too_large(size, limits)
    attributes = header.attributes & ~CODEC_MASK | codec
    batch = memoryview(assemble(header._replace(batch_length=size - LENGTH_END, attributes=attributes), section))
    return batch, read_header(batch)


def _check_records(
    view: memoryview, header: BatchHeader, section: ReadableBuffer, limits: ProduceLimits, now_ms: int
) -> BatchHeader:
    try:
        info = validate(section, header.records_count, header.base_timestamp)
    except InvalidRecords as invalid:
        raise BatchRefused(ErrorCode.INVALID_RECORD, str(invalid), invalid.index) from None
    if limits.keys_required and info.first_without_key >= 0:
        raise BatchRefused(
            ErrorCode.INVALID_RECORD, "a compacted topic takes no record without a key", info.first_without_key
        )
    if limits.is_log_append_time:
        return header
    _check_timestamps(info, limits, now_ms)
    if info.max_timestamp != header.max_timestamp:  # retention and the time index trust it
        correct_max_timestamp(view, 0, info.max_timestamp)
        return read_header(view)
    return header


def _check_timestamps(info: RecordsInfo, limits: ProduceLimits, now_ms: int) -> None:
    if info.max_timestamp - now_ms > limits.timestamp_after_max_ms:
        raise _out_of_range(info.max_timestamp, info.offset_delta_of_max, limits, now_ms)
    if limits.timestamp_before_max_ms == NO_LIMIT_MS or info.min_timestamp == NO_TIMESTAMP:
        return
    if now_ms - info.min_timestamp > limits.timestamp_before_max_ms:
        raise _out_of_range(info.min_timestamp, info.offset_delta_of_min, limits, now_ms)


def _check_header(header: BatchHeader, api_version: int) -> None:
    """What a sound batch may still not say when it comes from a producer."""
    count = header.records_count
    if header.base_offset != 0:
        raise _invalid(f"base offset {header.base_offset}, a producer's batch begins at 0")
    if count <= 0 or count != header.last_offset_delta + 1:
        raise _invalid(f"{count} records and last offset delta {header.last_offset_delta} do not fit together")
    codec = header.attributes & CODEC_MASK
    if codec > Codec.ZSTD:
        raise BatchRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no compression codec has the number {codec}")
    if codec == Codec.ZSTD and api_version < ZSTD_SINCE_PRODUCE_VERSION:
        raise BatchRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later")
    if header.attributes & _BROKER_ONLY_BITS:
        raise _broker_only(header)
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise _invalid(
            f"producer id {header.producer_id} needs an epoch and a sequence,"
            f" these are {header.producer_epoch} and {header.base_sequence}"
        )


def _broker_only(header: BatchHeader) -> BatchRefused:
    if header.is_control:
        return _invalid("clients are not allowed to write control records")
    if header.attributes & DELETE_HORIZON_BIT:
        return _invalid("when tombstones go is for compaction to say: attribute bit 6 is set")
    return BatchRefused(ErrorCode.INVALID_TIMESTAMP, "a producer may not set the timestamp type to LogAppendTime")


def _not_one_batch(view: memoryview) -> BatchRefused:
    """Why the bytes are not exactly one batch of format 2."""
    size = len(view)
    if size == 0:
        return _invalid("there is no batch")
    if size <= MAGIC_AT:
        return BatchRefused(ErrorCode.CORRUPT_MESSAGE, f"{size} bytes are too few for a batch")
    (magic,) = view[MAGIC_AT : MAGIC_AT + 1].cast("b")
    if magic in (0, 1):
        return _invalid(f"only message format 2 may be produced, the batch has magic {magic}")
    if magic != MAGIC:
        return BatchRefused(ErrorCode.CORRUPT_MESSAGE, f"magic {magic} is unknown")
    if size < HEADER_BYTES:
        return BatchRefused(ErrorCode.CORRUPT_MESSAGE, f"{size} bytes are too few for a batch")
    claimed = read_header(view).size
    if not HEADER_BYTES <= claimed <= size:
        return BatchRefused(ErrorCode.CORRUPT_MESSAGE, f"the batch claims {claimed} bytes, {size} were sent")
    return _invalid("a partition takes exactly one batch per request")


def _invalid(reason: str) -> BatchRefused:
    return BatchRefused(ErrorCode.INVALID_RECORD, reason)


def _too_large(size: int, limits: ProduceLimits) -> BatchRefused:
    return BatchRefused(
        ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {size} bytes, max.message.bytes is {limits.max_message_bytes}"
    )


def _out_of_range(timestamp: int, index: int, limits: ProduceLimits, now_ms: int) -> BatchRefused:
    earliest, latest = now_ms - limits.timestamp_before_max_ms, now_ms + limits.timestamp_after_max_ms
    return BatchRefused(
        ErrorCode.INVALID_TIMESTAMP, f"timestamp {timestamp} is not between {earliest} and {latest}", index
    )
