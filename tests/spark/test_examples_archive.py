"""The examples of archive, replay and audit run as they are, in the session that is there."""

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
) -> list[str]:
    """The lines that the example prints."""
    monkeypatch.setattr(sys, "argv", ["example", "--bootstrap-server", broker.bootstrap])
    runpy.run_path(str(_EXAMPLES / f"pipeline_{request.param}.py"))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("shown", ["archive"], indirect=True)
def test_given_the_example_of_archive_when_it_runs_then_orders_are_a_table(shown: list[str]) -> None:
    assert [line.split(" in ")[0] for line in shown[:2]] == ["10 rows", "5 rows"]
    assert shown[2:] == [
        "cents by customer: [('c0', 3000), ('c1', 3500), ('c2', 4000)]",
        "records by pyiceberg: 14",
        "in quarantine: [('not an order', 'it is not JSON of customer string, cents bigint')]",
    ]


@pytest.mark.parametrize("shown", ["replay"], indirect=True)
def test_given_the_example_of_replay_when_it_runs_then_records_are_in_other_topics(shown: list[str]) -> None:
    assert [line.split(" in ")[0] for line in shown[:2]] == ["12 rows", "0 rows"]
    assert shown[-2:] == ["again: 12", "of c1: ['order 10']"]


@pytest.mark.parametrize("shown", ["audit"], indirect=True)
def test_given_the_example_of_audit_when_it_runs_then_it_says_equal_and_then_what_differs(shown: list[str]) -> None:
    assert shown[0] == "equal: 2 partitions, 1,000 archived records"
    assert shown[1] == "1 differences: 2 partitions, 1,000 archived records"
    assert "were to be replayed" in shown[2]
