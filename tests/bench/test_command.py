"""The command itself, on one small row with a real broker."""

import json
import subprocess
import sys
from pathlib import Path

from tests.testkit.java import PROJECT


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.side_by_side", *arguments]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=110)


def test_given_one_small_row_when_run_then_the_file_the_table_and_a_second_run_agree(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    asked = ["--rows", "single-record-1c", "--systems", "penstock", "--effort", "tiny", "--repeat", "1", "--no-pin"]
    places = ["--output", str(output), "--data-root", str(tmp_path)]

    first = run(*asked, *places)

    assert first.returncode == 0, first.stderr
    [rate, cpu] = json.loads(output.read_text())["rows"]
    assert (rate["row"], cpu["row"]) == ("single-record-1c", "single-record-1c-cpu")
    assert rate["penstock"] > 0 and rate["kafka"] is None
    assert rate["reasons"]["kafka"] == "it was left out by --systems"
    assert "0 of 1 goals are met" in first.stdout
    assert not list(tmp_path.glob("tmp*")), "data was left behind"

    resumed = run(*asked, *places, "--resume")

    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(output.read_text())["rows"] == [rate, cpu]
    assert run("--compare", str(output), str(output)).returncode == 0


def test_given_an_unknown_row_when_run_then_it_is_refused_before_anything_starts() -> None:
    refused = run("--rows", "produce-rwa")

    assert refused.returncode == 1
    assert "no row is called produce-rwa; --list names them all" in refused.stderr
