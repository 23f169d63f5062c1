"""In-sync sets that leaders want, as a command for the controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.controller.commands import AlterPartition, ProposedIsr
from penstock.controller.forwarding import Controller
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, LeaderEpoch
from penstock.replication.replicas import Alter, WantedIsr


def ask_for(controller: Controller, broker_id: BrokerId, session_epoch: Callable[[], int | None]) -> Alter:
    async def alter(wanted: Sequence[WantedIsr]) -> Sequence[int | BrokerError]:
        epoch = session_epoch()
        if epoch is None:
            raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, "this broker has no session")
        answers = await controller.ask(AlterPartition(broker_id, epoch, tuple(_proposed(each) for each in wanted)))
        return [answer.outcome for answer in answers]

    return alter


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
