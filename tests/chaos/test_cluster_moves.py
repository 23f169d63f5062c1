"""Partitions move, brokers are drained and given work again, while brokers are killed at every step; then what clients
did and saw is held against every promise, and the replicas against each other.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.cluster_clients import CACHED, FLUSHED, PAGE_CACHE, Clients
from tests.chaos.conftest import FULL, rounds
from tests.chaos.harming import Harming
from tests.chaos.invariants import Invariants
from tests.chaos.local import a_cluster, metadata_of, stored
from tests.chaos.moves_harm import MovesHarm

pytestmark = pytest.mark.xdist_group("chaos-cluster")

# With six brokers everything moves to others altogether, with four one replica does at a time.
BROKERS = range(1, rounds(short=4, full=6) + 1)
TOPICS = {FLUSHED: {}, CACHED: PAGE_CACHE} if FULL else {FLUSHED: {}}


@pytest.mark.timeout(900)
def test_given_partitions_that_move_and_brokers_that_are_drained_when_others_are_killed_then_no_promise_is_broken(
    tmp_path: Path, luck: random.Random
) -> None:
    metadata = metadata_of(tmp_path)
    with a_cluster(tmp_path, BROKERS) as cluster, Clients.fleet_of(cluster, tmp_path, luck) as fleet:
        clients = Clients(cluster, fleet, TOPICS)
        invariants = Invariants(cluster, lambda: stored(metadata), clients.producers)
        harming = Harming(cluster, clients, invariants, luck)
        harming.go_on_for(rounds(short=0, full=180), MovesHarm(harming, clients.topics, lambda: stored(metadata)).kinds)
        clients.finish()
        invariants.check()
        print(f"invariants were checked {invariants.checks} times")
        clients.check()
