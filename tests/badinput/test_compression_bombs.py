"""Row 31: batches that are small until somebody opens them.

A topic that leaves batches as they are never opens them: there they pass, and their reader pays. A topic that has its
own `compression.type` must open them, and stops early.
"""

import zlib
from concurrent.futures import ThreadPoolExecutor

import cramjam
import pytest

from penstock.core.errors import ErrorCode
from penstock.protocol.batch import Codec
from tests.badinput.batches import a_batch, a_record, of_section, zigzag
from tests.badinput.rows import not_for_kafka, row
from tests.badinput.unharmed import ANSWER_TIMEOUT_S, MIB, Vitals, forget_peak, peak_resident_bytes
from tests.badinput.wire import varint
from tests.testkit import BrokerProcess, RawClient
from tests.testkit.asking import create_usable_topic, fetch, produce

# Kafka unpacks them all: it bounds only what a batch has compressed.
pytestmark = [pytest.mark.xdist_group("badinput-bombs"), not_for_kafka]

ORDINARY_TOPIC = "ordinary"
OPENED_TOPIC = "opened"
GIB = 1024 * MIB
CPU_LIMIT_S = 0.5
GROWTH_BYTES = 32 * MIB
# What one batch may unpack to (64 MiB), as much again for the buffer it grew out of, and the batch itself.
PEAK_GROWTH_BYTES = 160 * MIB


@pytest.fixture(scope="module", autouse=True)
def topics(module_broker: BrokerProcess) -> None:
    with RawClient(module_broker.address, timeout=ANSWER_TIMEOUT_S) as client:
        create_usable_topic(client, ORDINARY_TOPIC)
        create_usable_topic(client, OPENED_TOPIC, compression_type="uncompressed")
        # Whatever decompressing needs for the first time is now in memory.
        for codec in Codec:
            assert produce(client, OPENED_TOPIC, a_batch(bytes(100_000), codec=codec)).error_code == 0


def gzip_bomb() -> bytes:
    """A gibibyte of zeros in a megabyte: one piece of a deflate stream again and again."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = stream.compress(bytes(4 * MIB)) + stream.flush(zlib.Z_FULL_FLUSH)
    head = bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 2, 255))
    return head + piece * (GIB // (4 * MIB))


def zstd_bomb() -> bytes:
    """A gibibyte of zeros in 64 KiB, in one frame after another."""
    return bytes(cramjam.zstd.compress(bytes(16 * MIB))) * (GIB // (16 * MIB))


def zstd_bomb_of_claims() -> bytes:
    """One frame that says to hold an exbibyte, and is followed by nothing that could."""
    magic, single_segment_with_long_size = b"\x28\xb5\x2f\xfd", b"\xe0"
    return magic + single_segment_with_long_size + (1 << 60).to_bytes(8, "little") + bytes(64)


def lz4_bomb() -> bytes:
    """As many zeros as a megabyte of LZ4 holds, which is 255 times as much."""
    frame = bytes(cramjam.lz4.compress(bytes(240 * MIB)))
    return frame[:1_000_000]


def lz4_bomb_of_claims() -> bytes:
    """A frame header whose content size is eight exbibytes."""
    flags, largest_blocks = 0x48, 0x70
    return b"\x04\x22\x4d\x18" + bytes((flags, largest_blocks)) + (2**63 - 1).to_bytes(8, "little") + b"\0" + bytes(64)


def snappy_bomb() -> bytes:
    """Twenty megabytes of zeros in one, the most that the format allows."""
    return xerial(bytes(cramjam.snappy.compress_raw(bytes(20 * MIB))))


def xerial(*blocks: bytes) -> bytes:
    header = b"\x82SNAPPY\0" + (1).to_bytes(4, "big") * 2
    return header + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


def xerial_bomb_of_claims() -> bytes:
    """A block that says to unpack to two gigabytes, a hundred times (CVE-2023-34455 is its like)."""
    return xerial(*[varint(2**31 - 1) + b"\xfe\1\0" * 100] * 100)


BOMBS = [
    row(31, "gzip", Codec.GZIP, gzip_bomb()),
    row(31, "gzip members", Codec.GZIP, zlib.compress(bytes(MIB), 9, 31) * 900),
    row(31, "zstd", Codec.ZSTD, zstd_bomb()),
    row(31, "zstd claims", Codec.ZSTD, zstd_bomb_of_claims()),
    row(31, "lz4", Codec.LZ4, lz4_bomb()),
    row(31, "lz4 claims", Codec.LZ4, lz4_bomb_of_claims()),
    row(31, "snappy", Codec.SNAPPY, snappy_bomb()),
    row(31, "snappy claims", Codec.SNAPPY, varint(2**31 - 1) + bytes(100)),
    row(31, "snappy claims four gigabytes", Codec.SNAPPY, varint(2**32 - 1) + bytes(100)),
    row(31, "xerial claims", Codec.SNAPPY, xerial_bomb_of_claims()),
    row(31, "xerial block of two gigabytes", Codec.SNAPPY, xerial()[:16] + (2**31 - 1).to_bytes(4, "big") + bytes(9)),
    row(31, "xerial of empty blocks", Codec.SNAPPY, xerial(*[b"\0"] * 200_000)),
]


def a_bomb(codec: Codec, section: bytes) -> bytes:
    return of_section(section, 1, attributes=int(codec))


@pytest.mark.parametrize(("codec", "section"), BOMBS)
def test_given_a_compression_bomb_when_the_topic_opens_batches_then_it_is_refused_early(
    broker: BrokerProcess, client: RawClient, vitals: Vitals, codec: Codec, section: bytes
) -> None:
    vitals.growth_bytes = GROWTH_BYTES
    vitals.cpu_limit_s = CPU_LIMIT_S
    before = broker.resident_bytes()
    forget_peak(broker)

    answer = produce(client, OPENED_TOPIC, a_bomb(codec, section))

    assert ErrorCode(answer.error_code) in (ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE)
    assert peak_resident_bytes(broker) - before < PEAK_GROWTH_BYTES


@pytest.mark.parametrize(("codec", "section"), BOMBS)
def test_given_a_compression_bomb_when_the_topic_leaves_batches_as_they_are_then_it_passes_unread(
    broker: BrokerProcess, client: RawClient, vitals: Vitals, codec: Codec, section: bytes
) -> None:
    vitals.cpu_limit_s = CPU_LIMIT_S
    bomb = a_bomb(codec, section)
    before = broker.resident_bytes()
    forget_peak(broker)

    produced = produce(client, ORDINARY_TOPIC, bomb)
    fetched = fetch(client, ORDINARY_TOPIC, offset=produced.base_offset)

    assert ErrorCode(produced.error_code) == ErrorCode.NONE
    assert isinstance(fetched.records, memoryview)
    assert bytes(fetched.records)[16:] == bomb[16:]  # all but the offset and the leader epoch
    assert peak_resident_bytes(broker) - before < 8 * MIB


@pytest.mark.parametrize("codec", [row(31, codec.name.lower(), codec) for codec in Codec if codec])
def test_given_an_honest_batch_that_compresses_well_when_the_topic_opens_it_then_it_is_taken(
    client: RawClient, codec: Codec
) -> None:
    batch = a_batch(bytes(900_000), codec=codec)

    answer = produce(client, OPENED_TOPIC, batch)

    assert len(batch) < 50_000
    assert answer.error_code == 0


def test_row31_given_a_record_of_a_gibibyte_when_its_batch_is_opened_then_it_is_refused(client: RawClient) -> None:
    claimed = a_record(size=zigzag(2**31 - 1), value=zigzag(2**31 - 100))

    answer = produce(client, OPENED_TOPIC, a_bomb(Codec.GZIP, zlib.compress(claimed + bytes(MIB // 2), 9, 31)))

    assert ErrorCode(answer.error_code) == ErrorCode.INVALID_RECORD


def test_row31_given_bombs_on_many_connections_when_sent_at_once_then_others_are_served_and_memory_comes_back(
    broker: BrokerProcess, vitals: Vitals
) -> None:
    vitals.growth_bytes = GROWTH_BYTES
    bombs = [a_bomb(Codec.GZIP, gzip_bomb()), a_bomb(Codec.ZSTD, zstd_bomb())]

    def send(bomb: bytes) -> int:
        with RawClient(broker.address, timeout=60) as client:
            return produce(client, OPENED_TOPIC, bomb).error_code

    forget_peak(broker)
    before = broker.resident_bytes()
    with ThreadPoolExecutor(8) as senders:
        codes = set(senders.map(send, bombs * 4))

    assert codes <= {ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE}
    assert peak_resident_bytes(broker) - before < 2 * PEAK_GROWTH_BYTES
