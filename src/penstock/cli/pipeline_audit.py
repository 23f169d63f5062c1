"""`penstock pipeline replay` and `audit`: an archive back to a topic, and whether all have the same records."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from penstock.cli.client import DEFAULT_BOOTSTRAP, fail, pairs
from penstock.cli.pipeline_options import (
    Bootstrap,
    CatalogProperties,
    Checkpoint,
    DryRun,
    ExitCodes,
    Kafka,
    Master,
    SparkSettings,
    carry_out,
    show_plan,
    spark_session,
)
from penstock.cli.terminal import print_json

# 0 and 1 are results of an audit. What is interrupted has 130 with shells as well.
_EXIT_CODES = ExitCodes(stopped=130, failed=2)

ArchivePath = Annotated[str, typer.Argument(metavar="ARCHIVE", help="Path or URL of the archive.", show_default=False)]
OneTopic = Annotated[
    str | None, typer.Option("--topic", "-t", help="Which topic of the archive, if it has several.", show_default=False)
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="From this time: epoch milliseconds, or 2026-01-31T12:00Z."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Up to before this time.")]
Offsets = Annotated[
    list[str] | None,
    typer.Option(
        "--offsets",
        metavar="PARTITION:FIRST-END",
        help="Only these, e.g. 0:100-200 or 0:100-; may be repeated for other partitions.",
    ),
]
Keys = Annotated[list[str] | None, typer.Option("--key", "-k", help="Only records with this key; may be repeated.")]
Where = Annotated[
    str | None, typer.Option("--where", metavar="SQL", help='Only records for which this holds, e.g. "fields.id > 7".')
]


def replay(
    archive: ArchivePath,
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="The topic, which is there.", show_default=False)],
    topic: OneTopic = None,
    since: Since = None,
    until: Until = None,
    offsets: Offsets = None,
    key: Keys = None,
    where: Where = None,
    partitions: Annotated[
        str,
        typer.Option(
            "--partitions", metavar="keep|modulo|key", help="As they were, by their remainder, or anew by key."
        ),
    ] = "keep",
    new_timestamps: Annotated[
        bool, typer.Option("--new-timestamps", help="Give records the time of the replay.")
    ] = False,
    rate: Annotated[
        int | None, typer.Option("--rate", metavar="N", min=1, help="At most this many records a second.")
    ] = None,
    replay_id: Annotated[
        str | None, typer.Option("--id", help="The name of this replay: under another one, it is done once more.")
    ] = None,
    catalog_property: CatalogProperties = None,
    checkpoint: Checkpoint = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    kafka: Kafka = None,
    master: Master = None,
    spark: SparkSettings = None,
) -> None:
    """Write records of an archive to a topic, in their order, with their timestamps and headers, exactly once."""
    settings, properties = pairs("--kafka", kafka), pairs("--catalog-property", catalog_property)
    with spark_session("replay", master, spark) as session:
        from penstock.spark.pipelines.replay import plan_replay

        plan = plan_replay(
            session,
            archive=archive,
            bootstrap=bootstrap,
            to=to,
            topic=topic,
            since=since,
            until=until,
            offsets=offsets or (),
            keys=key or (),
            where=where,
            partitions=partitions,
            new_timestamps=new_timestamps,
            rate=rate,
            replay_id=replay_id,
            kafka=settings,
            catalog=properties,
            checkpoint=checkpoint,
        )
        carry_out(plan, dry_run)


def audit(
    archive: ArchivePath,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Only this topic of the archive; may be repeated.")
    ] = None,
    replayed: Annotated[
        str | None,
        typer.Option("--replayed", metavar="TOPIC", help="Compare the topic that it was replayed to as well."),
    ] = None,
    any_partition: Annotated[
        bool, typer.Option("--any-partition", help="Records may have changed their partition in the replay.")
    ] = False,
    since: Since = None,
    until: Until = None,
    offsets: Offsets = None,
    key: Keys = None,
    where: Where = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write the result as a page, with plots.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - prints it.")
    ] = None,
    catalog_property: CatalogProperties = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    kafka: Kafka = None,
    master: Master = None,
    spark: SparkSettings = None,
) -> None:
    """Compare broker, archive and what was replayed: counts, gaps, duplicates, order, checksums.

    Exit code 1 on a difference, 2 when it fails.
    """
    settings, properties = pairs("--kafka", kafka), pairs("--catalog-property", catalog_property)
    if not replayed and (since or until or offsets or key or where or any_partition):
        fail("--since, --until, --offsets, --key, --where and --any-partition go with --replayed", 2)
    with spark_session("audit", master, spark, _EXIT_CODES) as session:
        from penstock.spark.pipelines.audit import plan_audit
        from penstock.spark.pipelines.audit_files import AuditFile
        from penstock.spark.pipelines.audit_passes import Stopped
        from penstock.spark.pipelines.audit_report import page
        from penstock.spark.pipelines.files import Files

        plan = plan_audit(
            session,
            archive=archive,
            bootstrap=bootstrap,
            topics=topic or (),
            replayed_to=replayed,
            keeps_partitions=not any_partition,
            since=since,
            until=until,
            offsets=offsets or (),
            keys=key or (),
            where=where,
            kafka=settings,
            catalog=properties,
        )
        files = Files(session)
        page_file = None if report is None else AuditFile(files, report)
        document_file = None if json_file in (None, "-") else AuditFile(files, json_file)
        for each in (page_file, document_file):
            if each is not None:
                each.check()
        if dry_run:
            show_plan(plan)
            return
        try:
            result = plan.run()
        except Stopped as stopped:
            fail(str(stopped), _EXIT_CODES.stopped)
        # First what cannot fail: the result has taken long.
        if json_file == "-":
            print_json(result.to_json())
        else:
            print(result)
        if page_file is not None:
            page_file.write(page(result))
        if document_file is not None:
            document_file.write(json.dumps(result.to_json(), indent=2))
    if not result.is_equal:
        raise typer.Exit(1)
