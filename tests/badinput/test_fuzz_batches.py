"""Spoilt record batches: what the broker takes, another implementation reads, and finds the same records in it.

The other implementation is aiokafka's. It may well read what we refuse; the other way round is a defect: a batch that
is in the log and that consumers stumble over cannot be taken back.
"""

from typing import Any, NamedTuple

import pytest
from aiokafka.record.memory_records import MemoryRecords

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.batch import HEADER_BYTES, Codec, read_header
from penstock.protocol.frames import read_request_header
from penstock.protocol.messages.records import ProduceRequest
from penstock.protocol.messages.table import FLEXIBLE_SINCE
from penstock.protocol.produce import parse_produce, usual_produce
from penstock.protocol.records import KERNEL, iterate, records_of
from penstock.protocol.validation import ProduceLimits, check_batch, deep_check
from tests.badinput.batches import now_ms, read_zigzag
from tests.badinput.fuzzing import cases, fuzz_timeout, spoilt, told_apart
from tests.badinput.rows import not_for_kafka
from tests.badinput.spoilt_batches import a_sound_batch, a_spoilt_batch
from tests.badinput.unharmed import ANSWER_TIMEOUT_S, MIB, LogWatch, Vitals
from tests.badinput.wire import whole_request
from tests.testkit import BrokerProcess, RawClient
from tests.testkit.asking import create_usable_topic, fetch, produce, produce_request

pytestmark = [pytest.mark.xdist_group("badinput-fuzz-batches"), not_for_kafka]

# Every code that a Produce may be answered here. Not among them, ever: UNKNOWN_SERVER_ERROR, after which a client
# cannot know whether its records are in the log.
PRODUCE_CODES = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.INVALID_RECORD,
    }
)
TOPICS: dict[str, dict[str, Any]] = {
    "as-produced": {},
    "uncompressed": {"compression.type": "uncompressed"},
    "recompressed": {"compression.type": "zstd"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact"},
}
XERIAL_MAGIC = b"\x82SNAPPY\0"
XERIAL_HEADER = XERIAL_MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
LIMITS = [
    ProduceLimits(max_message_bytes=MIB),
    ProduceLimits(max_message_bytes=MIB, compression_type=Codec.NONE),
    ProduceLimits(max_message_bytes=MIB, compression_type=Codec.ZSTD, timestamp_before_max_ms=10_000),
    ProduceLimits(max_message_bytes=MIB, is_log_append_time=True),
    ProduceLimits(max_message_bytes=200, keys_required=True, timestamp_after_max_ms=10_000),
]


class Content(NamedTuple):
    """A record as both implementations tell it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@fuzz_timeout
def test_given_spoilt_batches_when_the_checks_let_one_pass_then_the_reference_reads_the_same_records() -> None:
    taken = 0

    for case, random in cases(12_000):
        is_sound = random.random() < 0.1
        batch = a_sound_batch(random) if is_sound else a_spoilt_batch(random)
        limits, version = random.choice(LIMITS), random.choice((3, 7, 9, 13))
        with told_apart(case, "batch", batch):
            stored = let_pass(batch, limits, version)
            if stored is not None:
                taken += 1
                assert_read_alike(stored)
            assert stored is not None or not is_sound or limits is not LIMITS[0] or version < 7

    print(f"{taken} taken")


def let_pass(batch: bytes, limits: ProduceLimits, version: int) -> bytes | None:
    """What goes into the log, opened even where the topic would not ask for it; None for a refusal."""
    view, moment = memoryview(bytearray(batch)), now_ms()
    try:
        header = check_batch(view, limits, version, moment)
        stored, _ = deep_check(view, header, limits, moment)
    except BrokerError as refusal:
        assert refusal.code in PRODUCE_CODES, refusal.code
        return None
    return bytes(stored)


def assert_read_alike(batch: bytes) -> None:
    if not is_beyond_the_reference(batch):
        assert read_by_us(batch) == read_by_reference(batch)


def is_beyond_the_reference(batch: bytes) -> bool:
    """It takes a record's attributes, a byte, for a varint, fails on a header key that is not UTF-8, and knows xerial's
    snappy framing by its version as well."""
    header = read_header(batch)
    if batch.startswith(XERIAL_MAGIC, HEADER_BYTES) and not batch.startswith(XERIAL_HEADER, HEADER_BYTES):
        return True
    section, at = bytes(records_of(batch, 0, header)), 0
    for _ in range(header.records_count):
        size, at = read_zigzag(section, at)
        if section[at] > 0x7F:
            return True
        at += size
    return any("\ufffd" in key for record in iterate(batch) for key, _ in record.headers)


def read_by_us(batch: bytes) -> list[Content]:
    return [Content(*record[:4], tuple(record.headers)) for record in iterate(batch)]


def read_by_reference(batch: bytes) -> list[Content]:
    read = MemoryRecords(batch).next_batch()
    assert read.validate_crc()
    return [
        Content(record.offset, record.timestamp, record.key, record.value, tuple(record.headers)) for record in read
    ]


@fuzz_timeout
def test_given_spoilt_produce_frames_when_the_quick_way_takes_one_then_the_general_way_takes_the_same() -> None:
    taken = 0

    for case, random in cases(12_000):
        batch = a_sound_batch(random) if random.random() < 0.5 else a_spoilt_batch(random)
        request, version = produce_request("topic", {random.choice((0, 1, -1)): batch}), random.choice((9, 10, 12))
        request.acks, request.timeout_ms = random.choice((-1, 0, 1, 7)), random.choice((0, -1, 2**31 - 1))
        frame = whole_request(request, version)
        if random.random() < 0.5:
            frame = spoilt(frame, random)
        with told_apart(case, f"Produce v{version}", frame):
            taken += is_taken_both_ways(frame)

    print(f"{taken} taken")
    assert taken or KERNEL == "pure"


def is_taken_both_ways(frame: bytes) -> bool:
    """False when the quick way leaves the frame to the general one, which is never wrong."""
    view = memoryview(bytearray(frame))
    usual = usual_produce(view)
    if usual is None:
        return False
    correlation_id, acks, timeout_ms, topic, partition, records, batch = usual
    header = read_request_header(view, FLEXIBLE_SINCE)
    request = parse_produce(view, header.body_start, header.api_version)
    assert (header.api_key, header.correlation_id) == (ProduceRequest.API_KEY, correlation_id)
    assert (request.acks, request.timeout_ms, request.transactional_id) == (acks, timeout_ms, None)
    assert request.partitions == [(topic, partition, records)]
    assert check_batch(records, LIMITS[0], header.api_version, now_ms()) == batch
    assert view == frame, "the batch had to be corrected"
    return True


class Produced(NamedTuple):
    case: int
    topic: str
    base_offset: int
    batch: bytes


@pytest.fixture(scope="module")
def topics(module_broker: BrokerProcess) -> None:
    with RawClient(module_broker.address, timeout=ANSWER_TIMEOUT_S) as client:
        for name, configs in TOPICS.items():
            create_usable_topic(client, name, **configs)


@fuzz_timeout
@pytest.mark.usefixtures("topics")
def test_given_spoilt_batches_when_produced_then_what_is_taken_can_be_fetched_and_read(
    broker: BrokerProcess, client: RawClient, vitals: Vitals
) -> None:
    vitals.growth_bytes = 64 * MIB
    vitals.cpu_limit_s = float("inf")
    log = LogWatch(broker)
    taken: dict[tuple[str, int], Produced] = {}

    for case, random in cases(3_000):
        batch = a_sound_batch(random) if random.random() < 0.2 else a_spoilt_batch(random)
        topic, version = random.choice(list(TOPICS)), random.randrange(3, 13)
        with told_apart(case, f"Produce v{version} to {topic}", batch):
            answer = produce(client, topic, batch, version=version)
            assert ErrorCode(answer.error_code) in PRODUCE_CODES
            assert not (signs := log.signs_of_a_bug()), signs
            if not answer.error_code:
                # A duplicate, to go by its producer's id and sequence, is answered with the offset of the first.
                taken.setdefault((topic, answer.base_offset), Produced(case, topic, answer.base_offset, batch))

    for produced in taken.values():
        with told_apart(produced.case, f"taken by {produced.topic}", produced.batch):
            assert_fetched_is_what_was_sent(client, produced)
    print(f"{len(taken)} taken")
    assert taken


def assert_fetched_is_what_was_sent(client: RawClient, produced: Produced) -> None:
    fetched = fetch(client, produced.topic, produced.base_offset, max_bytes=1)
    assert fetched.error_code == 0
    assert isinstance(fetched.records, memoryview)
    stored = bytes(fetched.records)
    header = read_header(stored)
    assert (header.base_offset, header.size) == (produced.base_offset, len(stored))
    assert MemoryRecords(stored).next_batch().validate_crc()
    is_untouched = header.codec == read_header(produced.batch).codec
    if is_untouched:
        assert stored[HEADER_BYTES:] == produced.batch[HEADER_BYTES:]
    if not is_untouched or header.codec == Codec.NONE:
        sent, found = read_by_us(produced.batch), read_by_us(stored)
        assert [record[2:] for record in found] == [record[2:] for record in sent]
        assert [record.offset for record in found] == list(range(header.base_offset, header.next_offset))
        assert_read_alike(stored)
