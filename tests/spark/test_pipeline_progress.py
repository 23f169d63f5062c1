"""The line that shows on a terminal how far a pipeline has come."""

from __future__ import annotations

import io

import pytest

from penstock.spark.pipelines.batches import Totals
from penstock.spark.pipelines.progress import Progress
from tests.spark.terminals import Terminal


def test_given_a_terminal_when_batches_are_done_then_rows_rate_lag_and_what_is_left_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Terminal() as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with Progress("archive orders") as progress:
            progress.show(Totals(batches=2, rows=4_000, milliseconds=2_000, lag=6_000))

    assert "archive orders" in terminal.shown
    assert "4,000 rows, 2,000 rows/s, lag 6,000, 0:00 left" in terminal.shown


def test_given_a_query_that_follows_when_shown_then_nobody_says_when_it_will_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Terminal() as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with Progress("archive orders", follows=True) as progress:
            progress.show(Totals(batches=1, rows=10, milliseconds=100, lag=5))

    assert "10 rows, 100 rows/s, lag 5" in terminal.shown and "left" not in terminal.shown


def test_given_no_terminal_when_parts_are_done_then_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)

    with Progress("replay to orders") as progress:
        progress.show_parts(1, 2, rows=10)

    assert not file.getvalue()
