"""The codecs: round trips, other implementations' output, broken input, and bombs that must not go off."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.compression import MAX_DECOMPRESSED_BYTES, Codec, compress, decompress

MIB = 1024 * 1024
COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
every_codec = pytest.mark.parametrize("codec", COMPRESSING)
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)

THEIR_ENCODERS: dict[Codec, Callable[[bytes], Any]] = {
    Codec.GZIP: aiokafka_codec.gzip_encode,
    Codec.SNAPPY: aiokafka_codec.snappy_encode,
    Codec.LZ4: aiokafka_codec.lz4_encode,
    Codec.ZSTD: aiokafka_codec.zstd_encode,
}
THEIR_DECODERS: dict[Codec, Callable[[bytes], Any]] = {
    Codec.GZIP: aiokafka_codec.gzip_decode,
    Codec.SNAPPY: aiokafka_codec.snappy_decode,
    Codec.LZ4: aiokafka_codec.lz4_decode,
    Codec.ZSTD: aiokafka_codec.zstd_decode,
}

DATA = st.binary(min_size=1, max_size=300) | st.builds(
    lambda word, times: word * times, st.binary(min_size=1, max_size=50), st.integers(1, 4000)
)


def xerial_block(raw: bytes) -> bytes:
    return struct.pack(">i", len(raw)) + raw


# --- what is right ---


@every_codec
@settings(max_examples=40, deadline=None)
@given(DATA)
def test_given_any_bytes_when_compressed_then_we_and_aiokafka_get_them_back(codec: Codec, data: bytes) -> None:
    compressed = bytes(compress(codec, data))

    assert bytes(decompress(codec, compressed)) == data
    assert bytes(THEIR_DECODERS[codec](compressed)) == data
    assert bytes(decompress(codec, bytes(THEIR_ENCODERS[codec](data)))) == data


@every_codec
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))])
def test_given_any_kind_of_buffer_then_it_is_taken(codec: Codec, wrap: Any) -> None:
    compressed = compress(codec, wrap(b"text" * 100))

    assert bytes(decompress(codec, wrap(bytes(compressed)))) == b"text" * 100


@every_codec
def test_given_a_small_batch_of_zeros_then_its_ratio_does_not_matter(codec: Codec) -> None:
    data = bytes(MIB)

    assert bytes(decompress(codec, bytes(compress(codec, data)))) == data


@every_codec
def test_given_five_megabytes_at_a_modest_ratio_then_they_come_back(codec: Codec) -> None:
    data = b"".join(struct.pack(">q", number) for number in range(0, 655_360 * 7, 7))

    assert bytes(decompress(codec, bytes(compress(codec, data)))) == data


@every_codec
def test_given_nothing_when_compressed_then_nothing_comes_back(codec: Codec) -> None:
    assert bytes(decompress(codec, bytes(compress(codec, b"")))) == b""


def test_given_no_codec_then_bytes_pass_as_they_are() -> None:
    data = b"data"

    assert compress(Codec.NONE, data) is data
    assert decompress(Codec.NONE, data) is data


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_given_a_codec_that_nobody_knows_then_it_is_refused(codec: int) -> None:
    for function in (compress, decompress):
        with pytest.raises(BrokerError) as refused:
            function(codec, b"")
        assert refused.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize(("codec", "fast", "small"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 1, 12), (Codec.ZSTD, 1, 19)])
def test_given_a_level_then_it_counts(codec: Codec, fast: int, small: int) -> None:
    data = " ".join(str(number * number) for number in range(20_000)).encode()

    assert len(compress(codec, data, small)) < len(compress(codec, data, fast))
    assert bytes(decompress(codec, bytes(compress(codec, data, small)))) == data


def test_given_snappy_as_one_raw_block_then_it_is_read() -> None:
    """librdkafka sends no frame around it."""
    raw = bytes(cramjam.snappy.compress_raw(b"hello" * 1000))

    assert bytes(decompress(Codec.SNAPPY, raw)) == b"hello" * 1000


def test_given_data_of_many_blocks_when_written_as_snappy_then_the_frame_is_xerials() -> None:
    compressed = bytes(compress(Codec.SNAPPY, bytes(100_000)))

    assert compressed.startswith(XERIAL)
    (length,) = struct.unpack_from(">i", compressed, 16)
    assert bytes(cramjam.snappy.decompress_raw(compressed[20 : 20 + length])) == bytes(32 * 1024)


def test_given_lz4_then_the_frame_is_one_that_javas_reader_takes() -> None:
    flags = compress(Codec.LZ4, b"hello" * 10_000)[4]

    assert flags >> 6 == 1
    assert flags & 0x20, "blocks must be independent"
    assert not flags & 0x04, "no content checksum: Kafka computes another one"


def test_given_lz4_with_linked_blocks_then_it_is_read() -> None:
    linked = bytes(cramjam.lz4.compress(b"hello" * 100_000))
    assert not linked[4] & 0x20

    assert bytes(decompress(Codec.LZ4, linked)) == b"hello" * 100_000


# --- what is broken ---


@every_codec
def test_given_input_cut_at_any_byte_then_it_is_refused(codec: Codec) -> None:
    compressed = bytes(compress(codec, b"some text to be cut " * 5))

    for end in range(len(compressed)):
        if codec == Codec.SNAPPY and end == len(XERIAL):
            continue  # a stream of no blocks
        with pytest.raises(BrokerError) as refused:
            decompress(codec, compressed[:end])
        assert refused.value.code == ErrorCode.INVALID_RECORD, end


@every_codec
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_given_damaged_input_then_nothing_but_a_broker_error_is_raised(codec: Codec, data: st.DataObject) -> None:
    compressed = bytearray(compress(codec, b"some text to be damaged, " * 20))
    for _ in range(data.draw(st.integers(1, 3))):
        compressed[data.draw(st.integers(0, len(compressed) - 1))] = data.draw(st.integers(0, 255))

    try:
        decompress(codec, compressed)
    except BrokerError as refused:
        assert refused.code in (ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE)


@every_codec
@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=60))
def test_given_any_bytes_then_nothing_but_a_broker_error_is_raised(codec: Codec, data: bytes) -> None:
    try:
        decompress(codec, data)
    except BrokerError as refused:
        assert refused.code in (ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE)


@pytest.mark.parametrize(
    "data",
    [
        zlib.compress(b"one", wbits=31) * 2,
        zlib.compress(b"one", wbits=31) + b"tail",
        zlib.compress(b"zlib's own header"),
    ],
)
def test_given_gzip_that_is_not_one_member_then_it_is_refused(data: bytes) -> None:
    with pytest.raises(BrokerError) as refused:
        decompress(Codec.GZIP, data)

    assert refused.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    "blocks",
    [struct.pack(">i", -1), struct.pack(">i", 0), struct.pack(">i", 2**31 - 1), xerial_block(b"\x00") * 70_000],
    ids=["negative", "zero", "beyond the end", "a storm of empty blocks"],
)
def test_given_xerial_blocks_that_nobody_writes_then_they_are_refused(blocks: bytes) -> None:
    with pytest.raises(BrokerError) as refused:
        decompress(Codec.SNAPPY, XERIAL + blocks)

    assert refused.value.code == ErrorCode.INVALID_RECORD


# --- what is too much ---


def gzip_bomb(megabytes: int) -> bytes:
    """Deflate segments that end with a full flush can be repeated: a bomb of any size in no time."""
    packer = zlib.compressobj(9, wbits=31)
    head = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    segment = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + segment * megabytes


def zstd_bomb(megabytes: int) -> bytes:
    """One frame with a window of 1 MiB, and blocks that say "128 KiB of zeros" in four bytes."""
    block = struct.pack("<I", (128 * 1024) << 3 | 1 << 1)[:3] + b"\x00"
    return b"\x28\xb5\x2f\xfd\x00\x50" + block * (8 * megabytes) + b"\x01\x00\x00"


def lz4_bomb(megabytes: int) -> bytes:
    frame = bytes(compress(Codec.LZ4, bytes(64 * 1024), level=1))
    return frame[:7] + frame[7:-4] * (16 * megabytes) + frame[-4:]


def snappy_bomb(megabytes: int) -> bytes:
    return XERIAL + xerial_block(bytes(cramjam.snappy.compress_raw(bytes(MIB)))) * megabytes


BOMBS = {Codec.GZIP: gzip_bomb, Codec.ZSTD: zstd_bomb, Codec.LZ4: lz4_bomb, Codec.SNAPPY: snappy_bomb}


@every_codec
def test_given_a_bomb_of_a_megabyte_then_it_is_only_a_batch(codec: Codec) -> None:
    """So that the bombs below fail for their size and nothing else. Ours has no gzip trailer."""
    if codec != Codec.GZIP:
        assert bytes(decompress(codec, BOMBS[codec](1))) == bytes(MIB)


@every_codec
def test_given_a_bomb_of_a_gigabyte_then_it_is_too_large(codec: Codec) -> None:
    with pytest.raises(BrokerError) as refused:
        decompress(codec, BOMBS[codec](1024))

    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_given_a_ratio_above_a_hundred_then_it_is_refused_past_the_first_megabyte(codec: Codec) -> None:
    bomb = BOMBS[codec](2)
    assert 100 * len(bomb) < 2 * MIB

    with pytest.raises(BrokerError) as refused:
        decompress(codec, bomb)

    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


@every_codec
def test_given_a_limit_then_exactly_so_much_is_allowed(codec: Codec) -> None:
    compressed = bytes(compress(codec, bytes(200_000)))

    assert len(decompress(codec, compressed, 200_000)) == 200_000
    with pytest.raises(BrokerError) as refused:
        decompress(codec, compressed, 199_999)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


SNAPPY_CLAIMS = {
    b"\xff\xff\xff\xff\x07": ErrorCode.MESSAGE_TOO_LARGE,  # 2 GiB
    b"\xff\xff\xff\xff\x0f": ErrorCode.MESSAGE_TOO_LARGE,  # 4 GiB
    b"\x80\x80\x80\x10": ErrorCode.INVALID_RECORD,  # 32 MiB: allowed, but 400 kB of snappy cannot hold so much
}


@pytest.mark.parametrize(("claim", "code"), SNAPPY_CLAIMS.items())
@pytest.mark.parametrize("frame", [lambda raw: raw, lambda raw: XERIAL + xerial_block(raw)], ids=["raw", "xerial"])
def test_given_a_snappy_header_that_claims_too_much_then_it_is_refused(
    claim: bytes, code: ErrorCode, frame: Any
) -> None:
    with pytest.raises(BrokerError) as refused:
        decompress(Codec.SNAPPY, frame(claim + bytes(400_000)))

    assert refused.value.code == code
    assert code == ErrorCode.MESSAGE_TOO_LARGE or "cannot hold" in refused.value.message


def test_given_every_bomb_one_after_the_other_then_memory_stays_within_the_limit() -> None:
    """In a process of its own, which tells how much its memory grew at the worst moment."""
    program = """
import resource
from penstock.core.errors import BrokerError
from penstock.protocol.compression import Codec, decompress
from tests.protocol import test_compression as tests

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def grown_by(codec, data):
    before = peak_bytes()
    try:
        decompress(codec, data)
    except BrokerError as refused:
        return peak_bytes() - before
    raise AssertionError(codec)

claims = [(Codec.SNAPPY, claim + bytes(400_000)) for claim in tests.SNAPPY_CLAIMS]
claims.append((Codec.ZSTD, bytes.fromhex("28b52ffde0") + (1 << 26).to_bytes(8, "little") + bytes(3)))
print(max(grown_by(*claim) for claim in claims))
bombs = {Codec.ZSTD: 24_000, Codec.GZIP: 1024, Codec.LZ4: 512, Codec.SNAPPY: 256}
data = {codec: tests.BOMBS[codec](size) for codec, size in bombs.items()}
print(sum(grown_by(codec, bomb) for codec, bomb in data.items()))
"""
    said = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert said.returncode == 0, said.stderr
    claims_bytes, bombs_bytes = map(int, said.stdout.split())
    assert claims_bytes < 4 * MIB
    assert bombs_bytes < MAX_DECOMPRESSED_BYTES + 32 * MIB
