"""The result file: written after every scenario, and continued only with what it began with."""

import json
from pathlib import Path
from typing import Any

import pytest
from bench.side_by_side import text
from bench.side_by_side.judging import Samples, judged
from bench.side_by_side.result import Result, load
from bench.side_by_side.rows import AT_LEAST, Goal, Row

pytestmark = pytest.mark.quick

VERSIONS = {"penstock": "1", "kafka": "4.2.0"}
ORDER = ["first", "second", "third"]


def a_row(name: str, penstock: float = 2) -> dict[str, Any]:
    wanted = Row(name, "figure", "MB/s", Goal(AT_LEAST, 1.3))
    return judged(wanted, Samples({"penstock": [{"figure": penstock}], "kafka": [{"figure": 1}]}))


def begin(path: Path, *, resume: bool, versions: dict[str, str] = VERSIONS, command: str = "bench") -> Result:
    return Result.begin(path, command, versions, ORDER, resume=resume)


def test_given_a_finished_row_when_added_then_the_file_has_it_with_all_that_a_reader_needs(tmp_path: Path) -> None:
    path = tmp_path / "results" / "latest.json"

    begin(path, resume=False).add([a_row("first")])

    document = json.loads(path.read_text())
    assert set(document) == {"machine", "versions", "date", "command", "rows"}
    wanted = {"row", "durability", "penstock", "kafka", "nats", "rabbitmq", "unit", "ratio", "goal", "met", "bound"}
    assert wanted <= set(document["rows"][0])


def test_given_a_stopped_run_when_resumed_then_its_rows_are_kept_in_the_order_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "latest.json"
    begin(path, resume=False).add([a_row("third"), a_row("first")])

    resumed = begin(path, resume=True, command="bench --resume")
    assert resumed.measured == {"first", "third"}
    resumed.add([a_row("second")])

    document = load(path)
    assert [row["row"] for row in document["rows"]] == ORDER
    assert document["command"] == "bench; bench --resume"


def test_given_a_row_where_a_system_failed_when_resumed_then_it_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "latest.json"
    failed = {**a_row("first"), "reasons": {"kafka": "it failed: TimeoutError: no response"}}
    begin(path, resume=False).add([failed, a_row("second")])

    assert begin(path, resume=True).measured == {"second"}


def test_given_an_old_file_when_not_resumed_then_it_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "latest.json"
    begin(path, resume=False).add([a_row("first")])

    assert begin(path, resume=False).measured == set()


def test_given_a_file_of_another_version_when_resumed_then_it_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "latest.json"
    begin(path, resume=False).add([a_row("first")])

    with pytest.raises(SystemExit, match=r"another version \(kafka differ\): leave --resume out"):
        begin(path, resume=True, versions={**VERSIONS, "kafka": "4.3.0"})


def test_given_no_result_or_something_else_when_loaded_then_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="there is no result"):
        load(tmp_path / "none.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(SystemExit, match="it has no machine"):
        load(tmp_path / "other.json")


def test_given_a_result_when_written_into_the_docs_then_only_the_part_between_the_marks_changes(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n\n{text.BEGIN}\nold\n{text.END}\n\nafter\n")
    result = begin(tmp_path / "latest.json", resume=False)
    result.add([a_row("first"), a_row("second", penstock=1)])

    text.write_docs(page, result.document)
    text.write_docs(page, result.document)

    written = page.read_text()
    assert written.startswith(f"before\n\n{text.BEGIN}\n") and written.endswith(f"{text.END}\n\nafter\n")
    assert "old" not in written
    assert "1 of 2 goals are met" in written and "missed: second: 1.00 x kafka" in written
    assert "Made by `bench` on" in written


def test_given_docs_without_marks_when_written_then_it_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("nothing to replace\n")
    result = begin(tmp_path / "latest.json", resume=False)

    with pytest.raises(SystemExit, match="has lost its marks"):
        text.write_docs(page, result.document)
