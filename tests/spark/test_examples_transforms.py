"""The examples of transform, aggregate and materialize run as they are, in the session that is there."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.testkit import BrokerProcess

_EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def shown(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """What the example prints."""
    monkeypatch.setattr(sys, "argv", ["example", "--bootstrap-server", broker.bootstrap])
    runpy.run_path(str(_EXAMPLES / f"pipeline_{request.param}.py"))
    return capsys.readouterr().out


@pytest.mark.parametrize("shown", ["transform"], indirect=True)
def test_given_the_example_of_transform_when_it_runs_then_orders_are_invoices(shown: str) -> None:
    assert "('c0', '{\"total\":9.0}')" in shown
    assert "('c2', '{\"TOTAL\":8.0}')" in shown
    assert "in quarantine: [('c0', 'not an order')]" in shown


@pytest.mark.parametrize("shown", ["aggregate"], indirect=True)
def test_given_the_example_of_aggregate_when_it_runs_then_there_are_windows(shown: str) -> None:
    windows = [line.split() for line in shown.splitlines() if line.startswith("12:")]

    assert {line[0] for line in windows} == {"12:00", "12:01", "12:02"}
    assert 150 <= sum(int(line[3]) for line in windows) <= 230
    assert len({tuple(line[:3]) for line in windows}) == len(windows) == 12


@pytest.mark.parametrize("shown", ["materialize"], indirect=True)
def test_given_the_example_of_materialize_when_it_runs_then_rows_come_and_go(shown: str) -> None:
    lines = [line for line in shown.splitlines() if "batches" not in line]

    assert lines == ["1 ada turin", "3 eve berlin", "3 eve oslo"]
