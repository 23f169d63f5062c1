"""Settings of a producer, by every name that they have."""

from __future__ import annotations

import pytest

from penstock.protocol.batch import Codec
from penstock.wire.errors import BadSettings
from penstock.wire.producer_settings import KEYS, WITHOUT_EFFECT, ProducerSettings


def parsed(is_transactional: bool = True, /, **values: object) -> ProducerSettings:
    given = {name.replace("_", "."): str(value) for name, value in values.items()}
    return ProducerSettings.parse(given, is_transactional=is_transactional)


def test_given_nothing_when_settings_are_read_then_they_are_the_defaults() -> None:
    assert parsed() == parsed(False) == ProducerSettings()


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"batch_size": 100}, ProducerSettings(batch_bytes=100)),
        ({"buffer_memory": 4_096}, ProducerSettings(batch_bytes=4_096, max_bytes=4_096, buffer_bytes=4_096)),
        ({"queue_buffering_max_kbytes": 4}, ProducerSettings(batch_bytes=4_096, max_bytes=4_096, buffer_bytes=4_096)),
        ({"max_request_size": 10}, ProducerSettings(batch_bytes=10, max_bytes=10)),
        ({"message_max_bytes": 10}, ProducerSettings(batch_bytes=10, max_bytes=10)),
        ({"max_request_size": 1 << 30}, ProducerSettings()),
        ({"compression_type": "LZ4"}, ProducerSettings(codec=Codec.LZ4)),
        ({"compression_codec": "gzip", "compression_level": 9}, ProducerSettings(codec=Codec.GZIP, level=9)),
        ({"compression_type": "zstd", "compression_level": -1}, ProducerSettings(codec=Codec.ZSTD)),
        ({"max_in_flight": 1}, ProducerSettings(max_in_flight=1)),
        ({"delivery_timeout_ms": 1_000}, ProducerSettings(delivery_timeout_s=1)),
        ({"message_timeout_ms": 1_000}, ProducerSettings(delivery_timeout_s=1)),
        ({"transaction_timeout_ms": 60_000}, ProducerSettings(transaction_timeout_ms=60_000, delivery_timeout_s=60)),
    ],
)
def test_given_settings_by_any_of_their_names_when_they_are_read_then_they_hold(
    values: dict[str, object], wanted: ProducerSettings
) -> None:
    assert parsed(**values) == wanted


@pytest.mark.parametrize(
    ("values", "key", "words"),
    [
        ({"batch_size": 0}, "batch.size", "above 0"),
        ({"batch_size": "much"}, "batch.size", '"much"'),
        ({"buffer_memory": 1 << 31}, "buffer.memory", "above 0"),
        ({"compression_type": "rar"}, "compression.type", "none, gzip, snappy, lz4, zstd"),
        ({"compression_level": 3}, "compression.level", "gzip, lz4, zstd"),
        ({"compression_type": "gzip", "compression_level": 10}, "compression.level", "1 to 9"),
        ({"compression_type": "gzip", "compression_level": "x"}, "compression.level", '"x"'),
        ({"max_in_flight": 6}, "max.in.flight", "1 to 5"),
        ({"linger_ms": "soon"}, "linger.ms", '"soon"'),
        ({"delivery_timeout_ms": 300_001}, "delivery.timeout.ms", "transaction.timeout.ms, which is 300000"),
        ({"max_request_size": 1, "message_max_bytes": 1}, "message.max.bytes", "max.request.size"),
        ({"buffer_memory": 1, "queue_buffering_max_kbytes": 1}, "queue.buffering.max.kbytes", "buffer.memory"),
    ],
)
def test_given_settings_that_cannot_be_when_they_are_read_then_they_are_named(
    values: dict[str, object], key: str, words: str
) -> None:
    with pytest.raises(BadSettings) as refused:
        parsed(**values)

    assert refused.value.key == key
    assert words in refused.value.problem


def test_given_what_has_no_effect_when_it_is_read_then_it_is_taken_and_nothing_changes() -> None:
    assert WITHOUT_EFFECT < KEYS
    assert ProducerSettings.parse(dict.fromkeys(WITHOUT_EFFECT, "5"), is_transactional=True) == ProducerSettings()
