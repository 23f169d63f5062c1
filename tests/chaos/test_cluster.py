"""Three brokers are killed, paused and restarted, one or two at a time; then what clients did and saw is held against
every promise, and the replicas against each other.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.availability import availability
from tests.chaos.cluster_clients import CACHED, FLUSHED, PAGE_CACHE, Clients
from tests.chaos.conftest import rounds
from tests.chaos.harming import Harming
from tests.chaos.invariants import Invariants
from tests.chaos.local import a_cluster, metadata_of, stored
from tests.chaos.process_harm import ProcessHarm, without_the_lock_of

pytestmark = pytest.mark.xdist_group("chaos-cluster")

BROKERS = (1, 2, 3)


@pytest.mark.timeout(900)
def test_given_three_brokers_when_they_are_killed_paused_and_restarted_then_no_promise_is_broken(
    tmp_path: Path, luck: random.Random
) -> None:
    metadata = metadata_of(tmp_path)
    with a_cluster(tmp_path, BROKERS) as cluster, Clients.fleet_of(cluster, tmp_path, luck) as fleet:
        clients = Clients(cluster, fleet, {FLUSHED: {}, CACHED: PAGE_CACHE})
        invariants = Invariants(cluster, lambda: stored(metadata), clients.producers)
        harming = Harming(cluster, clients, invariants, luck)
        harming.go_on_for(rounds(short=0, full=300), ProcessHarm(harming, without_the_lock_of(metadata)).kinds)
        clients.finish()
        invariants.check()
        for line in availability(harming.seconds):
            print(line)
        clients.check()
