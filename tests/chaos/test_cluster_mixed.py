"""Everything that can go wrong with three brokers and three members of etcd, on hosts, disks and clocks of their own,
by chance and one after the other; then what clients did and saw is held against every promise.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos.availability import availability
from tests.chaos.clock_harm import ClockHarm
from tests.chaos.cluster_clients import FLUSHED, Clients
from tests.chaos.conftest import FULL, rounds
from tests.chaos.disk_harm import DiskHarm
from tests.chaos.etcd_harm import EtcdHarm
from tests.chaos.faults import strace_or_skip
from tests.chaos.harming import Harming, Kind
from tests.chaos.invariants import Invariants
from tests.chaos.network_harm import NetworkHarm
from tests.chaos.process_harm import ProcessHarm
from tests.chaos.site import Site, a_site

pytestmark = pytest.mark.xdist_group("chaos-cluster")

# PENSTOCK_TEST_CHAOS_SECONDS makes it longer or shorter.
SECONDS = int(os.environ.get("PENSTOCK_TEST_CHAOS_SECONDS") or rounds(short=0, full=1_800))
KINDS_IN_SHORT = 3


@pytest.mark.timeout(SECONDS + 900)
def test_given_a_cluster_on_hosts_of_its_own_when_everything_goes_wrong_by_turns_then_no_promise_is_broken(
    tmp_path: Path, luck: random.Random
) -> None:
    strace = strace_or_skip()
    with a_site(tmp_path) as site, Clients.fleet_of(site.cluster, tmp_path, luck) as fleet:
        clients = Clients(site.cluster, fleet, {FLUSHED: {}})
        invariants = Invariants(site.cluster, site.stored, clients.producers)
        harming = Harming(site.cluster, clients, invariants, luck)
        kinds = _kinds(site, harming, strace)
        harming.go_on_for(SECONDS, kinds, first_round=None if FULL else KINDS_IN_SHORT)
        clients.finish()
        invariants.check()
        for line in availability(harming.seconds):
            print(line)
        print(f"invariants were checked {invariants.checks} times")
        clients.check()


def _kinds(site: Site, harming: Harming, strace: str) -> list[Kind]:
    return [
        *ProcessHarm(harming).kinds,
        *NetworkHarm(harming, site.hosts).kinds,
        *EtcdHarm(harming, site.etcd, site.hosts).kinds,
        *DiskHarm(harming, site.disks, strace).kinds,
        *ClockHarm(harming, site.clocks).kinds,
    ]
