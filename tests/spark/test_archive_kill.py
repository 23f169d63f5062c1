"""`penstock pipeline archive` as a process that is killed at random moments: the archive has the topic, exactly."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from tests.chaos.conftest import FULL, luck, rounds
from tests.spark.archiving import FORMATS, PARTITIONS, Row, as_rows, some_records, visible_files
from tests.spark.piping import create, fill
from tests.testkit import Broker
from tests.testkit.waiting import eventually

__all__ = ["luck"]  # a fixture

pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="no Java here: Spark cannot be tried")

PER_BATCH = 20
# More batches than are waited for before a kill.
PER_KILL = 4 * PER_BATCH
_PATIENCE_S = 240


@pytest.mark.timeout(7200)
# What a Parquet table does when it is cut off is tried step by step in test_archive_tables.
@pytest.mark.parametrize("format", FORMATS if FULL else FORMATS[:1])
def test_given_a_streaming_archive_when_its_processes_are_killed_again_and_again_then_it_has_every_record_once(
    topic_name: str, tmp_path: Path, luck: random.Random, format: str
) -> None:
    kills = _kills(luck)
    records = some_records((len(kills) + 1) * PER_KILL)
    with Broker.start(tmp_path / "data") as broker:
        broker.restart(same_port=True)
        create(broker.bootstrap, topic_name, partitions=PARTITIONS, config={"retention.ms": "-1"})
        with Archiving(broker.bootstrap, topic_name, tmp_path, format) as archive:
            archive.start()
            for number, with_broker in enumerate(kills):
                before = archive.batches
                fill(broker.bootstrap, topic_name, records[number * PER_KILL : (number + 1) * PER_KILL])
                archive.until_batches(before + luck.randint(1, 3))
                archive.for_a_moment(luck.random() * 2)
                if with_broker:
                    print(f"killing the broker after {archive.batches} batches")
                    broker.kill()
                    broker.restart(same_port=True)
                else:
                    archive.kill(luck)
                    archive.start()
            before = archive.batches
            fill(broker.bootstrap, topic_name, records[-PER_KILL:])
            archive.until_batches(before + PER_KILL // PER_BATCH)
            archive.until_the_end()
            archive.stop()

    assert _rows_seen_by_others(tmp_path / "archive", format) == as_rows(records)


def _rows_seen_by_others(home: Path, format: str) -> list[Row]:
    """By readers that know nothing of us: Iceberg's own, or one of all Parquet files there are."""
    if format == "iceberg":
        catalog = load_catalog("penstock", type="sql", uri=f"sqlite:///{home}/catalog.db")
        table = catalog.load_table("penstock.records").scan().to_arrow()
    else:
        table = pa.concat_tables(pq.ParquetFile(path).read() for path in visible_files(home / "records"))
    return sorted(
        Row(
            row["partition"],
            row["offset"],
            row["key"],
            row["value"],
            tuple((each["key"], each["value"]) for each in row["headers"]),
            round(row["timestamp"].timestamp() * 1_000),
        )
        for row in table.to_pylist()
    )


def _kills(luck: random.Random) -> list[bool]:
    """Whether it is the broker that is killed, which the archive has to outlast."""
    kills = [True, False, *(luck.random() < 0.25 for _ in range(rounds(short=2, full=20) - 2))]
    luck.shuffle(kills)
    return kills


class Ended(Exception):
    """The process is not there any more, and nobody has killed it."""


class Archiving:
    """The command that follows a topic, in a session of its own, so that all of it can be killed."""

    def __init__(self, bootstrap: str, topic: str, home: Path, format: str) -> None:
        self._command = [sys.executable, "-m", "penstock.cli.main", "pipeline", "archive", topic, "--follow"]
        self._command += ["--to", str(home / "archive"), "--format", format, "--bootstrap", bootstrap]
        self._command += ["--max-per-batch", str(PER_BATCH), "--interval", "0", "--master", "local[2]"]
        self._command += ["--spark", "spark.sql.shuffle.partitions=2", "--spark", "spark.driver.memory=512m"]
        self._home = home
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._starts += 1
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )

    @property
    def batches(self) -> int:
        return len(self._batches())

    def until_batches(self, count: int) -> None:
        eventually(lambda: self.batches >= count, _PATIENCE_S, f"no {count} batches; see {self._log}")

    def for_a_moment(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        eventually(lambda: time.monotonic() >= until, seconds + 5)

    def kill(self, luck: random.Random) -> None:
        """Everything at once, or one of its processes first: the rest has a moment to go on without it."""
        family = self._family()
        victim = luck.choice([None, *family])
        print(f"killing {'all' if victim is None else victim.name()} after {self.batches} batches")
        if victim is not None:
            victim.kill()
            self.for_a_moment(luck.random())
        self._kill_all(family)

    def _family(self) -> list[psutil.Process]:
        driver = psutil.Process(self._running().pid)
        return [driver, *driver.children(recursive=True)]

    def _kill_all(self, family: list[psutil.Process]) -> None:
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self._running().wait(60)

    def until_the_end(self) -> None:
        eventually(lambda: "lag=0" in " ".join(self._batches()[-1:]).split(), _PATIENCE_S, f"no end; see {self._log}")

    def stop(self) -> None:
        process = self._running()
        process.send_signal(signal.SIGTERM)
        assert process.wait(_PATIENCE_S) == 0, self._log.read_text()[-2_000:]
        assert "stopped on request" in self._log.read_text()

    def _batches(self) -> list[str]:
        """Lines of the log; the last one may be half-written."""
        if self._running().poll() is not None:
            raise Ended(f"the archive ended: {self._log.read_text()[-2_000:]}")
        lines = self._log.read_text().split("\n")[:-1]
        return [line for line in lines if " batch done " in line]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._kill_all(self._family())

    @property
    def _log(self) -> Path:
        return self._home / f"archive.{self._starts}.log"

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process
