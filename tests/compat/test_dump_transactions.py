"""Kafka's own DumpLogSegments reads what a log writes about transactions: markers, aborted transactions, snapshots."""

import re
import subprocess

import pytest

from penstock.storage.log import Log
from tests.storage.kit import NOW_MS, a_batch, append, config
from tests.storage.transaction_kit import a_marker, txn_batch
from tests.testkit.java import CLASS_PATH, java_command

pytestmark = pytest.mark.xdist_group("dump-log-segments")


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log with transactions committed, aborted and open, of two segments, closed, in the words of the tool."""
    directory = tmp_path_factory.mktemp("dump-transactions") / "orders-0"
    log = Log.open(str(directory), config(), now_ms=NOW_MS)
    append(log, txn_batch((21, 0, 0), 2))
    append(log, txn_batch((22, 3, 0)))
    append(log, a_marker(22, 4, commit=False, coordinator_epoch=6))
    append(log, a_marker(21, 0, commit=True, coordinator_epoch=5))
    append(log, txn_batch((21, 0, 2)))
    log.roll(NOW_MS)
    append(log, a_batch())
    append(log, a_marker(21, 0, commit=False, coordinator_epoch=5))
    append(log, txn_batch((23, 1, 0)))
    log.close()
    files = ",".join(sorted(str(path) for path in directory.iterdir() if path.suffix != "" and path.suffix != ".tmp"))
    command = [*java_command(), "-cp", CLASS_PATH, "kafka.tools.DumpLogSegments", "--print-data-log", "--files", files]
    dump = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (dump.returncode, dump.stderr) == (0, "")
    return dump.stdout


def section(dumped: str, name: str) -> str:
    found = re.search(rf"^Dumping \S*{re.escape(name)}\n(.*?)(?=^Dumping |\Z)", dumped, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_given_aborted_transactions_when_dumped_then_each_entry_is_in_the_segment_of_its_marker(dumped: str) -> None:
    assert section(dumped, f"{0:020d}.txnindex").strip() == (
        "version: 0 producerId: 22 firstOffset: 2 lastOffset: 3 lastStableOffset: 0"
    )
    assert section(dumped, f"{6:020d}.txnindex").strip() == (
        "version: 0 producerId: 21 firstOffset: 5 lastOffset: 7 lastStableOffset: 8"
    )


def test_given_markers_when_dumped_then_they_say_how_the_transaction_ended_and_who_wrote_them(dumped: str) -> None:
    assert re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", dumped) == [
        ("ABORT", "6"), ("COMMIT", "5"), ("ABORT", "5"),
    ]  # fmt: skip
    assert "isvalid: false" not in dumped


def test_given_the_last_snapshot_when_dumped_then_it_has_epochs_and_open_transactions(dumped: str) -> None:
    rows = {
        row[0]: row[1:]
        for row in re.findall(
            r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: (\S+)",
            section(dumped, f"{9:020d}.snapshot"),
        )
    }
    assert rows == {
        "21": ("0", "5", "OptionalLong.empty"),
        "22": ("4", "6", "OptionalLong.empty"),
        "23": ("1", "-1", "OptionalLong[8]"),
    }
