"""What a write is told by options, checked before anything moves.

Names come from Spark in lower case, whatever the user wrote. Those with `kafka.` in front are for the client: where the
brokers are and how it talks to them (`wire/settings.py`), and how it writes (`wire/producer_settings.py`). What is not
known is refused by name: an option that is silently ignored may be the one that somebody relies on. What a promise
rests on is not an option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from penstock.core.config_values import nearest
from penstock.spark.errors import BadOption
from penstock.wire import settings as wire_settings
from penstock.wire.errors import BadSettings
from penstock.wire.producer_settings import KEYS as PRODUCER_KEYS
from penstock.wire.producer_settings import ProducerSettings
from penstock.wire.settings import ClientSettings

DEFAULT_MARKER_TOPIC = "penstock-spark-commits"
MAX_WRITE_ID = 200
_PREFIX = "kafka."

# As they are written, for messages; they are compared in lower case.
OPTIONS = ("topic", "exactlyOnce", "compareRows", "writeId", "markerTopic", "kafka.bootstrap.servers")
# Spark hands its own options of a query to the sink as well.
_SPARKS_OWN = frozenset(
    {
        "checkpointlocation",
        "queryname",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
    }
)

_READERS_KEYS = frozenset({"fetch.max.wait.ms", "max.partition.fetch.bytes"})
_CLIENT_KEYS = frozenset(wire_settings.KEYS) - _READERS_KEYS
_DECIDED_HERE = {
    "acks": "exactlyOnce decides it",
    "request.required.acks": "exactlyOnce decides it",
    "enable.idempotence": "it is always on",
    "enable.gapless.guarantee": "exactlyOnce decides it",
    "transactional.id": "it names the query and the task",
    "key.serializer": "keys are written as they are",
    "value.serializer": "values are written as they are",
    "partitioner": "keys go where Java's producer puts them, and a column partition decides otherwise",
    "partitioner.class": "keys go where Java's producer puts them, and a column partition decides otherwise",
    "retries": "what passes is tried again for kafka.delivery.timeout.ms",
    "message.send.max.retries": "what passes is tried again for kafka.delivery.timeout.ms",
}
# What others call what the client has under another name.
_OTHER_NAMES = {
    "max.block.ms": "default.api.timeout.ms",
    "socket.timeout.ms": "request.timeout.ms",
}


class Kind(StrEnum):
    BATCH = "batch"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    client: ClientSettings
    producer: ProducerSettings
    topic: str | None  # None: the column says it
    exactly_once: bool
    write_id: str | None
    marker_topic: str
    # Of a task that is done again: all its rows, or only how many there are. Sums and percentiles of what comes in
    # another order may differ in their last digits, and are the same rows all the same.
    compares_rows: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, str], kind: Kind) -> SinkOptions:
        """Raises BadOption."""
        given = {name.lower(): value for name, value in options.items()}
        own = {name: value for name, value in given.items() if not name.startswith(_PREFIX)}
        for name in own:
            _check_name(name, kind)
        kafka = {name.removeprefix(_PREFIX): value for name, value in given.items() if name.startswith(_PREFIX)}
        for name in kafka:
            _check_kafka_name(name)
        client = _client(kafka)
        write_id = _write_id(own)
        exactly_once = _flag(own, "exactlyOnce", kind is Kind.STREAM or write_id is not None)
        if write_id is not None and not exactly_once:
            raise BadOption("writeId", "needs exactlyOnce=true: without it, nothing is remembered of a write")
        return cls(
            client=client,
            producer=_producer(kafka, exactly_once=exactly_once),
            topic=_text(own, "topic"),
            exactly_once=exactly_once,
            write_id=write_id,
            marker_topic=_text(own, "markerTopic") or DEFAULT_MARKER_TOPIC,
            compares_rows=_flag(own, "compareRows", True),
        )


def _check_name(name: str, kind: Kind) -> None:
    if name == "path":
        raise BadOption("path", "is not for topics: name the topic with option topic, and start or save without a path")
    if name == "writeid" and kind is Kind.STREAM:
        raise BadOption("writeId", "is for a batch: a stream is known by its checkpoint")
    known = {option.lower(): option for option in OPTIONS}
    if name in known or name in _SPARKS_OWN:
        return
    if f"{_PREFIX}{name}" in known or name in PRODUCER_KEYS | _CLIENT_KEYS:
        raise BadOption(name, f"is not known: did you mean {_PREFIX}{name}?")
    guess = nearest(name, known)
    raise BadOption(name, f"is not one of a sink{f': did you mean {known[guess]}?' if guess else ''}")


def _check_kafka_name(name: str) -> None:
    if name in _DECIDED_HERE:
        raise BadOption(_PREFIX + name, f"cannot be set: {_DECIDED_HERE[name]}")
    if name in _OTHER_NAMES:
        raise BadOption(_PREFIX + name, f"is not a setting of this client: use {_PREFIX}{_OTHER_NAMES[name]}")
    if name not in PRODUCER_KEYS | _CLIENT_KEYS:
        guess = nearest(name, PRODUCER_KEYS | _CLIENT_KEYS)
        hint = f": did you mean {_PREFIX}{guess}?" if guess else ""
        raise BadOption(_PREFIX + name, f"is not a setting of a producer{hint}")


def _client(kafka: Mapping[str, str]) -> ClientSettings:
    try:
        return ClientSettings.parse({name: value for name, value in kafka.items() if name in _CLIENT_KEYS})
    except BadSettings as error:
        raise BadOption(_PREFIX + error.key, error.problem) from None


def _producer(kafka: Mapping[str, str], *, exactly_once: bool) -> ProducerSettings:
    try:
        given = {name: value for name, value in kafka.items() if name in PRODUCER_KEYS}
        return ProducerSettings.parse(given, is_transactional=exactly_once)
    except BadSettings as error:
        raise BadOption(_PREFIX + error.key, error.problem) from None


def _text(own: Mapping[str, str], option: str) -> str | None:
    value = own.get(option.lower())
    if value is not None and not value.strip():
        raise BadOption(option, "is empty")
    return value


def _write_id(own: Mapping[str, str]) -> str | None:
    value = _text(own, "writeId")
    if value is not None and len(value.encode()) > MAX_WRITE_ID:
        raise BadOption("writeId", f"has {MAX_WRITE_ID} bytes at most, this one {len(value.encode())}")
    return value


def _flag(own: Mapping[str, str], option: str, default: bool) -> bool:
    text = own.get(option.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise BadOption(option, f'takes true or false, not "{own[option.lower()]}"')
    return text == "true"
