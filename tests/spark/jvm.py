"""How the tests start Spark's JVMs: to be ready soon, not to run for long.

`python -m tests.spark.jvm` runs a little of everything once and leaves an archive of the classes it took, as a JVM has
them in memory. A start with it takes half as long, and the first query does not read thousands of classes from jars
(measured: 6.4 and 9.2 s without, 3.3 and 6.6 s with it). Without the archive all works, more slowly.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from pyspark.core.context import SparkContext
from pyspark.sql import DataFrame, SparkSession

from penstock.spark import session
from tests.testkit.java import PROJECT

ARCHIVE = PROJECT / ".jars/spark-classes.jsa"
_LOCAL_FILES = PROJECT / ".jars/local-files.jar"
# Processes that a JVM starts are started in one step, not in two. With one compiler there are 48 MB for compiled code;
# Spark fills them within minutes, and from then on methods are thrown away, interpreted and compiled again.
_QUICK = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -Djdk.lang.Process.launchMechanism=VFORK"
)
_STOPS_WITHIN_S = 120


def start_quickly(environment: MutableMapping[str, str]) -> None:
    """Of all JVMs that are started in it, by drivers, masters and workers. An archive that does not fit is not used,
    and nothing is said of it.
    """
    _set(environment, f"{_QUICK} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable")


def make_archive(directory: Path) -> None:
    ARCHIVE.parent.mkdir(exist_ok=True)
    ARCHIVE.unlink(missing_ok=True)
    _set(os.environ, f"{_QUICK} -XX:ArchiveClassesAtExit={ARCHIVE}")
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}
    spark = session("classes", "local[2]", {**local, "spark.local.dir": str(directory / "local")})
    spark.sparkContext.setLogLevel("ERROR")
    _work(spark, directory)
    gateway = SparkContext._gateway
    spark.stop()
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_STOPS_WITHIN_S)  # it writes the archive


def _work(spark: SparkSession, directory: Path) -> None:
    """A little of what pipelines do: tables, JSON, Python, windows, batches of a stream."""
    table = str(directory / "table")
    numbers = spark.range(1_000).selectExpr("id", "id % 7 AS day", "string(id) AS text", "binary(string(id)) AS value")
    numbers.write.partitionBy("day").parquet(table)
    stored = spark.read.parquet(table)
    stored.createOrReplaceTempView("stored")
    as_json = stored.join(numbers, "id").selectExpr("to_json(struct(*)) AS json")
    as_json.selectExpr("from_json(json, 'id INT')").collect()
    spark.sql("SELECT day, count(*), percentile(id, 0.9), max(text) FROM stored GROUP BY day ORDER BY day").toPandas()
    stored.mapInArrow(lambda batches: batches, stored.schema).count()
    stream = spark.readStream.schema(stored.schema).parquet(table)
    windows = stream.selectExpr("timestamp_seconds(id) AS ts", "text").withWatermark("ts", "1 second")
    by_batch = windows.groupBy("ts").count().writeStream.outputMode("append").trigger(availableNow=True)
    by_batch = by_batch.option("checkpointLocation", str(directory / "checkpoint"))
    by_batch.foreachBatch(_collect).start().awaitTermination()


def _collect(batch: DataFrame, batch_id: int) -> None:
    batch.collect()


def _set(environment: MutableMapping[str, str], options: str) -> None:
    if _LOCAL_FILES.exists():
        # A stream makes dozens of files, and each would get its mode from a process (tests/spark/java).
        environment["SPARK_DIST_CLASSPATH"] = str(_LOCAL_FILES)
        options = f"{options} -Dspark.hadoop.fs.file.impl=LocalFiles"
    environment["SPARK_SUBMIT_OPTS"] = environment["SPARK_DAEMON_JAVA_OPTS"] = options


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        make_archive(Path(scratch))
