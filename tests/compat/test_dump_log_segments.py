"""Kafka's own DumpLogSegments reads and verifies the files we write.

It reports what is wrong on standard error and exits with 0 all the same: an empty standard error is the verdict.
"""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.compat.clients.confluent import ConfluentAdminClient
from tests.compat.clients.interface import ALL_CODECS
from tests.compat.clients.java import JavaClient
from tests.testkit import broker_under_test, eventually
from tests.testkit.java import CLASS_PATH, JavaDriver, java_command, to_java

pytestmark = pytest.mark.xdist_group("dump-log-segments")  # one worker shares the brokers of this module

TOPIC = "dumped"
SEGMENT_BYTES = 1 << 20  # the smallest that Kafka allows
SUFFIXES = {".log", ".index", ".timeindex", ".snapshot"}

# Enough for three segments of many batches each, and one batch of each codec at the end.
PLAIN_COUNT = 2_600
RECORDS = [(f"key-{number}", f"value-{number:06d}-" + "x" * 900) for number in range(PLAIN_COUNT + 5 * len(ALL_CODECS))]


@dataclass(frozen=True, slots=True)
class LogDirectory:
    path: Path

    def files(self) -> list[Path]:
        return sorted(file for file in self.path.iterdir() if file.suffix in SUFFIXES)

    def dump(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [*java_command(), "-cp", CLASS_PATH, "kafka.tools.DumpLogSegments", *options]
        files = ",".join(map(str, self.files()))
        return subprocess.run([*command, "--files", files], capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module", params=["running", "stopped", "killed"])
def directory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, java_driver: JavaDriver
) -> Iterator[LogDirectory]:
    """The files of a broker that still runs, of one that was stopped, and of one that recovered after SIGKILL."""
    data = tmp_path_factory.mktemp(f"dump-{request.param}") / "data"
    with broker_under_test().start(data) as broker:
        configs = {"segment.bytes": str(SEGMENT_BYTES), "index.interval.bytes": "4096"}
        ConfluentAdminClient(broker.bootstrap).create_topic(TOPIC, configs=configs)
        _produce_all(JavaClient(broker.bootstrap, java_driver))
        if request.param == "killed":
            broker.kill()
            broker.restart()
        if request.param != "running":
            broker.stop()
        yield LogDirectory(data / f"{TOPIC}-0")


@pytest.fixture(scope="module")
def deep_dump(directory: LogDirectory) -> subprocess.CompletedProcess[str]:
    return directory.dump("--deep-iteration", "--print-data-log")


def _produce_all(java: JavaClient) -> None:
    _produce(java, RECORDS[:PLAIN_COUNT], "none")
    for number, codec in enumerate(ALL_CODECS):
        start = PLAIN_COUNT + number * 5
        _produce(java, RECORDS[start : start + 5], codec)


def _produce(java: JavaClient, records: list[tuple[str, str]], codec: str) -> None:
    config = {"enable.idempotence": "true", "compression.type": codec, "batch.size": 16_384, "linger.ms": 5}
    rows = [
        {"partition": 0, "key": to_java(key.encode()), "value": to_java(value.encode()), "headers": [["h", "eA=="]]}
        for key, value in records
    ]
    java.call("produce", topic=TOPIC, config=config, records=rows)


def test_given_rolled_segments_when_dumped_then_every_record_is_there_and_indexes_agree_with_the_log(
    deep_dump: subprocess.CompletedProcess[str],
) -> None:
    assert (deep_dump.returncode, deep_dump.stderr) == (0, "")
    printed = re.findall(
        r"^\| offset: (\d+) .*headerKeys: \[h\] key: (\S+) payload: (\S+)$", deep_dump.stdout, re.MULTILINE
    )
    assert [(int(offset), key, value) for offset, key, value in printed] == [
        (offset, *record) for offset, record in enumerate(RECORDS)
    ]
    assert set(re.findall(r"compresscodec: (\w+)", deep_dump.stdout)) == set(ALL_CODECS)
    assert "isvalid: false" not in deep_dump.stdout


def test_given_rolled_segments_when_listed_then_each_has_its_index_files_and_a_snapshot(
    directory: LogDirectory,
) -> None:
    kinds = Counter(file.suffix for file in directory.files())

    assert kinds[".log"] == kinds[".index"] == kinds[".timeindex"] >= 3
    assert kinds[".snapshot"] >= kinds[".log"] - 1


# The active segment's indexes have room for more until it is closed, which this check does not accept of Kafka either.
@pytest.mark.parametrize("directory", ["stopped", "killed"], indirect=True, scope="module")
def test_given_index_files_when_checked_for_sanity_then_each_passes(directory: LogDirectory) -> None:
    dump = directory.dump("--index-sanity-check")

    assert (dump.returncode, dump.stderr) == (0, "")
    indexes = [str(file) for file in directory.files() if file.suffix in {".index", ".timeindex"}]
    assert re.findall(r"^(.+) passed sanity check\.$", dump.stdout, re.MULTILINE) == indexes


def test_given_an_idempotent_producer_when_its_snapshot_is_dumped_then_its_last_batch_is_named(
    directory: LogDirectory, deep_dump: subprocess.CompletedProcess[str]
) -> None:
    last_snapshot = max(file for file in directory.files() if file.suffix == ".snapshot")

    section = deep_dump.stdout.split(f"Dumping {last_snapshot}\n")[1].split("Dumping ")[0]
    last_offsets = [int(offset) for offset in re.findall(r"lastOffset: (-?\d+)", section)]
    sequences = [int(sequence) for sequence in re.findall(r"lastSequence: (-?\d+)", section)]
    assert max(last_offsets) == int(last_snapshot.stem) - 1
    assert all(sequence >= 0 for sequence in sequences)


COMPACTED = "dumped-compacted"


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory, java_driver: JavaDriver) -> LogDirectory:
    """The files of a compacted topic: values of 60 keys written over and over, some deleted, all codecs."""
    data = tmp_path_factory.mktemp("dump-compacted") / "data"
    settings: dict[str, Any] = {"log.cleaner.backoff.ms": "50"}
    with broker_under_test().start(data, **settings) as broker:
        configs = {
            "cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES), "min.cleanable.dirty.ratio": "0.01",
            "file.delete.delay.ms": "0",
        }  # fmt: skip
        ConfluentAdminClient(broker.bootstrap).create_topic(COMPACTED, configs=configs)
        java = JavaClient(broker.bootstrap, java_driver)
        for number, codec in enumerate((*ALL_CODECS, *ALL_CODECS)):
            rows = [_row(f"key-{each % 60}", f"{number}-{each:04d}-" + "x" * 900) for each in range(700)]
            # Deleted for good, so that these tombstones are cleaned and not replaced.
            rows += [_row(f"gone-{number}", "x"), _row(f"gone-{number}", None)]
            config = {"enable.idempotence": "true", "compression.type": codec, "batch.size": 16_384, "linger.ms": 5}
            java.call("produce", topic=COMPACTED, config=config, records=rows)
        directory = LogDirectory(data / f"{COMPACTED}-0")
        eventually(lambda: sum(file.stat().st_size for file in directory.files()) < 1.2 * SEGMENT_BYTES, timeout=30)
        broker.stop()
    return directory


def _row(key: str, value: str | None) -> dict[str, object]:
    return {
        "partition": 0, "key": to_java(key.encode()), "value": None if value is None else to_java(value.encode()),
        "headers": [],
    }  # fmt: skip


def test_given_cleaned_segments_when_dumped_then_batches_and_indexes_are_valid_and_tombstones_have_a_horizon(
    compacted: LogDirectory,
) -> None:
    dump = compacted.dump("--deep-iteration", "--print-data-log")
    sanity = compacted.dump("--index-sanity-check")

    # Gaps are all there may be to report: compaction makes them, and the tool tells of Kafka's own as well.
    reports = [
        line for line in dump.stderr.splitlines() if not re.search(r"^Non-consecutive|^  \d+ is followed by", line)
    ]
    assert (dump.returncode, reports) == (0, [])
    assert (sanity.returncode, sanity.stderr) == (0, "")
    assert "isvalid: false" not in dump.stdout
    assert re.search(r"deleteHorizonMs: OptionalLong\[\d{13}\]", dump.stdout)
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", dump.stdout, re.MULTILINE)]
    assert offsets == sorted(set(offsets))
    assert len(offsets) < 7_020 / 2
