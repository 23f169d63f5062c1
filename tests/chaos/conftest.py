"""How long the fault tests run: a short form in `make test`, the full counts in `make chaos`."""

from __future__ import annotations

import os
import random

import pytest

FULL = os.environ.get("PENSTOCK_TEST_CHAOS") == "full"


def rounds(short: int, full: int) -> int:
    return full if FULL else short


@pytest.fixture
def luck(request: pytest.FixtureRequest) -> random.Random:
    """Seeded luck; the seed is printed, and PENSTOCK_TEST_SEED repeats a run."""
    seed = int(os.environ.get("PENSTOCK_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"\n{request.node.name}: PENSTOCK_TEST_SEED={seed}")
    return random.Random(seed)
