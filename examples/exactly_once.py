"""Exactly once: a topic is copied to another, a copier dies in the middle, and the copy is as if nothing had happened.

    .venv/bin/python examples/exactly_once.py [--bootstrap-server HOST:PORT]
    .venv/bin/python examples/exactly_once.py --source TOPIC --target TOPIC [--transactional-id NAME]

Consume, transform, produce: what was made of some records, and the positions after them, are one transaction. Either
both count or neither does, so whoever goes on after a crash starts exactly where the copy ends. It takes two things:

- Readers of the copy ask for `isolation.level=read_committed`: what a dead copier left unfinished they never see.
- A copier that is started again has the transactional id of the one that died. To take the id over ends the open
  transaction of the dead one, and keeps it from writing if it was not dead after all. Several copiers can share the
  work in one group, each with an id of its own.

The first form makes its own topics and shows a copier that dies. The second copies until it is stopped, and says what
it commits. It ends with an error when it cannot go on: start it again then, that loses nothing.
"""

import argparse
import multiprocessing
import os
import random
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from penstock.sdk import Client

ORDERS = 1_000
PARTITIONS = 2
DIES_AFTER = 400
STEP_TIMEOUT_S = 10.0


def transform(value: bytes | None) -> bytes | None:
    """Whatever an application makes of a record. Here: a copy."""
    return value


class Copier:
    def __init__(
        self,
        bootstrap: str,
        source: str,
        target: str,
        *,
        transactional_id: str,
        group: str,
        transaction_size: int,
        session_timeout_ms: int = 45_000,
        transaction_timeout_ms: int = 60_000,
    ) -> None:
        self.source = source
        self.target = target
        self.transaction_size = transaction_size
        self.is_stopped = False
        # Only for those who want to see it fail: how many of its transactions it aborts, when it dies.
        self.abort_ratio = 0.0
        self.dies_after: int | None = None
        self.sent = 0
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": transaction_timeout_ms,
                # When the only broker was away, librdkafka 2.16 otherwise looks for its old self, and waits for ever in
                # send_offsets_to_transaction, whatever the timeout says.
                "metadata.recovery.strategy": "none",
                "linger.ms": 5,
                "log_level": 2,
            }
        )
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                # With a name of its own a copier that is started again gets its partitions back at once.
                "group.instance.id": transactional_id,
                "session.timeout.ms": session_timeout_ms,
                "heartbeat.interval.ms": session_timeout_ms // 10,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,  # positions are committed with the transaction, and in no other way
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "log_level": 2,
            }
        )

    def run(self, *, until_the_end: bool = False) -> None:
        """Until it is stopped, or has come to the end of every partition that it has."""
        insist(self.producer.init_transactions)
        self.consumer.subscribe([self.source])
        at_end: set[int | None] = set()
        with closing(self.consumer):
            while not self.is_stopped:
                polled = self.consumer.consume(self.transaction_size, 0.1)
                for message in polled:
                    raise_if_fatal(message)
                    (at_end.add if is_end(message) else at_end.discard)(message.partition())
                if records := [message for message in polled if message.error() is None]:
                    self.copy(records)
                elif until_the_end and len(at_end) == len(self.consumer.assignment()) > 0:
                    return

    def copy(self, records: Sequence[Message]) -> None:
        """One transaction. What was not committed is read again."""
        try:
            self.producer.begin_transaction()
            for record in records:
                self.send(record)
            positions = [TopicPartition(self.source, partition, end) for partition, (_, end) in spans(records).items()]
            # With this the broker knows whether we still are who has these partitions.
            member = self.consumer.consumer_group_metadata()
            insist(lambda timeout: self.producer.send_offsets_to_transaction(positions, member, timeout))
            if random.random() < self.abort_ratio:
                self.abort(records)
            else:
                insist(self.producer.commit_transaction)
                print(f"committed {len(records)}", flush=True)
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise  # fenced, or broken: whoever is started next goes on
            self.abort(records)

    def send(self, record: Message) -> None:
        partition = record.partition()
        assert partition is not None
        while True:
            try:
                self.producer.produce(
                    self.target,
                    value=transform(record.value()),
                    key=record.key(),
                    # The same partition, so that what was in order there is in order here.
                    partition=partition,
                )
                break
            except BufferError:  # more is on its way than the client keeps
                self.producer.poll(0.1)
        self.sent += 1
        if self.sent == self.dies_after:
            self.producer.flush(STEP_TIMEOUT_S)  # all of it is in the log of the target, and not committed
            os._exit(1)

    def abort(self, records: Sequence[Message]) -> None:
        insist(self.producer.abort_transaction)
        for partition, (start, _) in spans(records).items():
            self.consumer.seek(TopicPartition(self.source, partition, start))
        print(f"aborted {len(records)}", flush=True)


def insist(step: Callable[[float], object]) -> None:
    """Calls again while the broker is away: only a call that has returned is known to have been heard."""
    while True:
        try:
            step(STEP_TIMEOUT_S)
            return
        except KafkaException as failure:
            if not failure.args[0].retriable():
                raise


def raise_if_fatal(message: Message) -> None:
    """Other errors come and go with the broker, and the client deals with them."""
    error = message.error()
    if error is not None and error.fatal():
        raise KafkaException(error)


def is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def spans(records: Sequence[Message]) -> dict[int, tuple[int, int]]:
    """For each partition the first offset, and the position after the last one."""
    found: dict[int, tuple[int, int]] = {}
    for record in records:
        partition, offset = record.partition(), record.offset()
        assert partition is not None and offset is not None
        found[partition] = (found.get(partition, (offset, 0))[0], offset + 1)
    return found


# The show


def copy_some(bootstrap: str, source: str, target: str, dies_after: int | None) -> None:
    name = f"{target}-copier"
    copier = Copier(bootstrap, source, target, transactional_id=name, group=f"{name}s", transaction_size=75)
    copier.dies_after = dies_after
    copier.run(until_the_end=True)


def run_copier(*arguments: object) -> int | None:
    copier = multiprocessing.get_context("spawn").Process(target=copy_some, args=arguments)
    copier.start()
    copier.join()
    return copier.exitcode


def read(bootstrap: str, topic: str, isolation_level: str) -> list[bytes | None]:
    """Everything that a reader sees at this isolation level."""
    settings = {"isolation.level": isolation_level, "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    values: list[bytes | None] = []
    ends = 0
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": "never-joined", **settings})) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        while ends < PARTITIONS:
            polled = consumer.consume(1_000, 0.1)
            values += [message.value() for message in polled if message.error() is None]
            ends += sum(map(is_end, polled))
    return values


def show(bootstrap: str) -> None:
    source, target = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("orders", "orders-copied"))
    orders = [f"order-{number}" for number in range(ORDERS)]
    with Client(bootstrap) as client:
        for topic in (source, target):
            client.create_topic(topic, partitions=PARTITIONS)
        client.publish_many(source, [(order, order) for order in orders])
    died = run_copier(bootstrap, source, target, DIES_AFTER)
    print(f"the first copier died after {DIES_AFTER} orders, exit code {died}")
    print("the second copier went on, exit code", run_copier(bootstrap, source, target, None))
    copied = Counter(value.decode() for value in read(bootstrap, target, "read_committed") if value)
    written = read(bootstrap, target, "read_uncommitted")
    print("published:", len(orders))
    print("lost:", [order for order in orders if order not in copied])
    print("copied twice:", [order for order in orders if copied[order] > 1])
    print("written by the first copier and never committed:", len(written) - copied.total())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--source", metavar="TOPIC", help="what to copy, until it is stopped")
    parser.add_argument("--target", metavar="TOPIC", help="a topic with as many partitions")
    parser.add_argument("--transactional-id", default="copier-1", help="of this copier, and of whoever follows it")
    parser.add_argument("--group", default="copiers")
    parser.add_argument("--transaction-size", type=int, default=750, metavar="RECORDS")
    parser.add_argument("--session-timeout-ms", type=int, default=45_000)
    parser.add_argument("--transaction-timeout-ms", type=int, default=60_000)
    parser.add_argument("--abort-ratio", type=float, default=0.0, help="how many transactions to abort, to see it work")
    parser.add_argument("--seed", type=int, help="of the luck that decides about that")
    options = parser.parse_args()
    if options.source is None:
        show(options.bootstrap_server)
    else:
        copier = Copier(
            options.bootstrap_server,
            options.source,
            options.target,
            transactional_id=options.transactional_id,
            group=options.group,
            transaction_size=options.transaction_size,
            session_timeout_ms=options.session_timeout_ms,
            transaction_timeout_ms=options.transaction_timeout_ms,
        )
        copier.abort_ratio = options.abort_ratio
        random.seed(options.seed)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(copier, "is_stopped", True))
        copier.run()
