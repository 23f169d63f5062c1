"""A driver for a standalone cluster: copies a topic, exactly once, and says where its tasks ran.

python standalone_job.py MASTER BOOTSTRAP SOURCE TARGET CHECKPOINT
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator

from pyspark import TaskContext
from pyspark.sql import DataFrame

from penstock.spark import session


def main(master: str, bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    settings = {"spark.ui.enabled": "false", "spark.executor.memory": "512m", "spark.executor.cores": "1"}
    spark = session("standalone", master, {**settings, "spark.executor.extraJavaOptions": _java_options()})
    options = {"kafka.bootstrap.servers": bootstrap}
    stream = spark.readStream.format("penstock").options(**options, subscribe=source, startingOffsets="earliest").load()
    copied = stream.select("key", "value", "partition").writeStream.format("penstock")
    copied = copied.options(**options, topic=target, checkpointLocation=checkpoint)
    copied.trigger(availableNow=True).start().awaitTermination()
    print(json.dumps({"driver": os.getpid(), "workers": _worker_parents(spark.range(8, numPartitions=8))}))
    spark.stop()


def _java_options() -> str:
    """Executors start as quickly as their driver. Options of Spark come from it, and are refused here."""
    options = os.environ.get("SPARK_SUBMIT_OPTS", "").split()
    return " ".join(option for option in options if not option.startswith("-Dspark."))


def _worker_parents(rows: DataFrame) -> list[int]:
    """Of the Python processes that ran the tasks: the daemons of the executors."""

    def parent(_rows: Iterable[object]) -> Iterator[int]:
        assert TaskContext.get() is not None
        yield os.getppid()

    return sorted(set(rows.rdd.mapPartitions(parent).collect()))


if __name__ == "__main__":
    main(*sys.argv[1:])
