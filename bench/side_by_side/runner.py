"""Runs scenarios: every system in turn, repetition by repetition, and again where the host disturbed one.

A system that fails in a scenario is out of that scenario, its failure is the row's reason, and the others go on.
"""

import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from bench.side_by_side.judging import FAILED, Samples, judged
from bench.side_by_side.laboratory import Laboratory
from bench.side_by_side.rows import Once, Prepare, Scenario
from bench.side_by_side.stolen import undisturbed


def measured_rows(
    scenario: Scenario,
    laboratory: Laboratory,
    repeat: int,
    missing: Mapping[str, str],
    say: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """The scenario's rows; `missing` are systems that cannot be had, and why."""
    samples = Samples(reasons=dict(missing))
    wanted: dict[str, Prepare] = dict.fromkeys(scenario.systems, scenario.prepare) | dict(scenario.peers)
    with ExitStack() as stack:
        turns: dict[str, Once] = {}
        for system, prepare in wanted.items():
            if system not in missing:
                _try(samples, system, partial(_prepare, turns, system, stack, prepare(laboratory, system)))
        for repetition in range(_repetitions(scenario, repeat)):
            counts = repetition >= scenario.warm_up
            _one_turn_each(turns, samples, counts=counts)
            say(f"{scenario.rows[0].name}: {repetition + 1} of {_repetitions(scenario, repeat)}")
    return [judged(row, samples) for row in scenario.rows]


def _prepare(turns: dict[str, Once], system: str, stack: ExitStack, prepared: AbstractContextManager[Once]) -> None:
    turns[system] = stack.enter_context(prepared)


def _repetitions(scenario: Scenario, repeat: int) -> int:
    counted = min(repeat, scenario.repeat_at_most or repeat)
    return counted + scenario.warm_up


def _one_turn_each(turns: Mapping[str, Once], samples: Samples, *, counts: bool) -> None:
    for system, once in turns.items():
        if system not in samples.reasons:
            _try(samples, system, partial(_one_turn, system, once, samples, counts=counts))


def _one_turn(system: str, once: Once, samples: Samples, *, counts: bool) -> None:
    if not counts:
        once()
        return
    measured = undisturbed(once)
    samples.figures.setdefault(system, []).append(measured.answer)
    samples.thrown_away += measured.thrown_away
    samples.stolen_share = max(samples.stolen_share, measured.stolen_share)


def _try(samples: Samples, system: str, work: Callable[[], object]) -> None:
    try:
        work()
    except Exception as error:
        traceback.print_exception(error)
        samples.reasons[system] = (
            f"{FAILED}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        )
        samples.figures.pop(system, None)
