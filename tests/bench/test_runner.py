"""How a scenario is run: in turns, with a warm-up, and with a failing system left out of the rest."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.side_by_side.choosing import QUICK, wanted
from bench.side_by_side.laboratory import Laboratory
from bench.side_by_side.rows import Figures, Once, Row, Scenario
from bench.side_by_side.runner import measured_rows
from bench.side_by_side.table import scenarios

pytestmark = pytest.mark.quick

ROW = Row("work", "figure", "MB/s")


class Work:
    """Counts, and notes whose turn it was."""

    def __init__(self, failing: str = "") -> None:
        self.turns: list[str] = []
        self._failing = failing

    @contextmanager
    def prepare(self, laboratory: Laboratory, system: str) -> Iterator[Once]:
        self.turns.append(f"{system} comes")

        def once() -> Figures:
            self.turns.append(system)
            if system == self._failing:
                raise RuntimeError("broken\nwith details")
            return {"figure": float(len(self.turns))}

        yield once
        self.turns.append(f"{system} goes")


def test_given_two_systems_when_measured_then_they_take_turns_and_the_first_does_not_count(tmp_path: Path) -> None:
    work = Work()

    [row] = measured_rows(Scenario((ROW,), work.prepare), Laboratory(tmp_path), 2, {})

    assert work.turns == [
        *("penstock comes", "kafka comes"),
        *("penstock", "kafka") * 3,
        *("kafka goes", "penstock goes"),
    ]
    assert row["repeats"] == {"penstock": [5, 7], "kafka": [6, 8]}


def test_given_a_slow_scenario_when_measured_then_its_own_limit_of_repetitions_counts(tmp_path: Path) -> None:
    work = Work()

    measured_rows(Scenario((ROW,), work.prepare, warm_up=False, repeat_at_most=1), Laboratory(tmp_path), 5, {})

    assert work.turns.count("penstock") == 1


def test_given_a_system_that_fails_when_measured_then_the_others_go_on_and_the_row_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Work(failing="kafka")

    [row] = measured_rows(Scenario((ROW,), work.prepare), Laboratory(tmp_path), 2, {})

    assert work.turns.count("kafka") == 1
    assert row["penstock"] is not None and row["kafka"] is None
    assert row["reasons"]["kafka"] == "it failed: RuntimeError: broken"
    assert "with details" in capsys.readouterr().err


def test_given_a_missing_peer_when_measured_then_it_is_not_started_and_named(tmp_path: Path) -> None:
    work = Work()
    scenario = Scenario((ROW,), work.prepare, peers={"nats": work.prepare, "rabbitmq": work.prepare})

    [row] = measured_rows(scenario, Laboratory(tmp_path), 1, {"nats": "not installed"})

    assert "nats comes" not in work.turns
    assert (row["nats"], row["reasons"]["nats"]) == (None, "not installed")
    assert row["rabbitmq"] is not None


def test_given_the_table_when_listed_then_names_are_unique_and_every_goal_of_the_project_is_there() -> None:
    rows = {row.name: row for scenario in scenarios() for row in scenario.rows}

    assert len(rows) == sum(len(scenario.rows) for scenario in scenarios())
    with_goal = {name for name, row in rows.items() if row.goal}
    raw = {
        f"{kind}-raw-{size}-1p-none" for kind in ("produce", "consume", "cpu-in", "cpu-out") for size in ("100b", "1kb")
    }
    others = {"single-record-64c", "latency-p99-1000-acks-all", "ack-p99-1000-fsync", "cold-start", "memory-idle"}
    assert raw | others | {"failover", "compaction", "bulk-fetch"} <= with_goal


def test_given_patterns_when_rows_are_chosen_then_whole_scenarios_come_and_an_unknown_name_is_refused() -> None:
    [chosen] = wanted(scenarios(), ["memory-idle"])
    assert [row.name for row in chosen.rows] == ["cold-start", "memory-idle"]

    assert wanted(scenarios(), QUICK)
    with pytest.raises(SystemExit, match="no row is called produce-rwa"):
        wanted(scenarios(), ["produce-rwa-*"])
