"""A Spark session that knows topics and is set up for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

_COALESCED_STREAMS = "spark.sql.adaptive.streaming.stateless.enabled"
_SHUFFLED, _SPARKS_DEFAULT = "spark.sql.shuffle.partitions", "200"
_SETTINGS = {
    # What a reader is told of filters decides how much it fetches; Spark keeps that from Python readers by default.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Offsets and times of records are UTC, wherever the driver runs.
    "spark.sql.session.timeZone": "UTC",
    # What Iceberg asks for of Parquet files.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Python tells when a source reads on: a bar that Spark draws over it helps nobody.
    "spark.ui.showConsoleProgress": "false",
}


def session(
    name: str = "penstock", master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, made if there is none. `master` is local[*] where nothing else says it.

    `settings` come before ours, and those of `spark-submit` and spark-defaults.conf stay where we have none.
    """
    # Workers run the Python that the driver runs: another one may not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in (_SETTINGS | dict(settings or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    _shuffle_for_one_machine(spark)
    return spark


def _shuffle_for_one_machine(spark: SparkSession) -> None:
    """Spark divides what it sorts and groups for two hundred cores, if nobody says otherwise: on two, windows of 36,000
    records took 21 s, and take 5. A stream that has begun keeps the number that is in its checkpoint.
    """
    context = spark.sparkContext if isinstance(spark, SparkSession) else None
    if context is None or not (context.master or "").startswith("local"):  # Spark Connect, a cluster
        return
    if spark.conf.get(_SHUFFLED) == _SPARKS_DEFAULT and not context.getConf().contains(_SHUFFLED):
        spark.conf.set(_SHUFFLED, str(2 * context.defaultParallelism))


def register(spark: SparkSession) -> None:
    """Makes `format("penstock")` known to a session, whose streams keep their tasks then, unless it says otherwise.

    Else how many tasks a batch of a stream has behind a shuffle follows from the cores that are there just then. The
    sink knows what it has written by task: done again with others, a batch would be there twice.
    """
    from penstock.spark.data_source import PenstockDataSource

    with _active(spark):
        spark.dataSource.register(PenstockDataSource)
    if spark.conf.get(_COALESCED_STREAMS, None) is None:
        spark.conf.set(_COALESCED_STREAMS, "false")


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Spark looks in the active session whether a name is taken, and not in the one that gets it."""
    jvm = getattr(spark.sparkContext, "_jvm", None) if isinstance(spark, SparkSession) else None
    if jvm is None:  # Spark Connect
        yield
        return
    sessions = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
