"""Three brokers are killed, paused and restarted, one or two at a time; then what clients did and saw is held against
every promise, and the replicas against each other.
"""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.availability import availability
from tests.chaos.cluster_clients import CACHED, FLUSHED, PAGE_CACHE, Clients
from tests.chaos.conftest import rounds
from tests.chaos.harming import Harming
from tests.chaos.invariants import Invariants
from tests.chaos.process_harm import ProcessHarm, without_the_lock_of
from tests.compat.members import group_settings
from tests.testkit import Cluster, lasting_port

pytestmark = pytest.mark.xdist_group("chaos-cluster")

BROKERS = (1, 2, 3)


@pytest.mark.timeout(900)
def test_given_three_brokers_when_they_are_killed_paused_and_restarted_then_no_promise_is_broken(
    tmp_path: Path, luck: random.Random
) -> None:
    metadata = tmp_path / "metadata.db"
    with _a_cluster(tmp_path) as cluster, Clients.fleet_of(cluster, tmp_path, luck) as fleet:
        clients = Clients(cluster, fleet, {FLUSHED: {}, CACHED: PAGE_CACHE})
        invariants = Invariants(cluster, lambda: _stored(metadata), clients.producers)
        harming = Harming(cluster, clients, invariants, luck)
        harming.go_on_for(rounds(short=15, full=300), ProcessHarm(harming, without_the_lock_of(metadata)).kinds)
        clients.finish()
        invariants.check()
        for line in availability(harming.seconds):
            print(line)
        clients.check()


def _a_cluster(tmp_path: Path) -> Cluster:
    """On ports that are still theirs when they come back."""
    cluster = Cluster(tmp_path, {"default.replication.factor": 3, **group_settings()})
    try:
        for broker_id in BROKERS:
            cluster.add(broker_id, port=lasting_port())
    except BaseException as error:
        cluster.__exit__(type(error), error, None)
        raise
    return cluster


def _stored(metadata: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(metadata)) as database:
        return {key: json.loads(value) for key, value in database.execute("SELECT key, value FROM entries")}
