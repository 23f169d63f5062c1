"""Many seeds: a few in `make test`, many in `make chaos`. A failing one is printed with how to repeat it."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from tests.chaos.conftest import FULL

SEEDS = 3_000 if FULL else 30
GROUPS = 10
EVENTS = 400 if FULL else 250


def first_seed() -> int:
    """Others in each run; PENSTOCK_TEST_SEED repeats one."""
    return int(os.environ.get("PENSTOCK_TEST_SEED") or random.SystemRandom().randrange(1_000_000))


@pytest.mark.timeout(3_600 if FULL else 240)
@pytest.mark.parametrize("group", range(GROUPS))
def test_given_misfortunes_when_all_is_mended_then_nothing_was_lost_and_everybody_goes_on(group: int) -> None:
    """In a process of its own: brokers that were killed leave their descriptors open."""
    count = SEEDS // GROUPS
    first = first_seed() + group * count
    print(f"\nPENSTOCK_TEST_SEED={first - group * count}, seeds {first} to {first + count - 1}")

    done = _run("--seed", str(first), "--seeds", str(count), "--events", str(EVENTS))

    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    inherited = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(command, env=inherited | environment, capture_output=True, text=True)


def _told(seed: int, hash_seed: str) -> str:
    done = _run("--seed", str(seed), "--events", "300", PYTHONHASHSEED=hash_seed)
    assert done.returncode == 0, done.stdout
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith(" "))


def test_given_a_seed_when_run_by_two_processes_then_the_same_happens_to_the_microsecond() -> None:
    first = _told(3, hash_seed="1")

    assert first.count("\n") > 20
    assert _told(3, hash_seed="2") == first
