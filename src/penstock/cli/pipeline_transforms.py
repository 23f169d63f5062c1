"""`penstock pipeline transform`, `aggregate`, `materialize`: topics to other topics, to windows, to tables of keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.client import DEFAULT_BOOTSTRAP, fail, pairs
from penstock.cli.pipeline_options import (
    DEFAULT_INTERVAL_S,
    Bootstrap,
    CatalogProperties,
    Checkpoint,
    DryRun,
    Follow,
    Interval,
    Kafka,
    Master,
    MaxPerBatch,
    SkipLost,
    SparkSettings,
    carry_out,
    spark_session,
)

_MATERIALIZE_INTERVAL_S = 60.0

CheckpointOfTopic = Annotated[
    str,
    typer.Option("--checkpoint", metavar="PATH", help="Path or URL of how far it has come.", show_default=False),
]
Schema = Annotated[
    str | None,
    typer.Option("--schema", metavar="DDL", help="The fields of JSON values, such as 'id BIGINT, name STRING'."),
]
Quarantine = Annotated[
    str | None,
    typer.Option("--quarantine", metavar="TOPIC", help="Where records go that cannot be read, with the reason."),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave records out that cannot be read; without it they end the pipeline.")
]
StartingOffsets = Annotated[
    str,
    typer.Option(
        "--starting-offsets", metavar="OFFSETS", help="Where a new checkpoint begins: earliest, latest, or JSON."
    ),
]


def transform(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    checkpoint: CheckpointOfTopic,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="Where records go, unless a column topic says it.")
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql",
            metavar="SELECT|@FILE",
            help="Over the view input: key, value, partition, offset, timestamp, headers and, with --schema, json. "
            "Columns of a record that it does not name stay as they are.",
        ),
    ] = None,
    function: Annotated[
        str | None,
        typer.Option("--function", metavar="MODULE:NAME", help="In place of SQL: from DataFrame to DataFrame."),
    ] = None,
    schema: Schema = None,
    quarantine: Quarantine = None,
    skip_bad: SkipBad = False,
    skip_lost: SkipLost = False,
    exactly_once: Annotated[
        bool, typer.Option("--exactly-once/--at-least-once", help="Whether output may be doubled after failures.")
    ] = True,
    starting_offsets: StartingOffsets = "earliest",
    follow: Follow = False,
    interval: Interval = DEFAULT_INTERVAL_S,
    max_per_batch: MaxPerBatch = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    kafka: Kafka = None,
    master: Master = None,
    spark: SparkSettings = None,
) -> None:
    """Send every record through SQL or a function to another topic, in order and exactly once."""
    settings, text = pairs("--kafka", kafka), _sql(sql)
    with spark_session("transform", master, spark) as session:
        from penstock.spark.pipelines.transform import plan_transform

        plan = plan_transform(
            session,
            bootstrap=bootstrap,
            topic=topic,
            checkpoint=checkpoint,
            to=to,
            sql=text,
            function=function,
            schema=schema,
            quarantine=quarantine,
            skip_bad=skip_bad,
            skip_lost=skip_lost,
            exactly_once=exactly_once,
            starting_offsets=starting_offsets,
            max_per_batch=max_per_batch,
            follow=follow,
            interval_s=interval,
            kafka=settings,
        )
        carry_out(plan, dry_run)


def aggregate(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False)],
    aggregates: Annotated[
        list[str],
        typer.Option(
            "--aggregate",
            "-a",
            metavar="CALL",
            help="count, sum(x), avg(x), min(x), max(x), distinct(x), p50(x), p99(x), with AS and a name if one likes; "
            "distinct is an estimate, a few percent off as a rule; may be repeated.",
            show_default=False,
        ),
    ],
    window: Annotated[str | None, typer.Option("--window", metavar="TIME", help="How long windows are: 1m.")] = None,
    watermark: Annotated[
        str | None, typer.Option("--watermark", metavar="TIME", help="How long a window waits for late records: 30s.")
    ] = None,
    slide: Annotated[
        str | None, typer.Option("--slide", metavar="TIME", help="A window begins every so often, if they overlap.")
    ] = None,
    time: Annotated[
        str, typer.Option("--time", metavar="SQL", help="When a record happened: a field, or its own time.")
    ] = "_timestamp",
    group_by: Annotated[
        list[str] | None,
        typer.Option(
            "--group-by",
            "-g",
            metavar="SQL",
            help="A field, _key, _headers['name'], or an expression with AS and a name; may be repeated.",
        ),
    ] = None,
    where: Annotated[str | None, typer.Option("--where", metavar="SQL", help="Only these records.")] = None,
    schema: Schema = None,
    to_topic: Annotated[str | None, typer.Option("--to-topic", metavar="TOPIC", help="Windows as JSON.")] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="DIR", help="Path or URL of an Iceberg table of windows.")
    ] = None,
    table: Annotated[str, typer.Option("--table", help="The name of the table.")] = "windows",
    emit: Annotated[
        str, typer.Option("--emit", metavar="final|updates", help="Windows when they are done, or at every change.")
    ] = "final",
    quarantine: Quarantine = None,
    skip_bad: SkipBad = False,
    skip_lost: SkipLost = False,
    catalog_property: CatalogProperties = None,
    starting_offsets: StartingOffsets = "earliest",
    follow: Follow = False,
    interval: Interval = DEFAULT_INTERVAL_S,
    max_per_batch: MaxPerBatch = None,
    checkpoint: Checkpoint = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    kafka: Kafka = None,
    master: Master = None,
    spark: SparkSettings = None,
) -> None:
    """Count and compute over windows of time, by group, to a topic or a table, every window exactly once."""
    settings, properties = pairs("--kafka", kafka), pairs("--catalog-property", catalog_property)
    with spark_session("aggregate", master, spark) as session:
        from penstock.spark.pipelines.aggregate import plan_aggregate

        plan = plan_aggregate(
            session,
            bootstrap=bootstrap,
            topics=topics,
            aggregates=aggregates,
            window=window,
            watermark=watermark,
            slide=slide,
            time=time,
            group_by=group_by or (),
            where=where,
            schema=schema,
            to_topic=to_topic,
            to=to,
            table=table,
            emit=emit,
            quarantine=quarantine,
            skip_bad=skip_bad,
            skip_lost=skip_lost,
            checkpoint=checkpoint,
            starting_offsets=starting_offsets,
            max_per_batch=max_per_batch,
            follow=follow,
            interval_s=interval,
            kafka=settings,
            catalog=properties,
        )
        carry_out(plan, dry_run)


def materialize(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="Path or URL of the table.", show_default=False)],
    table: Annotated[str, typer.Option("--table", help="The name of the table.")] = "latest",
    envelope: Annotated[
        str, typer.Option("--envelope", metavar="plain|debezium", help="What the records of the changelog are.")
    ] = "plain",
    schema: Schema = None,
    key: Annotated[str, typer.Option("--key", metavar="string|binary", help="What keys are.")] = "string",
    buckets: Annotated[
        int | None,
        typer.Option("--buckets", metavar="N", help="How many parts a new table has; a batch writes parts anew. [16]"),
    ] = None,
    quarantine: Quarantine = None,
    skip_bad: SkipBad = False,
    skip_lost: SkipLost = False,
    catalog_property: CatalogProperties = None,
    follow: Follow = False,
    interval: Interval = _MATERIALIZE_INTERVAL_S,
    max_per_batch: MaxPerBatch = None,
    checkpoint: Checkpoint = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    kafka: Kafka = None,
    master: Master = None,
    spark: SparkSettings = None,
) -> None:
    """Keep a table of the latest value of each key of a changelog; tombstones delete, every change counts once."""
    settings, properties = pairs("--kafka", kafka), pairs("--catalog-property", catalog_property)
    with spark_session("materialize", master, spark) as session:
        from penstock.spark.pipelines.materialize import plan_materialize

        plan = plan_materialize(
            session,
            bootstrap=bootstrap,
            topic=topic,
            to=to,
            table=table,
            envelope=envelope,
            schema=schema,
            key=key,
            buckets=buckets,
            quarantine=quarantine,
            skip_bad=skip_bad,
            skip_lost=skip_lost,
            checkpoint=checkpoint,
            max_per_batch=max_per_batch,
            follow=follow,
            interval_s=interval,
            kafka=settings,
            catalog=properties,
        )
        carry_out(plan, dry_run)


def _sql(given: str | None) -> str | None:
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text()
    except OSError as error:
        fail(f"--sql {given}: {error.strerror}", 2)
