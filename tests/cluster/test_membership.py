"""Brokers that share their metadata: who they are, who is alive, who decides."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from tests.cluster.stores import on_both_stores
from tests.testkit import Broker, Cluster, RawClient, eventually
from tests.testkit.asking import a_batch, create_topic_on, fetch, produce, values_of
from tests.testkit.broker_process import BrokerDied
from tests.testkit.cluster import SESSION_MS

Start = Callable[..., Broker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a broker, on a directory of that name, of the cluster that all of them form."""
    with ExitStack() as running:

        def start_one(name: str, **settings: Any) -> Broker:
            settings.setdefault("penstock.metadata", f"sqlite:{tmp_path / 'metadata.db'}")
            settings.setdefault("broker.session.timeout.ms", SESSION_MS)
            return running.enter_context(Broker.start(tmp_path / name, **settings))

        yield start_one


@pytest.fixture
def pair(tmp_path: Path, store: dict[str, Any]) -> Iterator[Cluster]:
    with Cluster.start(tmp_path, brokers=2, **store) as pair:
        yield pair


def cluster_of(broker: Broker) -> tuple[list[int], int]:
    """The brokers that a client is told of, and the controller."""
    with RawClient(broker.address) as client:
        answer = client.exchange(DescribeClusterRequest(), 1, DescribeClusterResponse)
    return sorted(each.broker_id for each in answer.brokers), answer.controller_id


def test_given_brokers_without_an_id_when_they_start_then_each_gets_one_and_keeps_it(start: Start) -> None:
    first, second = start("first"), start("second")

    eventually(lambda: cluster_of(first) == cluster_of(second) == ([1, 2], 1))
    second.restart()
    assert "node.id=2" in (second.data / "meta.properties").read_text()
    assert cluster_of(second) == ([1, 2], 1)


@on_both_stores
def test_given_a_controller_that_is_killed_then_it_is_gone_after_its_session_and_another_decides(pair: Cluster) -> None:
    pair[1].kill()

    eventually(lambda: cluster_of(pair[2]) == ([2], 2))
    pair[1].restart()
    assert cluster_of(pair[1]) == ([1, 2], 2)


def test_given_a_broker_that_stops_then_nobody_waits_for_its_session_to_run_out(tmp_path: Path) -> None:
    with Cluster.start(tmp_path, brokers=2, broker_session_timeout_ms=60_000) as cluster:
        cluster[1].stop()

        eventually(lambda: cluster_of(cluster[2]) == ([2], 2))


@on_both_stores
def test_given_a_broker_that_stood_still_past_its_session_then_it_comes_back_and_leads_what_only_it_has(
    pair: Cluster, topic_name: str
) -> None:
    broker, witness = pair
    with RawClient(broker.address) as client:
        create_topic_on(client, topic_name, replicas=[1])
        produce(client, topic_name, a_batch(b"before"))

        os.kill(broker.pid, signal.SIGSTOP)
        eventually(lambda: cluster_of(witness) == ([2], 2))
        os.kill(broker.pid, signal.SIGCONT)

        eventually(lambda: cluster_of(broker) == ([1, 2], 2))
        eventually(lambda: produce(client, topic_name, a_batch(b"after")).error_code == 0)
        assert values_of(fetch(client, topic_name, 0)) == [b"before", b"after"]


def refusal(start: Start, name: str, **settings: object) -> str:
    with pytest.raises(BrokerDied) as died:
        start(name, **settings)
    return "\n".join(died.value.__notes__)


def test_given_two_brokers_with_one_id_then_the_second_is_refused_and_its_directory_left_as_it_was(
    start: Start, tmp_path: Path
) -> None:
    first = start("first", node_id=7)

    message = refusal(start, "second", node_id=7)

    assert "node.id 7 is that of a broker with another data directory" in message
    assert "which is running: choose another id, or none" in message
    assert not (tmp_path / "second" / "meta.properties").exists()
    assert cluster_of(first) == ([7], 7)


def test_given_a_broker_that_lost_its_disk_then_it_is_not_taken_for_the_one_it_was(start: Start) -> None:
    start("first", node_id=7).stop()

    assert "which is not running" in refusal(start, "empty", node_id=7)


def copied(broker: Broker, name: str) -> None:
    """As a backup does, or the image of a machine."""
    shutil.copytree(broker.data, broker.data.with_name(name), ignore=shutil.ignore_patterns("metadata.db*"))


def test_given_a_running_broker_when_a_copy_of_its_directory_is_started_then_it_is_refused_and_nothing_changes(
    start: Start, topic_name: str
) -> None:
    first = start("first", node_id=7)
    with RawClient(first.address) as client:
        create_topic_on(client, topic_name, replicas=(7,))
        produce(client, topic_name, a_batch(b"before"))
        copied(first, "copy")
        produce(client, topic_name, a_batch(b"since"))

        message = refusal(start, "copy", node_id=7)

        assert "broker 7 is running, on a copy of this data directory or on its original" in message
        assert produce(client, topic_name, a_batch(b"after")).error_code == 0
        assert values_of(fetch(client, topic_name, 0)) == [b"before", b"since", b"after"]
    assert cluster_of(first) == ([7], 7)


def test_given_a_broker_that_stood_still_while_a_copy_took_its_place_then_it_leads_no_more_and_ends(
    start: Start, tmp_path: Path, topic_name: str
) -> None:
    settings: dict[str, Any] = {"node.id": 7, "penstock.metadata": f"sqlite:{tmp_path / 'metadata.db'}"}
    first = Broker.start(tmp_path / "first", broker_session_timeout_ms=SESSION_MS, **settings)
    with RawClient(first.address) as client:
        create_topic_on(client, topic_name, replicas=(7,))
        produce(client, topic_name, a_batch(b"before"))
    copied(first, "copy")
    os.kill(first.pid, signal.SIGSTOP)

    copy = start("copy", node_id=7)

    os.kill(first.pid, signal.SIGCONT)
    eventually(lambda: not first.is_running, 30, "two brokers with one id")
    assert "on a copy of" in first.log_text()
    with RawClient(copy.address) as client:
        assert values_of(fetch(client, topic_name, 0)) == [b"before"]


def test_given_a_broker_that_was_killed_when_started_again_then_it_does_not_wait_for_its_session_to_end(
    start: Start,
) -> None:
    """A session that nobody would wait for."""
    first = start("first", **{"broker.session.timeout.ms": 600_000})
    first.kill()

    first.restart()

    assert cluster_of(first) == ([1], 1)


def test_given_a_directory_of_another_cluster_then_refused(start: Start, tmp_path: Path) -> None:
    start("first").stop()
    start("other", **{"penstock.metadata": f"sqlite:{tmp_path / 'other.db'}"}).stop()

    other = refusal(start, "first", **{"penstock.metadata": f"sqlite:{tmp_path / 'other.db'}"})
    empty = refusal(start, "first", **{"penstock.metadata": f"sqlite:{tmp_path / 'new.db'}"})

    assert "first belongs to cluster" in other
    assert "and the metadata store is empty" in empty
    start("first")
