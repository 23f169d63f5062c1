"""3,000 partitions with three replicas each, over three brokers: what they cost when nothing happens, how long a start
of all brokers takes, and how long a third of the partitions is without a leader after SIGKILL.

A partition is led when it has acknowledged a record on behalf of all its replicas, not when somebody says so.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.testkit import RawClient
from tests.testkit.asking import PRODUCE_VERSION, a_batch, produce_request
from tests.testkit.cluster import Cluster
from tests.testkit.waiting import eventually

from bench import brokers, process
from bench.report import Row
from penstock.protocol.messages.cluster import MetadataRequest, MetadataResponse
from penstock.protocol.messages.records import ProduceResponse

NAME = "cluster-3000"
TOPICS_COUNT = 10
PARTITIONS_PER_TOPIC = 300
REPLICAS_OF = [((index % 3) + 1, ((index + 1) % 3) + 1, ((index + 2) % 3) + 1) for index in range(PARTITIONS_PER_TOPIC)]
BROKERS_COUNT = 3
METADATA_VERSION = 9
PATIENCE_S = 120
PAUSE_S = 0.1
SETTLE_S = 5
IDLE_S = 15

# Topic and partition.
Partition = tuple[str, int]


def cluster_rows(system: str, directory: Path, repeat: int) -> list[Row]:
    del repeat  # it takes long enough once
    if system != "penstock":
        return []
    topics = [f"bench-many-{number}" for number in range(TOPICS_COUNT)]
    everything = [(topic, partition) for topic in topics for partition in range(PARTITIONS_PER_TOPIC)]
    with brokers.PenstockCluster.start(directory, BROKERS_COUNT) as cluster:
        with _seconds() as created_s:
            for topic in topics:
                brokers.create_topic(cluster[1], topic, PARTITIONS_PER_TOPIC, brokers.NO_FLUSH, REPLICAS_OF)
        _write_to_each(cluster, everything)
        idle = _idle_cpu_shares(cluster)
        with _seconds() as stopped_s:
            cluster.stop()
        with _seconds() as started_s:
            cluster.restart()
            _write_to_each(cluster, everything)
        _until_in_sync(cluster)
        leaders = _leaders(cluster)
        # After the start some lead more than others: the one with the most goes.
        ((killed, led_count),) = Counter(leaders.values()).most_common(1)
        led = [each for each, leader in leaders.items() if leader == killed]
        assert led_count >= len(everything) / BROKERS_COUNT, leaders
        cluster[killed].kill()
        with _seconds() as failover_s:
            _write_to_each(cluster, led)
        figures = {
            "failover_s": failover_s(),
            "started_s": started_s(),
            "idle_cpu_share": max(idle),
            "created_s": created_s(),
            "stopped_s": stopped_s(),
            "resident_mb": max(process.resident_mb(broker.pid) for broker in cluster.running),
        }
    return [Row(NAME, system, figures)]


@contextmanager
def _seconds() -> Iterator[Callable[[], float]]:
    started, ended = time.perf_counter(), 0.0
    yield lambda: ended - started
    ended = time.perf_counter()


def _idle_cpu_shares(cluster: Cluster) -> list[float]:
    _until_in_sync(cluster)
    time.sleep(SETTLE_S)
    before = [process.cpu_s(broker.pid) for broker in cluster]
    started = time.perf_counter()
    time.sleep(IDLE_S)
    elapsed_s = time.perf_counter() - started
    return [
        (process.cpu_s(broker.pid) - earlier_s) / elapsed_s for broker, earlier_s in zip(cluster, before, strict=True)
    ]


def _write_to_each(cluster: Cluster, partitions: list[Partition]) -> None:
    """Returns when each of them has acknowledged a record."""
    left = set(partitions)
    deadline = time.monotonic() + PATIENCE_S
    with ExitStack() as stack:
        clients = {
            broker_id: stack.enter_context(RawClient(cluster[broker_id].address, timeout=PATIENCE_S))
            for broker_id in range(1, BROKERS_COUNT + 1)
            if cluster[broker_id].is_running
        }
        while left:
            assert time.monotonic() < deadline, f"{len(left)} partitions are not led"
            leaders = _asked_leaders(next(iter(clients.values())))
            for leader, client in clients.items():
                for topic in sorted({topic for topic, _ in left}):
                    mine = [each for each in left if each[0] == topic and leaders.get(each) == leader]
                    left -= _acknowledged(client, topic, mine)
            if left:
                time.sleep(PAUSE_S)


def _acknowledged(client: RawClient, topic: str, partitions: list[Partition]) -> set[Partition]:
    if not partitions:
        return set()
    request = produce_request(topic, {index: a_batch(b"x") for _, index in partitions})
    (answered,) = client.exchange(request, PRODUCE_VERSION, ProduceResponse).responses
    return {(topic, row.index) for row in answered.partition_responses if row.error_code == 0}


def _leaders(cluster: Cluster) -> Mapping[Partition, int]:
    with RawClient(cluster.running[0].address) as client:
        return _asked_leaders(client)


def _asked_leaders(client: RawClient) -> Mapping[Partition, int]:
    response = client.exchange(MetadataRequest(topics=None), METADATA_VERSION, MetadataResponse)
    return {
        (topic.name or "", partition.partition_index): partition.leader_id
        for topic in response.topics
        for partition in topic.partitions
    }


def _until_in_sync(cluster: Cluster) -> None:
    with RawClient(cluster.running[0].address) as client:
        eventually(lambda: _are_in_sync(client), PATIENCE_S, "a replica does not come back")


def _are_in_sync(client: RawClient) -> bool:
    response = client.exchange(MetadataRequest(topics=None), METADATA_VERSION, MetadataResponse)
    return all(len(partition.isr_nodes) == BROKERS_COUNT for topic in response.topics for partition in topic.partitions)
