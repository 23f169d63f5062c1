"""Reads all partitions of a topic from the beginning and goes on reading: a client that nobody moves."""

from __future__ import annotations

import random

from confluent_kafka import TopicPartition

from tests.chaos.workers.process import Options, Stop, run
from tests.chaos.workers.reading import Reader
from tests.history.recording import Recorder


def work(options: Options, recorder: Recorder, luck: random.Random, stop: Stop) -> None:
    reader = Reader(options, recorder, stop)
    partitions = [TopicPartition(options.topic, partition, 0) for partition in range(options.partitions)]
    for each in partitions:
        recorder.positioned(recorder.now(), (each.topic, each.partition, 0))
    reader.consumer.assign(partitions)
    while not stop.is_asked:
        reader.poll(luck.randint(1, 200), 0.2)
    reader.consumer.close()


if __name__ == "__main__":
    run(work)
