"""Three brokers: writing with three replicas, and the time without a leader after SIGKILL.

Client and brokers share all cores here, so the figures tell what replication costs in processor time. A node of Kafka's
is broker and controller at once, as one of ours is. All settings are the defaults.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from bench import brokers, failover, replicated
from bench.failover import AnyCluster
from bench.side_by_side.laboratory import Laboratory
from bench.side_by_side.rows import KAFKA, Figures, Once

BROKERS_COUNT = 3
REPLICAS = (1, 2, 3)


@contextmanager
def _cluster(laboratory: Laboratory, system: str) -> Iterator[AnyCluster]:
    kind = brokers.ApacheKafkaCluster if system == KAFKA else brokers.PenstockCluster
    with (
        laboratory.own_directory("cluster") as directory,
        laboratory.all_cores(),
        kind.start(directory, BROKERS_COUNT, log_segment_delete_delay_ms=brokers.DELETE_DELAY_MS) as cluster,
    ):
        yield cluster


@contextmanager
def replicated_produce(requests: int, laboratory: Laboratory, system: str) -> Iterator[Once]:
    """One of the three leads all partitions."""
    with _cluster(laboratory, system) as cluster:
        yield lambda: _replicated_once(cluster, laboratory.topic("replicated"), requests)


def _replicated_once(cluster: AnyCluster, topic: str, requests: int) -> Figures:
    load = replace(replicated.LOAD, requests=requests)
    run = replicated.produce_once(list(cluster), REPLICAS, load, topic)
    volume_bytes = load.requests_per_connection * load.connections * len(load.batch().data)
    return {
        "mb_per_s": volume_bytes / 1e6 / run.elapsed_s,
        "cpu_s_per_gb": run.broker_cpu_s / (volume_bytes / 1e9),
    }


@contextmanager
def failover_time(laboratory: Laboratory, system: str) -> Iterator[Once]:
    """SIGKILL of a partition's leader, until another broker has acknowledged a write with acks=all."""
    with _cluster(laboratory, system) as cluster:
        brokers.create_topic(cluster[1], failover.TOPIC, 1, {}, [REPLICAS])
        yield lambda: {"failover_s": failover.kill_leader(cluster)}
