"""Decisions about what brokers lead and share: in-sync sets, producer ids, the controller itself.

The leader epoch rises whenever a partition gets a leader, also the same one after a restart; the partition epoch rises
with every change. Who proposes a change names both, and loses against anything newer.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import blake2b

from msgspec.structs import replace

from penstock.controller.commands import (
    AcceptedIsr,
    AlterPartition,
    ClaimController,
    InitializeCluster,
    ProducerIdBlock,
    ProposedIsr,
)
from penstock.controller.decision import Decision, Writes
from penstock.controller.elections import still_eligible, topic_rules
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, ProducerId, topic_id_to_text
from penstock.metadata.image import ClusterImage, PartitionImage, TopicImage
from penstock.metadata.records import (
    CLUSTER_KEY,
    CLUSTER_KEY_KEY,
    CONTROLLER_KEY,
    FEATURES_KEY,
    PRODUCER_IDS_KEY,
    SUPPORTED_FEATURES,
    ClusterKeyRecord,
    ClusterRecord,
    ControllerRecord,
    FeaturesRecord,
    ProducerIdsRecord,
    partition_key,
    session_key,
)

PRODUCER_ID_BLOCK_SIZE = 1_000
CLUSTER_KEY_BYTES = 32
UNKNOWN_BROKER_EPOCH = -1


def initialize_cluster(command: InitializeCluster, image: ClusterImage, seed: bytes) -> Decision[str]:
    """The cluster's key follows from the seed. A cluster of a release that had none gets it by its next broker."""
    writes = Writes()
    if image.cluster_id is None:
        newest = {name: highest for name, (_, highest) in SUPPORTED_FEATURES.items()}
        writes.put(CLUSTER_KEY, ClusterRecord(cluster_id=command.cluster_id), mod_revision=0)
        writes.put(FEATURES_KEY, FeaturesRecord.of(newest), mod_revision=0)
    if image.cluster_key is None:
        key = blake2b(b"cluster key " + seed, digest_size=CLUSTER_KEY_BYTES).digest()
        writes.put(CLUSTER_KEY_KEY, ClusterKeyRecord(key=b64encode(key).decode()), mod_revision=0)
    return Decision(writes.transactions(), image.cluster_id or command.cluster_id)


def claim_controller(command: ClaimController, image: ClusterImage) -> Decision[int]:
    """Refused while the controller's session lasts, and to who has no session of its own any more."""
    if image.controller_id is not None:
        raise BrokerError(ErrorCode.NOT_CONTROLLER, f"broker {image.controller_id} is the controller")
    if image.session_epoch(command.broker_id) != command.broker_epoch:
        raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, f"the session of broker {command.broker_id} is over")
    epoch = 1 if image.controller is None else image.controller.epoch + 1
    record = ControllerRecord(broker_id=command.broker_id, epoch=epoch, broker_epoch=command.broker_epoch)
    writes = Writes()
    writes.expect(session_key(command.broker_id), image.mod_revisions[session_key(command.broker_id)])
    writes.put(CONTROLLER_KEY, record, mod_revision=image.mod_revisions.get(CONTROLLER_KEY, 0))
    return Decision(writes.transactions(), epoch)


def alter_partition(
    command: AlterPartition, image: ClusterImage, config: BrokerConfig
) -> Decision[tuple[AcceptedIsr, ...]]:
    if image.session_epoch(command.broker_id) != command.broker_epoch:
        raise BrokerError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {command.broker_id} has no session with the epoch {command.broker_epoch}",
        )
    writes = Writes()
    results = []
    for proposed in command.partitions:
        outcome: int | BrokerError
        try:
            outcome = _accept(command.broker_id, proposed, image, config, writes)
        except BrokerError as error:
            outcome = error
        results.append(AcceptedIsr(proposed.topic_id, proposed.partition, outcome))
    return Decision(writes.transactions(), tuple(results))


def _accept(
    proposer: BrokerId, proposed: ProposedIsr, image: ClusterImage, config: BrokerConfig, writes: Writes
) -> int:
    topic, state = _find_partition(proposed, image)
    what = f"{topic.name}-{proposed.partition}"
    if proposed.leader_epoch < state.leader_epoch:
        raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH, f"{what} is in leader epoch {state.leader_epoch}")
    if proposed.leader_epoch > state.leader_epoch or state.leader != proposer:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{what} is led by {state.leader}, not by {proposer}")
    if proposed.partition_epoch != state.partition_epoch:
        raise BrokerError(ErrorCode.INVALID_UPDATE_VERSION, f"{what} is in partition epoch {state.partition_epoch}")
    if len(proposed.broker_epochs) not in (0, len(proposed.isr)):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "each member has one broker epoch")
    if proposer not in proposed.isr or len(set(proposed.isr)) != len(proposed.isr):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{list(proposed.isr)} is no in-sync set with its leader once")
    serving = image.serving()
    broker_epochs = proposed.broker_epochs or (UNKNOWN_BROKER_EPOCH,) * len(proposed.isr)
    for broker_id, broker_epoch in zip(proposed.isr, broker_epochs, strict=True):
        is_new = broker_id not in state.isr
        if broker_id not in state.replicas or (is_new and broker_id not in serving):
            raise BrokerError(ErrorCode.INELIGIBLE_REPLICA, f"broker {broker_id} cannot be in sync for {what}")
        if broker_id in state.spoilt and (not is_new or broker_epoch == UNKNOWN_BROKER_EPOCH):
            raise BrokerError(ErrorCode.INELIGIBLE_REPLICA, f"broker {broker_id} has not begun {what} anew")
        if broker_epoch not in (UNKNOWN_BROKER_EPOCH, image.session_epoch(broker_id)):
            raise BrokerError(
                ErrorCode.INELIGIBLE_REPLICA, f"broker {broker_id} is not the one that has fetched {what} any more"
            )
    epoch = state.partition_epoch + 1
    eligible = still_eligible(state, proposed.isr, topic_rules(topic.configs, config))
    # Since its log was found to be spoilt there is another leader epoch: who has fetched in this one has begun anew.
    spoilt = tuple(each for each in state.spoilt if each not in proposed.isr)
    accepted = replace(state.record(), isr=proposed.isr, eligible=eligible, spoilt=spoilt, partition_epoch=epoch)
    writes.put(partition_key(topic.topic_id, proposed.partition), accepted, mod_revision=state.mod_revision)
    return epoch


def _find_partition(proposed: ProposedIsr, image: ClusterImage) -> tuple[TopicImage, PartitionImage]:
    topic = image.topic_by_id(proposed.topic_id)
    if topic is None:
        raise BrokerError(
            ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id_to_text(proposed.topic_id)}"
        )
    if not 0 <= proposed.partition < len(topic.partitions):
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no partition {proposed.partition}")
    return topic, topic.partitions[proposed.partition]


def allocate_producer_ids(image: ClusterImage) -> Decision[ProducerIdBlock]:
    """The block is taken in the store before it is given out, so a restart skips ids but never repeats one."""
    block = ProducerIdBlock(ProducerId(image.next_producer_id), PRODUCER_ID_BLOCK_SIZE)
    writes = Writes()
    record = ProducerIdsRecord(next_producer_id=block.first + block.count)
    writes.put(PRODUCER_IDS_KEY, record, mod_revision=image.mod_revisions.get(PRODUCER_IDS_KEY, 0))
    return Decision(writes.transactions(), block)


def remove_unclaimed_partitions(image: ClusterImage) -> Decision[int]:
    """Only right while no topic is being created: the new controller's first deed."""
    writes = Writes()
    count = 0
    for topic_id, partitions in image.unclaimed_partitions.items():
        for partition, state in partitions.items():
            writes.delete(partition_key(topic_id, partition), mod_revision=state.mod_revision)
            count += 1
    return Decision(writes.transactions(), count)
