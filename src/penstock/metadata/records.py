"""What the metadata store holds: one versioned JSON value per key, and where each key is.

Every value carries the version of its form, so that a broker meets a value of a newer release with a clear refusal
instead of a wrong guess. Within a version fields may be added with a default: older brokers ignore them.

A partition's key names its topic's id, not its name. So the partitions of a topic being created, or of one just
deleted, belong to nobody by name: only the topic's key, written last and deleted first, makes them visible, and a topic
that is created anew can never pick up a predecessor's partitions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, TypeVar

import msgspec

from penstock.core.ids import BrokerId, TopicId, topic_id_from_text, topic_id_to_text

# The features this release knows, with the versions it can run with (lowest, highest). A cluster's finalized version
# gates what its brokers may write, so that they can be upgraded one by one.
#
# penstock.version 2: a partition's record says which replicas come, go or are spoilt
FeatureVersions = dict[str, tuple[int, int]]
SUPPORTED_FEATURES: FeatureVersions = {"penstock.version": (1, 2), "transaction.version": (0, 2)}
# Of brokers that do not say what they know.
FIRST_FEATURES: FeatureVersions = {"penstock.version": (1, 1), "transaction.version": (0, 2)}


class InvalidMetadata(Exception):
    """A stored value that this release cannot read: written by a newer one, or damaged."""


class VersionedRecord(msgspec.Struct, frozen=True, kw_only=True):
    VERSION: ClassVar[int] = 1
    version: int = 1


class ClusterRecord(VersionedRecord, frozen=True, kw_only=True):
    cluster_id: str


class ClusterKeyRecord(VersionedRecord, frozen=True, kw_only=True):
    """What brokers prove to each other that they know. Never printed: not in logs, metrics, answers or documents."""

    key: str

    def __repr__(self) -> str:
        return "ClusterKeyRecord(key=...)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("key", "...")]


class ControllerRecord(VersionedRecord, frozen=True, kw_only=True):
    """Who decides, for as long as its session of that broker epoch lasts.

    Every write of a controller expects this key unchanged, so a deposed one cannot write.
    """

    broker_id: BrokerId
    epoch: int
    broker_epoch: int = 0


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where clients of one listener reach a broker."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


class BrokerRecord(VersionedRecord, frozen=True, kw_only=True):
    """A registered broker. `host` names its machine (penstock.host), `rack` its zone; the epoch rises per start.

    `internal` is where other brokers reach it; no client is told.
    """

    broker_id: BrokerId
    epoch: int
    listeners: tuple[Endpoint, ...]
    host: str
    rack: str | None = None
    directory_id: str = ""
    internal: Endpoint | None = None
    # The features that its release knows; none for one of the first release.
    features: FeatureVersions = {}

    def listener(self, name: str) -> Endpoint | None:
        return next((listener for listener in self.listeners if listener.name == name), None)


class SessionState(StrEnum):
    """Starting brokers read their logs, serving ones may lead, stopping ones give away what they lead."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


class SessionRecord(VersionedRecord, frozen=True, kw_only=True):
    """A broker that is alive. The key is attached to the broker's lease, and goes with it.

    `epoch` is that of the registration; `directory_id` tells a broker that comes back from another with the same id.
    """

    broker_id: BrokerId
    epoch: int
    state: SessionState
    directory_id: str = ""


class TopicRecord(VersionedRecord, frozen=True, kw_only=True):
    """Makes partitions 0 to `partition_count` - 1 of `topic_id` visible under a name.

    `kind` is "log" for a topic with data of its own; other kinds read the log of their `source` topic.
    """

    name: str
    topic_id: str
    partition_count: int
    configs: dict[str, str] = {}
    kind: str = "log"
    source: str | None = None


class PartitionRecord(VersionedRecord, frozen=True, kw_only=True):
    """Who holds a partition. The leader epoch rises per leader, the partition epoch with every change.

    A leader leads while its session of `leader_broker_epoch` lasts: after a restart it has to be elected again.
    `eligible` replicas left the in-sync set when it became too small to commit anything, so they still hold everything
    that is committed (KIP-966). `spoilt` replicas have logs that are of no use, damaged ones for instance: none of them
    is elected before it has begun anew and is in sync again. `state` is "active", or "retired" for a partition that
    takes no new records.

    While it is reassigned (KIP-455) `replicas` are all that hold it or are to: those of the target, then the others.
    Without `adding` they are what they were before, without `removing` what they are to be. Who is in both came with a
    target that was given up for another.
    """

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId | None
    leader_epoch: int = 0
    partition_epoch: int = 0
    state: str = "active"
    leader_broker_epoch: int = 0
    eligible: tuple[BrokerId, ...] = ()
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    spoilt: tuple[BrokerId, ...] = ()


class ProducerIdsRecord(VersionedRecord, frozen=True, kw_only=True):
    """Every producer id below `next_producer_id` belongs to a block that was given out."""

    next_producer_id: int


class BrokerConfigsRecord(VersionedRecord, frozen=True, kw_only=True):
    """Configuration set at run time, of one broker or as the default of all."""

    configs: dict[str, str]


class FeaturesRecord(VersionedRecord, frozen=True, kw_only=True):
    """Finalized feature levels.

    The first release does not compare them with what it knows, but it reads no record of a version above its own: from
    penstock.version 2 on this one keeps it out.
    """

    VERSION: ClassVar[int] = 2

    levels: dict[str, int]

    @staticmethod
    def of(levels: dict[str, int]) -> FeaturesRecord:
        return FeaturesRecord(levels=levels, version=2 if levels.get("penstock.version", 0) >= 2 else 1)


Record = TypeVar("Record", bound=VersionedRecord)

_encoder = msgspec.json.Encoder(order="deterministic")
_decoders: dict[type[VersionedRecord], msgspec.json.Decoder[VersionedRecord]] = {}


class _VersionOnly(msgspec.Struct):
    version: int


def encode(record: VersionedRecord) -> bytes:
    return _encoder.encode(record)


def decode(record_type: type[Record], key: str, value: bytes) -> Record:
    """The record under a key; InvalidMetadata names the key and what to do about it."""
    decoder = _decoders.get(record_type)
    if decoder is None:
        decoder = _decoders[record_type] = msgspec.json.Decoder(record_type)
    try:
        record = decoder.decode(value)
    except msgspec.DecodeError as error:
        _refuse_newer(record_type, key, _version_of(value))
        raise InvalidMetadata(f"the metadata under {key!r} is damaged: {error}") from error
    _refuse_newer(record_type, key, record.version)
    assert isinstance(record, record_type)
    return record


def _version_of(value: bytes) -> int:
    """The version of a value whose other fields cannot be read; 0 when not even that can."""
    try:
        return msgspec.json.decode(value, type=_VersionOnly).version
    except msgspec.DecodeError:
        return 0


def _refuse_newer(record_type: type[VersionedRecord], key: str, version: int) -> None:
    if version > record_type.VERSION:
        raise InvalidMetadata(
            f"the metadata under {key!r} has version {version}, this release reads up to {record_type.VERSION}: "
            "run the release that wrote it, or a newer one"
        )


CLUSTER_KEY = "cluster"
CLUSTER_KEY_KEY = "cluster-key"
CONTROLLER_KEY = "controller"
FEATURES_KEY = "features"
PRODUCER_IDS_KEY = "producer-ids"
BROKERS_PREFIX = "brokers/"
SESSIONS_PREFIX = "sessions/"
BROKER_CONFIGS_PREFIX = "broker-configs/"
TOPICS_PREFIX = "topics/"
PARTITIONS_PREFIX = "partitions/"

_ALL_BROKERS = "default"


def broker_key(broker_id: BrokerId) -> str:
    return f"{BROKERS_PREFIX}{broker_id}"


def session_key(broker_id: BrokerId) -> str:
    return f"{SESSIONS_PREFIX}{broker_id}"


def broker_configs_key(broker_id: BrokerId | None) -> str:
    """None is the default of all brokers."""
    return BROKER_CONFIGS_PREFIX + (_ALL_BROKERS if broker_id is None else str(broker_id))


def topic_key(name: str) -> str:
    return TOPICS_PREFIX + name


def partition_key(topic_id: TopicId, partition: int) -> str:
    return f"{PARTITIONS_PREFIX}{topic_id_to_text(topic_id)}/{partition}"


def parse_broker_configs_key(key: str) -> BrokerId | None:
    name = key.removeprefix(BROKER_CONFIGS_PREFIX)
    return None if name == _ALL_BROKERS else BrokerId(int(name))


def parse_partition_key(key: str) -> tuple[TopicId, int]:
    text, _, partition = key.removeprefix(PARTITIONS_PREFIX).partition("/")
    return topic_id_from_text(text), int(partition)
