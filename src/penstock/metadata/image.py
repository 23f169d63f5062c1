"""The cluster as of one revision of the metadata store: what every broker believes, in one immutable value.

Who holds an image can read it for as long as it likes and never sees half a change. The next image is made by folding
in the store's changes; it shares everything that did not change, and a dictionary is copied at most once per fold, so a
change in a cluster of 10,000 partitions costs microseconds to a millisecond.

Partitions that no topic claims (of a topic being created, or deleted) are kept aside: the change that makes a topic
visible finds them there, and the controller finds what a crash left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from penstock.core.config import DRAINING_KEY
from penstock.core.ids import BrokerId, TopicId, TopicPartition, topic_id_from_text, topic_id_to_text
from penstock.metadata import records
from penstock.metadata.records import (
    BrokerConfigsRecord,
    BrokerRecord,
    ClusterKeyRecord,
    ClusterRecord,
    ControllerRecord,
    FeaturesRecord,
    InvalidMetadata,
    PartitionRecord,
    ProducerIdsRecord,
    SessionRecord,
    SessionState,
    TopicRecord,
)
from penstock.metadata.store import Change, Changes, Snapshot

K = TypeVar("K")
V = TypeVar("V")

Configs = Mapping[str, str]


def _nothing() -> Mapping[K, V]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """`leader` is None while no replica can lead. `mod_revision` is the revision of the store that last wrote it."""

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId | None
    leader_epoch: int
    partition_epoch: int
    state: str
    mod_revision: int
    leader_broker_epoch: int = 0
    eligible: tuple[BrokerId, ...] = ()
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    spoilt: tuple[BrokerId, ...] = ()

    @property
    def is_reassigned(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def original(self) -> tuple[BrokerId, ...]:
        """The replicas before a reassignment, in the order of now."""
        return tuple([replica for replica in self.replicas if replica not in self.adding])

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas after a reassignment."""
        return tuple([replica for replica in self.replicas if replica not in self.removing])

    @property
    def replication_factor(self) -> int:
        """How many replicas there are at least, now and later: no more of them can be needed to commit."""
        if not self.is_reassigned:
            return len(self.replicas)
        return min(len(self.original), len(self.target))

    def record(self) -> PartitionRecord:
        """What the store has under the partition's key."""
        return PartitionRecord(
            replicas=self.replicas,
            isr=self.isr,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            state=self.state,
            leader_broker_epoch=self.leader_broker_epoch,
            eligible=self.eligible,
            adding=self.adding,
            removing=self.removing,
            spoilt=self.spoilt,
        )


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    configs: Configs
    kind: str
    source: str | None
    mod_revision: int

    def record(self) -> TopicRecord:
        """What the store has under the topic's key."""
        return TopicRecord(
            name=self.name,
            topic_id=topic_id_to_text(self.topic_id),
            partition_count=len(self.partitions),
            configs=dict(self.configs),
            kind=self.kind,
            source=self.source,
        )


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """`before` is None for a partition that is new."""

    topic_partition: TopicPartition
    topic_id: TopicId
    before: PartitionImage | None
    after: PartitionImage


@dataclass(frozen=True, slots=True)
class ImageDelta:
    """What differs between two images. A topic that was deleted and created anew is in both lists."""

    topics_created: tuple[TopicImage, ...] = ()
    topics_deleted: tuple[TopicImage, ...] = ()
    topic_configs_changed: tuple[TopicImage, ...] = ()
    partitions_changed: tuple[PartitionChange, ...] = ()
    brokers_changed: bool = False
    sessions_changed: bool = False
    broker_configs_changed: bool = False
    others_changed: bool = False

    def __bool__(self) -> bool:
        return self != NO_CHANGE


NO_CHANGE = ImageDelta()


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """`brokers` are all that ever registered, `sessions` those that are alive.

    `mod_revisions` has every stored key apart from those of topics and partitions, which carry their own.
    """

    revision: int = 0
    cluster_id: str | None = None
    cluster_key: str | None = field(default=None, repr=False)  # a secret, never to be printed
    controller: ControllerRecord | None = None
    features: Mapping[str, int] = field(default_factory=_nothing)
    topics: Mapping[str, TopicImage] = field(default_factory=_nothing)
    topics_by_id: Mapping[TopicId, TopicImage] = field(default_factory=_nothing)
    unclaimed_partitions: Mapping[TopicId, Mapping[int, PartitionImage]] = field(default_factory=_nothing)
    brokers: Mapping[BrokerId, BrokerRecord] = field(default_factory=_nothing)
    sessions: Mapping[BrokerId, SessionRecord] = field(default_factory=_nothing)
    broker_configs: Mapping[BrokerId | None, Configs] = field(default_factory=_nothing)
    next_producer_id: int = 0
    mod_revisions: Mapping[str, int] = field(default_factory=_nothing)

    @property
    def controller_id(self) -> BrokerId | None:
        """Who decides at present; nobody, once the controller's session is over."""
        controller = self.controller
        if controller is None or self.session_epoch(controller.broker_id) != controller.broker_epoch:
            return None
        return controller.broker_id

    def session_epoch(self, broker_id: BrokerId) -> int | None:
        """The broker epoch of a broker that is alive."""
        session = self.sessions.get(broker_id)
        return None if session is None else session.epoch

    def serving(self) -> dict[BrokerId, int]:
        """The broker epochs of all that may hold and lead partitions."""
        return {
            session.broker_id: session.epoch
            for session in self.sessions.values()
            if session.state is SessionState.SERVING
        }

    def draining(self) -> frozenset[BrokerId]:
        """Brokers that are to be empty, and get no replicas any more."""
        return frozenset(
            broker_id
            for broker_id, configs in self.broker_configs.items()
            if broker_id is not None and configs.get(DRAINING_KEY, "").lower() == "true"
        )

    def available(self) -> dict[BrokerId, int]:
        """The broker epochs of all that may be given replicas."""
        draining = self.draining()
        return {broker_id: epoch for broker_id, epoch in self.serving().items() if broker_id not in draining}

    def leader_of(self, partition: PartitionImage) -> BrokerId | None:
        """Who leads it, under the session that it was elected in; nobody, once that is over."""
        leader = partition.leader
        if leader is None or self.session_epoch(leader) != partition.leader_broker_epoch:
            return None
        return leader

    def internal_address(self, broker_id: BrokerId) -> tuple[str, int] | None:
        """Where other brokers reach it; None for one that is not alive."""
        broker = self.brokers.get(broker_id)
        if broker is None or broker.internal is None or broker_id not in self.sessions:
            return None
        return (broker.internal.host, broker.internal.port)

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        return self.topics_by_id.get(topic_id)

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        topic = self.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def apply(self, changes: Changes) -> tuple[ClusterImage, ImageDelta]:
        """The image after these changes, and what they changed."""
        fold = _Fold(self)
        for change in changes.changes:
            fold.add(change)
        image = fold.finish(changes.revision)
        return image, _delta(self, image, fold.touched_names)

    @staticmethod
    def of(snapshot: Snapshot) -> ClusterImage:
        changes = tuple(Change(entry.key, entry.value, entry.mod_revision) for entry in snapshot.entries)
        image, _ = EMPTY_IMAGE.apply(Changes(snapshot.revision, changes))
        return image


EMPTY_IMAGE = ClusterImage()


def difference(old: ClusterImage, new: ClusterImage) -> ImageDelta:
    """What differs between any two images, found by comparing all of both."""
    return _delta(old, new, {**old.topics, **new.topics})


class _Fold:
    """One pass over some changes. Topics are put together at the end, when all their partitions have been seen."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._topics: dict[str, tuple[TopicRecord, int] | None] = {}
        self._partitions: dict[TopicId, dict[int, PartitionImage | None]] = {}
        self._brokers = dict(image.brokers)
        self._sessions = dict(image.sessions)
        self._broker_configs = dict(image.broker_configs)
        self._mod_revisions = dict(image.mod_revisions)
        self._cluster_id = image.cluster_id
        self._cluster_key = image.cluster_key
        self._controller = image.controller
        self._features = image.features
        self._next_producer_id = image.next_producer_id
        self.touched_names: dict[str, None] = {}

    def add(self, change: Change) -> None:
        key = change.key
        if key.startswith(records.PARTITIONS_PREFIX):
            topic_id, partition = records.parse_partition_key(key)
            self._partitions.setdefault(topic_id, {})[partition] = _partition_image(change)
        elif key.startswith(records.TOPICS_PREFIX):
            record = _decoded(TopicRecord, change)
            name = key.removeprefix(records.TOPICS_PREFIX)
            self._topics[name] = None if record is None else (record, change.mod_revision)
        else:
            self._add_other(change)
            if change.value is None:
                self._mod_revisions.pop(key, None)
            else:
                self._mod_revisions[key] = change.mod_revision

    def _add_other(self, change: Change) -> None:
        """Keys of a newer release's making are left alone: finalized features gate what matters."""
        key = change.key
        if key.startswith(records.BROKERS_PREFIX):
            broker_id = BrokerId(int(key.removeprefix(records.BROKERS_PREFIX)))
            _set(self._brokers, broker_id, _decoded(BrokerRecord, change))
        elif key.startswith(records.SESSIONS_PREFIX):
            broker_id = BrokerId(int(key.removeprefix(records.SESSIONS_PREFIX)))
            _set(self._sessions, broker_id, _decoded(SessionRecord, change))
        elif key.startswith(records.BROKER_CONFIGS_PREFIX):
            broker_configs = _decoded(BrokerConfigsRecord, change)
            configs = None if broker_configs is None else broker_configs.configs
            _set(self._broker_configs, records.parse_broker_configs_key(key), configs)
        elif key == records.CLUSTER_KEY:
            cluster = _decoded(ClusterRecord, change)
            self._cluster_id = None if cluster is None else cluster.cluster_id
        elif key == records.CLUSTER_KEY_KEY:
            cluster_key = _decoded(ClusterKeyRecord, change)
            self._cluster_key = None if cluster_key is None else cluster_key.key
        elif key == records.CONTROLLER_KEY:
            self._controller = _decoded(ControllerRecord, change)
        elif key == records.FEATURES_KEY:
            features = _decoded(FeaturesRecord, change)
            self._features = {} if features is None else features.levels
        elif key == records.PRODUCER_IDS_KEY:
            producer_ids = _decoded(ProducerIdsRecord, change)
            self._next_producer_id = 0 if producer_ids is None else producer_ids.next_producer_id

    def finish(self, revision: int) -> ClusterImage:
        image = replace(
            self._image,
            revision=revision,
            cluster_id=self._cluster_id,
            cluster_key=self._cluster_key,
            controller=self._controller,
            features=self._features,
            brokers=self._brokers,
            sessions=self._sessions,
            broker_configs=self._broker_configs,
            next_producer_id=self._next_producer_id,
            mod_revisions=self._mod_revisions,
        )
        return self._with_topics(image) if self._topics or self._partitions else image

    def _with_topics(self, image: ClusterImage) -> ClusterImage:
        topics, by_id = dict(image.topics), dict(image.topics_by_id)
        unclaimed = dict(image.unclaimed_partitions)
        touched_ids = dict.fromkeys(self._partitions)
        claims = self._claims()
        for name in {**self._topics, **claims}:
            replaced = topics.pop(name, None)
            if replaced is not None:
                del by_id[replaced.topic_id]
                touched_ids[replaced.topic_id] = None
            self.touched_names[name] = None
        touched_ids |= dict.fromkeys(topic_id_from_text(record.topic_id) for record, _ in claims.values())
        pools = {topic_id: self._pool(topic_id) for topic_id in touched_ids}
        for name, (record, mod_revision) in claims.items():
            topic_id = topic_id_from_text(record.topic_id)
            topics[name] = by_id[topic_id] = _topic_image(record, topic_id, mod_revision, pools[topic_id])
        for topic_id, pool in pools.items():
            _set(unclaimed, topic_id, pool or None)
        return replace(image, topics=topics, topics_by_id=by_id, unclaimed_partitions=unclaimed)

    def _claims(self) -> dict[str, tuple[TopicRecord, int]]:
        """Every topic that has to be put together anew: it was written itself, or a partition of it was."""
        claims = {name: claim for name, claim in self._topics.items() if claim is not None}
        for topic_id in self._partitions:
            topic = self._image.topics_by_id.get(topic_id)
            if topic is not None and topic.name not in self._topics:
                claims[topic.name] = (topic.record(), topic.mod_revision)
        return claims

    def _pool(self, topic_id: TopicId) -> dict[int, PartitionImage]:
        """All partitions stored for a topic id, those being changed included."""
        topic = self._image.topics_by_id.get(topic_id)
        pool = {} if topic is None else dict(enumerate(topic.partitions))
        pool.update(self._image.unclaimed_partitions.get(topic_id, {}))
        for partition, image in self._partitions.get(topic_id, {}).items():
            _set(pool, partition, image)
        return pool


def _set(mapping: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        mapping.pop(key, None)
    else:
        mapping[key] = value


def _decoded(record_type: type[records.Record], change: Change) -> records.Record | None:
    return None if change.value is None else records.decode(record_type, change.key, change.value)


def _partition_image(change: Change) -> PartitionImage | None:
    record = _decoded(PartitionRecord, change)
    if record is None:
        return None
    return PartitionImage(
        replicas=record.replicas,
        isr=record.isr,
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        state=record.state,
        mod_revision=change.mod_revision,
        leader_broker_epoch=record.leader_broker_epoch,
        eligible=record.eligible,
        adding=record.adding,
        removing=record.removing,
        spoilt=record.spoilt,
    )


def _topic_image(
    record: TopicRecord, topic_id: TopicId, mod_revision: int, pool: dict[int, PartitionImage]
) -> TopicImage:
    """The topic with the partitions it claims, which leave the pool."""
    try:
        partitions = tuple([pool.pop(partition) for partition in range(record.partition_count)])
    except KeyError as missing:
        raise InvalidMetadata(f"topic {record.name!r} lacks its partition {missing}") from None
    return TopicImage(record.name, topic_id, partitions, record.configs, record.kind, record.source, mod_revision)


def _delta(old: ClusterImage, new: ClusterImage, names: Iterable[str]) -> ImageDelta:
    created, deleted, reconfigured = [], [], []
    partitions: list[PartitionChange] = []
    for name in names:
        before, after = old.topics.get(name), new.topics.get(name)
        same_topic = before is not None and after is not None and before.topic_id == after.topic_id
        if before is not None and not same_topic:
            deleted.append(before)
        if after is None:
            continue
        if not same_topic:
            created.append(after)
        elif before is not None and before.configs != after.configs:
            reconfigured.append(after)
        partitions += _changed_partitions(before if same_topic else None, after)
    return ImageDelta(
        topics_created=tuple(created),
        topics_deleted=tuple(deleted),
        topic_configs_changed=tuple(reconfigured),
        partitions_changed=tuple(partitions),
        brokers_changed=old.brokers != new.brokers,
        sessions_changed=old.sessions != new.sessions,
        broker_configs_changed=old.broker_configs != new.broker_configs,
        others_changed=_others(old) != _others(new),
    )


def _changed_partitions(before: TopicImage | None, after: TopicImage) -> Iterable[PartitionChange]:
    known = () if before is None else before.partitions
    for partition, image in enumerate(after.partitions):
        previous = known[partition] if partition < len(known) else None
        # Untouched partitions are the same object, which makes this a comparison of addresses.
        if previous is not image and previous != image:
            yield PartitionChange(TopicPartition(after.name, partition), after.topic_id, previous, image)


def _others(image: ClusterImage) -> tuple[object, ...]:
    return (image.cluster_id, image.cluster_key, image.controller, image.features, image.next_producer_id)
