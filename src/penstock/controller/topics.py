"""Decisions about topics: creating and deleting them, adding partitions.

Only the topic's own key makes partitions visible. So it is written after its partitions and deleted before them: a
crash in between leaves partitions that belong to nobody, never a topic that lacks some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from msgspec.structs import replace

from penstock.controller.commands import (
    USE_DEFAULT,
    CreatedTopic,
    CreatePartitions,
    CreatePartitionsResult,
    CreateTopicResult,
    CreateTopics,
    DeleteTopicResult,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicReference,
)
from penstock.controller.decision import Decision, Writes
from penstock.controller.placement import Candidate, place
from penstock.controller.topic_names import NamesInUse, check_topic_name
from penstock.core.config import BrokerConfig, ConfigSource
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicId, topic_id_to_text
from penstock.core.topic_config import validate_topic_overrides
from penstock.metadata.image import ClusterImage, TopicImage
from penstock.metadata.records import PartitionRecord, TopicRecord, partition_key, topic_key

Replicas = tuple[BrokerId, ...]
Overrides = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A topic that passed every check."""

    name: str
    topic_id: TopicId
    partitions: Sequence[Replicas]
    configs: dict[str, str]


def create_topics(
    command: CreateTopics, image: ClusterImage, config: BrokerConfig, seed: bytes
) -> Decision[tuple[CreateTopicResult, ...]]:
    """Topic ids and placement follow from the seed, which must be unpredictable and used for one command only."""
    planning = _Planning(command, image, config, seed)
    results = []
    plans = []
    for index, topic in enumerate(command.topics):
        try:
            plan = planning.plan(index, topic)
            plans.append(plan)
            results.append(CreateTopicResult(topic.name, _created(plan)))
        except BrokerError as error:
            results.append(CreateTopicResult(topic.name, error))
    writes = Writes()
    if not command.validate_only:
        _write_topics(writes, [plan for plan in plans if plan.topic_id not in image.topics_by_id], image)
    return Decision(writes.transactions(), tuple(results))


def _created(plan: _Plan) -> CreatedTopic:
    return CreatedTopic(plan.topic_id, len(plan.partitions), len(plan.partitions[0]), plan.configs)


def _write_topics(writes: Writes, plans: Sequence[_Plan], image: ClusterImage) -> None:
    for plan in plans:
        _write_partitions(writes, plan.topic_id, 0, plan.partitions, image)
    for plan in plans:
        record = TopicRecord(
            name=plan.name,
            topic_id=topic_id_to_text(plan.topic_id),
            partition_count=len(plan.partitions),
            configs=plan.configs,
        )
        writes.put(topic_key(plan.name), record, mod_revision=0)


def _write_partitions(
    writes: Writes, topic_id: TopicId, first: int, partitions: Iterable[Replicas], image: ClusterImage
) -> None:
    """New and empty, so every replica whose broker serves is in sync.

    Where an earlier attempt has left partitions that nobody claims they are replaced. All are compared, so that a write
    whose answer was lost can be asked for again (metadata/etcd_store.py).
    """
    serving = image.serving()
    left_behind = image.unclaimed_partitions.get(topic_id, {})
    for partition, replicas in enumerate(partitions, first):
        isr = tuple(replica for replica in replicas if replica in serving)
        record = PartitionRecord(replicas=replicas, isr=isr, leader=isr[0], leader_broker_epoch=serving[isr[0]])
        before = left_behind.get(partition)
        writes.put(partition_key(topic_id, partition), record, mod_revision=before.mod_revision if before else 0)


class _Planning:
    """Checks the topics of one request, each against the cluster and against those before it."""

    def __init__(self, command: CreateTopics, image: ClusterImage, config: BrokerConfig, seed: bytes) -> None:
        self._image = image
        self._config = config
        self._seed = seed
        self._asked = Counter(topic.name for topic in command.topics)
        self._budget = _PartitionBudget(config)
        self._names_in_use = NamesInUse(image.topics)
        # Topics of one request mostly ask for the same: checked once.
        self._known_configs: dict[Overrides, dict[str, str]] = {}

    def plan(self, index: int, topic: NewTopic) -> _Plan:
        if self._asked[topic.name] > 1:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f'the request names the topic "{topic.name}" more than once')
        topic_id = _topic_id(self._seed, index)
        check_topic_name(topic.name)
        existing = self._image.topics.get(topic.name)
        # With our own id the topic is there because an earlier attempt at this very command got that far.
        if existing is not None and existing.topic_id != topic_id:
            raise BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, f'the topic "{topic.name}" already exists')
        partitions = self._partitions(topic, _number(self._seed, index, "placement"))
        configs = self._known_configs.get(topic.configs)
        if configs is None:
            configs = self._known_configs[topic.configs] = _checked_configs(topic.configs, self._config)
        self._names_in_use.take(topic.name)
        configs = _with_min_isr(configs, len(partitions[0]), self._config)
        return _Plan(topic.name, topic_id, partitions, configs)

    def _partitions(self, topic: NewTopic, placement_seed: int) -> Sequence[Replicas]:
        if topic.assignments:
            return self._assigned(topic)
        count, factor = topic.partition_count, topic.replication_factor
        if count == USE_DEFAULT:
            count = self._config.int("num.partitions")
        if factor == USE_DEFAULT:
            factor = self._config.int("default.replication.factor")
        if count <= 0:
            raise BrokerError(ErrorCode.INVALID_PARTITIONS, f"a topic has at least one partition, not {count}")
        _check_replication_factor(factor, self._image)
        self._budget.take(count)
        return place(_candidates(self._image), count, factor, placement_seed)

    def _assigned(self, topic: NewTopic) -> Sequence[Replicas]:
        if (topic.partition_count, topic.replication_factor) != (USE_DEFAULT, USE_DEFAULT):
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                "with replica assignments the number of partitions and the replication factor must be -1",
            )
        by_partition = dict(topic.assignments)
        if len(by_partition) != len(topic.assignments) or set(by_partition) != set(range(len(by_partition))):
            raise BrokerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "assignments must name the partitions 0, 1, 2, ... once each"
            )
        partitions = [by_partition[partition] for partition in range(len(by_partition))]
        _check_assignments(partitions, len(partitions[0]), self._image)
        self._budget.take(len(partitions))
        return partitions


class _PartitionBudget:
    """How many partitions one request may still make: a request must be answered soon, whatever it asks for."""

    def __init__(self, config: BrokerConfig) -> None:
        self._limit = config.int("penstock.max.topic.partitions")
        self._left = self._limit

    def take(self, count: int, existing: int = 0) -> None:
        if count + existing > self._limit or count > self._left:
            raise BrokerError(
                ErrorCode.INVALID_PARTITIONS,
                f"{count + existing} partitions are too many: a topic, and all topics of a request together, have "
                f"at most {self._limit} (penstock.max.topic.partitions)",
            )
        self._left -= count


def _number(seed: bytes, index: int, purpose: str) -> int:
    return int.from_bytes(blake2b(b"%s %d %s" % (seed, index, purpose.encode()), digest_size=16).digest(), "big")


def _topic_id(seed: bytes, index: int) -> TopicId:
    """An id whose text does not begin with a dash: command-line tools would take it for an option."""
    for attempt in range(256):
        topic_id = TopicId(_number(seed, index, f"id {attempt}").to_bytes(16, "big"))
        if not topic_id_to_text(topic_id).startswith("-"):
            return topic_id
    raise AssertionError("256 digests in a row began with the same six bits")


def _candidates(image: ClusterImage) -> list[Candidate]:
    available = image.available()
    return [
        Candidate(broker.broker_id, broker.host, broker.rack)
        for broker in image.brokers.values()
        if broker.broker_id in available
    ]


def _check_replication_factor(factor: int, image: ClusterImage) -> None:
    if factor <= 0:
        raise BrokerError(ErrorCode.INVALID_REPLICATION_FACTOR, f"a partition has at least one replica, not {factor}")
    available, serving = len(image.available()), len(image.serving())
    if factor > available:
        drained = f", {serving - available} of them being drained" if serving > available else ""
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"a replication factor of {factor} needs as many brokers, and {serving} are serving{drained}",
        )


def _check_assignments(partitions: Iterable[Replicas], factor: int, image: ClusterImage) -> None:
    serving, draining = image.serving().keys(), image.draining()
    for replicas in partitions:
        if not replicas or len(replicas) != factor:
            raise BrokerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "all partitions must have the same number of replicas, 1 or more"
            )
        if len(set(replicas)) != len(replicas):
            raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"two replicas on one broker in {list(replicas)}")
        for broker_id in replicas:
            if broker_id not in image.brokers:
                raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"there is no broker {broker_id}")
            if broker_id in draining:
                raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"broker {broker_id} is being drained")
        if serving.isdisjoint(replicas):
            raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"no broker of {list(replicas)} is serving")


def _with_min_isr(configs: dict[str, str], replication_factor: int, config: BrokerConfig) -> dict[str, str]:
    """A replicated topic has its own min.insync.replicas from the start, the same on every broker (elections.py).

    Two of three replicas is what keeps acknowledged records when a broker is lost, and goes on without it.
    """
    if replication_factor == 1 or "min.insync.replicas" in configs:
        return configs
    default = config.entry("min.insync.replicas")
    is_chosen = default.source is not ConfigSource.DEFAULT_CONFIG or replication_factor < 3
    return {**configs, "min.insync.replicas": str(default.value) if is_chosen else "2"}


def _checked_configs(configs: Overrides, config: BrokerConfig) -> dict[str, str]:
    overrides = dict(configs)
    if len(overrides) != len(configs):
        raise BrokerError(ErrorCode.INVALID_CONFIG, "a configuration key is given twice")
    validate_topic_overrides(overrides, config)
    return {name: value for name, value in overrides.items() if value is not None}


def delete_topics(command: DeleteTopics, image: ClusterImage) -> Decision[tuple[DeleteTopicResult, ...]]:
    asked = Counter(command.topics)
    results = []
    doomed: dict[TopicId, TopicImage] = {}
    for reference in command.topics:
        try:
            topic = _find(reference, image)
            if asked[reference] > 1 or topic.topic_id in doomed:
                raise BrokerError(ErrorCode.INVALID_REQUEST, f'the request names "{topic.name}" more than once')
            doomed[topic.topic_id] = topic
            results.append(DeleteTopicResult(TopicReference(topic.name, topic.topic_id), None))
        except BrokerError as error:
            results.append(DeleteTopicResult(reference, error))
    writes = Writes()
    for topic in doomed.values():
        writes.delete(topic_key(topic.name), mod_revision=topic.mod_revision)
    for topic in doomed.values():
        for partition in range(len(topic.partitions)):
            writes.delete(partition_key(topic.topic_id, partition))
    return Decision(writes.transactions(), tuple(results))


def _find(reference: TopicReference, image: ClusterImage) -> TopicImage:
    if (reference.name is None) == (reference.topic_id is None):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a topic is named either by its name or by its id")
    if reference.topic_id is not None:
        by_id = image.topic_by_id(reference.topic_id)
        if by_id is None:
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id_to_text(reference.topic_id)}"
            )
        return by_id
    assert reference.name is not None
    return _find_by_name(reference.name, image)


def _find_by_name(name: str, image: ClusterImage) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    return topic


def create_partitions(
    command: CreatePartitions, image: ClusterImage, config: BrokerConfig, seed: bytes
) -> Decision[tuple[CreatePartitionsResult, ...]]:
    asked = Counter(topic.name for topic in command.topics)
    budget = _PartitionBudget(config)
    results = []
    additions: list[tuple[TopicImage, Sequence[Replicas]]] = []
    for index, wanted in enumerate(command.topics):
        try:
            if asked[wanted.name] > 1:
                raise BrokerError(ErrorCode.INVALID_REQUEST, f'the request names "{wanted.name}" more than once')
            topic = _find_by_name(wanted.name, image)
            added = _added_partitions(topic, wanted, image, budget, _number(seed, index, "placement"))
            additions.append((topic, added))
            results.append(CreatePartitionsResult(wanted.name, None))
        except BrokerError as error:
            results.append(CreatePartitionsResult(wanted.name, error))
    writes = Writes()
    if not command.validate_only:
        _write_additions(writes, additions, image)
    return Decision(writes.transactions(), tuple(results))


def _added_partitions(
    topic: TopicImage, wanted: MorePartitions, image: ClusterImage, budget: _PartitionBudget, placement_seed: int
) -> Sequence[Replicas]:
    present = len(topic.partitions)
    added = wanted.partition_count - present
    if added <= 0:
        raise BrokerError(
            ErrorCode.INVALID_PARTITIONS,
            f'"{topic.name}" has {present} partitions already, {wanted.partition_count} would not be more',
        )
    budget.take(added, existing=present)
    factor = len(topic.partitions[0].target)
    if wanted.assignments is None:
        _check_replication_factor(factor, image)
        return place(_candidates(image), added, factor, placement_seed)
    if len(wanted.assignments) != added:
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{added} partitions are added, but {len(wanted.assignments)} have replicas assigned",
        )
    _check_assignments(wanted.assignments, factor, image)
    return wanted.assignments


def _write_additions(
    writes: Writes, additions: Sequence[tuple[TopicImage, Sequence[Replicas]]], image: ClusterImage
) -> None:
    for topic, added in additions:
        _write_partitions(writes, topic.topic_id, len(topic.partitions), added, image)
    for topic, added in additions:
        record = replace(topic.record(), partition_count=len(topic.partitions) + len(added))
        writes.put(topic_key(topic.name), record, mod_revision=topic.mod_revision)
