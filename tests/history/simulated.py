"""A cluster in a few lines that keeps every promise, and clients that use it in a random interleaving.

What they write down is a correct history: the checker must find nothing in it. Answers get lost, commits time out,
processes are killed, groups are rebalanced: everything that is allowed.

Every client is a generator that gives up its turn wherever a real one could be interrupted.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.history.events import NO_OFFSET, AnyEvent, Ending, Isolation, WriteId
from tests.history.reading import Partition
from tests.history.recording import Recorder

INPUT = "input"
OUTPUT = "output"
PARTITIONS = 2
GROUP = "copiers"

Turns = Iterator[None]


@dataclass(eq=False)
class OpenTransaction:
    """What a coordinator knows: where it has written, where its markers are, and positions that go with it."""

    written_to: dict[Partition, None] = field(default_factory=dict)
    decision: bool | None = None
    marked: dict[Partition, bool] = field(default_factory=dict)
    positions: dict[tuple[str, Partition], int] = field(default_factory=dict)


class Cluster:
    def __init__(self, luck: random.Random) -> None:
        self.luck = luck
        self.events: dict[str, list[AnyEvent]] = {}
        # The id of a record and its transaction; a marker is neither.
        self.logs: dict[Partition, list[tuple[WriteId | None, OpenTransaction | None]]] = {
            (topic, partition): [] for topic in (INPUT, OUTPUT) for partition in range(PARTITIONS)
        }
        self.positions: dict[tuple[str, Partition], int] = {}
        self.open: dict[OpenTransaction, None] = {}
        self._clock = itertools.count(1)
        self._names = itertools.count(1)

    def recorder(self, kind: str, **opened: Any) -> Recorder:
        name = f"{kind}-{next(self._names)}"
        events = self.events[name] = []
        return Recorder(name, events.append, lambda: next(self._clock), **opened)

    def append(self, partition: Partition, record: WriteId, transaction: OpenTransaction | None = None) -> int:
        if transaction is not None:
            self.open[transaction] = None
            transaction.written_to[partition] = None
        self.logs[partition].append((record, transaction))
        return len(self.logs[partition]) - 1

    def end(self, transaction: OpenTransaction, *, is_commit: bool) -> Turns:
        """Writes the markers one after the other, as they would reach their partitions. What is decided stays so."""
        if transaction.decision is None:
            transaction.decision = is_commit
        is_commit = transaction.decision
        for partition in transaction.written_to:
            if partition not in transaction.marked:
                transaction.marked[partition] = is_commit
                self.logs[partition].append((None, None))
                yield
        if is_commit:
            self.positions |= transaction.positions
        self.open.pop(transaction, None)

    def read(
        self, partition: Partition, offset: int, isolation: Isolation, limit: int
    ) -> tuple[list[tuple[str, int, int, WriteId]], int]:
        """Records from an offset on, and the position after them."""
        found: list[tuple[str, int, int, WriteId]] = []
        log = self.logs[partition]
        while offset < len(log) and len(found) < limit:
            record, transaction = log[offset]
            is_hidden = False
            if transaction is not None and isolation == "read_committed":
                if partition not in transaction.marked:
                    break  # the last stable offset
                is_hidden = not transaction.marked[partition]
            if record is not None and not is_hidden:
                found.append((*partition, offset, record))
            offset += 1
        return found, offset

    def run(self, steps: int) -> None:
        """Everybody has turns in a random order; then what is open times out, and final readers read everything."""
        clients: list[tuple[Callable[[Cluster], Turns], Turns]] = [(kind, kind(self)) for kind in CLIENTS]
        for _ in range(steps):
            index = self.luck.randrange(len(clients))
            kind, turns = clients[index]
            if next(turns, self) is self:  # it was killed; another one takes its place
                clients[index] = (kind, kind(self))
        for transaction in list(self.open):
            list(self.end(transaction, is_commit=False))
        list(final_reader(self, "read_committed"))
        list(final_reader(self, "read_uncommitted"))


def input_producer(cluster: Cluster) -> Turns:
    """Idempotent. Some answers never come, some records are refused."""
    luck = cluster.luck
    recorder = cluster.recorder("producer", is_idempotent=True)
    while True:
        partition = (INPUT, luck.randrange(PARTITIONS))
        line = recorder.writing(*partition)
        yield
        fate = luck.random()
        if fate < 0.05:
            recorder.written(line, "failed")
        elif fate < 0.1:
            recorder.written(line, "unknown")
        else:
            offset = cluster.append(partition, recorder.id_of(line))
            yield
            if fate < 0.2:
                recorder.written(line, "unknown")
            elif fate < 0.22:
                return  # killed
            else:
                recorder.written(line, "ok", offset)
        yield


def careless_producer(cluster: Cluster) -> Turns:
    """Not idempotent: what it sends may be in the log twice."""
    luck = cluster.luck
    recorder = cluster.recorder("careless")
    while True:
        partition = (INPUT, luck.randrange(PARTITIONS))
        line = recorder.writing(*partition)
        yield
        for _ in range(luck.choice((1, 1, 2))):
            offset = cluster.append(partition, recorder.id_of(line))
            yield
        recorder.written(line, "ok", offset)
        yield


def transactional_producer(cluster: Cluster) -> Turns:
    luck = cluster.luck
    recorder = cluster.recorder("transactional", is_idempotent=True, transactional_id="t")
    while True:
        transaction = OpenTransaction()
        number = recorder.transaction()
        for _ in range(luck.randint(1, 4)):
            partition = (INPUT, luck.randrange(PARTITIONS))
            line = recorder.writing(*partition, transaction=number)
            yield
            offset = cluster.append(partition, recorder.id_of(line), transaction)
            yield
            recorder.written(line, "ok", offset)
        if not (yield from _end(cluster, recorder, transaction, number)):
            return


def _end(
    cluster: Cluster, recorder: Recorder, transaction: OpenTransaction, number: int
) -> Generator[None, None, bool]:
    """Commits or aborts, with or without an answer; true if the process goes on."""
    fate = cluster.luck.random()
    if fate < 0.05:
        return False  # killed before it asked for anything
    ending: Ending = "abort" if fate < 0.25 else "commit"
    recorder.ending(number, ending)
    yield
    if fate > 0.95:
        return False  # asked, and never decided: it will time out
    yield from cluster.end(transaction, is_commit=ending == "commit")
    if fate > 0.85:
        return False  # decided, and killed before the answer
    recorder.ended(number, ending, "ok")
    yield
    return True


def copier(cluster: Cluster) -> Turns:
    """The only one of its group: from the input to the output, each record in a transaction with its position."""
    luck = cluster.luck
    opened = {"isolation": "read_committed", "group": GROUP, "transactional_id": "c", "is_idempotent": True}
    while any((GROUP, (INPUT, each)) in open_.positions for open_ in cluster.open for each in range(PARTITIONS)):
        # Its predecessor's transaction is ended by whoever takes over the transactional id.
        for transaction in [each for each in cluster.open if each.positions]:
            yield from cluster.end(transaction, is_commit=False)
    recorder = cluster.recorder("copier", **opened)
    position = _assign(cluster, recorder)
    while True:
        source = (INPUT, luck.randrange(PARTITIONS))
        begin = recorder.now()
        records, after = cluster.read(source, position[source], "read_committed", luck.randint(1, 3))
        recorder.polled(begin, records)
        yield
        transaction, number = OpenTransaction(), recorder.transaction()
        for _, _, offset, _ in records:
            line = recorder.writing(OUTPUT, source[1], transaction=number, source=(source[0], source[1], offset))
            yield
            written = cluster.append((OUTPUT, source[1]), recorder.id_of(line), transaction)
            recorder.written(line, "ok", written)
        transaction.positions = {(GROUP, source): after}
        cluster.open[transaction] = None
        recorder.transaction_offsets(number, GROUP, [(*source, after)])
        yield
        if not (yield from _end(cluster, recorder, transaction, number)):
            return
        position[source] = after
        if cluster.positions.get((GROUP, source)) != after:  # aborted
            position = _assign(cluster, recorder)


def _assign(cluster: Cluster, recorder: Recorder) -> dict[Partition, int]:
    positions = {}
    for number in range(PARTITIONS):
        partition = (INPUT, number)
        begin = recorder.now()
        told = cluster.positions.get((GROUP, partition), NO_OFFSET)
        recorder.positioned(begin, (*partition, told), is_committed=True)
        positions[partition] = max(told, 0)
    return positions


def group_consumer(cluster: Cluster) -> Turns:
    """Commits what it read, without a transaction; after a rebalance records come again."""
    luck = cluster.luck
    group, partition = "readers", (INPUT, 0)
    recorder = cluster.recorder("member", group=group)
    while True:
        begin = recorder.now()
        told = cluster.positions.get((group, partition), NO_OFFSET)
        recorder.positioned(begin, (*partition, told), is_committed=True)
        position = max(told, 0)
        for _ in range(luck.randint(1, 5)):
            begin = recorder.now()
            yield
            records, position = cluster.read(partition, position, "read_uncommitted", luck.randint(1, 5))
            recorder.polled(begin, records)
            yield
            if luck.random() < 0.5:
                line = recorder.committing([(*partition, position)])
                yield
                is_applied = luck.random() < 0.8
                if is_applied:
                    cluster.positions[(group, partition)] = position
                yield
                recorder.committed(line, "ok" if is_applied and luck.random() < 0.8 else "unknown")
        if luck.random() < 0.1:
            return


def free_reader(cluster: Cluster) -> Turns:
    """Reads one partition from anywhere, of any isolation level, and begins again."""
    luck = cluster.luck
    isolation: Isolation = luck.choice(("read_committed", "read_uncommitted"))
    recorder = cluster.recorder("reader", isolation=isolation)
    partition = luck.choice(list(cluster.logs))
    position = luck.randint(0, len(cluster.logs[partition]))
    recorder.positioned(recorder.now(), (*partition, position))
    for _ in range(20):
        begin = recorder.now()
        yield
        records, position = cluster.read(partition, position, isolation, luck.randint(1, 10))
        recorder.polled(begin, records)
        yield


def final_reader(cluster: Cluster, isolation: Isolation) -> Turns:
    recorder = cluster.recorder(f"final-{isolation}", isolation=isolation)
    for partition, log in cluster.logs.items():
        recorder.positioned(recorder.now(), (*partition, 0))
        begin = recorder.now()
        records, position = cluster.read(partition, 0, isolation, len(log))
        recorder.polled(begin, records)
        recorder.reached_end((*partition, position), is_final=True)
        yield


CLIENTS = (
    input_producer,
    input_producer,
    careless_producer,
    transactional_producer,
    transactional_producer,
    copier,
    group_consumer,
    free_reader,
    free_reader,
)
