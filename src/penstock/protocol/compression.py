"""The four codecs in Kafka's framings, with an end to what a hostile input may cost.

Output stops at 64 MiB, or at 100 times the input once it is past a megabyte, whichever comes first; nothing is reserved
for a length that the input merely claims. All of it is CPU work that releases the GIL: it belongs into a worker thread.

Java's producer and broker frame snappy as xerial's stream, librdkafka sends one raw block: both are read, the former is
written. Kafka's own LZ4 reader knows neither linked blocks nor a standard content checksum, so frames are written
without them; the wrong header checksum of Kafka 0.9 came with message format 0 only, which nobody may produce.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from struct import Struct

import cramjam

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.batch import Codec, ReadableBuffer

__all__ = ["MAX_DECOMPRESSED_BYTES", "Codec", "compress", "decompress"]

MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024
MAX_RATIO = 100
RATIO_FREE_BYTES = 1024 * 1024  # a small batch of equal records may well shrink by more than MAX_RATIO

_FIRST_GUESS_BYTES = 64 * 1024
_GROWTH = 4
# How cramjam tells that the output buffer is full; everything else it says is about bad input.
_OUTPUT_FULL = "failed to write whole buffer"

_GZIP_WINDOW = 31  # the largest window, with gzip's header and trailer
_GZIP_LEVEL = -1
_GZIP_CHUNK_BYTES = 4 * 1024 * 1024
_LZ4_LEVEL = 9  # this and the next are Kafka's defaults (KIP-390)
_ZSTD_LEVEL = 3

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
_XERIAL_BLOCK_BYTES = 32 * 1024
_XERIAL_LENGTH = Struct(">i")
_XERIAL_MAX_BLOCKS = MAX_DECOMPRESSED_BYTES // 1024  # xerial cuts no smaller ones, and each takes a turn of a loop
_SNAPPY_MAX_RATIO = 22  # a copy of 64 bytes takes 3


def compress(codec: int, data: ReadableBuffer, level: int | None = None) -> ReadableBuffer:
    """`level` is the codec's own (`compression.gzip.level`, ...); None is Kafka's default. Snappy has none."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return zlib.compress(data, _GZIP_LEVEL if level is None else level, _GZIP_WINDOW)
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            compressor = cramjam.lz4.Compressor(
                level=_LZ4_LEVEL if level is None else level, content_checksum=False, block_linked=False
            )
            compressor.compress(bytes(data))  # this one takes nothing else
            return memoryview(compressor.finish())
        case Codec.ZSTD:
            return memoryview(cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))
        case _:
            raise _unknown(codec)


def decompress(codec: int, data: ReadableBuffer, limit_bytes: int = MAX_DECOMPRESSED_BYTES) -> ReadableBuffer:
    """Raises BrokerError: MESSAGE_TOO_LARGE past the limit, INVALID_RECORD for what is not the codec's."""
    limit = min(limit_bytes, max(RATIO_FREE_BYTES, MAX_RATIO * len(data)))
    try:
        return _decompress(codec, data, limit)
    except BrokerError as error:
        # Its traceback holds the frame that holds the output, for as long as anybody keeps the error.
        raise error.with_traceback(None) from None


def _decompress(codec: int, data: ReadableBuffer, limit: int) -> ReadableBuffer:
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return _decompress_gzip(data, limit)
        case Codec.SNAPPY:
            return _decompress_snappy(data, limit)
        case Codec.LZ4:
            return _decompress_into(cramjam.lz4.decompress_into, codec, data, limit)
        case Codec.ZSTD:
            return _decompress_into(cramjam.zstd.decompress_into, codec, data, limit)
        case _:
            raise _unknown(codec)


def _unknown(codec: int) -> BrokerError:
    return BrokerError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no compression codec has the number {codec}")


def _too_large(codec: int, limit: int) -> BrokerError:
    return BrokerError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a {Codec(codec).name.lower()} batch that holds more than {limit} bytes decompressed is not opened",
    )


def _invalid(codec: int, reason: object) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_RECORD, f"the batch is not valid {Codec(codec).name.lower()}: {reason}")


def _decompress_gzip(data: ReadableBuffer, limit: int) -> bytearray:
    output = bytearray()
    member = zlib.decompressobj(_GZIP_WINDOW)
    rest: ReadableBuffer = data
    while not member.eof:
        try:
            chunk = member.decompress(rest, min(_GZIP_CHUNK_BYTES, limit + 1 - len(output)))
        except zlib.error as error:
            raise _invalid(Codec.GZIP, error) from None
        output += chunk
        if len(output) > limit:
            raise _too_large(Codec.GZIP, limit)
        rest = member.unconsumed_tail
        if not (chunk or rest or member.eof):
            raise _invalid(Codec.GZIP, "it is cut short")
    if member.unused_data:  # no client sends a second member, and each one costs far more than its bytes
        raise _invalid(Codec.GZIP, "bytes follow its end")
    return output


def _decompress_into(
    into: Callable[[ReadableBuffer, bytearray], int], codec: int, data: ReadableBuffer, limit: int
) -> memoryview:
    size = min(limit, max(_FIRST_GUESS_BYTES, _GROWTH * len(data)))
    while True:
        output = bytearray(size)
        try:
            return memoryview(output)[: into(data, output)]
        except cramjam.DecompressionError as error:
            if str(error) != _OUTPUT_FULL:
                raise _invalid(codec, error) from None
        if size == limit:
            raise _too_large(codec, limit)
        size = min(limit, size * _GROWTH)


def _compress_xerial(data: ReadableBuffer) -> bytearray:
    output = bytearray(_XERIAL_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        output += _XERIAL_LENGTH.pack(len(block))
        output += block
    return output


def _decompress_snappy(data: ReadableBuffer, limit: int) -> bytearray:
    view = memoryview(data)
    output = bytearray()
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        _append_snappy_block(output, view, limit)
        return output
    for count, block in enumerate(_xerial_blocks(view)):
        if count == _XERIAL_MAX_BLOCKS:
            raise _invalid(Codec.SNAPPY, f"it has more than {_XERIAL_MAX_BLOCKS} blocks")
        _append_snappy_block(output, block, limit)
    return output


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    position = len(_XERIAL_HEADER)
    if len(view) < position:
        raise _invalid(Codec.SNAPPY, "it is cut short")
    while position < len(view):
        if len(view) - position < _XERIAL_LENGTH.size:
            raise _invalid(Codec.SNAPPY, "it is cut short")
        (length,) = _XERIAL_LENGTH.unpack_from(view, position)
        position += _XERIAL_LENGTH.size
        if not 0 <= length <= len(view) - position:
            raise _invalid(Codec.SNAPPY, f"a block claims {length} bytes, {len(view) - position} are left")
        yield view[position : position + length]
        position += length


def _append_snappy_block(output: bytearray, block: memoryview, limit: int) -> None:
    try:
        claimed = cramjam.snappy.decompress_raw_len(block)
        if claimed > limit - len(output):
            raise _too_large(Codec.SNAPPY, limit)
        if claimed > _SNAPPY_MAX_RATIO * len(block):
            raise _invalid(Codec.SNAPPY, f"{len(block)} bytes cannot hold the {claimed} that they claim")
        output += memoryview(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise _invalid(Codec.SNAPPY, error) from None
