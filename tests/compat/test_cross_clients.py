"""What one client produces, every other reads, byte for byte."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.compat.clients.interface import Client, Message
from tests.compat.conftest import CLIENT_NAMES

_HEADERS = (("text", "größe".encode()), ("text", b"again"), ("empty", b""), ("null", None), ("bytes", b"\xfe\x01,="))

MESSAGES = [
    Message(b"plain", timestamp_ms=1_700_000_000_000),
    Message(b"keyed \x00\xff\n", key=b"\xffkey\n", timestamp_ms=1_700_000_000_001),
    Message(b"", key=b"empty value", timestamp_ms=1_699_999_999_999),
    Message(None, key=b"null value, as compaction's tombstones have", timestamp_ms=1_700_000_000_002),
    Message(b"empty key", key=b"", timestamp_ms=1_700_000_000_003),
    Message("in UTF-8: ½ 水".encode(), key=b"k", headers=_HEADERS, timestamp_ms=1_700_000_000_004),
    Message(b"large" * 20_000, key=b"large", timestamp_ms=1_700_000_000_005),
]


@pytest.mark.parametrize("consumer_name", CLIENT_NAMES)
@pytest.mark.parametrize("producer_name", CLIENT_NAMES)
def test_given_a_producer_when_another_client_consumes_then_records_are_equal(
    producer_name: str, consumer_name: str, client_named: Callable[[str], Client], topic: str
) -> None:
    producer, consumer = client_named(producer_name), client_named(consumer_name)
    messages = [_as_sent_by(producer, message) for message in MESSAGES]

    producer.produce(topic, messages)

    received = [record.message for record in consumer.consume(topic, len(messages))]
    if not producer.sets_timestamps:
        assert all(message.timestamp_ms and message.timestamp_ms > 1_700_000_000_005 for message in received)
        received = [replace(message, timestamp_ms=None) for message in received]
    assert received == messages


def _as_sent_by(producer: Client, message: Message) -> Message:
    """Leaves out what the client has no way to say."""
    if not producer.sets_timestamps:
        message = replace(message, timestamp_ms=None)
    if not producer.sends_null_headers:
        message = replace(message, headers=tuple(header for header in message.headers if header[1] is not None))
    return message


@pytest.mark.parametrize("producer_name", CLIENT_NAMES)
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_given_a_codec_when_another_client_consumes_then_records_are_equal(
    producer_name: str, codec: str, client_named: Callable[[str], Client], topic: str
) -> None:
    producer = client_named(producer_name)
    if codec not in producer.codecs:
        pytest.skip(f"{producer.name} has no {codec} on this machine: the Python package for it is not installed")
    values = [b"%d" % number * 50 for number in range(200)]

    producer.produce(topic, [Message(value) for value in values], codec=codec)

    for reader_name in CLIENT_NAMES:
        reader = client_named(reader_name)
        if codec in reader.codecs:
            assert [record.message.value for record in reader.consume(topic, 200)] == values, reader_name
