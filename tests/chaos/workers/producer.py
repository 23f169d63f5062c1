"""Writes without a pause: plain, idempotent, or in transactions of which some are aborted on purpose."""

from __future__ import annotations

import random
import time

from confluent_kafka import KafkaException

from tests.chaos.workers.process import Options, Stop, run
from tests.chaos.workers.writing import TransactionalWriter, Writer
from tests.history.recording import Recorder

# Enough to keep a broker busy, not so much that histories become unwieldy.
_BATCH = 10
_PAUSE_S = 0.02


def work(options: Options, recorder: Recorder, luck: random.Random, stop: Stop) -> None:
    if options.kind == "transactional":
        _write_transactions(options, TransactionalWriter(options, recorder), luck, stop)
        return
    writer = Writer(options, recorder)
    while not stop.is_asked:
        for _ in range(_BATCH):
            writer.write(options.topic, luck.randrange(options.partitions))
        until = time.monotonic() + _PAUSE_S
        while (left := until - time.monotonic()) > 0:
            writer.serve(left)  # returns as soon as it has served something
    assert writer.flush() == 0, "records were never answered"


def _write_transactions(options: Options, writer: TransactionalWriter, luck: random.Random, stop: Stop) -> None:
    while not stop.is_asked:
        transaction = writer.begin()
        try:
            for _ in range(luck.randint(1, options.transaction_records)):
                writer.write(options.topic, luck.randrange(options.partitions), transaction=transaction)
            if luck.random() < options.abort_ratio:
                writer.abort(transaction)
            else:
                writer.commit(transaction)
        except KafkaException as failure:
            writer.give_up(transaction, failure)


if __name__ == "__main__":
    run(work, writes=True)
