"""Two results of the benchmark: what counts as slower."""

from typing import Any

import pytest
from bench.side_by_side.compare import missing, slower

pytestmark = pytest.mark.quick


def row(penstock: float | None, spread: tuple[float, float], kafka: float = 100, **others: Any) -> dict[str, Any]:
    return {
        "row": "produce",
        "unit": "MB/s",
        "penstock": penstock,
        "kafka": kafka,
        "higher_is_better": True,
        "spread": {"penstock": list(spread), "kafka": [kafka, kafka]},
        **others,
    }


def result(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"rows": list(rows)}


def test_given_spreads_that_overlap_when_compared_then_nothing_is_slower() -> None:
    assert slower(result(row(100, (90, 110))), result(row(80, (70, 91)))) == []


def test_given_spreads_apart_when_compared_then_it_is_slower_by_the_medians() -> None:
    [change] = slower(result(row(100, (90, 110))), result(row(80, (70, 89))))

    assert (change.row, change.before, change.after, change.share) == ("produce", 100, 80, 0.8)
    assert not change.is_the_machine


def test_given_a_faster_row_when_compared_then_nothing_is_said() -> None:
    assert slower(result(row(80, (70, 89))), result(row(100, (90, 110)))) == []


def test_given_a_row_where_less_is_better_when_it_grows_then_it_is_slower() -> None:
    less = {"higher_is_better": False}

    assert slower(result(row(10, (9, 11), **less)), result(row(20, (18, 22), **less)))
    assert not slower(result(row(20, (18, 22), **less)), result(row(10, (9, 11), **less)))


def test_given_one_repetition_only_when_compared_then_a_quarter_is_still_noise() -> None:
    assert slower(result(row(100, (100, 100))), result(row(76, (76, 76)))) == []
    assert slower(result(row(100, (100, 100))), result(row(74, (74, 74))))


def test_given_spreads_that_hardly_differ_when_compared_then_it_is_not_worth_a_look() -> None:
    assert slower(result(row(100, (99.5, 100.5))), result(row(98, (97.5, 98.5)))) == []


def test_given_kafka_slower_as_well_when_compared_then_the_machine_is_suspected() -> None:
    [change] = slower(result(row(100, (90, 110))), result(row(50, (40, 60), kafka=60)))

    assert change.is_the_machine
    assert "the machine" in change.line()


def test_given_a_figure_that_is_gone_when_compared_then_it_is_named() -> None:
    assert missing(result(row(100, (90, 110))), result(row(None, (0, 0)))) == ["produce"]
    assert missing(result(row(100, (90, 110))), result()) == ["produce"]
