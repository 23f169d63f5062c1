"""What all pipelines take, and what is the same around each: a Spark session, the plan, the result, the reason.

Spark is imported when a pipeline runs, never before: it takes seconds, and `penstock` works without it.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.client import fail, pairs
from penstock.cli.terminal import print_columns
from penstock.runtime import logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipelines.planning import Plan

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        envvar="PENSTOCK_BOOTSTRAP",
        help="A broker of the cluster; several with commas.",
    ),
]
Kafka = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka", "-X", metavar="KEY=VALUE", help="A setting of the client, for TLS and logins; may be repeated."
    ),
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="The Spark cluster, e.g. spark://host:7077; local[*] by default."),
]
SparkSettings = Annotated[
    list[str] | None,
    typer.Option("--spark", metavar="KEY=VALUE", help="A setting of Spark; may be repeated."),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", metavar="PATH", help="Path or URL of how far it has come; beside the target if not given."
    ),
]
Follow = Annotated[
    bool,
    typer.Option("--follow/--once", "-F", help="Go on with new records until Ctrl-C, or end with those there are now."),
]
Interval = Annotated[
    float, typer.Option("--interval", metavar="SECONDS", min=0, help="With --follow, how often a batch begins.")
]
MaxPerBatch = Annotated[
    int | None,
    typer.Option("--max-per-batch", metavar="N", min=1, help="At most this many offsets in a batch."),
]
SkipLost = Annotated[
    bool, typer.Option("--skip-lost", help="Pass over records that are deleted already; they are an error otherwise.")
]
CatalogProperties = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog-property",
        metavar="KEY=VALUE",
        help="A property of pyiceberg's catalog, if it is not the archive's own; may be repeated.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, show the plan, and move nothing.")]

DEFAULT_INTERVAL_S = 1.0
# The exit code of what was interrupted: as shells have it, and no result.
STOPPED = 130
_SESSION = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    # Spark makes it, and nothing is ever in it: not where somebody happens to be.
    "spark.sql.warehouse.dir": f"{tempfile.gettempdir()}/penstock-spark-warehouse",
}


class _StandardError:
    """Whatever that is at the moment: a progress bar puts itself in its place, so that lines do not cross."""

    def write(self, text: str) -> object:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


@contextmanager
def spark_session(name: str, master: str | None, settings: list[str] | None) -> Iterator[SparkSession]:
    """For one pipeline. What goes wrong within ends the command with the reason."""
    given = pairs("--spark", settings)
    _require_spark()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from penstock.spark import session
    from penstock.spark.pipelines.errors import PipelineError, why

    logs.configure(stream=_StandardError())
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_not_raised_as_well)
    for noisy in ("py4j", "pyiceberg"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    is_ours = SparkSession.getActiveSession() is None
    spark: SparkSession | None = None
    try:
        spark = session(f"penstock {name}", master, _SESSION | given)
        yield spark
    except KeyboardInterrupt:  # while Spark starts, or it is planned: what runs listens to signals itself
        fail(f"{name}: stopped on request", STOPPED)
    except PipelineError as error:
        fail(str(error))
    except PySparkException as error:
        fail(f"{name}: {why(error)}")
    finally:
        if is_ours and spark is not None:
            spark.stop()


def _is_not_raised_as_well(record: logging.LogRecord) -> bool:
    """py4j writes stack traces into the log of whoever uses it, in nobody's name, and raises the same."""
    return not (record.name == "root" and "py4j" in Path(record.pathname).parts)


def carry_out(plan: Plan[object], dry_run: bool) -> None:
    """Runs it, or shows what would be run."""
    if dry_run:
        show_plan(plan)
    else:
        print(plan.run())


def show_plan(plan: Plan[object]) -> None:
    print_columns(("plan", ""), plan.lines())


def _require_spark() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError:
        fail("pipelines need Spark: pip install 'penstock[spark]'")
    if shutil.which("java") is None:
        fail("pipelines need Java 17, and there is no java in the PATH")
