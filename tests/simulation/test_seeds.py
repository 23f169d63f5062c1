"""Many seeds: a few in `make test`, many in `make chaos`. A failing one is printed with how to repeat it."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from tests.chaos.conftest import FULL
from tests.simulation.faults import run_seed

SEEDS = 3_000 if FULL else 30
GROUPS = 10
EVENTS = 400 if FULL else 250


def first_seed() -> int:
    """Others in each run; PENSTOCK_TEST_SEED repeats one."""
    return int(os.environ.get("PENSTOCK_TEST_SEED") or random.SystemRandom().randrange(1_000_000))


@pytest.mark.timeout(3_600 if FULL else 240)
@pytest.mark.parametrize("group", range(GROUPS))
def test_given_misfortunes_when_all_is_mended_then_nothing_was_lost_and_everybody_goes_on(group: int) -> None:
    count = SEEDS // GROUPS
    first = first_seed() + group * count
    print(f"\nPENSTOCK_TEST_SEED={first - group * count}, seeds {first} to {first + count - 1}")

    for seed in range(first, first + count):
        cluster = run_seed(seed, EVENTS)

        assert cluster.events >= EVENTS
        assert cluster.checker.acknowledged


def _told(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--events", "300"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith(" "))


def test_given_a_seed_when_run_by_two_processes_then_the_same_happens_to_the_microsecond() -> None:
    first = _told(3, hash_seed="1")

    assert first.count("\n") > 20
    assert _told(3, hash_seed="2") == first
