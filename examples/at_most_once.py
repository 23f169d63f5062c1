"""At most once: a worker dies in the middle of its work, and no reading is counted twice. Some are lost.

The readings are published without waiting for the broker (acks=0), and the worker commits a batch before it gets it.
What it had not done of the batch in which it died is nobody's: the worker that takes over starts with the next batch.

    .venv/bin/python examples/at_most_once.py [--bootstrap-server HOST:PORT]
"""

import argparse
import multiprocessing
import os
import tempfile
import uuid
from collections import Counter
from pathlib import Path

from penstock.sdk import Client, Delivery

READINGS = 20
DIES_AFTER = 7


def work(bootstrap: str, topic: str, ledger: Path, dies_after: int | None) -> None:
    """A worker: writes each reading into its ledger. The power goes out when it has done `dies_after` of them."""
    # A worker with a name of its own gets its partitions back at once. Without one the group waits for the dead worker
    # until its session times out.
    config = {"group.instance.id": "worker-1"}
    done = 0
    with Client(bootstrap, delivery=Delivery.AT_MOST_ONCE, config=config) as client:
        while batch := client.consume(topic, group=f"{topic}-workers", max_batch_size=5):
            for message in batch:
                with ledger.open("ab") as book:
                    book.write((message.payload or b"") + b"\n")
                done += 1
                if done == dies_after:
                    os._exit(1)


def run_worker(*arguments: object) -> int | None:
    worker = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    worker.start()
    worker.join()
    return worker.exitcode


def main(bootstrap: str) -> None:
    topic = f"at-most-once-{uuid.uuid4().hex[:8]}"
    readings = [f"reading-{number}" for number in range(READINGS)]
    with Client(bootstrap, delivery=Delivery.AT_MOST_ONCE) as client:
        client.create_topic(topic, partitions=1)
        client.publish_many(topic, [(None, reading) for reading in readings])
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger"
        print(f"the first worker died after {DIES_AFTER}, exit code", run_worker(bootstrap, topic, ledger, DIES_AFTER))
        print("the second worker went on, exit code", run_worker(bootstrap, topic, ledger, None))
        processed = Counter(ledger.read_text().split())
    print("published:", len(readings))
    print("lost:", [reading for reading in readings if reading not in processed])
    print("processed twice:", [reading for reading in readings if processed[reading] > 1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", default="127.0.0.1:9092", metavar="HOST:PORT")
    main(parser.parse_args().bootstrap_server)
