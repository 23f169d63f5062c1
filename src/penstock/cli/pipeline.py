"""`penstock pipeline`: topics to tables and back, on Spark.

A command is a function whose pipeline is imported inside it. Those that turn topics into other topics and tables are in
`pipeline_transforms` and are added to the group here.
"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.client import DEFAULT_BOOTSTRAP, fail, pairs
from penstock.cli.pipeline_audit import audit, replay
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
from penstock.cli.pipeline_transforms import aggregate, materialize, transform

app = typer.Typer(help="Archive, replay, transform and check topics on Spark.", no_args_is_help=True)

_MEGABYTE = 1 << 20

app.command()(replay)
app.command()(audit)
app.command()(transform)
app.command()(aggregate)
app.command()(materialize)


@app.command()
def archive(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False)],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="Path or URL of the archive.", show_default=False)],
    format: Annotated[str, typer.Option("--format", "-f", help="iceberg, or plain parquet.")] = "iceberg",
    table: Annotated[str, typer.Option("--table", help="The name of the table in the archive.")] = "records",
    value: Annotated[
        str | None, typer.Option("--value", metavar="json|avro", help="Take values apart into a column of fields.")
    ] = None,
    schema: Annotated[
        list[str] | None,
        typer.Option(
            "--schema",
            metavar="FILE|DDL",
            help="The fields of values: a file, or columns such as 'id BIGINT, name STRING'; for Avro may be repeated, "
            "with the schemas of older writers.",
        ),
    ] = None,
    file_size: Annotated[
        int, typer.Option("--file-size", metavar="MB", min=1, help="What small files are merged into.")
    ] = 128,
    skip_lost: SkipLost = False,
    catalog_property: CatalogProperties = None,
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
    """Write topics into a table by day, every record exactly once: Iceberg, or plain Parquet."""
    settings, properties = pairs("--kafka", kafka), pairs("--catalog-property", catalog_property)
    if schema and value is None:
        fail("--schema goes with --value: say what values are, json or avro", 2)
    with spark_session("archive", master, spark) as session:
        from penstock.spark.pipelines.archive import DEFAULT_MAX_PER_BATCH, plan_archive
        from penstock.spark.pipelines.merging import FileSizes

        plan = plan_archive(
            session,
            bootstrap=bootstrap,
            topics=topics,
            to=to,
            format=format,
            table=table,
            kafka=settings,
            catalog=properties,
            value=value,
            schema=schema or (),
            checkpoint=checkpoint,
            follow=follow,
            interval_s=interval,
            max_per_batch=max_per_batch or DEFAULT_MAX_PER_BATCH,
            sizes=FileSizes(target_bytes=file_size * _MEGABYTE),
            skip_lost=skip_lost,
        )
        carry_out(plan, dry_run)
