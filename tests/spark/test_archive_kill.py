"""`penstock pipeline archive` as a process that is killed at random moments: the archive has the topic, exactly."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from tests.chaos.conftest import FULL, luck, rounds
from tests.chaos.faults import inject, strace_or_skip
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
# The calls of a commit, of which one kills who makes it, and about how many there are in two batches: a transaction of
# the catalog, which is SQLite, or the link that makes a state of Parquet files the latest; then the files in which
# Spark notes that the batch has begun, and that it is done.
COMMITS = {
    "iceberg": (("python", "pwrite64,fdatasync,unlink", 12), ("java", "rename", 8)),
    "parquet": (("python", "link", 2), ("java", "rename", 8)),
}
BROKER, COMMIT, ANY = VICTIMS = ("the broker", "a commit", "any process")


@pytest.mark.timeout(7200)
# What a Parquet table does when it is cut off is tried step by step in test_archive_tables.
@pytest.mark.parametrize("format", FORMATS if FULL else FORMATS[:1])
def test_given_a_streaming_archive_when_its_processes_are_killed_again_and_again_then_it_has_every_record_once(
    topic_name: str, tmp_path: Path, luck: random.Random, format: str
) -> None:
    strace, kills = strace_or_skip(), _kills(luck)
    records = some_records((len(kills) + 1) * PER_KILL)
    with Broker.start(tmp_path / "data") as broker:
        broker.restart(same_port=True)
        create(broker.bootstrap, topic_name, partitions=PARTITIONS, config={"retention.ms": "-1"})
        with Archiving(broker.bootstrap, topic_name, tmp_path, format) as archive:
            archive.start()
            more = partial(fill, broker.bootstrap, topic_name)
            for number, victim in enumerate(kills):
                before, at = archive.batches, number * PER_KILL
                print(f"killing {victim}")
                if victim == COMMIT:
                    more(records[at : at + PER_KILL // 2])
                    archive.until_batches(before + 1)
                    who, calls, count = luck.choice(COMMITS[format])
                    with archive.killed_at(strace, who, f"{calls}:signal=SIGKILL:when={luck.randint(1, count)}"):
                        more(records[at + PER_KILL // 2 : at + PER_KILL])
                    archive.start()
                    continue
                more(records[at : at + PER_KILL])
                archive.until_batches(before + luck.randint(1, 3))
                archive.for_a_moment(luck.random() * 2)
                if victim == BROKER:
                    broker.kill()
                    broker.restart(same_port=True)
                else:
                    archive.kill(luck)
                    archive.start()
            before = archive.batches
            more(records[-PER_KILL:])
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


def _kills(luck: random.Random) -> list[str]:
    """Who is killed. That the broker is, the archive has to outlast."""
    kills = [*VICTIMS, *luck.choices(VICTIMS, weights=(1, 1, 2), k=rounds(short=3, full=20) - len(VICTIMS))]
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
        if victim is not None:
            victim.kill()
            self.for_a_moment(luck.random())
        self._kill_all(family)

    @contextmanager
    def killed_at(self, strace: str, who: str, fault: str) -> Iterator[None]:
        """One of its processes, which is given something to do, dies in one of its calls, and the rest with it."""
        family = self._family()
        (victim,) = (each for each in family[:1] + family[0].children() if each.name().startswith(who))
        tracer = inject(strace, victim.pid, fault)
        yield
        eventually(lambda: tracer.poll() is not None, _PATIENCE_S, "there was no such call")
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
