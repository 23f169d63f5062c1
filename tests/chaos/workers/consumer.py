"""A member of a group: reads, then commits what it has read."""

from __future__ import annotations

import random

from tests.chaos.workers.process import Options, Stop, run
from tests.chaos.workers.reading import Reader, positions_after
from tests.history.recording import Recorder


def work(options: Options, recorder: Recorder, luck: random.Random, stop: Stop) -> None:
    reader = Reader(options, recorder, stop)
    reader.subscribe(options.topic)
    while not stop.is_asked:
        records = reader.poll(luck.randint(1, 200), 0.2)
        # Now and then it forgets to, so that the next one gets them again.
        if records and luck.random() < 0.9:
            reader.commit(positions_after(records))
    reader.consumer.close()


if __name__ == "__main__":
    run(work)
