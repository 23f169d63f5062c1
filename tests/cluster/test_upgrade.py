"""A cluster of the last release becomes one of this release, broker by broker, while it is used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from penstock.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.cluster.finding import create_topic_over, leader_of, states_of
from tests.testkit import Cluster, RawClient, eventually
from tests.testkit.asking import fetch, values_of
from tests.testkit.broker_process import BrokerDied

ROOT = Path(__file__).parents[2]
# The last commit of format 1 (penstock.version), in which no partition could be moved.
LAST_RELEASE = "ec33b5618d63643b427eec23b40f0c276056b98d"
ALL = (1, 2, 3)


@pytest.fixture(scope="session")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its sources; it runs without what this release has compiled."""
    directory = tmp_path_factory.mktemp("last-release")
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", LAST_RELEASE, "src"], capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the last release is not in this checkout: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archive.stdout, check=True)
    return directory / "src"


@pytest.fixture
def old_cluster(tmp_path: Path, last_release: Path) -> Iterator[Cluster]:
    with Cluster.start(tmp_path, brokers=3, environment={"PYTHONPATH": str(last_release)}) as cluster:
        yield cluster


class Producing:
    """Sends one record after the other, and knows which were acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 1})
        self._topic = topic
        self.sent: list[bytes] = []
        self.acknowledged: list[bytes] = []

    def goes_on(self) -> None:
        target = len(self.acknowledged) + 20
        eventually(lambda: self._has(target), 60, "nothing was acknowledged any more")

    def _has(self, count: int) -> bool:
        value = b"%d" % len(self.sent)
        self.sent.append(value)
        self._producer.produce(self._topic, value, partition=0, on_delivery=self._delivered)
        self._producer.poll(0.01)
        return len(self.acknowledged) >= count

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.acknowledged.append(message.value() or b"")

    def ends(self) -> None:
        assert self._producer.flush(60) == 0


def finalized(cluster: Cluster, level: int) -> UpdateFeaturesResponse:
    update = FeatureUpdateKey(feature="penstock.version", max_version_level=level)
    with RawClient(cluster[2].address) as client:
        return client.exchange(UpdateFeaturesRequest(feature_updates=[update]), 2, UpdateFeaturesResponse)


def upgrade(cluster: Cluster) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli.main", "cluster", "upgrade", "--yes"]
    return subprocess.run(
        [*command, "--bootstrap-server", cluster.bootstrap], capture_output=True, text=True, timeout=60, check=False
    )


def moved(cluster: Cluster, topic: str, replicas: Sequence[int]) -> AlterPartitionReassignmentsResponse:
    partition = ReassignablePartition(partition_index=0, replicas=list(replicas))
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=[partition])])
    with RawClient(cluster[2].address) as client:
        return client.exchange(request, 1, AlterPartitionReassignmentsResponse)


def is_in_sync(cluster: Cluster, topic: str) -> bool:
    return sorted(states_of(cluster, topic)[0].isr_nodes) == list(ALL)


def test_given_brokers_of_the_last_release_when_they_are_upgraded_one_by_one_then_nothing_stops_and_nothing_is_lost(
    old_cluster: Cluster, last_release: Path, topic_name: str
) -> None:
    cluster = old_cluster
    create_topic_over(cluster, topic_name, ALL)
    producing = Producing(cluster, topic_name)
    producing.goes_on()

    for broker_id in ALL:
        cluster[broker_id].environment.clear()
        cluster[broker_id].restart(same_port=True)
        producing.goes_on()
        eventually(lambda: is_in_sync(cluster, topic_name), 60)
        if broker_id == 2:
            # By the controller, which knows that broker 3 is too old, or is broker 3 and does not know the question.
            assert finalized(cluster, 2).error_code in (ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.UNSUPPORTED_VERSION)
    assert moved(cluster, topic_name, (3, 2)).error_code == ErrorCode.UNSUPPORTED_VERSION
    upgraded = upgrade(cluster)
    assert (upgraded.returncode, upgraded.stdout) == (0, "penstock.version: 1 -> 2\n"), upgraded.stderr
    assert "uses all that its brokers know" in upgrade(cluster).stderr
    assert moved(cluster, topic_name, (3, 2)).error_code == 0
    eventually(lambda: states_of(cluster, topic_name)[0].replica_nodes == [3, 2], 60)
    producing.goes_on()
    producing.ends()

    with RawClient(cluster[leader_of(cluster, topic_name)].address) as client:
        assert values_of(fetch(client, topic_name)) == producing.sent
    assert finalized(cluster, 1).error_code == ErrorCode.INVALID_UPDATE_VERSION
    cluster[1].stop()
    cluster[1].environment["PYTHONPATH"] = str(last_release)
    with pytest.raises(BrokerDied):
        cluster[1].restart()
    assert "run the release that wrote it, or a newer one" in cluster[1].log_text()
