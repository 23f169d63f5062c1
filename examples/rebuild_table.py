"""A table from a compacted topic: each key's last value, without reading what was replaced long ago.

    .venv/bin/python examples/rebuild_table.py [--bootstrap-server HOST:PORT] [--topic TOPIC]

Keep state as records with keys on a topic with cleanup.policy=compact, a record without a value to delete a key. After
a restart, read the topic from its beginning to where it ended when you asked: compaction has dropped nearly everything
but the last record of each key, so this takes time for what the table holds, not for all that ever happened to it.

Without a topic it makes one, and changes a few settings on it.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.sdk import Client

BATCH_MESSAGES = 10_000
WAIT_S = 0.1  # a call waits for a full batch, and no longer than this
TIMEOUT_S = 30.0


@dataclass
class Table:
    rows: dict[bytes, bytes] = field(default_factory=dict)
    # How many records it took: about as many as there are keys, once the topic is compacted.
    records_read: int = 0

    def apply(self, message: Message) -> None:
        key, value = message.key(), message.value()
        self.records_read += 1
        if key is None:
            return
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = value


def rebuild(bootstrap: str, topic: str) -> Table:
    """The table as of now: all partitions, up to the end that each has at this moment."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "rebuild-table",  # nothing is committed: every rebuild begins at the beginning
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        places, ends = [], {}
        for partition in found.partitions:
            start, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S)
            if start < end:
                places.append(TopicPartition(topic, partition, start))
                ends[partition] = end
        consumer.assign(places)
        return _read_up_to(consumer, ends)
    finally:
        consumer.close()


def _read_up_to(consumer: Consumer, ends: dict[int, int]) -> Table:
    """The last offset before an end may have been compacted away: the end of the partition says so, too."""
    table = Table()
    unread = set(ends)
    deadline = time.monotonic() + TIMEOUT_S
    while unread:
        messages = consumer.consume(BATCH_MESSAGES, WAIT_S)
        if messages:
            deadline = time.monotonic() + TIMEOUT_S
        elif time.monotonic() > deadline:
            raise TimeoutError(f"nothing came from partitions {sorted(unread)} for {TIMEOUT_S} s")
        for message in messages:
            partition, offset, error = message.partition(), message.offset(), message.error()
            assert partition is not None and offset is not None
            if error is None and offset < ends[partition]:
                table.apply(message)
            elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if offset >= ends[partition] - 1:
                unread.discard(partition)
    return table


def some_settings(bootstrap: str) -> str:
    """A new topic with the history of three settings, one of which is deleted."""
    topic = f"settings-{uuid.uuid4().hex[:8]}"
    with Client(bootstrap) as client:
        client.create_topic(topic, partitions=2, config={"cleanup.policy": "compact"})
        changes = [("colour", "red"), ("size", "10"), ("colour", "green"), ("draft", "yes"), ("size", "12")]
        client.publish_many(topic, [*changes, ("draft", None)])
    return topic


def main(bootstrap: str, topic: str | None) -> None:
    table = rebuild(bootstrap, topic or some_settings(bootstrap))
    for key, value in sorted(table.rows.items()):
        print(f"{key.decode(errors='replace')}\t{value.decode(errors='replace')}")
    print(f"{len(table.rows)} keys from {table.records_read} records", file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--topic", help="a compacted topic that is there")
    options = parser.parse_args()
    main(options.bootstrap_server, options.topic)
