"""Reads everything, once all is quiet: when nobody writes any more, and no transaction is open."""

from __future__ import annotations

import random
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.chaos.workers.process import Options, Stop, client_settings, run
from tests.chaos.workers.reading import Reader
from tests.history.recording import Recorder

# A transaction whose producer was killed is open until it times out, and a little longer.
_SETTLED_WITHIN_S = 60.0


def work(options: Options, recorder: Recorder, luck: random.Random, stop: Stop) -> None:
    partitions = [TopicPartition(options.topic, partition) for partition in range(options.partitions)]
    ends = _settled_ends(options, partitions)
    reader = Reader(options, recorder, stop)
    for partition in partitions:
        recorder.positioned(recorder.now(), (partition.topic, partition.partition, 0))
        partition.offset = 0
    reader.consumer.assign(partitions)
    while len(reader.ends) < options.partitions:
        reader.poll(1_000, 1.0)
    for (topic, number), offset in reader.ends.items():
        assert offset == ends[number], f"{topic}-{number} ends at {offset}, and at {ends[number]}"
        recorder.reached_end((topic, number, offset), is_final=True)
    reader.consumer.close()


def _settled_ends(options: Options, partitions: list[TopicPartition]) -> dict[int, int]:
    """Where the partitions end, when that is the same for both isolation levels."""
    askers = [
        Consumer(client_settings(options) | {"group.id": "never-joined", "isolation.level": isolation})
        for isolation in ("read_committed", "read_uncommitted")
    ]
    deadline = time.monotonic() + _SETTLED_WITHIN_S
    while True:
        stable, ends = ({each.partition: _end(asker, each) for each in partitions} for asker in askers)
        if stable == ends:
            return ends
        assert time.monotonic() < deadline, f"a transaction hangs: stable up to {stable}, the end is {ends}"


def _end(asker: Consumer, partition: TopicPartition) -> int:
    try:
        _, end = asker.get_watermark_offsets(partition, timeout=5)
    except KafkaException:
        return -1
    return int(end)


if __name__ == "__main__":
    run(work)
