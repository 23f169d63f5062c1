"""Several nodes of Apache Kafka, each broker and controller at once, with the surface of `Cluster`.

All settings are Kafka's own defaults; the internal topics have as many replicas as Kafka gives them.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.testkit.kafka_broker import KafkaBroker
from tests.testkit.waiting import lasting_port

# What a single node sets for itself, and a cluster has of its own.
_INTERNAL_TOPICS = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "share.coordinator.state.topic.replication.factor": 3,
    "share.coordinator.state.topic.min.isr": 2,
}


class KafkaCluster:
    """Use as `with KafkaCluster.start(tmp_path, brokers=3) as cluster: cluster[1].kill()`."""

    BROKER: type[KafkaBroker] = KafkaBroker

    def __init__(self, nodes: dict[int, KafkaBroker]) -> None:
        self._brokers = nodes

    @classmethod
    def start(cls, directory: Path, brokers: int = 3, **settings: Any) -> Self:
        """Nodes 1, 2, ... on directories of `directory`. They need each other to become ready, so all start at once."""
        controllers = {node_id: f"127.0.0.1:{lasting_port()}" for node_id in range(1, brokers + 1)}
        shared = {
            **_INTERNAL_TOPICS,
            "controller.quorum.voters": ",".join(f"{node_id}@{address}" for node_id, address in controllers.items()),
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        cluster = cls({node_id: cls._node(directory, node_id, controllers[node_id], shared) for node_id in controllers})
        try:
            cluster.restart()
        except BaseException as error:
            cluster._end()
            error.add_note(cluster.log_tail())
            raise
        return cluster

    @classmethod
    def _node(cls, directory: Path, node_id: int, controller: str, shared: dict[str, Any]) -> KafkaBroker:
        port = lasting_port()
        values = {
            "node.id": node_id,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://{controller}",
            **shared,
        }
        settings = {name: str(value) for name, value in values.items()}
        node = cls.BROKER(directory / f"broker-{node_id}", settings, port=port)
        node.format()
        return node

    def __getitem__(self, broker_id: int) -> KafkaBroker:
        return self._brokers[broker_id]

    def __iter__(self) -> Iterator[KafkaBroker]:
        return iter(self._brokers.values())

    @property
    def running(self) -> list[KafkaBroker]:
        return [node for node in self if node.is_running]

    @property
    def bootstrap(self) -> str:
        """Of all nodes that run, with commas between."""
        return ",".join(node.bootstrap for node in self.running)

    def restart(self) -> None:
        """All that do not run, at the same time; returns when they are ready."""
        stopped = [node for node in self if not node.is_running]
        with ThreadPoolExecutor(max(1, len(stopped))) as pool:
            list(pool.map(KafkaBroker.restart, stopped))

    def log_tail(self) -> str:
        return "\n".join(node.log_tail() for node in self)

    def _end(self) -> None:
        for node in self.running:
            node.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A quorum that stops all at once has nobody left to hand over to, and waits. Nothing is judged here: SIGKILL.
        self._end()
        if error is not None:
            error.add_note(self.log_tail())
