from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.storage.kit import NOW_MS, config

from penstock.storage.log import Log

NewLog = Callable[..., Log]


@pytest.fixture
def new_log(tmp_path: Path) -> NewLog:
    """A new log in a directory of its own; keywords are settings."""

    def make(name: str = "orders-0", **changes: object) -> Log:
        return Log.open(str(tmp_path / name), config(**changes), now_ms=NOW_MS)

    return make
