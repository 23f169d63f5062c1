"""Rows 14, 16, 19 to 30 and 32 to 35: batches that may not enter a log, and odd Produce requests."""

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.core.errors import ErrorCode
from penstock.protocol.batch import HEADER_BYTES, Codec
from penstock.protocol.messages.records import ProduceRequest, ProduceResponse
from tests.badinput.batches import a_batch, a_record, compressed, now_ms, of_section, zigzag
from tests.badinput.rows import not_for_kafka, row
from tests.badinput.unharmed import ANSWER_TIMEOUT_S
from tests.testkit import BrokerProcess, RawClient, eventually
from tests.testkit.asking import create_usable_topic, fetch, produce, produce_request

pytestmark = pytest.mark.xdist_group("badinput-produce")

TOPIC = "produced-to"
OPENED_TOPIC = "opened"
STRICT_TOPIC = "strict-about-time"
MAX_MESSAGE_BYTES = 1_048_588
HOUR_MS = 3_600_000
INT32_MAX, INT32_MIN = 2**31 - 1, -(2**31)
CONTROL_BIT, TRANSACTIONAL_BIT, LOG_APPEND_TIME_BIT = 0x20, 0x10, 0x08


@pytest.fixture(scope="module", autouse=True)
def topics(module_broker: BrokerProcess) -> None:
    with RawClient(module_broker.address, timeout=ANSWER_TIMEOUT_S) as client:
        create_usable_topic(client, TOPIC, 2)
        create_usable_topic(client, OPENED_TOPIC, compression_type="uncompressed")
        create_usable_topic(client, STRICT_TOPIC, message_timestamp_before_max_ms=HOUR_MS)


def a_batch_of(*records: bytes) -> bytes:
    return of_section(b"".join(records), len(records))


def a_batch_of_bytes(size: int) -> bytes:
    lengths = 4  # bytes that the lengths of record and value take more, once they are large
    batch = a_batch(bytes(size - len(a_batch(b"")) - lengths))
    assert len(batch) == size
    return batch


def a_batch_claiming(batch_length: int) -> bytes:
    return a_batch(batch_length=batch_length)


GOOD_LENGTH = len(a_batch()) - 12
GOOD = a_record()
WRONG_RECORDS = {
    "record longer than the batch": [a_record(size=zigzag(100))],
    "record of negative size": [a_record(size=zigzag(-1))],
    "record of no size": [a_record(size=zigzag(0))],
    "record of the largest size": [a_record(size=zigzag(INT32_MAX))],
    "record shorter than its fields": [a_record(size=zigzag(4))],
    "record longer than its fields": [a_record(headers=b"\0\0\0\0")],
    "key longer than the record": [a_record(key=zigzag(100) + b"k")],
    "key of length minus two": [a_record(key=zigzag(-2))],
    "value longer than the record": [a_record(value=zigzag(INT32_MAX))],
    "value of length minus two": [a_record(value=zigzag(-2))],
    "negative number of headers": [a_record(headers=zigzag(-1))],
    "more headers than bytes": [a_record(headers=zigzag(1000))],
    "two gigaheaders": [a_record(headers=zigzag(INT32_MAX))],
    "null header key": [a_record(headers=zigzag(1) + zigzag(-1) + zigzag(-1))],
    "header key past the end": [a_record(headers=zigzag(1) + zigzag(50))],
    "header value past the end": [a_record(headers=zigzag(1) + zigzag(1) + b"h" + zigzag(50))],
    "bytes after the last record": [GOOD + b"\0\0\0"],
    "second record missing": [GOOD, b""],
}


# Kafka takes any negative length for null, and some compressed sizes make it answer UNKNOWN_SERVER_ERROR.
KAFKA_DIFFERS = {"key of length minus two", "value of length minus two", "record of the largest size"}


COMPRESSIBLE_RECORDS = [
    row(24, name, records, only_ours=name in KAFKA_DIFFERS) for name, records in WRONG_RECORDS.items()
]


def wrong_records() -> Iterator[Any]:
    for name, records in WRONG_RECORDS.items():
        yield row(24, name, a_batch_of(*records), only_ours=name in KAFKA_DIFFERS)
    yield row(24, "offset deltas with a gap", a_batch_of(GOOD, a_record(offset_delta=zigzag(7))), only_ours=True)
    yield row(24, "offset delta twice", a_batch_of(GOOD, GOOD), only_ours=True)
    yield row(24, "nothing but the count", of_section(b"", 1))
    yield row(14, "size varint of six bytes", a_batch_of(a_record(size=b"\x80\x80\x80\x80\x80\x01")), only_ours=True)
    yield row(14, "key varint of six bytes", a_batch_of(a_record(key=b"\x82\x80\x80\x80\x80\x00k")))
    yield row(14, "timestamp varint of eleven bytes", a_batch_of(a_record(timestamp_delta=b"\x80" * 10 + b"\x01")))


# Kafka does not find a batch in what is too short for one (87), knows no error for a codec that does not exist (-1),
# and takes a producer's word that its batch has the time of the append.
REFUSED_BATCHES = [
    row(19, "crc plus one", a_batch(crc=12345), ErrorCode.CORRUPT_MESSAGE),
    row(20, "magic 0", a_batch(magic=0), ErrorCode.INVALID_RECORD),
    row(20, "magic 1", a_batch(magic=1), ErrorCode.INVALID_RECORD),
    row(20, "magic 3", a_batch(magic=3), ErrorCode.CORRUPT_MESSAGE),
    row(20, "magic 127", a_batch(magic=127), ErrorCode.CORRUPT_MESSAGE),
    row(20, "magic minus one", a_batch(magic=-1), ErrorCode.CORRUPT_MESSAGE),
    row(21, "no batch", b"", ErrorCode.INVALID_RECORD),
    row(21, "two batches", a_batch() + a_batch(), ErrorCode.INVALID_RECORD),
    row(21, "ten batches", a_batch() * 10, ErrorCode.INVALID_RECORD),
    row(22, "length zero", a_batch_claiming(0), ErrorCode.CORRUPT_MESSAGE),
    row(22, "length minus one", a_batch_claiming(-1), ErrorCode.CORRUPT_MESSAGE),
    row(22, "smallest length", a_batch_claiming(INT32_MIN), ErrorCode.CORRUPT_MESSAGE),
    row(22, "length below the header", a_batch_claiming(HEADER_BYTES - 13), ErrorCode.CORRUPT_MESSAGE),
    row(22, "length past the payload", a_batch_claiming(GOOD_LENGTH + 1), ErrorCode.CORRUPT_MESSAGE, only_ours=True),
    row(22, "largest length", a_batch_claiming(INT32_MAX), ErrorCode.CORRUPT_MESSAGE, only_ours=True),
    *(
        row(22, f"first {size} bytes", a_batch()[:size], ErrorCode.CORRUPT_MESSAGE, only_ours=True)
        for size in (1, 11, 12, 16, 17, 60)
    ),
    row(23, "no records", a_batch(records_count=0), ErrorCode.INVALID_RECORD),
    row(23, "minus one records", a_batch(records_count=-1), ErrorCode.INVALID_RECORD),
    row(23, "one record too many", a_batch(records_count=2), ErrorCode.INVALID_RECORD),
    row(23, "two giga records", a_batch(records_count=INT32_MAX), ErrorCode.INVALID_RECORD),
    row(23, "both counts too high", a_batch(records_count=9, last_offset_delta=8), ErrorCode.INVALID_RECORD),
    row(23, "last offset delta too high", a_batch(last_offset_delta=1), ErrorCode.INVALID_RECORD),
    row(23, "last offset delta negative", a_batch(last_offset_delta=-1), ErrorCode.INVALID_RECORD),
    row(23, "base offset 5", a_batch(base_offset=5), ErrorCode.INVALID_RECORD),
    row(23, "base offset minus one", a_batch(base_offset=-1), ErrorCode.INVALID_RECORD),
    row(25, "control batch", a_batch(attributes=CONTROL_BIT), ErrorCode.INVALID_RECORD),
    row(26, "producer without sequence", a_batch(producer_id=5, producer_epoch=0), ErrorCode.INVALID_RECORD),
    row(28, "one byte too large", a_batch_of_bytes(MAX_MESSAGE_BYTES + 1), ErrorCode.MESSAGE_TOO_LARGE),
    row(28, "ten times too large", a_batch(bytes(10 * MAX_MESSAGE_BYTES)), ErrorCode.MESSAGE_TOO_LARGE),
    *(
        row(29, f"codec {codec}", a_batch(attributes=codec), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, only_ours=True)
        for codec in (5, 6, 7)
    ),
    row(32, "in a day", a_batch(timestamps=[now_ms() + 24 * HOUR_MS]), ErrorCode.INVALID_TIMESTAMP),
    row(32, "at the end of time", a_batch(timestamps=[2**63 - 1]), ErrorCode.INVALID_TIMESTAMP),
    row(32, "log append time", a_batch(attributes=LOG_APPEND_TIME_BIT), ErrorCode.INVALID_TIMESTAMP, only_ours=True),
]  # fmt: skip


@pytest.mark.parametrize(("batch", "code"), REFUSED_BATCHES)
@pytest.mark.parametrize("version", [3, 9])
def test_given_a_batch_against_the_rules_when_produced_then_its_partition_gets_the_code(
    client: RawClient, batch: bytes, code: ErrorCode, version: int
) -> None:
    before = log_end_offset(client, TOPIC)

    answer = produce(client, TOPIC, batch, version=version)

    assert ErrorCode(answer.error_code) == code
    assert answer.base_offset == -1
    assert log_end_offset(client, TOPIC) == before


@pytest.mark.parametrize("batch", wrong_records())
def test_given_records_against_the_rules_when_produced_then_they_are_invalid(client: RawClient, batch: bytes) -> None:
    before = log_end_offset(client, TOPIC)

    answer = produce(client, TOPIC, batch)

    assert ErrorCode(answer.error_code) == ErrorCode.INVALID_RECORD
    assert log_end_offset(client, TOPIC) == before


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("records", COMPRESSIBLE_RECORDS)
def test_given_compressed_records_against_the_rules_when_the_topic_opens_them_then_they_are_invalid(
    client: RawClient, records: list[bytes], codec: Codec
) -> None:
    batch = compressed(b"".join(records), codec, len(records))

    answer = produce(client, OPENED_TOPIC, batch)

    assert ErrorCode(answer.error_code) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize(
    "section",
    [
        row(24, "of nothing", b""),
        row(24, "of zeros", bytes(1000)),
        row(24, "of ones", b"\xff" * 1000),
        row(24, "of text", b"this is not compressed at all " * 30),
    ],
)
@not_for_kafka  # it fails in its decompressor and answers CORRUPT_MESSAGE, or UNKNOWN_SERVER_ERROR
def test_given_what_is_not_compressed_when_the_topic_opens_it_then_it_is_invalid(
    client: RawClient, section: bytes, codec: Codec
) -> None:
    answer = produce(client, OPENED_TOPIC, of_section(section, attributes=int(codec)))

    assert ErrorCode(answer.error_code) == ErrorCode.INVALID_RECORD


def test_row19_given_one_bad_partition_when_produced_with_a_good_one_then_only_the_bad_one_fails(
    client: RawClient,
) -> None:
    batches = {0: a_batch(crc=1), 1: a_batch(b"good")}

    answer = client.exchange(produce_request(TOPIC, batches), 9, ProduceResponse)

    codes = {each.index: each.error_code for each in answer.responses[0].partition_responses}
    assert codes == {0: ErrorCode.CORRUPT_MESSAGE, 1: ErrorCode.NONE}


@not_for_kafka  # which never answers this
@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_row21_given_null_records_when_produced_then_they_are_invalid(client: RawClient, version: int) -> None:
    assert produce(client, TOPIC, None, version=version).error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("producer_id", [row(27, "with a producer id", 5), row(27, "without a producer id", -1)])
def test_given_a_transactional_batch_when_the_request_has_no_transactional_id_then_it_is_not_authorized(
    client: RawClient, producer_id: int
) -> None:
    batch = a_batch(attributes=TRANSACTIONAL_BIT, producer_id=producer_id, producer_epoch=0, base_sequence=0)

    answer = produce(client, TOPIC, batch)

    assert ErrorCode(answer.error_code) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_row28_given_the_largest_batch_allowed_when_produced_then_it_is_taken(client: RawClient) -> None:
    answer = produce(client, TOPIC, a_batch_of_bytes(MAX_MESSAGE_BYTES))

    assert answer.error_code == 0


@pytest.mark.parametrize(
    ("version", "code"),
    [row(30, "version 6", 6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), row(30, "version 7", 7, ErrorCode.NONE)],
)
def test_given_a_zstd_batch_when_produced_then_it_takes_version_7(
    client: RawClient, version: int, code: ErrorCode
) -> None:
    answer = produce(client, TOPIC, a_batch(codec=Codec.ZSTD), version=version)

    assert ErrorCode(answer.error_code) == code


@pytest.mark.parametrize(
    ("topic", "offset_ms"),
    [row(32, "too new", TOPIC, 2 * HOUR_MS), row(32, "too old", STRICT_TOPIC, -2 * HOUR_MS)],
)
def test_given_a_record_too_far_from_now_when_produced_then_the_answer_names_it(
    client: RawClient, topic: str, offset_ms: int
) -> None:
    now = now_ms()

    answer = produce(client, topic, a_batch(b"a", b"b", b"c", timestamps=[now, now, now + offset_ms]))

    assert ErrorCode(answer.error_code) == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in answer.record_errors] == [2]


@pytest.mark.parametrize("acks", [row(33, f"acks {acks}", acks) for acks in (7, 2, -2, 32767, -32768)])
def test_given_acks_that_mean_nothing_when_produced_then_they_are_invalid(client: RawClient, acks: int) -> None:
    answer = produce(client, TOPIC, a_batch(), acks=acks)

    assert ErrorCode(answer.error_code) == ErrorCode.INVALID_REQUIRED_ACKS


@pytest.mark.parametrize(
    ("topic", "batch"),
    [
        row(34, "bad crc", TOPIC, a_batch(crc=1)),
        row(34, "unknown topic", "never-made", a_batch()),
        row(34, "two batches", TOPIC, a_batch() + a_batch()),
        row(34, "too large", TOPIC, a_batch(bytes(2 * MAX_MESSAGE_BYTES))),
        row(34, "bad records to be opened", OPENED_TOPIC, compressed(b"\xff" * 50, Codec.GZIP)),
    ],
)
def test_given_acks_0_when_the_produce_fails_then_the_connection_is_closed(
    client: RawClient, topic: str, batch: bytes
) -> None:
    client.send_request(ProduceRequest.API_KEY, 9, produce_request(topic, {0: batch}, acks=0).encode(9))

    assert client.is_closed_by_broker()


def test_row34_given_acks_0_when_the_produce_succeeds_then_the_connection_serves_on(client: RawClient) -> None:
    before = log_end_offset(client, TOPIC)
    client.send_request(ProduceRequest.API_KEY, 9, produce_request(TOPIC, {0: a_batch()}, acks=0).encode(9))

    answer = produce(client, TOPIC, a_batch())

    assert (answer.error_code, answer.base_offset) == (0, before + 1)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize(
    "timeout_ms", [row(35, f"timeout {timeout_ms}", timeout_ms) for timeout_ms in (-1, 0, INT32_MAX, INT32_MIN)]
)
def test_given_a_timeout_that_means_little_when_produced_then_the_records_are_in_the_log(
    client: RawClient, timeout_ms: int, acks: int
) -> None:
    before = log_end_offset(client, TOPIC)

    answer = produce(client, TOPIC, a_batch(), acks=acks, timeout_ms=timeout_ms)

    # With no time at all to wait for the flush, "timed out" is true as well: the outcome is then unknown to the client.
    assert answer.error_code in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)
    eventually(lambda: log_end_offset(client, TOPIC) == before + 1, message="the record is not in the log")


@pytest.mark.parametrize(
    ("topic", "partition"),
    [
        row(16, "unknown topic", "never-made", 0),
        row(16, "name of a path", "../../etc/passwd", 0),
        row(16, "empty name", "", 0),
        row(16, "unknown partition", TOPIC, 99),
        row(16, "negative partition", TOPIC, -1),
        row(16, "largest partition", TOPIC, INT32_MAX),
    ],
)
def test_given_a_partition_that_does_not_exist_when_produced_then_it_is_unknown(
    client: RawClient, topic: str, partition: int
) -> None:
    answer = produce(client, topic, a_batch(), partition=partition)

    assert ErrorCode(answer.error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def log_end_offset(client: RawClient, topic: str) -> int:
    """The high watermark, which is the log's end as soon as its last record is acknowledged."""
    answer = fetch(client, topic, offset=0, min_bytes=0, partition_max_bytes=1)
    return answer.high_watermark
