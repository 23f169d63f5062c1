"""How long nobody can write when a leader goes: of its own accord, or by SIGKILL.

The producer of the hand-over is librdkafka, since its pauses are part of what users meet. The clock of a failover runs
until a client that asks all the time has a write acknowledged; the longest of several counts.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from tests.testkit import RawClient
from tests.testkit.asking import a_batch, produce
from tests.testkit.cluster import Cluster
from tests.testkit.kafka_cluster import KafkaCluster
from tests.testkit.waiting import eventually

from bench import brokers
from bench.report import Row
from penstock.protocol.messages.cluster import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)

HANDOVER_NAME = "handover"
# The brokers' own session timeout, and a shorter one.
SESSIONS: Mapping[str, Mapping[str, Any]] = {"failover": {}, "failover-1s": {"broker.session.timeout.ms": 1_000}}
REPLICAS = (1, 2, 3)
TOPIC = "bench-failover"
METADATA_VERSION = 9
AT_LEAST = 3
PATIENCE_S = 60
PAUSE_S = 0.002
AROUND_S = 1.0

AnyCluster = Cluster | KafkaCluster


def handover_rows(system: str, directory: Path, repeat: int) -> list[Row]:
    if system != "penstock":
        return []
    with brokers.PenstockCluster.start(directory, len(REPLICAS)) as cluster:
        brokers.create_topic(cluster[1], TOPIC, 1, {}, [REPLICAS])
        rounds = [_waits_ms_during(_stop_leader, cluster) for _ in range(max(AT_LEAST, repeat))]
    longest = [max(waits) for waits in rounds]
    figures = {"handover_ms": max(longest), "p50_ms": statistics.median(rounds[0])}
    return [Row(HANDOVER_NAME, system, figures, (min(longest), max(longest)))]


def _stop_leader(cluster: Cluster) -> None:
    leader = cluster[_leader(cluster)]
    time.sleep(AROUND_S)
    leader.stop()
    time.sleep(AROUND_S)


def _waits_ms_during(work: Callable[[Cluster], None], cluster: Cluster) -> list[float]:
    """What a producer waits for each record, one after the other, while `work` goes on and for a while around it."""
    waits: list[float] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0})
    with ThreadPoolExecutor(1) as pool:
        _wait_for_delivery(producer)  # connects
        working = pool.submit(work, cluster)
        while not working.done():
            started = time.perf_counter()
            _wait_for_delivery(producer)
            waits.append((time.perf_counter() - started) * 1_000)
        working.result()
    cluster.restart()
    _until_in_sync(cluster)
    return waits


def _wait_for_delivery(producer: Producer) -> None:
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)

    producer.produce(TOPIC, b"x", partition=0, on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0, "a record was not delivered in time"
    assert not errors, errors


def failover_rows(name: str, settings: Mapping[str, Any], system: str, directory: Path, repeat: int) -> list[Row]:
    if system != "penstock":
        return []
    with brokers.PenstockCluster.start(directory, len(REPLICAS), **settings) as cluster:
        brokers.create_topic(cluster[1], TOPIC, 1, {}, [REPLICAS])
        unavailable = [kill_leader(cluster) for _ in range(max(AT_LEAST, repeat))]
    return [Row(name, system, {"failover_s": max(unavailable)}, (min(unavailable), max(unavailable)))]


def kill_leader(cluster: AnyCluster) -> float:
    """Seconds until somebody else has acknowledged a record on behalf of all replicas."""
    killed = _leader(cluster)
    with ExitStack() as stack:
        clients = {
            each: stack.enter_context(RawClient(cluster[each].address, timeout=PATIENCE_S))
            for each in REPLICAS
            if each != killed
        }
        anybody = next(iter(clients.values()))
        cluster[killed].kill()
        started = time.perf_counter()
        while True:
            leader = _partition(anybody).leader_id
            if leader in clients and produce(clients[leader], TOPIC, a_batch(b"x")).error_code == 0:
                break
            assert time.perf_counter() - started < PATIENCE_S, "nobody leads"
            time.sleep(PAUSE_S)
        elapsed_s = time.perf_counter() - started
    cluster.restart()
    _until_in_sync(cluster)
    return elapsed_s


def _leader(cluster: AnyCluster) -> int:
    with RawClient(cluster.running[0].address) as client:
        return eventually(lambda: max(0, _partition(client).leader_id), PATIENCE_S, "nobody leads")


def _until_in_sync(cluster: AnyCluster) -> None:
    with RawClient(cluster.running[0].address) as client:
        eventually(
            lambda: len(_partition(client).isr_nodes) == len(REPLICAS), PATIENCE_S, "a replica does not come back"
        )


def _partition(client: RawClient) -> MetadataResponsePartition:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    (topic,) = client.exchange(request, METADATA_VERSION, MetadataResponse).topics
    return topic.partitions[0]
