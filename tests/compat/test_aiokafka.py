"""What aiokafka does beyond what every client does: a producer and a consumer wait for each other in one loop."""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.compat.topics import CreateTopic
from tests.testkit import BrokerProcess

TIMEOUT_S = 20


async def test_given_a_waiting_consumer_when_records_are_sent_one_by_one_then_each_arrives(
    broker: BrokerProcess, topic: str
) -> None:
    assigned = TopicPartition(topic, 0)
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    # The poll may wait longer than the test does: only an append can end it in time.
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap, group_id=None, fetch_max_wait_ms=60_000, request_timeout_ms=90_000
    )
    async with producer, consumer, asyncio.timeout(TIMEOUT_S):
        consumer.assign([assigned])
        await consumer.seek_to_beginning(assigned)
        received = []
        for number in range(5):
            await producer.send_and_wait(topic, b"%d" % number, partition=0)
            received.append((await consumer.getone(assigned)).value)

    assert received == [b"0", b"1", b"2", b"3", b"4"]


async def test_given_several_partitions_when_sought_to_the_end_then_positions_are_the_high_watermarks(
    broker: BrokerProcess, create_topic: CreateTopic
) -> None:
    topic = create_topic(partitions=3)
    assigned = [TopicPartition(topic, partition) for partition in range(3)]
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True)
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None, fetch_max_wait_ms=100)
    async with producer, consumer, asyncio.timeout(TIMEOUT_S):
        for partition in range(3):
            await asyncio.gather(*[await producer.send(topic, b"x", partition=partition) for _ in range(partition + 1)])

        consumer.assign(assigned)
        await consumer.seek_to_end(*assigned)

        assert [await consumer.position(partition) for partition in assigned] == [1, 2, 3]
