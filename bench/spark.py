"""Rows a second through Spark: our source, sink and archive, beside Spark's own Kafka connector with the same jobs.

Each connector has a driver process of its own, on as many cores as the machine has, which it shares with the broker. A
job runs once to warm up, then as often as asked for. Values are random: nothing can be compressed away.

A tenth of the larger topic is read as well: the memory of Python's workers must not depend on how much there is.
"""

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from confluent_kafka import Producer
from tests.testkit.broker_process import BrokerProcess
from tests.testkit.java import PROJECT

from bench import brokers, process
from bench.machine import in_own_process
from bench.report import Row

NAME = "spark"
OURS, SPARKS = "penstock", "spark-kafka"
PARTITIONS_COUNT = 4
BATCH_MESSAGES = 10_000
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Values:
    """What a topic is filled with."""

    name: str
    value_bytes: int
    count: int

    @property
    def topic(self) -> str:
        return f"bench-spark-{self.name}"


SMALL = Values("100b", 100, 4_000_000)
LARGE = Values("1k", 1_000, 1_000_000)
WRITTEN_COUNT = 4_000_000


@dataclass(frozen=True, slots=True)
class Site:
    """Where a job reads and writes."""

    bootstrap: str
    directory: str


@dataclass(frozen=True, slots=True)
class Run:
    seconds: float
    worker_peak_mb: float


def spark_rows(system: str, directory: Path, repeat: int) -> list[Row]:
    connectors = [OURS, *([SPARKS] if any((PROJECT / ".jars/spark").glob("*.jar")) else [])]
    runs: dict[str, Mapping[str, list[Run]]] = {}
    with brokers.start(system, directory) as broker:
        for values in (SMALL, LARGE):
            brokers.create_topic(broker, values.topic, PARTITIONS_COUNT, brokers.NO_FLUSH)
            _fill(broker, values)
        for connector in connectors:
            site = Site(broker.bootstrap, str(directory / connector))
            brokers.create_topic(broker, f"bench-spark-out-{connector}", PARTITIONS_COUNT, brokers.NO_FLUSH)
            runs[connector] = in_own_process(_timed, connector, site, repeat)
    return [row for name in JOBS for row in _rows(name, {connector: each[name] for connector, each in runs.items()})]


def _rows(name: str, runs: Mapping[str, list[Run]]) -> list[Row]:
    job = JOBS[name]
    rates = {connector: [job.rows / run.seconds for run in each] for connector, each in runs.items()}
    rows = []
    for connector, each in rates.items():
        rate = statistics.median(each)
        figures = {"rows_per_s": rate, "mb_per_s": rate * job.value_bytes / 1e6}
        if connector == OURS:
            figures["worker_peak_mb"] = max(run.worker_peak_mb for run in runs[connector])
        if connector == OURS and SPARKS in rates:
            figures["connector_share"] = rate / statistics.median(rates[SPARKS])
        rows.append(Row(name, connector, figures, (min(each), max(each))))
    return rows


def _fill(broker: BrokerProcess, values: Values) -> None:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 1_000_000,
            "partitioner": "random",
            "sticky.partitioning.linger.ms": 0,
        }
    )
    for _ in range(values.count // BATCH_MESSAGES):
        noise = memoryview(os.urandom(BATCH_MESSAGES * values.value_bytes))
        starts = range(0, len(noise), values.value_bytes)
        messages = [{"value": bytes(noise[start : start + values.value_bytes])} for start in starts]
        while len(producer) > 20 * BATCH_MESSAGES:
            producer.poll(0.01)
        assert producer.produce_batch(values.topic, messages) == BATCH_MESSAGES
    left = producer.flush(TIMEOUT_S)
    assert left == 0, f"{left} messages were not delivered"


# What the drivers' processes run: Spark is imported there, and nowhere else.


@dataclass(frozen=True, slots=True)
class Job:
    """`prepared` makes what is run and timed, from a session and the name of a connector."""

    prepared: Callable[..., Callable[[int], None]]
    rows: int
    value_bytes: int


def _timed(connector: str, site: Site, repeat: int) -> dict[str, list[Run]]:
    from penstock.spark import session

    spark = session(
        "bench",
        "local[*]",
        {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "2g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": f"{site.directory}/local",
            "spark.jars": ",".join(map(str, sorted((PROJECT / ".jars/spark").glob("*.jar")))),
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    runs: dict[str, list[Run]] = {}
    for name, job in JOBS.items():
        run = job.prepared(spark, connector, site)
        for repetition in range(repeat + 1):
            for worker in _workers():
                process.forget_peak(worker)
            started = time.perf_counter()
            run(repetition)
            seconds = time.perf_counter() - started
            if repetition:
                peak_mb = max(map(process.peak_resident_mb, _workers()), default=0.0)
                runs.setdefault(name, []).append(Run(seconds, peak_mb))
    spark.stop()
    return runs


def _workers() -> list[int]:
    """Spark keeps those of a job for the next one."""
    return [each.pid for each in psutil.Process().children(recursive=True) if _is_worker(each)]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return {"pyspark.daemon", "pyspark.worker"} <= set(process.cmdline())
    except psutil.NoSuchProcess:  # it has just ended
        return False


def _reading(values: Values, share: float, spark, connector: str, site: Site) -> Callable[[int], None]:  # type: ignore[no-untyped-def]
    form = "penstock" if connector == OURS else "kafka"
    source = spark.read.format(form).option("kafka.bootstrap.servers", site.bootstrap).option("subscribe", values.topic)
    if share < 1:
        end = int(values.count / PARTITIONS_COUNT * share)
        ends = {str(partition): end for partition in range(PARTITIONS_COUNT)}
        source = source.option("endingOffsets", json.dumps({values.topic: ends}))

    def run(_repetition: int) -> None:
        source.load().write.format("noop").mode("overwrite").save()

    return run


def _writing(spark, connector: str, site: Site) -> Callable[[int], None]:  # type: ignore[no-untyped-def]
    rows = spark.range(0, WRITTEN_COUNT, numPartitions=PARTITIONS_COUNT).selectExpr(
        "cast(rpad(concat(uuid(), uuid(), uuid()), 100, 'x') as binary) as value"
    )
    rows = rows.cache()
    rows.count()
    options = {"kafka.bootstrap.servers": site.bootstrap, "topic": f"bench-spark-out-{connector}"}
    if connector == OURS:
        options["exactlyOnce"] = "true"

    def run(_repetition: int) -> None:
        rows.write.format("penstock" if connector == OURS else "kafka").mode("append").options(**options).save()

    return run


def _archiving(spark, connector: str, site: Site) -> Callable[[int], None]:  # type: ignore[no-untyped-def]
    def ours(repetition: int) -> None:
        from penstock.spark.pipelines.archive import archive

        to = f"{site.directory}/archive-{repetition}"
        archive(spark, bootstrap=site.bootstrap, topics=[SMALL.topic], to=to, format="parquet")

    def sparks(repetition: int) -> None:
        stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", site.bootstrap)
        rows = stream.option("subscribe", SMALL.topic).option("startingOffsets", "earliest").load()
        to = f"{site.directory}/archive-{repetition}"
        by_day = rows.selectExpr("*", "date(timestamp) as day").writeStream.format("parquet").partitionBy("day")
        by_day = by_day.option("path", to).option("checkpointLocation", f"{to}-checkpoint")
        by_day.trigger(availableNow=True).start().awaitTermination()

    return ours if connector == OURS else sparks


JOBS: Mapping[str, Job] = {
    "spark-read-1k-tenth": Job(partial(_reading, LARGE, 0.1), LARGE.count // 10, LARGE.value_bytes),
    "spark-read-1k": Job(partial(_reading, LARGE, 1), LARGE.count, LARGE.value_bytes),
    "spark-read-100b": Job(partial(_reading, SMALL, 1), SMALL.count, SMALL.value_bytes),
    "spark-write-100b": Job(_writing, WRITTEN_COUNT, SMALL.value_bytes),
    "spark-archive-100b": Job(_archiving, SMALL.count, SMALL.value_bytes),
}
