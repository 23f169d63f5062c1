"""Publish and subscribe: every subscriber is a group of its own, and gets every message.

.venv/bin/python examples/publish_subscribe.py [--bootstrap-server HOST:PORT]
"""

import argparse
import uuid

from penstock.sdk import Client

SUBSCRIBERS = ("billing", "shipping", "statistics")
ORDERS = ("two pizzas", "a salad", "three beers")


def main(bootstrap: str) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    with Client(bootstrap) as client:
        client.create_topic(topic, partitions=1)
        for order in ORDERS:
            client.publish(topic, "table-7", order)
        # Usually each subscriber is a program of its own. The broker sees no difference: a group is a name.
        for subscriber in SUBSCRIBERS:
            received: list[str] = []
            while len(received) < len(ORDERS):
                batch = client.consume(topic, group=f"{topic}-{subscriber}")
                received += [(message.payload or b"").decode() for message in batch]
            print(f"{subscriber} received: {', '.join(received)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", default="127.0.0.1:9092", metavar="HOST:PORT")
    main(parser.parse_args().bootstrap_server)
