"""Source, sink and pipelines on a cluster whose driver and executors share no process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.spark.piping import Given, create, fill, values
from tests.spark.standalone import Standalone, standalone
from tests.testkit import BrokerProcess

PARTITIONS = 4
RECORDS = 400
JOB = Path(__file__).with_name("standalone_job.py")


# One worker of pytest, so that there is one cluster.
pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="no Java here"),
    pytest.mark.xdist_group("standalone"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone") / "cluster") as started:
        yield started


@pytest.fixture
def topic(broker: BrokerProcess, topic_name: str) -> str:
    create(broker.bootstrap, topic_name, partitions=PARTITIONS)
    fill(broker.bootstrap, topic_name, [Given(f"v{n}", f"k{n}", n % PARTITIONS) for n in range(RECORDS)])
    return topic_name


def test_given_a_cluster_of_two_workers_when_a_driver_copies_a_topic_then_the_copy_is_whole_and_in_order(
    cluster: Standalone, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-copy"
    create(broker.bootstrap, target, partitions=PARTITIONS)

    said = json.loads(cluster.run(JOB, broker.bootstrap, topic, target, str(tmp_path / "checkpoint"), timeout_s=150))

    original, copy = (values(broker.bootstrap, each) for each in (topic, target))
    assert sum(map(len, copy)) == RECORDS
    assert copy == original
    assert len(said["workers"]) == 2
    assert said["driver"] not in said["workers"]


def test_given_a_cluster_when_a_topic_is_archived_on_it_by_command_then_every_record_is_in_its_files_once(
    cluster: Standalone, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"

    cluster.pipeline(
        "archive", topic, "--to", str(archive), "--format", "parquet", "--bootstrap", broker.bootstrap, timeout_s=150
    )

    records = parquet.read_table(archive / "records", columns=["partition", "offset", "value"]).to_pylist()
    found = sorted((record["partition"], record["offset"], record["value"]) for record in records)
    wanted = enumerate(values(broker.bootstrap, topic))
    assert found == [(partition, offset, value) for partition, each in wanted for offset, value in enumerate(each)]
