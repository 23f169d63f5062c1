"""`make demo`: a broker, a click-stream, and what Spark makes of it: an archive, windows, and an audit.

Everything it makes is in .data/demo, which each run begins anew. The broker listens on free ports of the loopback
interface and ends with the demo, unless it is told to --stay.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.sdk import Client
from penstock.spark import session
from penstock.spark.pipelines.aggregate import aggregate, read_table
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.audit import audit
from penstock.spark.pipelines.audit_report import page
from penstock.spark.pipelines.running import Ended

PROJECT = Path(__file__).parents[1]
HOME = PROJECT / ".data" / "demo"
CLICKS, MINUTES = "clicks", "clicks-by-minute"
PARTITIONS = 4
SECONDS = 600
CLICKS_PER_SECOND = 60
PAGES = {"/": 40, "/search": 25, "/item": 20, "/cart": 10, "/pay": 5}
SLOW = {"/search": 3.0, "/pay": 5.0}
BATCH = 5_000
READY_WITHIN_S = 60


def main(stay: bool) -> None:
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    with a_broker() as bootstrap:
        say(f"a broker at {bootstrap}, its data in {shown(HOME / 'broker')}")
        count = feed(bootstrap)
        say(f"{count:,} clicks of ten minutes in topic {CLICKS}")
        run_pipelines(bootstrap)
        where_to_look(bootstrap, stay)
        if stay:
            wait()


def run_pipelines(bootstrap: str) -> None:
    say("Spark starts, which takes a few seconds")
    spark = session("demo", settings={"spark.ui.enabled": "false", "spark.log.level": "ERROR"})
    ended = archive(spark, bootstrap=bootstrap, topics=[CLICKS], to=str(HOME / "archive"))
    say(f"archive: {ended}")
    say(f"aggregate to a table: {windows(spark, bootstrap, to=str(HOME / 'minutes'))}")
    ended = windows(spark, bootstrap, to_topic=MINUTES, checkpoint=str(HOME / "checkpoint"))
    say(f"aggregate to the topic {MINUTES}: {ended}")
    result = audit(spark, archive=str(HOME / "archive"), bootstrap=bootstrap)
    (HOME / "audit.html").write_text(page(result))
    say(f"audit: {result}")
    slowest = read_table(spark, str(HOME / "minutes")).where("page = '/pay'").orderBy("window_start")
    for row in slowest.collect():
        say(f"  {row['window_start']:%H:%M} {row['page']:8} {row['count']:5} clicks, p99 {row['p99']:8.1f} ms")
    spark.stop()


def windows(
    spark: SparkSession,
    bootstrap: str,
    *,
    to: str | None = None,
    to_topic: str | None = None,
    checkpoint: str | None = None,
) -> Ended:
    """How many clicks each page had in each minute, of how many users, and how slow they were."""
    return aggregate(
        spark,
        bootstrap=bootstrap,
        topics=[CLICKS],
        schema="ts TIMESTAMP, user STRING, page STRING, status INT, duration_ms DOUBLE",
        time="ts",
        window="1m",
        watermark="10s",
        group_by=["page"],
        aggregates=["count", "p50(duration_ms) AS p50", "p99(duration_ms) AS p99", "distinct(user) AS users"],
        to=to,
        to_topic=to_topic,
        checkpoint=checkpoint,
    )


# The broker


@contextmanager
def a_broker() -> Iterator[str]:
    """Its address."""
    ready = HOME / "ready.json"
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--data-dir", str(HOME / "broker")]
    command += ["--host", "127.0.0.1", "--port", "0", "--http-port", "0", "--ready-file", str(ready)]
    with (HOME / "broker.log").open("wb") as log:
        broker = subprocess.Popen(command, stdout=log, stderr=log, process_group=0)
    try:
        deadline = time.monotonic() + READY_WITHIN_S
        while not ready.exists():
            if broker.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the broker does not start:\n{(HOME / 'broker.log').read_text()}")
            time.sleep(0.05)
        yield str(json.loads(ready.read_text())["kafka"])
    finally:
        broker.terminate()
        broker.wait()


# The click-stream


def feed(bootstrap: str) -> int:
    """Ten minutes that have just passed, with a bad one in the middle, in which paying is slow."""
    count = 0
    with Client(bootstrap) as client:
        for topic in (CLICKS, MINUTES):
            client.create_topic(topic, partitions=PARTITIONS)
        batch: list[tuple[str, str]] = []
        for click in clicks(random.Random(7)):
            batch.append(click)
            if len(batch) == BATCH:
                count += len(client.publish_many(CLICKS, batch))
                batch.clear()
        return count + len(client.publish_many(CLICKS, batch))


def clicks(luck: random.Random) -> Iterator[tuple[str, str]]:
    begin_s = time.time() - SECONDS
    for second in range(SECONDS):
        busy = 1 + 0.5 * math.sin(second / SECONDS * 2 * math.pi)
        for _ in range(round(CLICKS_PER_SECOND * busy)):
            (page,) = luck.choices(list(PAGES), list(PAGES.values()))
            user = f"user-{min(luck.randrange(500), luck.randrange(500))}"
            is_bad = page == "/pay" and 300 <= second < 360
            duration_ms = luck.lognormvariate(3.5, 0.6) * SLOW.get(page, 1.0) * (8 if is_bad else 1)
            status = 503 if luck.random() < (0.2 if is_bad else 0.002) else 200
            happened = datetime.fromtimestamp(begin_s + second + luck.random(), UTC).isoformat(timespec="milliseconds")
            fields = {"ts": happened, "user": user, "page": page, "status": status}
            yield user, json.dumps(fields | {"duration_ms": round(duration_ms, 1)})


# What is said


def where_to_look(bootstrap: str, stay: bool) -> None:
    penstock = f"{shown(Path(sys.executable).parent)}/penstock"
    there = f"--bootstrap-server {bootstrap}"
    if not stay:
        say(f"The broker ends now. To have it again: {penstock} serve --data-dir {shown(HOME / 'broker')}")
        there = ""
    say("Where to look:")
    say(f"  {shown(HOME / 'audit.html')}        the audit, with plots, for a browser")
    say(f"  {shown(HOME / 'archive')}           every click, an Iceberg table by day (catalog.db)")
    say(f"  {shown(HOME / 'minutes')}           every minute and page, an Iceberg table")
    say(f"  {penstock} consume {MINUTES} {there}".rstrip())
    say(f"  {penstock} pipeline aggregate --help, docs/pipelines.md for the rest")


def shown(path: Path) -> str:
    """From where one stands, if it is below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def say(text: str) -> None:
    print(text, flush=True)


def wait() -> None:
    say("Ctrl-C ends the broker.")
    try:
        while True:
            time.sleep(3_600)
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stay", action="store_true", help="let the broker run until Ctrl-C")
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)
    main(parser.parse_args().stay)
