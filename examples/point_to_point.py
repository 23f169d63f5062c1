"""Point to point: three workers in one group share the tasks of a topic. Each task goes to one of them.

The group gives each partition to one worker. A worker that joins or leaves changes who has which, and nothing else.

    .venv/bin/python examples/point_to_point.py [--bootstrap-server HOST:PORT]
"""

import argparse
import threading
import time
import uuid
from collections import Counter

from penstock.sdk import Client

WORKERS = ("ann", "ben", "eve")


class Office:
    """What the workers have done so far."""

    def __init__(self) -> None:
        self.done: dict[str, list[bytes | None]] = {name: [] for name in WORKERS}
        self.is_closing = threading.Event()

    def count(self) -> int:
        return sum(map(len, self.done.values()))


def work(name: str, bootstrap: str, topic: str, office: Office) -> None:
    with Client(bootstrap) as client:  # a worker is a client of its own
        while not office.is_closing.is_set():
            for message in client.consume(topic, group=f"{topic}-workers"):
                office.done[name].append(message.payload)


def main(bootstrap: str) -> None:
    topic = f"tasks-{uuid.uuid4().hex[:8]}"
    office = Office()
    published = 0
    with Client(bootstrap) as client:
        client.create_topic(topic, partitions=6)
        workers = [threading.Thread(target=work, args=(name, bootstrap, topic, office)) for name in WORKERS]
        for worker in workers:
            worker.start()
        while not all(office.done.values()):  # until each of them has been given something to do
            client.publish(topic, None, f"task-{published}")  # without a key: to each partition in turn
            published += 1
            time.sleep(0.01)
        while office.count() < published:
            time.sleep(0.01)
        office.is_closing.set()
        for worker in workers:
            worker.join()
    times = Counter(task for tasks in office.done.values() for task in tasks)
    for name, tasks in office.done.items():
        print(f"{name} did {len(tasks)} tasks")
    print("published:", published)
    print("done by exactly one worker:", sum(count == 1 for count in times.values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", default="127.0.0.1:9092", metavar="HOST:PORT")
    main(parser.parse_args().bootstrap_server)
