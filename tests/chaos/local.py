"""A cluster of brokers on this machine, with their metadata in one file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.compat.members import group_settings
from tests.testkit import Cluster, lasting_port


def a_cluster(directory: Path, brokers: Sequence[int]) -> Cluster:
    """On ports that are still theirs when they come back."""
    cluster = Cluster(directory, {"default.replication.factor": 3, **group_settings()})
    first, *others = brokers
    try:
        cluster.add(first, port=lasting_port())
        with ThreadPoolExecutor(len(others)) as pool:
            list(pool.map(lambda broker_id: cluster.add(broker_id, port=lasting_port()), others))
    except BaseException as error:
        cluster.__exit__(type(error), error, None)
        raise
    return cluster


def metadata_of(directory: Path) -> Path:
    return directory / "metadata.db"


def stored(metadata: Path) -> dict[str, Any]:
    """What it has, by key."""
    with closing(sqlite3.connect(metadata)) as database:
        return {key: json.loads(value) for key, value in database.execute("SELECT key, value FROM entries")}
