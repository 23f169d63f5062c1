"""Throughput as a Python user of confluent-kafka sees it: the client's own work is most of what is measured here.

Producing with produce_batch and consuming lists are the cheapest calls the library has; each runs in its own process.
"""

import resource
import time
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, TopicPartition
from tests.testkit.broker_process import BrokerProcess

from bench import brokers
from bench.measuring import measure, throughput_row
from bench.payloads import values
from bench.replay import Replayed
from bench.report import Row

BATCH_MESSAGES = 10_000
QUEUE_MESSAGES = 500_000
PARTITIONS_COUNT = 4
DIFFERENT_BYTES = 4_000_000
TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Messages:
    """A load of equal messages."""

    name: str
    message_bytes: int
    count: int
    partitions_count: int = PARTITIONS_COUNT
    codec: str = "none"


LOADS = (Messages("100b", 100, 3_000_000), Messages("1k", 1_000, 1_000_000))


def confluent_rows(load: Messages, broker: BrokerProcess, system: str, repeat: int) -> list[Row]:
    """Produces and then consumes the same messages, from all partitions by assignment."""
    produced, consumed = [], []
    for repetition in range(repeat):
        topic = f"bench-confluent-{load.name}-{repetition}"
        brokers.create_topic(broker, topic, load.partitions_count, brokers.NO_FLUSH)
        produced.append(measure(broker, produce, broker.bootstrap, topic, load))
        consumed.append(measure(broker, consume, broker.bootstrap, topic, load))
        brokers.delete_topic(broker, topic)
    names = (f"confluent-produce-{load.name}", f"confluent-consume-{load.name}")
    return [
        throughput_row(name, system, "messages_per_s", runs, load.count, load.message_bytes)
        for name, runs in zip(names, (produced, consumed), strict=True)
    ]


def produce(bootstrap: str, topic: str, load: Messages) -> Replayed:
    """Returns when all are acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": 1,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "compression.type": load.codec,
            "queue.buffering.max.messages": QUEUE_MESSAGES,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    producer.list_topics(topic, timeout=TIMEOUT_S)
    different = values(load.message_bytes, max(1, min(BATCH_MESSAGES, DIFFERENT_BYTES // load.message_bytes)))
    messages = [{"value": different[number % len(different)]} for number in range(BATCH_MESSAGES)]
    started, cpu_before = time.perf_counter(), _cpu_s()
    for _ in range(load.count // BATCH_MESSAGES):
        while len(producer) > QUEUE_MESSAGES - BATCH_MESSAGES:
            producer.poll(0.01)
        queued = producer.produce_batch(topic, messages)
        assert queued == BATCH_MESSAGES, f"only {queued} messages were queued"
    left = producer.flush(TIMEOUT_S)
    assert left == 0, f"{left} messages were not delivered"
    return Replayed(time.perf_counter() - started, _cpu_s() - cpu_before)


def consume(bootstrap: str, topic: str, load: Messages) -> Replayed:
    """Returns when the last message has come."""
    # By default librdkafka stops fetching for a second whenever it has 100,000 messages in store.
    eager = {"queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 1_000_000, "fetch.queue.backoff.ms": 1}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, **eager})
    received = 0
    deadline = time.monotonic() + TIMEOUT_S
    started, cpu_before = time.perf_counter(), _cpu_s()
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(load.partitions_count)])
    while received < load.count:
        for_once = consumer.consume(BATCH_MESSAGES, timeout=1)
        received += len(for_once)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{load.count - received} messages did not come")
    replayed = Replayed(time.perf_counter() - started, _cpu_s() - cpu_before)
    consumer.close()
    return replayed


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
