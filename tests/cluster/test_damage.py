"""A flipped bit in a replica's segment (trap A15): it is not elected, begins anew, and nothing acknowledged is lost."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from penstock.core.errors import ErrorCode
from penstock.protocol.records import Record, StoredRecord, build_batch
from penstock.storage.checkpoints import PAGE_CACHE
from tests.cluster.finding import controller_of
from tests.cluster.test_replication import ALL, in_sync, leader_of, write, write_batch
from tests.testkit import Cluster, RawClient, eventually
from tests.testkit.asking import NOW_MS, create_topic_on, fetch, records_of
from tests.testkit.cluster import SESSION_MS

VALUES = [b"%100d" % number for number in range(20)]
SMALL = {"segment.bytes": 1_024}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # A checkpoint would vouch for what is damaged then, and a start would not look at it.
    settings = {"log.cleaner.backoff.ms": 100, "log.flush.offset.checkpoint.interval.ms": 2**30}
    with Cluster.start(tmp_path_factory.mktemp("damage"), brokers=3, **settings) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    for broker_id in ALL:
        if not shared[broker_id].is_running:
            shared[broker_id].restart()
    return shared


def segments_of(cluster: Cluster, broker_id: int, topic: str) -> dict[str, bytes]:
    directory = cluster[broker_id].data / f"{topic}-0"
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.log"))}


def are_alike(cluster: Cluster, topic: str) -> bool:
    return segments_of(cluster, 1, topic) == segments_of(cluster, 2, topic) == segments_of(cluster, 3, topic)


def flip_a_bit(path: Path, position: int) -> None:
    """A negative position is one from the end."""
    with path.open("r+b") as file:
        at = file.seek(position, os.SEEK_SET if position >= 0 else os.SEEK_END)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def read_all(cluster: Cluster, topic: str) -> list[bytes | None]:
    """Answers end with their segment."""
    leader = eventually(lambda: leader_of(cluster, topic), 30)
    found: list[StoredRecord] = []
    with RawClient(cluster[leader].address) as client:
        while records := records_of(fetch(client, topic, found[-1].offset + 1 if found else 0)):
            found += records
    return [record.value for record in found]


def a_victim(cluster: Cluster) -> int:
    """Not the controller: one that comes back decides at once, believes the others to be alive for a moment more, and
    leaves the in-sync sets to them.
    """
    controller = controller_of(cluster, at=cluster[1])
    return next(broker_id for broker_id in (3, 2) if broker_id != controller)


def kill_all(cluster: Cluster, *topics: str) -> None:
    """Returns when their sessions are over."""
    for topic in topics:
        eventually(lambda: in_sync(cluster, topic) == [1, 2, 3], 30)  # noqa: B023 - called at once
    for broker_id in ALL:
        cluster[broker_id].kill()
    over = time.monotonic() + SESSION_MS / 1000
    eventually(lambda: time.monotonic() > over)


def restart(cluster: Cluster, first: int, control: str) -> None:
    """One comes back, and the others when it leads what it may: a topic that nothing happened to."""
    cluster[first].restart()
    eventually(lambda: leader_of(cluster, control) == first, 30)
    for broker_id in {*ALL} - {first}:
        cluster[broker_id].restart()


def set_aside(cluster: Cluster, broker_id: int, topic: str) -> list[Path]:
    return [*cluster[broker_id].data.glob(f"{topic}-0.*-spoilt")]


def write_all(cluster: Cluster, topic: str) -> None:
    for value in VALUES:
        write(cluster, topic, value)
    eventually(lambda: are_alike(cluster, topic), 30)


def test_given_a_leaders_damaged_segment_when_a_follower_has_to_read_it_then_another_leads_and_it_begins_anew(
    cluster: Cluster, topic_name: str
) -> None:
    with RawClient(cluster[1].address) as client:
        create_topic_on(client, topic_name, replicas=ALL, **SMALL)
    write_all(cluster, topic_name)
    first = cluster[1].data / f"{topic_name}-0" / f"{0:020}.log"
    cluster[3].kill()
    shutil.rmtree(cluster[3].data / f"{topic_name}-0")  # so that it has to copy all of it
    flip_a_bit(first, 75)
    damaged = first.read_bytes()
    cluster[3].restart()

    eventually(lambda: leader_of(cluster, topic_name) == 2, 30, "a damaged replica leads")
    eventually(lambda: in_sync(cluster, topic_name) == [1, 2, 3], 30)
    write(cluster, topic_name, b"after")
    eventually(lambda: are_alike(cluster, topic_name), 30)
    assert read_all(cluster, topic_name) == [*VALUES, b"after"]
    (kept,) = set_aside(cluster, 1, topic_name)
    assert (kept / first.name).read_bytes() == damaged
    assert "log damaged, the replica goes offline" in cluster[1].log_text()


def test_given_a_followers_damaged_segment_when_its_cleaner_reads_it_then_it_begins_anew_and_can_lead(
    cluster: Cluster, topic_name: str
) -> None:
    settings = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 1, "min.insync.replicas": 1}
    with RawClient(cluster[1].address) as client:
        create_topic_on(client, topic_name, replicas=ALL, **settings)
    for value in VALUES:
        write_batch(cluster, topic_name, build_batch([Record(value, value, (), NOW_MS)]))
    eventually(lambda: are_alike(cluster, topic_name), 30)
    flip_a_bit(cluster[3].data / f"{topic_name}-0" / f"{0:020}.log", 75)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    entry = ConfigEntry("min.cleanable.dirty.ratio", "0", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic_name, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(20)

    eventually(lambda: set_aside(cluster, 3, topic_name), 30, "a damaged replica goes on")
    eventually(lambda: in_sync(cluster, topic_name) == [1, 2, 3], 30)
    cluster[1].kill()
    cluster[2].kill()
    eventually(lambda: leader_of(cluster, topic_name) == 3, 30)
    assert read_all(cluster, topic_name) == VALUES


def test_given_logs_harmed_while_their_broker_was_down_when_it_comes_back_first_then_nothing_acknowledged_is_lost(
    cluster: Cluster, topic_name: str
) -> None:
    """A bit behind the recovery point, where a start after a crash cuts the log; and a log that cannot be opened."""
    cut, unopened, control = (f"{topic_name}-{which}" for which in "abc")
    victim = a_victim(cluster)
    for topic in (cut, unopened, control):
        with RawClient(cluster[1].address) as client:
            create_topic_on(client, topic, replicas=ALL)
        write_all(cluster, topic)
    kill_all(cluster, cut, unopened, control)
    flip_a_bit(cluster[victim].data / f"{cut}-0" / f"{0:020}.log", -10)
    (cluster[victim].data / f"{unopened}-0" / "partition.metadata").write_text("version: 0\ntopic_id: ?\n")

    restart(cluster, victim, control)

    for topic in (cut, unopened):
        eventually(lambda: in_sync(cluster, topic) == [1, 2, 3], 30)  # noqa: B023 - called at once
        assert read_all(cluster, topic) == VALUES
        eventually(lambda: are_alike(cluster, topic), 30)  # noqa: B023 - called at once
    assert len(set_aside(cluster, victim, unopened)) == 1


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_given_logs_removed_while_their_broker_was_down_when_it_comes_back_first_then_nothing_acknowledged_is_lost(
    cluster: Cluster, topic_name: str, how: str
) -> None:
    """The directory, or all files in it but its name. One that was killed has not written down what is committed."""
    removed, emptied, control = (f"{topic_name}-{which}" for which in "abc")
    victim = a_victim(cluster)
    for topic in (removed, emptied, control):
        with RawClient(cluster[1].address) as client:
            create_topic_on(client, topic, replicas=ALL)
        write_all(cluster, topic)
    if how == "stopped":
        # Who stops first leaves the in-sync set to the others, and may not lead before one of them is back. Of the last
        # two both may.
        cluster[next(broker_id for broker_id in ALL if broker_id != victim)].stop()
        cluster.stop()
    else:
        kill_all(cluster, removed, emptied, control)
    shutil.rmtree(cluster[victim].data / f"{removed}-0")
    for path in (cluster[victim].data / f"{emptied}-0").glob("0*"):
        path.unlink()

    restart(cluster, victim, control)

    for topic in (removed, emptied):
        eventually(lambda: in_sync(cluster, topic) == [1, 2, 3], 30)  # noqa: B023 - called at once
        assert read_all(cluster, topic) == VALUES
        eventually(lambda: are_alike(cluster, topic), 30)  # noqa: B023 - called at once


def test_given_the_last_replica_in_sync_when_its_log_is_gone_then_the_others_keep_what_they_have(
    cluster: Cluster, topic_name: str
) -> None:
    """What only it had is lost. Led by it, the others would lose the rest."""
    control = f"{topic_name}-c"
    for topic in (topic_name, control):
        with RawClient(cluster[1].address) as client:
            create_topic_on(client, topic, replicas=ALL, **{"min.insync.replicas": 1})
    write_all(cluster, topic_name)
    victim = a_victim(cluster)
    others = [broker_id for broker_id in ALL if broker_id != victim]
    for broker_id in others:
        cluster[broker_id].kill()
    eventually(lambda: in_sync(cluster, topic_name) == [victim], 30)
    eventually(lambda: in_sync(cluster, control) == [victim], 30)
    cluster[victim].stop()
    shutil.rmtree(cluster[victim].data / f"{topic_name}-0")

    restart(cluster, victim, control)

    eventually(lambda: in_sync(cluster, control) == [1, 2, 3], 30)
    assert all(b"".join(segments_of(cluster, broker_id, topic_name).values()) for broker_id in others)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = [TopicPartition(topic_name, 0)]
    admin.elect_leaders(ElectionType.UNCLEAN, wanted).result(20)
    eventually(lambda: in_sync(cluster, topic_name) == [1, 2, 3], 30)
    assert read_all(cluster, topic_name) == VALUES


def test_given_the_only_replica_when_its_log_is_damaged_then_it_is_left_as_it_is_and_that_is_said(
    cluster: Cluster, topic_name: str
) -> None:
    with RawClient(cluster[1].address) as client:
        create_topic_on(client, topic_name, replicas=(1,), **SMALL)
        for value in VALUES:
            write(cluster, topic_name, value)
        first = cluster[1].data / f"{topic_name}-0" / f"{0:020}.log"
        flip_a_bit(first, 16)  # a header that a reader notices: the magic byte
        damaged = first.read_bytes()

        assert fetch(client, topic_name, offset=1).error_code == ErrorCode.KAFKA_STORAGE_ERROR

        eventually(lambda: "there is no other replica" in cluster[1].log_text(), 30)
        write(cluster, topic_name, b"after")
    assert first.read_bytes() == damaged
    assert set_aside(cluster, 1, topic_name) == []


def without_page_cache(cluster: Cluster, broker_id: int, topic: str) -> None:
    """As after a power cut: what was not flushed is gone, and the machine has booted since."""
    (cluster[broker_id].data / PAGE_CACHE).write_text("another boot")
    with (cluster[broker_id].data / f"{topic}-0" / f"{0:020}.log").open("r+b") as file:
        file.truncate(170)


def test_given_acknowledged_records_in_the_page_cache_of_a_machine_that_lost_power_then_it_is_not_elected(
    cluster: Cluster, topic_name: str
) -> None:
    control, victim = f"{topic_name}-c", a_victim(cluster)
    with RawClient(cluster[1].address) as client:
        create_topic_on(client, topic_name, replicas=ALL, **{"flush.messages": 2**63 - 1})
        create_topic_on(client, control, replicas=ALL)
    write_all(cluster, topic_name)
    kill_all(cluster, topic_name, control)
    without_page_cache(cluster, victim, topic_name)

    restart(cluster, victim, control)

    eventually(lambda: in_sync(cluster, topic_name) == [1, 2, 3], 30)
    assert read_all(cluster, topic_name) == VALUES
    eventually(lambda: are_alike(cluster, topic_name), 30)


def test_given_brokers_that_were_killed_when_they_come_back_then_each_may_lead_at_once(
    cluster: Cluster, topic_name: str
) -> None:
    with RawClient(cluster[1].address) as client:
        create_topic_on(client, topic_name, replicas=ALL, **{"flush.messages": 2**63 - 1, "min.insync.replicas": 1})
    write_all(cluster, topic_name)
    victim = a_victim(cluster)
    kill_all(cluster, topic_name)

    cluster[victim].restart()

    assert read_all(cluster, topic_name) == VALUES  # the page cache has it, and nobody else is there
