"""Source and sink on a cluster whose driver and executors share no process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.spark.piping import Given, create, fill, values
from tests.spark.standalone import standalone
from tests.testkit import BrokerProcess

PARTITIONS = 4
RECORDS = 400
JOB = Path(__file__).with_name("standalone_job.py")


@pytest.mark.skipif(shutil.which("java") is None, reason="no Java here")
def test_given_a_cluster_of_two_workers_when_a_driver_copies_a_topic_then_the_copy_is_whole_and_in_order(
    broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    target = f"{topic_name}-copy"
    create(broker.bootstrap, topic_name, target, partitions=PARTITIONS)
    fill(broker.bootstrap, topic_name, [Given(f"v{n}", f"k{n}", n % PARTITIONS) for n in range(RECORDS)])

    with standalone(tmp_path / "cluster") as cluster:
        said = json.loads(
            cluster.run(JOB, broker.bootstrap, topic_name, target, str(tmp_path / "checkpoint"), timeout_s=150)
        )

    original, copy = (values(broker.bootstrap, topic) for topic in (topic_name, target))
    assert sum(map(len, copy)) == RECORDS
    assert copy == original
    assert len(said["workers"]) == 2
    assert said["driver"] not in said["workers"]
