"""Requests that are what the protocol allows, with values that nobody sane would send: a grammar fuzzer's vocabulary.

It reads the layouts of `penstock.protocol.messages`, so a new API is fuzzed from the day it is declared. Names of
topics come from a small set and numbers of partitions are small or absurd, so that a run does not make thousands of
topics.
"""

import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from penstock.protocol.codec import Request
from penstock.protocol.messages.cluster import ApiVersionsRequest
from penstock.protocol.messages.table import REQUESTS
from penstock.protocol.schema import Array, Blob, Field, Fixed, Nested, Struct, Text, WireType
from tests.badinput.batches import a_batch
from tests.badinput.fuzzing import EXTREMES, spoilt

TOPICS = ("fuzz-a", "fuzz-b", "fuzz-c")
# Few, so that requests meet in them.
TRANSACTIONAL_IDS = ("fuzz-1", "fuzz-2", "fuzz-3")
GROUPS = ("fuzz-x", "fuzz-y")
PRODUCER_IDS = (*range(12), -1, 2**63 - 1, -(2**63))
PRODUCER_EPOCHS = (*range(6), -1, 32766, 32767, -32768)
LONG_TEXTS = ("x" * 249, "x" * 250, "y" * 32767)
ODD_TEXTS = ("", " ", ".", "..", "../x", "a/b", "\0", "ü", "\U0001f9e8", "%s%n", "-1", *LONG_TEXTS)
CONFIGS = ("retention.ms", "segment.bytes", "cleanup.policy", "compression.type", "num.partitions", "no.such.key", "")
CONFIG_VALUES = ("", "0", "-1", "1024", "9223372036854775807", "99999999999999999999", "compact", "gzip", "1e9", "ü")

# A long run may be about some APIs only: their keys.
_APIS = os.environ.get("PENSTOCK_TEST_FUZZ_APIS")
EVERY_REQUEST = [
    (request, version)
    for request in REQUESTS.values()
    if _APIS is None or str(request.API_KEY) in _APIS.split(",")
    for version in range(request.MIN_VERSION, request.MAX_VERSION + 1)
]  # fmt: skip

# By the name of a field: what is worth trying there.
_NAMED_VALUES: dict[str, Sequence[Any]] = {
    "num_partitions": (-1, 0, 1, 2, -5, 2**31 - 1),
    "replication_factor": (-1, 1, 1, 0, 2, -5, 32767),
    "count": (0, 1, 2, 3, 4, -1, 10**9),
    "broker_ids": (1, 0, -1, 2**31 - 1),
    "partition": (0, 0, 1, -1, 2**31 - 1),
    "index": (0, 0, 1, -1, 2**31 - 1),
    "partition_index": (0, 0, 1, -1, 2**31 - 1),
    "partitions": (0, 0, 1, -1, 2**31 - 1),
    "acks": (-1, -1, 1, 0, 7),
    "max_wait_ms": (0, 1, 10, -1, 2**31 - 1),
    "min_bytes": (0, 1, -1, 2**31 - 1),
    "resource_type": (2, 2, 2, 4, 8, 0, 16, 127, -128),
    "config_operation": (0, 1, 2, 3, 4, -1),
    "key_type": (0, 1, 2, 3, -1),
    "session_epoch": (-1, 0, 0, 1, 2**31 - 1),
    "partition_indexes": (0, 0, 1, -1, 2**31 - 1),
    "producer_id": PRODUCER_IDS,
    "producer_epoch": PRODUCER_EPOCHS,
    "v3_and_below_producer_id": PRODUCER_IDS,
    "v3_and_below_producer_epoch": PRODUCER_EPOCHS,
    "transaction_timeout_ms": (60_000, 60_000, 20, 1, 0, -1, 900_001, 2**31 - 1),
    "transaction_version": (0, 1, 2, 2, -1, 127),
    "coordinator_epoch": (0, 0, 1, 7, -1, 2**31 - 1),
    "generation_id": (-1, -1, 0, 1, 2**31 - 1),
}
_NAMED_TEXTS: dict[str, tuple[str, ...]] = {
    "transactional_id": TRANSACTIONAL_IDS,
    "v3_and_below_transactional_id": TRANSACTIONAL_IDS,
    "transactional_ids": TRANSACTIONAL_IDS,
    "transactional_id_pattern": ("fuzz.*", "", "(", "(a)\\1", "[[:alpha:]]+", "(" * 200),
    "state_filters": ("Ongoing", "PrepareCommit", "CompleteAbort", "Dead", "nonsense"),
    "coordinator_keys": (*TRANSACTIONAL_IDS, *GROUPS),
    "key": (*TRANSACTIONAL_IDS, *GROUPS),
    "group_id": GROUPS,
}
_TRANSACTIONAL_BIT = 0x10
_TOPIC_FIELDS = frozenset({"name", "topic", "topic_name", "topic_names", "resource_name"})
_CONFIG_STRUCTS = frozenset(
    {"CreatableTopicConfig", "AlterableConfig", "IncrementallyAlterableConfig", "DescribeConfigsResource"}
)


class Vocabulary:
    """Makes one message from one source of chance."""

    def __init__(self, random: Random, topic_ids: Sequence[bytes]) -> None:
        self._random = random
        self._topic_ids = topic_ids

    def request(self, request: type[Request], version: int) -> Request:
        message = self._struct(request, version)
        assert isinstance(message, Request)
        return message

    def _struct(self, struct: type[Struct], version: int) -> Struct:
        values = {
            field.name: self._field(struct, field, version) for field in struct.FIELDS if field.versions.has(version)
        }
        return struct(**values)

    def _field(self, struct: type[Struct], field: Field, version: int) -> Any:
        is_nullable = field.nullable.has(version)
        if (is_nullable or field.tag is not None) and self._random.random() < 0.2:
            return None if is_nullable else field.default
        return self._value(struct, field, field.wire, version)

    def _value(self, struct: type[Struct], field: Field, wire: WireType, version: int) -> Any:
        match wire:
            case Fixed():
                return self._number(field, wire)
            case Text():
                return self._text(struct, field)
            case Blob():
                return self._bytes()
            case Nested():
                return self._struct(wire.struct, version)
            case Array():
                return [self._value(struct, field, wire.element, version) for _ in range(self._length(wire))]

    def _number(self, field: Field, wire: Fixed) -> Any:
        if wire.format == "?":
            return self._random.random() < 0.5
        if wire.format == "16s":
            return self._random.choice((*self._topic_ids, bytes(16), b"\xff" * 16, self._random.randbytes(16)))
        return self._random.choice(_NAMED_VALUES.get(field.name) or EXTREMES[wire.format])

    def _text(self, struct: type[Struct], field: Field) -> str:
        choices: tuple[str, ...] = ODD_TEXTS
        if struct.__name__ in _CONFIG_STRUCTS and field.name != "resource_name":
            choices = CONFIG_VALUES if field.name == "value" else CONFIGS
        elif field.name in _TOPIC_FIELDS:
            choices = TOPICS
        elif issubclass(struct, ApiVersionsRequest):
            choices = ("client", "1.0")
        elif field.name in _NAMED_TEXTS:
            choices = _NAMED_TEXTS[field.name]
        return self._random.choice(choices if self._random.random() < 0.7 else ODD_TEXTS)

    def _bytes(self) -> bytes:
        makers: tuple[Callable[[], bytes], ...] = (
            lambda: a_batch(b"value"),
            lambda: spoilt(a_batch(b"value"), self._random),
            self._transactional_batch,
            lambda: spoilt(self._transactional_batch(), self._random),
            lambda: self._random.randbytes(self._random.choice((1, 12, 61, 100))),
            lambda: b"",
        )
        return self._random.choice(makers)()

    def _transactional_batch(self) -> bytes:
        return a_batch(
            b"value",
            attributes=_TRANSACTIONAL_BIT,
            producer_id=self._random.choice(PRODUCER_IDS),
            producer_epoch=self._random.choice(PRODUCER_EPOCHS),
            base_sequence=self._random.choice((0, 0, 1, 2, 2**31 - 1, -1)),
        )

    def _length(self, wire: Array) -> int:
        if isinstance(wire.element, Nested):
            return self._random.choice((0, 1, 1, 1, 2, 3, 20))
        return self._random.choice((0, 1, 1, 2, 3, 200))
