"""The producer while leaders and coordinators move between three brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.wire.errors import TimedOut
from tests.cluster.finding import a_cluster, create_topic_over, leader_of
from tests.testkit import eventually
from tests.wire.producing import a_producer, numbered, rows, values_in
from tests.wire.reading import a_client


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_given_a_leader_that_goes_while_batches_are_under_way_then_the_next_one_has_all_once_and_in_order(
    tmp_path: Path, topic_name: str, how: str
) -> None:
    with a_cluster(tmp_path) as cluster:
        create_topic_over(cluster, topic_name, (1, 2, 3), (2, 3, 1), (3, 1, 2), **{"min.insync.replicas": 2})
        with a_producer(cluster.bootstrap, "moved", batch_size=400) as producer:
            producer.fence()
            for first in range(0, 600, 100):
                for partition in range(3):
                    producer.put(topic_name, 3, rows(*numbered(first, first + 100), partition=partition))
                if first == 200:
                    getattr(cluster[leader_of(cluster, topic_name)], how)()
            producer.commit()

        with a_client(cluster.bootstrap) as client:
            for partition in range(3):
                eventually(
                    lambda partition=partition: values_in(client, topic_name, partition) == numbered(0, 600)  # type: ignore[misc]
                )


def test_given_a_coordinator_that_is_killed_in_a_transaction_then_the_next_one_commits_it(
    tmp_path: Path, topic_name: str
) -> None:
    with a_cluster(tmp_path) as cluster, a_client(cluster.bootstrap) as client:
        coordinator = client.coordinator_of("moved").id
        others = [broker_id for broker_id in cluster.ids if broker_id != coordinator]
        create_topic_over(cluster, topic_name, others, others[::-1])
        with a_producer(cluster.bootstrap, "moved") as producer:
            producer.fence()
            producer.put(topic_name, 2, rows(b"1"))
            producer.flush()
            cluster[coordinator].kill()
            producer.put(topic_name, 2, rows(b"2", partition=1))
            producer.commit()

        for partition, value in enumerate((b"1", b"2")):
            eventually(
                lambda partition=partition, value=value: values_in(client, topic_name, partition) == [value]  # type: ignore[misc]
            )


def test_given_too_few_replicas_when_rows_are_written_then_it_gives_up_in_time_and_says_why(
    tmp_path: Path, topic_name: str
) -> None:
    with a_cluster(tmp_path) as cluster:
        create_topic_over(cluster, topic_name, (1, 2), **{"min.insync.replicas": 2})
        with a_producer(cluster.bootstrap, delivery_timeout_ms=3_000) as producer:
            producer.put(topic_name, 1, rows(b"1"))
            producer.flush()
            cluster[2].stop()

            producer.put(topic_name, 1, rows(b"2"))
            with pytest.raises(TimedOut, match=r"nothing was acknowledged for 3 s.*NOT_ENOUGH_REPLICAS"):
                producer.flush()
