"""Rows 1 to 6, 9, 10, 12 to 17, 50 and 51: bytes that are no request, or hardly one."""

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.request import urlopen

import pytest

from penstock.core.errors import ErrorCode
from penstock.protocol.codec import Request
from penstock.protocol.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from penstock.protocol.messages.group_offsets import OffsetFetchRequest
from penstock.protocol.messages.producers import InitProducerIdRequest
from penstock.protocol.messages.records import FetchRequest
from penstock.protocol.messages.table import REQUESTS
from penstock.protocol.messages.topics import CreateTopicsRequest
from tests.badinput.batches import a_batch
from tests.badinput.rows import not_for_kafka, row
from tests.badinput.unharmed import (
    ANSWER_TIMEOUT_S,
    BYSTANDER_TOPIC,
    MIB,
    Vitals,
    forget_peak,
    peak_resident_bytes,
)
from tests.badinput.wire import (
    NO_TAGS,
    compact_text,
    framed,
    header,
    request_header,
    size_prefix,
    text,
    tls_client_hello,
    varint,
    whole_request,
)
from tests.testkit import Broker, BrokerProcess, RawClient
from tests.testkit.asking import fetch_request, produce_request

pytestmark = pytest.mark.xdist_group("badinput-frames")

METADATA, API_VERSIONS = MetadataRequest.API_KEY, ApiVersionsRequest.API_KEY
TOO_LONG_VARINT = b"\xff\xff\xff\xff\xff\x01"
NOT_UTF8 = b"\xff\xfe\x80"
A_TOPIC = compact_text("t") + bytes(6)  # with no partitions and no replicas
# Empty tagged fields with tags of three bytes, from 128 * 128 on.
A_MILLION_TAGS = b"".join(
    bytes((low | 128, middle | 128, high, 0)) for high in range(1, 62) for middle in range(128) for low in range(128)
)


def metadata(version: int, body: bytes) -> bytes:
    return framed(request_header(MetadataRequest, version) + body)


def fetch_v4(topics: bytes) -> bytes:
    fixed = struct.pack(">iiiib", -1, 100, 0, 1 << 20, 0)
    return framed(request_header(FetchRequest, 4) + fixed + topics)


def create_topics_v5(topics: bytes) -> bytes:
    return framed(request_header(CreateTopicsRequest, 5) + topics)


def init_producer_id_v2(body: bytes) -> bytes:
    return framed(request_header(InitProducerIdRequest, 2) + body)


NO_REQUEST = [
    row(1, "size over the maximum", size_prefix(104_857_601)),
    row(1, "size of two gigabytes", size_prefix(0x7FFFFFFF)),
    row(2, "size minus one", size_prefix(-1)),
    row(2, "smallest size", size_prefix(-(2**31))),
    row(3, "size zero", size_prefix(0)),
    *(row(4, f"header of {size} bytes", framed(header(METADATA, 1)[:size])) for size in range(1, 10)),
    row(4, "client id past the end", framed(header(METADATA, 1, client_id=b"\x00\x09abc"))),
    row(4, "client id of negative length", framed(header(METADATA, 1, client_id=b"\xff\xfe"))),
    row(4, "no tags in a flexible header", framed(header(METADATA, 9))),
    row(9, "api key 9999", framed(header(9999, 0))),
    row(9, "api key minus one", framed(header(-1, 0))),
    row(9, "api key that Kafka gave up", framed(header(7, 0))),
    row(12, "more topics than bytes", metadata(1, struct.pack(">i", 0x7FFFFFFF))),
    row(12, "more topics than bytes compact", metadata(9, varint(0xFFFFFFFF))),
    row(12, "more partitions than bytes", fetch_v4(b"\0\0\0\1" + text("t") + struct.pack(">i", 0x7FFFFFFF))),
    row(12, "more configs than bytes", create_topics_v5(b"\2" + A_TOPIC + b"\1" + varint(0x7FFFFFFF))),
    row(13, "topics minus two", fetch_v4(struct.pack(">i", -2))),
    row(13, "nullable topics minus two", metadata(1, struct.pack(">i", -2)), only_ours=True),  # Kafka: null
    row(13, "null topics in v0", metadata(0, struct.pack(">i", -1))),
    row(13, "name of length minus two", metadata(1, struct.pack(">ih", 1, -2))),
    row(13, "null name", metadata(1, struct.pack(">ih", 1, -1))),
    row(13, "null name compact", metadata(9, b"\2\0\0\1\0\0\0")),
    row(14, "varint of six bytes in header", framed(header(METADATA, 9, tags=TOO_LONG_VARINT) + b"\1\1\0\0\0")),
    row(14, "varint of six bytes in body", metadata(9, TOO_LONG_VARINT + bytes(64))),
    row(15, "compact name of 32768 bytes", metadata(9, b"\2" + compact_text(b"t" * 32768) + bytes(5))),
    row(15, "compact id of 32768 bytes", init_producer_id_v2(compact_text(b"i" * 32768) + bytes(5))),
    # Kafka checks the order of those tags only that it knows.
    row(17, "tag twice", metadata(9, b"\1\1\0\0" + b"\2\5\0\5\0"), only_ours=True),
    row(17, "tags unsorted", metadata(9, b"\1\1\0\0" + b"\2\5\0\4\0"), only_ours=True),
    row(17, "tag past the end", metadata(9, b"\1\1\0\0" + b"\1\5\x7fabc")),
    row(17, "more tags than bytes", metadata(9, b"\1\1\0\0" + varint(0x7FFFFFFF))),
    row(17, "more tags than bytes in header", framed(header(METADATA, 9, tags=varint(0x7FFFFFFF)))),
    row(50, "tls client hello", tls_client_hello()),
    row(51, "http request", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
]  # fmt: skip


@pytest.mark.parametrize("bad_bytes", NO_REQUEST)
def test_given_bytes_that_are_no_request_when_sent_then_the_connection_is_closed(
    client: RawClient, bad_bytes: bytes
) -> None:
    client.send_bytes(bad_bytes)

    assert client.is_closed_by_broker()


@pytest.mark.parametrize(
    "claimed_size",
    [
        row(1, "refused size", 0x7FFFFFFF),
        row(1, "largest size allowed", 104_857_600, only_ours=True),
    ],  # Kafka runs out of memory
)
def test_given_a_claimed_size_when_sent_again_and_again_then_nothing_is_reserved_for_it(
    broker: BrokerProcess, claimed_size: int
) -> None:
    def send() -> None:
        with RawClient(broker.address, timeout=ANSWER_TIMEOUT_S) as client:
            client.send_bytes(size_prefix(claimed_size) + header(METADATA, 1))
            client.socket.shutdown(socket.SHUT_WR)
            assert client.is_closed_by_broker()

    for _ in range(20):  # whatever connections need for the first time is then in memory
        send()
    before = broker.resident_bytes()
    forget_peak(broker)
    for _ in range(100):
        send()

    assert peak_resident_bytes(broker) - before < MIB


# Row 5: a body that ends early


def ends_early() -> Iterator[Any]:
    for request in REQUESTS.values():
        for version in {request.MIN_VERSION, request.MAX_VERSION}:
            body = _a_body(request, version)
            if body:
                cut = framed(request_header(request, version) + body[:-1])
                yield row(5, f"{request.NAME} v{version} without its last byte", cut)


def _a_body(request: type[Request], version: int) -> bytes:
    if request in (MetadataRequest, OffsetFetchRequest):  # null topics are not in all their versions
        return request(topics=[]).encode(version)
    return request().encode(version)


@pytest.mark.parametrize("bad_bytes", ends_early())
def test_given_a_body_that_ends_early_when_sent_then_the_connection_is_closed(
    client: RawClient, bad_bytes: bytes
) -> None:
    client.send_bytes(bad_bytes)

    assert client.is_closed_by_broker()


# Row 10: versions


def unknown_versions() -> Iterator[Any]:
    for request in REQUESTS.values():
        if request is not ApiVersionsRequest:
            for version in (request.MAX_VERSION + 1, 32767, request.MIN_VERSION - 1, -1):
                yield row(10, f"{request.NAME} v{version}", request, version)


@pytest.mark.parametrize(("request_type", "version"), unknown_versions())
def test_given_a_version_that_is_not_served_when_asked_then_the_connection_is_closed(
    client: RawClient, request_type: type[Request], version: int
) -> None:
    client.send_frame(request_header(request_type, version) + bytes(64))

    assert client.is_closed_by_broker()


@pytest.mark.parametrize(
    ("version", "body"),
    [
        row(10, "from the future", 99, compact_text("client") + compact_text("1") + NO_TAGS),
        row(10, "just too new", ApiVersionsRequest.MAX_VERSION + 1, b"\x7f unlike anything known"),
        row(10, "largest number", 32767, b""),
        row(10, "negative number", -1, b""),
    ],
)
def test_given_api_versions_in_any_version_when_asked_then_v0_names_what_is_supported(
    client: RawClient, version: int, body: bytes
) -> None:
    answered = client.request(API_VERSIONS, version, body, flexible=version >= ApiVersionsRequest.FLEXIBLE_SINCE)

    answer = ApiVersionsResponse.decode(answered, 0)
    ranges = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert ranges[API_VERSIONS] == (ApiVersionsRequest.MIN_VERSION, ApiVersionsRequest.MAX_VERSION)


def test_row10_given_an_unknown_version_of_api_versions_when_refused_then_the_connection_serves_on(
    client: RawClient,
) -> None:
    client.request(API_VERSIONS, 99, b"", flexible=True)

    answer = client.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)

    assert answer.error_code == 0


# Row 11: the client's software


@pytest.mark.parametrize(
    ("name", "version"),
    [
        row(11, "space and mark", "a b!", "1.0"),
        row(11, "empty name", "", "1.0"),
        row(11, "empty version", "client", ""),
        row(11, "dash at the end", "client-", "1.0"),
        row(11, "dot in front", "client", ".1"),
        row(11, "not ascii", "cliënt", "1.0"),
        row(11, "end of line", "client\n", "1.0"),
        row(11, "long and wrong at its end", "a-" * 16_000, "1.0"),
    ],
)
def test_given_an_unlikely_client_software_when_api_versions_is_asked_then_it_is_an_invalid_request(
    client: RawClient, name: str, version: str
) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)

    answer = client.exchange(request, 3, ApiVersionsResponse)

    assert answer.error_code == ErrorCode.INVALID_REQUEST


# Rows 6, 16 and 17: odd, and yet answered


ALL_TOPICS_V9 = b"\0\1\0\0"  # null topics, then three booleans
ALL_TOPICS = request_header(MetadataRequest, 9) + ALL_TOPICS_V9


@pytest.mark.parametrize(
    "frame",
    [
        row(6, "trailing bytes", whole_request(MetadataRequest(topics=[]), 9) + b"trailing bytes"),
        row(6, "trailing kilobytes", whole_request(MetadataRequest(topics=[]), 9) + bytes(100_000)),
        row(16, "client id not utf8", whole_request(MetadataRequest(topics=[]), 9, client_id=text(NOT_UTF8))),
        row(16, "client id of nul bytes", whole_request(MetadataRequest(topics=[]), 9, client_id=text(bytes(100)))),
        row(16, "long client id", whole_request(MetadataRequest(topics=[]), 9, client_id=text(b"c" * 32767))),
        row(17, "unknown tags", header(METADATA, 9, tags=b"\1\7\3abc") + ALL_TOPICS_V9 + b"\1\x63\2xy"),
        row(17, "unknown tag of a megabyte", ALL_TOPICS + b"\1\7" + varint(MIB) + bytes(MIB)),
    ],
)  # fmt: skip
def test_given_an_odd_request_when_it_can_be_read_then_it_is_answered(client: RawClient, frame: bytes) -> None:
    client.send_frame(frame)

    answer = MetadataResponse.decode(client.receive_response(METADATA, 9, 7), 9)

    assert len(answer.brokers) == 1


@not_for_kafka
@pytest.mark.parametrize(
    ("request_message", "version"),
    [
        row(6, "Metadata", MetadataRequest(topics=[]), 1),
        row(6, "Metadata flexible", MetadataRequest(topics=[]), 12),
        row(6, "Fetch", fetch_request({BYSTANDER_TOPIC: [(0, 0)]}, min_bytes=0), 4),
        row(6, "Fetch flexible", fetch_request({BYSTANDER_TOPIC: [(0, 0)]}, min_bytes=0), 12),
        row(6, "Produce", produce_request(BYSTANDER_TOPIC, {0: a_batch()}), 3),
        row(6, "Produce flexible", produce_request(BYSTANDER_TOPIC, {0: a_batch()}), 9),
    ],
)
def test_given_trailing_bytes_when_the_request_is_answered_then_they_are_counted(
    broker: BrokerProcess, client: RawClient, request_message: Request, version: int
) -> None:
    before = requests_with_trailing_bytes(broker)

    client.send_frame(whole_request(request_message, version) + b"trailing bytes")

    assert client.receive_frame() is not None
    assert requests_with_trailing_bytes(broker) == before + 1


def requests_with_trailing_bytes(broker: BrokerProcess) -> float:
    assert isinstance(broker, Broker)
    with urlopen(f"http://{broker.http}/metrics", timeout=ANSWER_TIMEOUT_S) as metrics:
        lines = metrics.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith("penstock_requests_with_trailing_bytes_total ")]
    return float(line.split()[1])


@not_for_kafka  # which reads them all
@pytest.mark.parametrize(
    "count", [row(12, "five million names", 5_000_000), row(12, "fifty million names", 50_000_000)]
)
def test_given_as_many_elements_as_the_bytes_allow_when_they_are_too_many_then_they_cost_nothing(
    client: RawClient, vitals: Vitals, count: int
) -> None:
    vitals.cpu_limit_s = 1

    with suppress(BrokenPipeError, ConnectionResetError):  # refused before all was sent
        client.send_bytes(metadata(1, struct.pack(">i", count) + bytes(2 * count)))

    assert client.is_closed_by_broker()


def test_row17_given_a_million_unknown_tags_when_sent_then_they_cost_no_memory(client: RawClient) -> None:
    client.send_frame(ALL_TOPICS + varint(len(A_MILLION_TAGS) // 4) + A_MILLION_TAGS)
    answer = MetadataResponse.decode(client.receive_response(METADATA, 9, 7), 9)

    assert len(answer.brokers) == 1


@pytest.mark.parametrize("may_create", [row(16, "may be created", True), row(16, "may not be created", False)])
def test_given_a_topic_name_that_is_not_utf8_when_metadata_is_asked_then_the_name_is_invalid_or_unknown(
    client: RawClient, may_create: bool
) -> None:
    body = b"\2" + compact_text(NOT_UTF8) + NO_TAGS + bytes([may_create, 0, 0]) + NO_TAGS

    client.send_frame(request_header(MetadataRequest, 9) + body)
    (topic,) = MetadataResponse.decode(client.receive_response(METADATA, 9, 7), 9).topics

    assert topic.error_code in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
