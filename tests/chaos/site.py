"""Where a cluster lives that everything is done to: three hosts with a disk and a clock each, three of etcd."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compat.members import group_settings
from tests.testkit import Cluster
from tests.testkit.clocks import WallClock
from tests.testkit.disks import Disk
from tests.testkit.etcd import EtcdCluster, EtcdMember
from tests.testkit.hosts import Hosts

BROKERS = (1, 2, 3)
_PORT = 9092
_DISK_MIB = 2_048

SETTINGS: dict[str, Any] = {
    "default.replication.factor": 3,
    # The default. Where a machine has much else to do, brokers lose a shorter one without any fault.
    "broker.session.timeout.ms": 3_000,
    # A replica that is cut off is waited for no longer than a broker that is gone.
    "replica.lag.time.max.ms": 2_000,
    "log.index.size.max.bytes": 1 << 20,
    "transaction.state.log.num.partitions": 4,
}


@dataclass(frozen=True)
class Site:
    cluster: Cluster
    hosts: Hosts
    etcd: EtcdCluster
    disks: dict[int, Disk]
    clocks: dict[int, WallClock]
    prefix: str

    def stored(self) -> dict[str, Any]:
        """What the metadata has, by key."""
        return {key: json.loads(value) for key, value in self.etcd.values(self.prefix).items()}


@contextmanager
def a_site(directory: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        brokers, members = [f"broker-{number}" for number in BROKERS], ["etcd0", "etcd1", "etcd2"]
        hosts = stack.enter_context(Hosts.made(*brokers, *members))
        etcd = stack.enter_context(
            EtcdCluster.start_on([EtcdMember(name, directory, host=hosts[name]) for name in members])
        )
        disks, clocks = {}, {}
        for number, name in zip(BROKERS, brokers, strict=True):
            disks[number] = stack.enter_context(
                Disk.made(directory / f"{name}.img", directory / name, mebibytes=_DISK_MIB)
            )
            clocks[number] = WallClock.made(directory / f"{name}.clock")
        prefix = uuid.uuid4().hex
        cluster = Cluster(directory, {"penstock.metadata": etcd.address(prefix), **SETTINGS, **group_settings()})
        stack.enter_context(cluster)
        for number, name in zip(BROKERS, brokers, strict=True):
            cluster.add(
                number,
                port=_PORT,
                arguments=("--host", hosts[name].address, "--insecure"),
                launcher=hosts[name].launcher,
                environment=clocks[number].environment,
            )
        yield Site(cluster, hosts, etcd, disks, clocks, prefix)
