"""Settings of a session that a query of ours is started with, and that are the user's own again afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

STREAMS = {
    # Parts of a stream's plan that can have no rows are left out, and what they would read is not read.
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "true",
    # As in a session of ours: a batch that is done again has the same tasks, whatever cores there are.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
}
# RocksDB's memory does not grow with the states that are kept.
STATES = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, previous in before.items():
            if previous is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, previous)
