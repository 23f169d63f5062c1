"""What a write is told by options, checked before anything moves.

Names come from Spark in lower case, whatever the user wrote. Those with `kafka.` in front are for the clients: our own,
which looks topics and markers up, and librdkafka's producer. What is not known is refused by name: an option that is
silently ignored may be the one that somebody relies on. What a promise rests on is not an option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.core.config_values import nearest
from penstock.spark.errors import BadOption
from penstock.wire import settings as wire_settings
from penstock.wire.errors import BadSettings
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
# Of librdkafka; what is in _CLIENT_KEYS as well goes to both.
PRODUCER_KEYS = frozenset(
    {
        "batch.num.messages",
        "batch.size",
        "broker.address.family",
        "broker.address.ttl",
        "client.rack",
        "compression.codec",
        "compression.level",
        "compression.type",
        "connections.max.idle.ms",
        "debug",
        "delivery.timeout.ms",
        "linger.ms",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.copy.max.bytes",
        "message.max.bytes",
        "message.send.max.retries",
        "message.timeout.ms",
        "metadata.max.age.ms",
        "partitioner",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "socket.timeout.ms",
        "sticky.partitioning.linger.ms",
        "topic.metadata.propagation.max.ms",
        "topic.metadata.refresh.interval.ms",
        "transaction.timeout.ms",
    }
)
_DECIDED_HERE = {
    "acks": "exactlyOnce decides it",
    "request.required.acks": "exactlyOnce decides it",
    "enable.idempotence": "it is always on",
    "enable.gapless.guarantee": "exactlyOnce decides it",
    "transactional.id": "it names the query and the task",
    "key.serializer": "keys are written as they are",
    "value.serializer": "values are written as they are",
}
# What Java's producer calls it, and librdkafka does not.
_JAVAS_NAMES = {
    "buffer.memory": "queue.buffering.max.kbytes",
    "max.request.size": "message.max.bytes",
    "partitioner.class": "partitioner",
}


class Kind(StrEnum):
    BATCH = "batch"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    client: ClientSettings
    producer: Mapping[str, str] = field(repr=False)  # may hold passwords
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
            producer=_security(client) | {name: value for name, value in kafka.items() if name in PRODUCER_KEYS},
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
    if name in _JAVAS_NAMES:
        raise BadOption(_PREFIX + name, f"is not a setting of this producer: use {_PREFIX}{_JAVAS_NAMES[name]}")
    if name not in PRODUCER_KEYS | _CLIENT_KEYS:
        guess = nearest(name, PRODUCER_KEYS | _CLIENT_KEYS)
        hint = f": did you mean {_PREFIX}{guess}?" if guess else ""
        raise BadOption(_PREFIX + name, f"is not a setting of a producer{hint}")


def _client(kafka: Mapping[str, str]) -> ClientSettings:
    try:
        return ClientSettings.parse({name: value for name, value in kafka.items() if name in _CLIENT_KEYS})
    except BadSettings as error:
        raise BadOption(_PREFIX + error.key, error.problem) from None


def _security(client: ClientSettings) -> dict[str, str]:
    """In librdkafka's names, so that those of Java that our own client knows hold for both."""
    given = {
        "bootstrap.servers": ",".join(map(str, client.bootstrap)),
        "client.id": client.client_id,
        "security.protocol": client.security_protocol,
    }
    if client.login is not None:
        given |= {
            "sasl.mechanism": client.login.mechanism,
            "sasl.username": client.login.username,
            "sasl.password": client.login.password,
        }
    if client.tls is not None:
        tls = client.tls
        given |= {
            "enable.ssl.certificate.verification": str(tls.checks_certificate).lower(),
            "ssl.endpoint.identification.algorithm": "https" if tls.checks_name else "none",
        }
        # A PEM file may have a certificate and its key.
        files = {"ssl.ca.location": tls.ca, "ssl.certificate.location": tls.certificate}
        files |= {"ssl.key.location": tls.key or tls.certificate, "ssl.key.password": tls.key_password}
        given |= {name: value for name, value in files.items() if value is not None}
    return given


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
