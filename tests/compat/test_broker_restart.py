"""Clients that stay alive while their broker goes away and comes back at the same address."""

from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka import Message as Record

from tests.compat.clients.confluent import ConfluentAdminClient, ConfluentClient
from tests.compat.topics import eventually_known
from tests.testkit import broker_under_test, eventually

TOPIC = "survivor"
FAST_RECONNECT = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100}


@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_given_living_clients_when_the_broker_is_restarted_then_every_record_arrives_once_and_in_order(
    tmp_path: Path, way: str
) -> None:
    failures: list[KafkaError] = []
    received: list[bytes | None] = []
    with broker_under_test().start(tmp_path / "data") as broker:
        admin, confluent = ConfluentAdminClient(broker.bootstrap), ConfluentClient(broker.bootstrap)
        admin.create_topic(TOPIC)
        eventually_known(lambda: admin.partition_leaders(TOPIC))
        # What goes wrong on the way is not for the test's output.
        config = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "log_level": 0, **FAST_RECONNECT}
        producer = Producer(config)
        with closing(confluent.consumer(log_level=0, **FAST_RECONNECT)) as consumer:
            consumer.assign([TopicPartition(TOPIC, 0, 0)])

            def delivered(error: KafkaError | None, _: Record) -> None:
                if error is not None:
                    failures.append(error)

            def produce(numbers: range) -> None:
                for number in numbers:
                    producer.produce(TOPIC, b"%d" % number, on_delivery=delivered)
                assert producer.flush(20) == 0

            def has_received(count: int) -> bool:
                records = consumer.consume(100, 0.1)
                received.extend(record.value() for record in records if record.error() is None)
                return len(received) >= count

            produce(range(50))
            eventually(lambda: has_received(50), timeout=20)
            if way == "killed":
                broker.kill()
            broker.restart(same_port=True)
            produce(range(50, 100))
            eventually(lambda: has_received(100), timeout=20)

    assert failures == []
    assert received == [b"%d" % number for number in range(100)]
