"""Copies a topic to another, exactly once: records and the positions after them in one transaction.

A transaction holds what one poll brought, so no rebalance falls into it; whoever was thrown out of the group meanwhile
is refused by the group's coordinator. Some transactions are aborted on purpose.
"""

from __future__ import annotations

import random

from confluent_kafka import KafkaException

from tests.chaos.workers.process import Options, Stop, run
from tests.chaos.workers.reading import Polled, Reader, positions_after
from tests.chaos.workers.writing import TransactionalWriter
from tests.history.recording import Recorder


def work(options: Options, recorder: Recorder, luck: random.Random, stop: Stop) -> None:
    writer = TransactionalWriter(options, recorder)
    reader = Reader(options, recorder, stop)
    reader.subscribe(options.topic)
    while not stop.is_asked:
        records = reader.poll(luck.randint(1, options.transaction_records), 0.2)
        if records and not _copy(options, writer, reader, records, luck):
            reader.rewind()
    reader.consumer.close()


def _copy(
    options: Options, writer: TransactionalWriter, reader: Reader, records: list[Polled], luck: random.Random
) -> bool:
    """Whether it was committed."""
    assert options.group is not None
    transaction = writer.begin()
    try:
        for topic, partition, offset, _ in records:
            writer.write(options.output, partition, transaction=transaction, source=(topic, partition, offset))
        metadata = reader.consumer.consumer_group_metadata()
        writer.add_offsets(transaction, options.group, positions_after(records), metadata)
        if luck.random() < options.abort_ratio:
            writer.abort(transaction)
            return False
        writer.commit(transaction)
    except KafkaException as failure:
        writer.give_up(transaction, failure)
        return False
    return True


if __name__ == "__main__":
    run(work, writes=True)
