"""What the controller can be asked, and what it answers.

A command is a fact about a request; the controller's machine decides on it, its service makes it so. Where a request is
about several things, each gets its own result: one bad topic does not spoil the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

from penstock.core.errors import BrokerError
from penstock.core.ids import BrokerId, LeaderEpoch, ProducerId, TopicId, TopicPartition

Reply_co = TypeVar("Reply_co", covariant=True)

# Asks for the broker's default where a number of partitions or replicas is expected (KIP-464).
USE_DEFAULT = -1


class Command(Generic[Reply_co]):
    """The type parameter is what `ControllerService.ask` returns for it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class NewTopic:
    """`assignments` are the replicas of each partition by number; when given, the two counts stay at the default."""

    name: str
    partition_count: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: tuple[tuple[int, tuple[BrokerId, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic as it was created, or would be."""

    topic_id: TopicId
    partition_count: int
    replication_factor: int
    configs: dict[str, str]


@dataclass(frozen=True, slots=True)
class CreateTopicResult:
    name: str
    outcome: CreatedTopic | BrokerError


@dataclass(frozen=True, slots=True)
class CreateTopics(Command[tuple[CreateTopicResult, ...]]):
    topics: tuple[NewTopic, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class TopicReference:
    """A topic by its name or by its id, whichever is not None."""

    name: str | None = None
    topic_id: TopicId | None = None


@dataclass(frozen=True, slots=True)
class DeleteTopicResult:
    """Name and id of the topic as far as they are known; `error` is None when it was deleted."""

    reference: TopicReference
    error: BrokerError | None


@dataclass(frozen=True, slots=True)
class DeleteTopics(Command[tuple[DeleteTopicResult, ...]]):
    topics: tuple[TopicReference, ...]


@dataclass(frozen=True, slots=True)
class MorePartitions:
    """`assignments` are the replicas of each added partition, in order; None leaves them to the controller."""

    name: str
    partition_count: int
    assignments: tuple[tuple[BrokerId, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class CreatePartitionsResult:
    name: str
    error: BrokerError | None


@dataclass(frozen=True, slots=True)
class CreatePartitions(Command[tuple[CreatePartitionsResult, ...]]):
    topics: tuple[MorePartitions, ...]
    validate_only: bool = False


class ResourceType(IntEnum):
    """What a configuration belongs to; the numbers are the protocol's."""

    TOPIC = 2
    BROKER = 4


class AlterOperation(IntEnum):
    """What to do with a key; the numbers are the protocol's (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """The type is a plain number: requests name types that we do not have. A broker's name "" means all brokers."""

    resource_type: int
    name: str


@dataclass(frozen=True, slots=True)
class ReplaceConfigs:
    """These and no other overrides."""

    resource: ConfigResource
    configs: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class ConfigChange:
    name: str
    operation: int
    value: str | None


@dataclass(frozen=True, slots=True)
class ChangeConfigs:
    """Changes to the overrides that are there."""

    resource: ConfigResource
    changes: tuple[ConfigChange, ...]


@dataclass(frozen=True, slots=True)
class AlterConfigsResult:
    resource: ConfigResource
    error: BrokerError | None


@dataclass(frozen=True, slots=True)
class AlterConfigs(Command[tuple[AlterConfigsResult, ...]]):
    resources: tuple[ReplaceConfigs | ChangeConfigs, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class Reconcile(Command[tuple[TopicPartition, ...]]):
    """Make partitions fit the brokers that are alive; the reply names those that changed leaders."""


class ElectionType(IntEnum):
    """The numbers are the protocol's (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeaderResult:
    topic_partition: TopicPartition
    error: BrokerError | None


@dataclass(frozen=True, slots=True)
class ElectLeaders(Command[tuple[ElectLeaderResult, ...]]):
    """Let the first replica lead, or any where nobody can otherwise. Without partitions: wherever that is of use."""

    election_type: int
    partitions: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True)
class Reassignment:
    """The replicas that a partition is to have; None: those that it had before what is under way."""

    topic_partition: TopicPartition
    replicas: tuple[BrokerId, ...] | None


@dataclass(frozen=True, slots=True)
class ReassignmentResult:
    topic_partition: TopicPartition
    error: BrokerError | None


@dataclass(frozen=True, slots=True)
class AlterReassignments(Command[tuple[ReassignmentResult, ...]]):
    """Begin to move partitions, change where to, or give it up (KIP-455)."""

    reassignments: tuple[Reassignment, ...]
    allow_replication_factor_change: bool = True


@dataclass(frozen=True, slots=True)
class ProposedIsr:
    """The leader of a partition asks for another in-sync set, as of the epochs that it knows (KIP-497).

    `broker_epochs` are those that the members fetch with, in their order; -1 stands for one that the leader has not
    heard of since it leads (KIP-903).
    """

    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: int
    isr: tuple[BrokerId, ...]
    broker_epochs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AcceptedIsr:
    """The partition's epoch after the change, or why there was none."""

    topic_id: TopicId
    partition: int
    outcome: int | BrokerError


@dataclass(frozen=True, slots=True)
class AlterPartition(Command[tuple[AcceptedIsr, ...]]):
    broker_id: BrokerId
    broker_epoch: int
    partitions: tuple[ProposedIsr, ...]


class FeatureUpdate(NamedTuple):
    feature: str
    level: int


@dataclass(frozen=True, slots=True)
class FeatureResult:
    feature: str
    error: BrokerError | None


@dataclass(frozen=True, slots=True)
class UpdateFeatures(Command[tuple[FeatureResult, ...]]):
    """Finalize these versions, all of them or none."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class ResignedReplica:
    """A replica that may lack what is committed. `is_spoilt`: nothing of its log is of use, and it begins anew."""

    topic_id: TopicId
    partition: int
    replica: BrokerId
    is_spoilt: bool


@dataclass(frozen=True, slots=True)
class ResignResult:
    topic_id: TopicId
    partition: int
    error: BrokerError | None


@dataclass(frozen=True, slots=True)
class ResignReplicas(Command[tuple[ResignResult, ...]]):
    """Let these not be elected, unless nobody else holds what is committed. A broker speaks for its own replicas, a
    leader for all of the partition.
    """

    broker_id: BrokerId
    broker_epoch: int
    replicas: tuple[ResignedReplica, ...]


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    first: ProducerId
    count: int


@dataclass(frozen=True, slots=True)
class AllocateProducerIds(Command[ProducerIdBlock]):
    """A block of producer ids that nobody had before and nobody will get again."""


@dataclass(frozen=True, slots=True)
class InitializeCluster(Command[str]):
    """Give a new store this cluster id; the reply is the id in force."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class ClaimController(Command[int]):
    """Become the controller, where there is none; the reply is the controller epoch."""

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class Heal(Command[tuple[TopicPartition, ...]]):
    """Make anew elsewhere what these brokers held, those of them that are not there; the reply names what moves."""

    broker_ids: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class GrownTopic:
    name: str
    replication_factor: int


@dataclass(frozen=True, slots=True)
class GrowInternalTopics(Command[tuple[GrownTopic, ...]]):
    """Give the coordinators' topics as many replicas as they should have; the reply names those that get more."""


@dataclass(frozen=True, slots=True)
class UnregisterBroker(Command[BrokerId]):
    """Forget a broker that has been taken out of the cluster; the reply is its id, which is free now."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class RemoveUnclaimedPartitions(Command[int]):
    """Delete what an interrupted creation or deletion of a topic left behind; the reply counts partitions."""
