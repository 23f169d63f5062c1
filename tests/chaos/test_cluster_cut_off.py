"""A leader that is cut off from the other brokers and the metadata, and not from clients, does not keep them."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.cluster_clients import FLUSHED, Clients
from tests.compat.members import group_settings
from tests.testkit import Cluster, eventually
from tests.testkit.etcd import EtcdCluster, EtcdMember
from tests.testkit.hosts import Hosts

pytestmark = pytest.mark.xdist_group("chaos-cluster")

BROKERS = ("broker-1", "broker-2", "broker-3")
ETCD = "etcd"
WITHIN_S = 60


def test_given_a_leader_that_nobody_but_clients_hear_then_they_leave_it_for_the_next_one(
    tmp_path: Path, luck: random.Random
) -> None:
    settings: dict[str, Any] = {"default.replication.factor": 3, **group_settings()}
    with (
        Hosts.made(*BROKERS, ETCD) as hosts,
        EtcdCluster.start_on([EtcdMember(ETCD, tmp_path, host=hosts[ETCD])]) as etcd,
        Cluster(tmp_path, {"penstock.metadata": etcd.address(uuid.uuid4().hex), **settings}) as cluster,
    ):
        for number, name in enumerate(BROKERS, 1):
            where = ("--host", hosts[name].address, "--insecure")
            cluster.add(number, port=9092, arguments=where, launcher=hosts[name].launcher)
        with Clients.fleet_of(cluster, tmp_path, luck) as fleet:
            clients = Clients(cluster, fleet, {FLUSHED: {}}, led_by=1)
            clients.until_all_get_on(WITHIN_S, "nothing")
            with hosts.healed_afterwards():
                hosts.cut(BROKERS[0], *BROKERS[1:], ETCD)
                eventually(lambda: {each.leader_id for each in clients.states(cluster[2])} <= {2, 3}, WITHIN_S)

                clients.until_all_get_on(WITHIN_S, "nobody hears a broker")
                fleet.until_all_progress()

            clients.finish()
            clients.check()
