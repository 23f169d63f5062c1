"""The controller's decisions: a command and the cluster as it is, to what is to be written and answered.

`handle` changes nothing. What is decided comes back as changes of the metadata store and is folded into the image by
`ClusterImage.apply`, on every broker alike; so the controller's state is the image, and a new controller starts where
the old one stopped by reading the store.
"""

from __future__ import annotations

from typing import TypeVar, cast

from penstock.controller import (
    brokers,
    configs,
    elections,
    features,
    reassignments,
    resignations,
    topics,
    upkeep,
)
from penstock.controller.commands import (
    AllocateProducerIds,
    AlterConfigs,
    AlterPartition,
    AlterReassignments,
    ClaimController,
    Command,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    GrowInternalTopics,
    Heal,
    InitializeCluster,
    Reconcile,
    RemoveUnclaimedPartitions,
    ResignReplicas,
    UnregisterBroker,
    UpdateFeatures,
)
from penstock.controller.decision import Decision
from penstock.core.config import BrokerConfig
from penstock.metadata.image import ClusterImage

Reply = TypeVar("Reply")


def handle(command: Command[Reply], image: ClusterImage, config: BrokerConfig, seed: bytes) -> Decision[Reply]:
    """`seed` is 32 secret random bytes, new for each command: ids, placement and the cluster's key come from it.

    Raises BrokerError when the command as a whole is refused.
    """
    # Each command names its own reply type, which the type checker cannot follow through the cases.
    return cast(Decision[Reply], _decide(command, image, config, seed))


def _decide(command: object, image: ClusterImage, config: BrokerConfig, seed: bytes) -> Decision[object]:
    match command:
        case CreateTopics():
            return topics.create_topics(command, image, config, seed)
        case DeleteTopics():
            return topics.delete_topics(command, image)
        case CreatePartitions():
            return topics.create_partitions(command, image, config, seed)
        case AlterConfigs():
            return configs.alter_configs(command, image, config)
        case AlterPartition():
            return brokers.alter_partition(command, image, config)
        case ResignReplicas():
            return resignations.resign_replicas(command, image, config)
        case AlterReassignments():
            return reassignments.alter_reassignments(command, image, config)
        case AllocateProducerIds():
            return brokers.allocate_producer_ids(image)
        case ElectLeaders():
            return elections.elect_leaders(command, image, config)
        case UpdateFeatures():
            return features.update_features(command, image)
        case Reconcile():
            return elections.reconcile(image, config)
        case GrowInternalTopics():
            return upkeep.grow_internal_topics(image, config)
        case Heal():
            return upkeep.heal(command, image, config)
        case UnregisterBroker():
            return upkeep.unregister_broker(command, image)
        case ClaimController():
            return brokers.claim_controller(command, image)
        case InitializeCluster():
            return brokers.initialize_cluster(command, image, seed)
        case RemoveUnclaimedPartitions():
            return brokers.remove_unclaimed_partitions(image)
    raise AssertionError(f"no decision for {type(command).__name__}")
