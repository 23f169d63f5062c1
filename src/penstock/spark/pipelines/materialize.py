"""A changelog to a table of the latest value of each key: tombstones delete, and every change counts once.

    from penstock.spark import session
    from penstock.spark.pipelines.materialize import materialize, read_table

    spark = session("users")
    materialize(spark, bootstrap="localhost:9092", topic="users", to="file:///tables/users")
    read_table(spark, "file:///tables/users").show()

How far the changelog is applied stands in the table and changes in the commit that applies it, so it does not rest on
Spark's checkpoint: a batch that runs again, or the whole topic read again with a new checkpoint, changes nothing that
is applied already. A change is only applied to a row of an earlier one. Where a topic was given more partitions, a key
that was deleted in one of them may come back by an older change in another (latest); docs/pipelines.md says what to do.

A batch writes those parts of the table anew that it touches. Many small batches that touch all of a large table write
it over and over: give them a longer interval, or the table more buckets if keys that change are few.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.core.ids import TopicId, TopicPartition
from penstock.spark.offsets_json import StreamOffsets
from penstock.spark.pipelines import archived, checkpoints, json_values, keyed_table, table_home
from penstock.spark.pipelines.bad_values import REASON, BadValues
from penstock.spark.pipelines.behind import Followed
from penstock.spark.pipelines.changelog import Changelog, Envelope, KeyKind
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.keyed_table import KeyedTable, row_schema
from penstock.spark.pipelines.latest import Found, last_in_each_partition, last_of_each_key, merged, with_bucket
from penstock.spark.pipelines.planning import Lines, carried_out
from penstock.spark.pipelines.running import Ended, Running, run
from penstock.spark.pipelines.table_home import TableHome, read_table
from penstock.spark.pipelines.table_schema import extended
from penstock.spark.pipelines.table_upkeep import DEFAULT_KEPT_S, Upkeep
from penstock.spark.pipelines.topic_target import TopicTarget, opened
from penstock.spark.pipelines.topics import Brokers, TopicSource, read_options

__all__ = ["materialize", "plan_materialize", "read_table"]

log = logging.getLogger(__name__)

DEFAULT_INTERVAL_S = 60.0
DEFAULT_BUCKETS = 16
DEFAULT_TABLE = "latest"
_MAX_BUCKETS = 4_096

_TRIES = 5

Kind = TypeVar("Kind", bound=StrEnum)


def plan_materialize(
    spark: SparkSession,
    *,
    bootstrap: str,
    topic: str,
    to: str,
    table: str = DEFAULT_TABLE,
    envelope: str = "plain",
    schema: str | None = None,
    key: str = "string",
    buckets: int | None = None,
    quarantine: str | None = None,
    skip_bad: bool = False,
    skip_lost: bool = False,
    kept_s: float = DEFAULT_KEPT_S,
    checkpoint: str | None = None,
    max_per_batch: int | None = None,
    follow: bool = False,
    interval_s: float = DEFAULT_INTERVAL_S,
    kafka: Mapping[str, str] | None = None,
    catalog: Mapping[str, str] | None = None,
) -> MaterializePlan:
    """Up to what is there now or, with `follow`, on and on. Raises PipelineError, WireError.

    `schema` is DDL of JSON values, which become columns. `buckets` is how many parts a new table has. Records that are
    no changes go to the topic `quarantine`, are left out with `skip_bad`, or else end the pipeline.
    """
    files = Files(spark)
    fields = None if schema is None else json_values.parse_schema(schema)
    changelog = Changelog(_one_of(Envelope, "--envelope", envelope), _one_of(KeyKind, "--key", key), fields)
    options = read_options(max_per_batch, skip_lost)
    home = table_home.planned(files, to, "materialize", table)
    plan = MaterializePlan(
        spark=spark,
        source=TopicSource(Brokers(bootstrap, kafka or {}), (topic,), options),
        changelog=changelog,
        home=home,
        buckets=buckets,
        bad_values=BadValues(quarantine, skip_bad),
        kept_s=kept_s,
        catalog=catalog or {},
        running=Running(f"materialize {topic}", files.qualified(checkpoint or home.checkpoint), follow, interval_s),
    )
    plan.check()
    return plan


materialize = carried_out("materialize", plan_materialize)


@dataclass(frozen=True, slots=True)
class MaterializePlan:
    spark: SparkSession
    source: TopicSource
    changelog: Changelog
    home: TableHome
    buckets: int | None
    bad_values: BadValues
    kept_s: float
    catalog: Mapping[str, str]
    running: Running

    @property
    def topic(self) -> str:
        return self.source.topics[0]

    @property
    def schema(self) -> StructType:
        return row_schema(self.changelog.key_type, self.changelog.columns)

    def check(self) -> None:
        """Raises PipelineError, WireError."""
        if self.buckets is not None and not 1 <= self.buckets <= _MAX_BUCKETS:
            raise PipelineError(f"--buckets takes 1 to {_MAX_BUCKETS}, not {self.buckets}")
        self.source.check()
        if self.bad_values.quarantine is not None:
            TopicTarget(self.source.brokers, self.bad_values.quarantine, True).check()
        files = Files(self.spark)
        checkpoints.check(files, self.running.checkpoint, self._purpose(self.home))
        table = table_home.load(files, self.home, self.catalog)
        if table is None:
            self._followed().check(archived.NOTHING)
            return
        extended(table_home.spark_schema(table), self.schema)
        there = keyed_table.buckets_of(table)
        if self.buckets not in (None, there):
            raise PipelineError(f"the table in {self.home.path} has {there} buckets, and cannot get {self.buckets}")
        applied = keyed_table.applied_to(table)
        self._check_topic(applied)
        self._followed().check(applied)

    def lines(self) -> Lines:
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self.schema.fields)
        until = f"until it is stopped, every {self.running.interval_s:g} s"
        return [
            ("from", f"topic {self.topic}, {self.changelog.envelope} changes"),
            ("to", f"table {'.'.join(self.home.identifier)} in {self.home.path}"),
            ("columns", columns),
            ("bad values", str(self.bad_values)),
            ("checkpoint", self.running.checkpoint),
            ("runs", until if self.running.follow else "up to what is there now"),
        ]

    def run(self) -> Ended:
        files = Files(self.spark)
        home = table_home.made(files, self.home)
        checkpoints.claim(files, self.running.checkpoint, self._purpose(home))
        found = table_home.load(files, home, self.catalog) or keyed_table.create(
            self.spark, home, self.changelog.key_type, self.buckets or DEFAULT_BUCKETS, self.catalog
        )
        table = KeyedTable(self.spark, files, found, Upkeep(files, self.kept_s))
        table.evolve(self.schema)
        materializer = _Materializer(self, table, self._topic_id())
        begun = archived.starting_offsets(table.applied, self.source.check())
        source = TopicSource(self.source.brokers, self.source.topics, {**self.source.options, "startingOffsets": begun})
        writer = opened(source, self.spark).writeStream.foreachBatch(materializer.apply)
        running = self.running
        ended = run(
            writer,
            Running(running.name, running.checkpoint, running.follow, running.interval_s, materializer.rows.get),
        )
        self._followed().write_down(table.applied)
        return ended

    def _followed(self) -> Followed:
        checkpoint, table = self.running.checkpoint, f"the table in {self.home.path}"
        return Followed(self.spark, self.source, checkpoint, table, self.home.read, self.changelog.changes)

    def _purpose(self, home: TableHome) -> dict[str, str]:
        return {"pipeline": "materialize", "from": self.topic, "table": home.id}

    def _topic_id(self) -> TopicId:
        return self.source.brokers.topics(self.source.topics)[self.topic].id

    def _check_topic(self, applied: StreamOffsets) -> None:
        others = {partition.topic for partition in applied.offsets} - {self.topic}
        if others:
            raise PipelineError(f"the table in {self.home.path} is of topic {', '.join(others)}, not of {self.topic}")
        known = applied.topic_ids.get(self.topic)
        if known is not None and known != self._topic_id():
            raise PipelineError(
                f"topic {self.topic} was deleted and created anew since it was applied to the table in "
                f"{self.home.path}: --to takes another directory for the new one"
            )


class _Materializer:
    """What is done with each batch."""

    def __init__(self, plan: MaterializePlan, table: KeyedTable, topic_id: TopicId) -> None:
        self.rows: dict[int, int] = {}
        self._plan = plan
        self._table = table
        self._topic_id = topic_id

    def apply(self, batch: DataFrame, batch_id: int) -> None:
        # A checkpoint that is older than the table has several batches that are applied already.
        records = archived.without_archived(batch, self._table.applied)
        changes = with_bucket(self._plan.changelog.changes(records), self._table.buckets)
        last = last_in_each_partition(changes).persist()
        try:
            found = Found.of(last)
            self.rows[batch_id] = found.records
            if found.bad:
                self._set_aside(records, found, batch_id)
            if found.records:
                self._commit(last_of_each_key(last), found, batch_id)
        finally:
            last.unpersist()

    def _commit(self, latest: DataFrame, found: Found, batch_id: int) -> None:
        applied = self._after(found)
        name = f"{_query_id(self._plan.spark)}/{batch_id}"
        for _ in range(_TRIES):
            replaced = self._table.files_of(found.buckets)
            rows = merged(self._table.rows_of(replaced), latest)
            directory = self._table.write(rows) if found.buckets else None
            if self._table.commit(replaced, directory, applied, name):
                return
        raise PipelineError(f"the table in {self._plan.home.path} changes too often to be committed to")

    def _after(self, found: Found) -> StreamOffsets:
        applied = self._table.applied
        ends = {TopicPartition(self._plan.topic, partition): end for partition, end in found.ends.items()}
        return archived.with_topics(
            StreamOffsets({**applied.offsets, **ends}, applied.topic_ids), {self._plan.topic: self._topic_id}
        )

    def _set_aside(self, records: DataFrame, found: Found, batch_id: int) -> None:
        """What is no change. Raises PipelineError when that is the end."""
        bad = self._plan.changelog.told(records).where(F.col(REASON).isNotNull())
        aside = self._plan.bad_values
        facts = {"batch": batch_id, "records": found.bad}
        if aside.skip:
            log.warning("records that are no changes are left out", extra=facts)
        elif aside.quarantine is not None:
            name = f"{_query_id(self._plan.spark)}-{batch_id}"
            TopicTarget(self._plan.source.brokers, None, True).append(aside.quarantined(bad), name)
            log.warning("records that are no changes are in quarantine", extra=facts)
        else:
            first = bad.orderBy("partition", "offset").select("partition", "offset", REASON).first()
            assert first is not None
            raise PipelineError(aside.told(self._plan.topic, *first))


def _one_of(kinds: type[Kind], option: str, given: str) -> Kind:
    try:
        return kinds(given)
    except ValueError:
        raise PipelineError(f'{option} takes {" or ".join(kinds)}, not "{given}"') from None


def _query_id(spark: SparkSession) -> str:
    """Of the checkpoint: the same in every run."""
    found = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found is not None, "only a query's batches ask"
    return found
