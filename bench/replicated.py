"""Produce with acks=all to a topic of three replicas, beside the same on a broker alone, in turns.

Client, leader and followers share the cores of one machine, so the share that is left says what replication costs in
processor time, not what brokers with machines of their own would reach.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import TopicCollection
from tests.testkit.broker_process import BrokerProcess

from bench import brokers
from bench.measuring import Run, measure_all, throughput_row
from bench.raw_produce import ACKS_ALL, Produce, check_end_offsets, produce_exchanges
from bench.replay import replay
from bench.report import Row

NAME, ALONE_NAME = "replicated", "replicated-not"
REPLICAS = (1, 2, 3)
LOAD = Produce(NAME, 16_384, 1_000, connections=8, requests=32_000, acks=ACKS_ALL)


def replicated_rows(system: str, directory: Path, repeat: int) -> list[Row]:
    """Of Penstock only: the kit starts no cluster of Kafka's."""
    if system != "penstock":
        return []
    batch = LOAD.batch()
    alone: list[Run] = []
    together: list[Run] = []
    with ExitStack() as stack:
        single = stack.enter_context(brokers.start(system, directory))
        cluster = stack.enter_context(
            brokers.PenstockCluster.start(directory, len(REPLICAS), log_segment_delete_delay_ms=brokers.DELETE_DELAY_MS)
        )
        for repetition in range(repeat + 1):
            alone.append(produce_once([single], (), LOAD, f"bench-{NAME}-{repetition}"))
            together.append(produce_once(list(cluster), REPLICAS, LOAD, f"bench-{NAME}-{repetition}"))
    # The first repetition warms the brokers up and is not counted.
    rows = [
        throughput_row(name, system, LOAD.figure, runs[1:], LOAD.requests, len(batch.data))
        for name, runs in ((ALONE_NAME, alone), (NAME, together))
    ]
    share = rows[1].figures[LOAD.figure] / rows[0].figures[LOAD.figure]
    return [rows[0], Row(NAME, system, {**rows[1].figures, "single_share": share}, rows[1].spread)]


def produce_once(members: Sequence[BrokerProcess], replicas: Sequence[int], load: Produce, topic: str) -> Run:
    """The first of the brokers leads."""
    leader, batch, partitions = members[0], load.batch(), load.connections
    brokers.create_topic(leader, topic, partitions, load.configs, [replicas] * partitions if replicas else ())
    exchanges = produce_exchanges(leader.address, topic, batch, load)
    run = measure_all(members, replay, leader.address, exchanges, load.requests_per_connection)
    check_end_offsets(leader, topic, batch, load)
    assert len(_in_sync(leader, topic)) == max(1, len(replicas)), f"{topic} has lost a replica"
    brokers.delete_topic(leader, topic)
    for each in members[1:]:
        brokers.await_deleted(each, topic)
    return run


def _in_sync(broker: BrokerProcess, topic: str) -> list[int]:
    admin = brokers.admin_client(broker)
    description = admin.describe_topics(TopicCollection([topic]))[topic].result(brokers.ADMIN_TIMEOUT_S)
    return [node.id for node in description.partitions[0].isr]
