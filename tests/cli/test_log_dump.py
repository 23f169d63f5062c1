"""`penstock log dump` on files made here, sound and damaged; see tests/compat for Kafka's own tool on ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from penstock.cli.log_reader import Fact, Problem, read_any
from penstock.protocol.batch import Codec, place
from penstock.protocol.control import EndMarker, build_end_marker
from penstock.protocol.records import Record, build_batch
from penstock.storage.checkpoints import replace_epochs
from penstock.storage.epochs import EpochEntry
from penstock.storage.producer_snapshot import to_bytes
from penstock.storage.producers import AppendedBatch, ProducerEntry

SEGMENT = "00000000000000000100"
FIRST, SECOND, THIRD = (
    build_batch(
        [
            Record(timestamp=1_000 + number, key=b"k", value=b"v%d" % number, headers=[("h", b"x")])
            for number in numbers
        ],
        base_offset=100 + numbers[0],
        leader_epoch=3,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=numbers[0] if producer_id >= 0 else -1,
    )
    for numbers, codec, producer_id in [
        (range(2), Codec.NONE, 7),
        (range(2, 5), Codec.ZSTD, 7),
        (range(5, 6), Codec.NONE, -1),
    ]
)
SECOND_AT = len(FIRST)
THIRD_AT = len(FIRST) + len(SECOND)


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A sound segment: offsets 100 to 105 in three batches, the last two of them indexed."""
    (tmp_path / f"{SEGMENT}.log").write_bytes(FIRST + SECOND + THIRD)
    # An open segment's index has allocated space behind its entries.
    (tmp_path / f"{SEGMENT}.index").write_bytes(pack(">iiii", 4, SECOND_AT, 5, THIRD_AT) + bytes(64))
    (tmp_path / f"{SEGMENT}.timeindex").write_bytes(pack(">qiqi", 1_004, 4, 1_005, 5) + bytes(48))
    batch = AppendedBatch(base_sequence=2, last_sequence=4, base_offset=102, last_offset=104, timestamp=1_004)
    entry = ProducerEntry(0, (batch,), 3, 1_004, -1, -1)
    (tmp_path / f"{SEGMENT}.snapshot").write_bytes(to_bytes({7: entry}))
    replace_epochs(str(tmp_path / "leader-epoch-checkpoint"), [EpochEntry(3, 100)])
    (tmp_path / "unrelated.txt").write_text("left alone")
    return tmp_path


def problems(path: Path) -> list[str]:
    return [finding.text for finding in read_any(path, True) if isinstance(finding, Problem)]


def facts(path: Path, kind: str) -> list[dict[str, object]]:
    return [finding.fields for finding in read_any(path, True) if isinstance(finding, Fact) and finding.kind == kind]


def test_given_a_segment_then_batches_and_records_are_read(partition: Path) -> None:
    log = partition / f"{SEGMENT}.log"

    first, second, third = facts(log, "batch")

    assert (first["base_offset"], first["last_offset"], first["position"], first["size"]) == (100, 101, 0, len(FIRST))
    assert (first["producer_id"], first["base_sequence"], first["last_sequence"]) == (7, 0, 1)
    assert (second["codec"], second["records"], second["leader_epoch"]) == ("zstd", 3, 3)
    assert "producer_id" not in third
    assert [record["value"] for record in facts(log, "record")] == [f"v{number}" for number in range(6)]
    assert facts(log, "record")[0] == {
        "offset": 100,
        "timestamp": 1_000,
        "key": "k",
        "value": "v0",
        "headers": [["h", "x"]],
    }
    assert facts(log, "total") == [
        {"batches": 3, "records": 6, "bytes": THIRD_AT + len(THIRD), "first_offset": 100, "next_offset": 106}
    ]


def test_given_a_sound_partition_then_nothing_is_wrong_and_every_file_is_read(partition: Path) -> None:
    found = {path.name: problems(path) for path in partition.iterdir() if path.name != "unrelated.txt"}

    assert len(found) == 5
    assert not any(found.values()), found
    assert facts(partition / f"{SEGMENT}.index", "entry") == [
        {"offset": 104, "position": SECOND_AT},
        {"offset": 105, "position": THIRD_AT},
    ]
    assert facts(partition / f"{SEGMENT}.timeindex", "entry")[0] == {"timestamp": 1_004, "offset": 104}
    assert facts(partition / f"{SEGMENT}.snapshot", "producer")[0]["producer_id"] == 7
    assert facts(partition / "leader-epoch-checkpoint", "epoch") == [{"leader_epoch": 3, "start_offset": 100}]


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


Damage = tuple[str, Callable[[Path], object], str]
DAMAGES: list[Damage] = [
    (".log", lambda path: _flip(path, SECOND_AT - 1), "the batch at byte 0 fails its CRC"),
    (".log", lambda path: path.write_bytes(FIRST + SECOND[:-1]), f"bytes {SECOND_AT} to {THIRD_AT - 1} are no whole"),
    (".log", lambda path: path.write_bytes(FIRST + bytes(9)), f"bytes {SECOND_AT} to {SECOND_AT + 9} are no whole"),
    (".log", lambda path: path.write_bytes(SECOND + FIRST), f"the batch at byte {len(SECOND)} has offset 100"),
    (".log", lambda path: path.write_bytes(bytes(100)), "bytes 0 to 100 are no whole"),
    (".index", lambda path: path.write_bytes(pack(">ii", 4, SECOND_AT + 1)), "where no batch begins"),
    (".index", lambda path: path.write_bytes(pack(">ii", 3, SECOND_AT)), "whose batch ends with 104"),
    (".index", lambda path: path.write_bytes(pack(">iiii", 5, THIRD_AT, 4, SECOND_AT)), "does not rise"),
    (".index", lambda path: path.write_bytes(pack(">ii", 4, SECOND_AT) + b"\x01"), "no whole number of entries"),
    (".index", lambda path: path.with_suffix(".log").unlink(), "segment is not there"),
    (".timeindex", lambda path: path.write_bytes(pack(">qi", 1_003, 4)), "batch has the timestamp 1004"),
    (".timeindex", lambda path: path.write_bytes(pack(">qi", 1_004, 9)), "which is not in the segment"),
    (".timeindex", lambda path: path.write_bytes(pack(">qiqi", 1_005, 5, 1_004, 4)), "does not rise"),
    (".snapshot", lambda path: _flip(path, 20), "snapshot is damaged"),
    (".snapshot", lambda path: path.write_bytes(b"\x00"), "snapshot is damaged"),
]


@pytest.mark.parametrize(("suffix", "damage", "message"), DAMAGES, ids=[damage[2] for damage in DAMAGES])
def test_given_a_damaged_file_then_what_is_wrong_is_named(
    partition: Path, suffix: str, damage: Callable[[Path], object], message: str
) -> None:
    path = partition / f"{SEGMENT}{suffix}"

    damage(path)

    assert any(message in problem for problem in problems(path)), problems(path)


def test_given_an_out_of_order_timestamp_then_an_entry_that_ignores_it_is_named(partition: Path) -> None:
    late = build_batch([Record(timestamp=9_000, key=None, value=b"", headers=[])], base_offset=106)
    early = build_batch([Record(timestamp=2_000, key=None, value=b"", headers=[])], base_offset=107)
    (partition / f"{SEGMENT}.log").write_bytes(FIRST + SECOND + THIRD + late + early)
    (partition / f"{SEGMENT}.timeindex").write_bytes(pack(">qi", 2_000, 7))

    assert "larger timestamp" in problems(partition / f"{SEGMENT}.timeindex")[0]


@pytest.fixture
def aborted(tmp_path: Path) -> Path:
    """A transaction of producer 9 at offset 100, aborted at 101."""
    data = build_batch(
        [Record(b"k", b"v", timestamp=1_000)], base_offset=100, producer_id=9, producer_epoch=0, base_sequence=0,
        is_transactional=True,
    )  # fmt: skip
    marker = build_end_marker(EndMarker(9, 1, False, 4), 1_001)
    place(marker, 0, 101, 0)
    (tmp_path / f"{SEGMENT}.log").write_bytes(data + marker)
    (tmp_path / f"{SEGMENT}.txnindex").write_bytes(pack(">hqqqq", 0, 9, 100, 101, 102))
    (tmp_path / "00000000000000000102.snapshot").write_bytes(
        to_bytes({9: ProducerEntry(1, (), 0, 1_001, 4, -1), 10: ProducerEntry(0, (), 0, 1_001, -1, 90)})
    )
    return tmp_path


def test_given_an_aborted_transaction_then_its_marker_its_entry_and_its_producer_are_read(aborted: Path) -> None:
    log, index = aborted / f"{SEGMENT}.log", aborted / f"{SEGMENT}.txnindex"

    assert [batch.get("control", False) for batch in facts(log, "batch")] == [False, True]
    assert facts(log, "record")[1] == {
        "offset": 101, "timestamp": 1_001, "control_type": "abort", "coordinator_epoch": 4,
    }  # fmt: skip
    assert facts(index, "aborted") == [
        {"producer_id": 9, "first_offset": 100, "last_offset": 101, "last_stable_offset": 102}
    ]
    assert facts(aborted / "00000000000000000102.snapshot", "producer") == [
        {"producer_id": 9, "producer_epoch": 1, "batches": [], "coordinator_epoch": 4},
        {"producer_id": 10, "producer_epoch": 0, "batches": [], "open_since_offset": 90},
    ]
    assert problems(index) == problems(log) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (pack(">hqqqq", 0, 9, 100, 101, 102)[:-1], "33 bytes: no whole number of entries of 34"),
        (pack(">hqqqq", 1, 9, 100, 101, 102), "the entry for the marker at 101 has version 1"),
        (2 * pack(">hqqqq", 0, 9, 100, 101, 102), "the entry for the marker at 101 does not rise"),
        (pack(">hqqqq", 0, 8, 100, 101, 102), "the entry names offset 101, which is no marker of producer 8"),
        (pack(">hqqqq", 0, 9, 99, 100, 101), "the entry names offset 100, which is no marker of producer 9"),
    ],
)
def test_given_a_damaged_index_of_aborted_transactions_then_what_is_wrong_is_named(
    aborted: Path, content: bytes, problem: str
) -> None:
    index = aborted / f"{SEGMENT}.txnindex"
    index.write_bytes(content)

    assert problems(index) == [problem]


def test_given_a_damaged_epoch_checkpoint_or_no_file_or_a_foreign_one_then_it_is_a_problem(partition: Path) -> None:
    checkpoint = partition / "leader-epoch-checkpoint"
    checkpoint.write_text("0\n5\n1 2\n")

    assert "announces 5" in problems(checkpoint)[0]
    assert problems(partition / "missing.log") == ["no such file"]
    assert "not a file of a log" in problems(partition / "unrelated.txt")[0]


def penstock_log_dump(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli.main", "log", "dump", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_given_a_directory_when_it_is_dumped_then_text_and_json_hold_the_same_and_the_exit_code_is_0(
    partition: Path,
) -> None:
    text = penstock_log_dump(partition, "--records")
    lines = penstock_log_dump(partition, "--records", "--json")

    documents: list[dict[str, Any]] = [json.loads(line) for line in lines.stdout.splitlines()]
    assert (text.returncode, lines.returncode, text.stderr, lines.stderr) == (0, 0, "", "")
    assert sum(document["kind"] == "record" for document in documents) == 6
    assert text.stdout.count("\n    record ") == 6
    assert "  entry offset=104 position=" in text.stdout
    assert "unrelated" not in text.stdout


def test_given_a_wrong_index_when_only_problems_are_asked_for_then_they_are_named_and_the_exit_code_is_1(
    partition: Path,
) -> None:
    index = partition / f"{SEGMENT}.index"
    index.write_bytes(pack(">ii", 3, SECOND_AT))

    finished = penstock_log_dump("--check", partition)

    assert finished.returncode == 1
    assert f"{index}:\n  PROBLEM: the entry for offset 103 points at byte {SECOND_AT}" in finished.stdout
    assert "  batch " not in finished.stdout
    assert finished.stderr == "penstock: 1 problem found\n"
