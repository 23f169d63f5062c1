"""What this broker wants for its partitions, as commands for the controller: in-sync sets, and not to be elected."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.controller.commands import AlterPartition, ProposedIsr, ResignedReplica, ResignReplicas
from penstock.controller.forwarding import Controller
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, LeaderEpoch
from penstock.replication.replicas import Alter, WantedIsr
from penstock.replication.spoilt import Lost, Resign


def ask_for(controller: Controller, broker_id: BrokerId, session_epoch: Callable[[], int | None]) -> Alter:
    async def alter(wanted: Sequence[WantedIsr]) -> Sequence[int | BrokerError]:
        proposed = tuple(_proposed(each) for each in wanted)
        answers = await controller.ask(AlterPartition(broker_id, _known(session_epoch()), proposed))
        return [answer.outcome for answer in answers]

    return alter


def resign_by(controller: Controller, broker_id: BrokerId, session_epoch: Callable[[], int | None]) -> Resign:
    async def resign(lost: Sequence[Lost]) -> Sequence[BrokerError | None]:
        replicas = tuple(resigned(each, broker_id) for each in lost)
        answers = await controller.ask(ResignReplicas(broker_id, _known(session_epoch()), replicas))
        return [answer.error for answer in answers]

    return resign


def resigned(lost: Lost, broker_id: BrokerId) -> ResignedReplica:
    """As this broker says it; there may be a broker 0."""
    replica = broker_id if lost.replica is None else lost.replica
    return ResignedReplica(lost.topic_id, lost.partition, replica, lost.is_spoilt)


def _known(session_epoch: int | None) -> int:
    if session_epoch is None:
        raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, "this broker has no session")
    return session_epoch


def _proposed(wanted: WantedIsr) -> ProposedIsr:
    partition, leader_epoch, proposal = wanted
    return ProposedIsr(
        partition.topic_id,
        partition.topic_partition.partition,
        LeaderEpoch(leader_epoch),
        proposal.partition_epoch,
        tuple(member.broker_id for member in proposal.members),
        tuple(member.broker_epoch for member in proposal.members),
    )
