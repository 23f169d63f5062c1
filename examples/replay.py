"""Replay: messages stay in the topic after they were consumed, so they can be consumed again.

`seek` moves this member's own place, now. Resetting the group's offset moves the place from which the group starts when
it comes back: it is done while the group has no members. (`penstock group reset-offsets` does it from the shell.)

    .venv/bin/python examples/replay.py [--bootstrap-server HOST:PORT]
"""

import argparse
import uuid

from penstock.sdk import Client

EVENTS = 10


def read(client: Client, topic: str, group: str, count: int) -> list[int]:
    """The offsets of the next `count` messages."""
    offsets: list[int] = []
    while len(offsets) < count:
        offsets += [message.offset for message in client.consume(topic, group)]
    return offsets


def main(bootstrap: str) -> None:
    topic = f"events-{uuid.uuid4().hex[:8]}"
    group = f"{topic}-reports"
    with Client(bootstrap) as client:
        client.create_topic(topic, partitions=1)
        client.publish_many(topic, [(None, f"event-{number}") for number in range(EVENTS)])
        print("read:", read(client, topic, group, EVENTS))

        client.seek(topic, group, partition=0, offset=5)
        print("read again after seeking to 5:", read(client, topic, group, EVENTS - 5))

    with Client(bootstrap) as client:  # the group has no members now
        client.commit_offset(topic, group, partition=0, offset=0)
        print("read again after resetting the group to 0:", read(client, topic, group, EVENTS))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", default="127.0.0.1:9092", metavar="HOST:PORT")
    main(parser.parse_args().bootstrap_server)
