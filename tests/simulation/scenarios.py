"""Scripts for traps that luck would seldom set: the right thing goes wrong at the right time."""

from __future__ import annotations

import asyncio
import random

from penstock.controller.commands import ResignedReplica, ResignReplicas
from penstock.core.ids import BrokerId, TopicPartition
from tests.simulation.broker import SimulatedBroker
from tests.simulation.clients import Producer
from tests.simulation.cluster import BROKERS, CACHED, FLUSHED, SimulatedCluster


class Worst(random.Random):
    """All that was not flushed is lost."""

    def random(self) -> float:
        return 0.99

    def randrange(self, *_: int) -> int:  # type: ignore[override]
        return 0


async def with_topic(cluster: SimulatedCluster, where: TopicPartition, *, led_by_controller: bool = True) -> Producer:
    """A topic with one record that all have; its producer does nothing by itself."""
    cluster.network.slow_share = 0.0
    await cluster.start_all()
    for broker in cluster.running():
        broker.link.slow_share = 0.0
    flush_messages = "1" if where == FLUSHED else "1000000"
    await cluster.until(lambda: cluster.image().controller_id is not None, "there is a controller")
    controller = cluster.image().controller_id
    replicas = sorted(map(BrokerId, BROKERS), key=lambda each: (each == controller) is not led_by_controller)
    await cluster.create(where.topic, tuple(replicas), flush_messages=flush_messages, min_insync_replicas="2")
    producer = Producer("first", cluster, where, 1)
    await write(producer, b"begun")
    await cluster.until(lambda: len(cluster.state(where).isr) == len(BROKERS), "all are in sync")
    return producer


async def write(producer: Producer, value: bytes) -> None:
    await producer.cluster.loop.spawn(producer.process, producer.write([value]))
    producer.sequence += 1


def serves(broker: SimulatedBroker, other: SimulatedBroker) -> bool:
    """As the first sees it: whose view of the others decides who may join. In this very session."""
    return other.is_serving and broker.follower.image.serving().get(other.broker_id) == other.session.epoch


def cut(cluster: SimulatedCluster, one: SimulatedBroker, other: SimulatedBroker) -> None:
    cluster.network.cut(one.host, other.host)
    cluster.network.cut(other.host, one.host)


def mend(cluster: SimulatedCluster, one: SimulatedBroker, other: SimulatedBroker) -> None:
    cluster.network.mend(one.host, other.host)
    cluster.network.mend(other.host, one.host)


async def a_replica_joins_and_the_leader_is_not_told(cluster: SimulatedCluster) -> None:
    """A4: from the moment that the store has it, it may be elected; its leader must wait for it, told or not."""
    producer = await with_topic(cluster, FLUSHED)
    leader = cluster.leader(FLUSHED)
    assert leader is not None
    assert leader.service.is_active
    joining = next(each for each in BROKERS if each != leader.broker_id)
    cluster.kill(joining)
    await cluster.until(lambda: joining not in cluster.state(FLUSHED).isr, "it is out of sync")
    follower = cluster.start(joining)
    cut(cluster, leader, follower)
    await cluster.until(lambda: serves(leader, follower), "it serves")

    leader.link.is_cut_back = True  # it is the controller, and does not hear what the store says
    mend(cluster, leader, follower)
    await cluster.until(lambda: joining in cluster.state(FLUSHED).isr, "it is in sync")
    cut(cluster, leader, follower)
    writing = cluster.loop.spawn(producer.process, producer.write([b"while it is in doubt"]))
    await asyncio.sleep(0.5)
    cluster.look()

    await cluster.settle()
    await writing


async def a_replica_loses_its_disk_cache_while_it_joins(cluster: SimulatedCluster) -> None:
    """A5: what its last process had fetched is worth nothing when the proposal arrives."""
    producer = await with_topic(cluster, CACHED, led_by_controller=False)
    leader = cluster.leader(CACHED)
    controller = cluster.brokers[cluster.image().controller_id or 0]
    assert leader is not None
    assert leader is not controller
    (joining,) = {*BROKERS} - {leader.broker_id, controller.broker_id}
    await cluster.stop(joining)  # cleanly, or the next start would flush what it has by then
    await cluster.until(lambda: joining not in cluster.state(CACHED).isr, "it is out of sync")
    for number in range(3):
        await write(producer, b"missed %d" % number)

    cluster.network.cut(leader.host, controller.host)
    follower = cluster.start(joining)
    await cluster.until(lambda: serves(leader, follower), "it serves")
    end_offset = cluster.replica(leader.broker_id, CACHED).log.log_end_offset
    await cluster.until(
        lambda: follower.is_serving and cluster.replica(joining, CACHED).log.log_end_offset == end_offset,
        "it has everything",
    )
    await asyncio.sleep(0.05)  # its next fetch says so
    cluster.cut_power(joining, Worst())
    again = cluster.start(joining)
    cut(cluster, leader, again)
    await cluster.until(lambda: serves(controller, again), "another process of it serves")
    cluster.network.mend(leader.host, controller.host)
    await asyncio.sleep(0.5)
    cluster.look()

    await cluster.settle()


async def a_leader_stands_still_past_its_lease(cluster: SimulatedCluster) -> None:
    """A8: what waited in its socket is not acknowledged, whatever it believes to lead."""
    await with_topic(cluster, FLUSHED)
    leader = cluster.leader(FLUSHED)
    assert leader is not None
    hasty = Producer("hasty", cluster, FLUSHED, 2, acks=1)
    await write(hasty, b"in time")

    cluster.loop.stop_process(leader.process)
    late = cluster.loop.spawn(hasty.process, hasty.attempt(hasty.sequence, [b"late"]))
    await cluster.until(lambda: cluster.leader(FLUSHED) not in (None, leader), "another leads", patience_s=1.4)
    cluster.loop.continue_process(leader.process)
    offset = await late
    if offset is not None:
        cluster.checker.was_acknowledged(FLUSHED, offset, [b"late"])

    await cluster.settle()


async def a_replica_begins_anew_when_its_last_report_was_lost(cluster: SimulatedCluster) -> None:
    """A report that is said again is about what is there now, and that is another log."""
    producer = await with_topic(cluster, FLUSHED, led_by_controller=False)
    leader, controller = cluster.leader(FLUSHED), cluster.image().controller_id
    assert leader is not None
    follower = next(each for each in cluster.running() if each.broker_id not in (leader.broker_id, controller))
    for number in range(150):
        await write(producer, b"before %d" % number)
    cluster.network.cut(follower.host, leader.host)
    writing = cluster.loop.spawn(producer.process, producer.write([b"last"]))
    partition = cluster.replica(follower.broker_id, FLUSHED)
    end_offset = partition.log.log_end_offset + 1
    await cluster.until(lambda: partition.log.flushed_offset == end_offset, "it has the last on disk")
    await asyncio.sleep(0.02)
    cluster.network.reset(follower.host, leader.host)
    cluster.network.mend(follower.host, leader.host)

    follower.partitions.spoilt(partition, "its log is damaged")
    assert follower.session.epoch is not None
    spoilt = ResignedReplica(partition.topic_id, FLUSHED.partition, follower.broker_id, is_spoilt=True)
    command = ResignReplicas(follower.broker_id, follower.session.epoch, (spoilt,))
    (result,) = await cluster.within(follower, follower.controller.ask(command))
    assert result.error is None
    for _ in range(50):
        await asyncio.sleep(0.01)
        cluster.look()

    await cluster.settle()
    await writing
