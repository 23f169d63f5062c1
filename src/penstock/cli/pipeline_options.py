"""What all pipelines take, and what is the same around each: a Spark session, the plan, the result, the reason.

Spark is imported when a pipeline runs, never before: it takes seconds, and `penstock` works without it.
"""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from penstock.cli.client import fail, pairs
from penstock.cli.terminal import print_columns
from penstock.runtime import logs
from penstock.wire.errors import WireError

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


@dataclass(frozen=True, slots=True)
class ExitCodes:
    """Of a command that was told to stop, and of one that fails."""

    stopped: int = 0
    failed: int = 1


_EXIT_CODES = ExitCodes()


@contextmanager
def spark_session(
    name: str, master: str | None, settings: list[str] | None, exit_codes: ExitCodes = _EXIT_CODES
) -> Iterator[SparkSession]:
    """For one pipeline. What goes wrong within ends the command with the reason.

    SIGINT and SIGTERM end it where nothing else listens to them: while Spark starts, and while it is planned.
    """
    given = pairs("--spark", settings)
    try:
        with _terminated_as_interrupted(), _session(name, master, given, exit_codes) as spark:
            yield spark
    except KeyboardInterrupt:
        fail(f"{name}: stopped on request", exit_codes.stopped)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _session(name: str, master: str | None, settings: dict[str, str], exit_codes: ExitCodes) -> Iterator[SparkSession]:
    _require_spark(exit_codes.failed)
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from penstock.spark import session
    from penstock.spark.pipelines.errors import PipelineError, why
    from penstock.spark.pipelines.running import listening

    logs.configure(stream=_StandardError())
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_not_raised_as_well)
    for noisy in ("py4j", "pyiceberg"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    is_ours = SparkSession.getActiveSession() is None
    spark: SparkSession | None = None
    with listening(_interrupt) as stop:
        try:
            # Left while it starts, Spark's process would not find where to say that it has, and stay for ever.
            with listening():
                spark = session(f"penstock {name}", master, _SESSION | settings)
            if stop.is_made:
                raise KeyboardInterrupt
            _keep_quiet_at_the_end(spark)
            yield spark
        except KeyboardInterrupt:
            # Asked now, it would first go on with what was interrupted. Its process ends with ours.
            is_ours = False
            raise
        except (PipelineError, WireError) as error:
            if stop.is_made:
                fail(f"{name}: stopped on request; {error}", exit_codes.stopped)
            fail(str(error), exit_codes.failed)
        except (PySparkException, Py4JError, ConnectionError) as error:
            if stop.is_made:  # and whoever asked may have asked Spark's processes as well
                fail(f"{name}: stopped on request", exit_codes.stopped)
            if isinstance(error, PySparkException):
                fail(f"{name}: {why(error)}", exit_codes.failed)
            if isinstance(error, (Py4JNetworkError, ConnectionError)):
                fail(f"{name}: Spark's process has ended: {error}", exit_codes.failed)
            raise
        finally:
            if is_ours and spark is not None:
                with suppress(Py4JError, ConnectionError, KeyboardInterrupt):
                    spark.stop()


def _interrupt(stop: object) -> NoReturn:
    raise KeyboardInterrupt


def _keep_quiet_at_the_end(spark: SparkSession) -> None:
    """When its process ends before ours, one thread of Spark's writes a stack trace, and nothing depends on it."""
    server = spark.sparkContext._accumulatorServer
    if server is not None:
        server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]


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


def _require_spark(exit_code: int) -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError:
        fail("pipelines need Spark: pip install 'penstock[spark]'", exit_code)
    if shutil.which("java") is None:
        fail("pipelines need Java 17, and there is no java in the PATH", exit_code)
