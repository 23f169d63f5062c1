"""One Spark session for all tests that ask for it, on one worker: a JVM takes seconds to start and a core to run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark import session
from tests.spark.jvm import start_quickly
from tests.testkit.java import PROJECT

start_quickly(os.environ)

_HERE = Path(__file__).parent
_JARS = PROJECT / ".jars"
_TIMEOUT_S = 180
_CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"


# First, or xdist has looked at the groups already.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            if "spark" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group("spark"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    if shutil.which("java") is None:
        pytest.skip("no Java here: Spark cannot be tried (scripts/setup.sh all installs it)")
    home = tmp_path_factory.mktemp("spark")
    made = session(
        "tests",
        "local[2]",
        {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.local.dir": str(home / "local"),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            # The other one asks a process (readlink) about every file: a fifth of the time of a query with state.
            "spark.sql.streaming.checkpointFileManagerClass": f"{_CHECKPOINTING}.FileSystemBasedCheckpointFileManager",
            # Who closes a file on HDFS asks whether it is whole, and if it is not yet, again after 400 ms.
            "spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10",
            # Spark's own Kafka connector and Hadoop's client of S3, where they were to be had: a running session takes
            # no further jars.
            "spark.jars": ",".join(
                str(jar) for name in ("spark", "s3") for jar in sorted((_JARS / name).glob("*.jar"))
            ),
        },
    )
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()
