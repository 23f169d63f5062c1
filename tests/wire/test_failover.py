"""Readers while brokers die and come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.ids import TopicPartition
from penstock.wire.errors import TimedOut, Unreachable
from penstock.wire.offsets import earliest, latest
from penstock.wire.reading import read
from tests.cluster.finding import all_are_known, create_topic_over, leader_of, write_to_leader
from tests.testkit import Broker, Cluster, RawClient, free_port
from tests.testkit.asking import a_batch, create_usable_topic, produce
from tests.wire.reading import a_client, records_of


def test_given_a_leader_that_is_killed_while_it_is_read_then_the_next_one_gives_the_rest(
    tmp_path: Path, topic_name: str
) -> None:
    values = [b"%d" % number * 20 for number in range(120)]
    with Cluster.start(tmp_path, brokers=2) as cluster:
        all_are_known(cluster)
        create_topic_over(cluster, topic_name, (1, 2))
        for at in range(0, 120, 10):
            write_to_leader(cluster, topic_name, *values[at : at + 10])
        partition = TopicPartition(topic_name, 0)
        with a_client(cluster.bootstrap, max_partition_fetch_bytes=800) as client:
            parts = read(client, partition, 0, 120, max_rows=10)
            found = records_of([next(parts), next(parts)])
            assert leader_of(cluster, topic_name) == 1
            cluster[1].kill()

            found += records_of(parts)

            assert [each.value for each in found] == values
            assert latest(client, [partition]) == {partition: 120}


def test_given_a_broker_that_is_restarted_while_it_is_read_then_the_rest_follows(
    tmp_path: Path, topic_name: str
) -> None:
    partition = TopicPartition(topic_name, 0)
    with Broker.start(tmp_path / "data") as broker, a_client(broker.bootstrap, max_partition_fetch_bytes=1) as client:
        with RawClient(broker.address) as raw:
            create_usable_topic(raw, topic_name)
            for number in range(10):
                assert produce(raw, topic_name, a_batch(b"%d" % number)).error_code == 0
        parts = read(client, partition, 0, 10, max_rows=1)
        found = records_of([next(parts)])
        broker.restart(same_port=True)

        found += records_of(parts)

        assert [each.value for each in found] == [b"%d" % number for number in range(10)]
        assert earliest(client, [partition]) == {partition: 0}


def test_given_a_broker_that_does_not_come_back_when_it_is_read_then_that_times_out_with_the_reason(
    tmp_path: Path, topic_name: str
) -> None:
    partition = TopicPartition(topic_name, 0)
    with Broker.start(tmp_path / "data") as broker, a_client(broker.bootstrap, default_api_timeout_ms=1_000) as client:
        with RawClient(broker.address) as raw:
            create_usable_topic(raw, topic_name)
            assert produce(raw, topic_name, a_batch(b"0")).error_code == 0
        parts = read(client, partition, 0, 2, max_rows=1)
        next(parts)
        broker.kill()

        with pytest.raises(TimedOut, match=rf"reading {partition} from offset 1: nothing has come for 1 s.*refused"):
            next(parts)
        with pytest.raises(TimedOut, match=rf"offsets of {partition}: nothing has come for 1 s.*refused"):
            latest(client, [partition])


def test_given_nobody_there_when_a_client_is_made_then_every_address_is_named() -> None:
    one, two = free_port(), free_port()

    with (
        pytest.raises(Unreachable, match=rf"no broker there, is it running\? 127.0.0.1:{one}: .*; 127.0.0.1:{two}: "),
        a_client(f"127.0.0.1:{one},127.0.0.1:{two}"),
    ):
        pass
