"""What is done to the brokers of a cluster while clients work.

Every kind comes once in each round, in an order by chance. While one broker is away, and after all are back, every
producer must be acknowledged something new in every partition, soon: a cluster that has lost nothing and takes nothing
any more is broken, too.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.protocol.messages.cluster import MetadataRequest, MetadataResponse
from tests.chaos.acknowledged import Acknowledged
from tests.chaos.conftest import FULL
from tests.chaos.fleet import Fleet
from tests.testkit import Broker, Cluster, RawClient, eventually
from tests.testkit.asking import a_batch, produce

# A session ends (1 s), somebody is elected, clients notice: at the latest when a request is not answered (2 s).
GETS_ON_WITHIN_S = 12
# Somebody waits; others have taken over when it wakes; they have gone on for long.
_PAUSES_S = (0.5, 1.5, 4) if FULL else (0.5, 1.5)


class ClusterHarm:
    def __init__(
        self, cluster: Cluster, fleet: Fleet, producers: list[Acknowledged], metadata: Path, luck: random.Random
    ) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        """How long it took until all producers got on, by what had been done."""

        self._cluster = cluster
        self._fleet = fleet
        self._producers = producers
        self._metadata = metadata
        self._luck = luck

    def go_on_for(self, seconds: float) -> None:
        """At least one round."""
        self._until_all_get_on("nothing")
        end = time.monotonic() + seconds
        for harm in self._rounds(end):
            self._say(harm.__name__)
            harm()
            self._until_all_get_on(harm.__name__)
            self._fleet.until_all_progress()
            _let_pass(self._luck.random())

    def _rounds(self, end: float) -> Iterator[Callable[[], None]]:
        kinds = [
            self.kill_a_broker,
            self.kill_the_controller,
            self.pause_a_broker,
            self.restart_one_after_the_other,
            self.two_at_once,
        ]
        if FULL:
            kinds += [self.kill_all, self.pause_a_broker, self.kill_a_broker]
        first_round = kinds
        while first_round or time.monotonic() < end:
            first_round = []
            yield from self._luck.sample(kinds, len(kinds))

    def kill_a_broker(self) -> None:
        self._kill(self._anyone())

    def kill_the_controller(self) -> None:
        self._kill(self._controller())

    def _kill(self, broker: Broker) -> None:
        """It comes back at once, or when the others have gone on without it."""
        self._say(f"  {broker.name} killed")
        broker.kill()
        if self._luck.random() < 0.7:
            self._until_all_get_on("a broker is away")
        self._bring_back(broker)

    def pause_a_broker(self) -> None:
        """What came while it stood still it does when it wakes, and believes to lead what others have."""
        with self._paused(self._luck.choice((self._anyone(), self._controller()))):
            if self._luck.random() < 0.5:
                self._until_all_get_on("a broker stands still")
            else:
                _let_pass(self._luck.choice(_PAUSES_S))

    def restart_one_after_the_other(self) -> None:
        for broker in self._luck.sample(list(self._cluster), len(list(self._cluster))):
            self._say(f"  {broker.name} restarts")
            broker.restart(same_port=True)
            self._until_all_get_on("a broker was restarted")

    def two_at_once(self) -> None:
        """Nothing can be committed meanwhile."""
        one, other = self._luck.sample(list(self._cluster), 2)
        if self._luck.random() < 0.5:
            with self._paused(one):
                self._say(f"  {other.name} killed")
                other.kill()
                _let_pass(self._luck.choice(_PAUSES_S))
            self._bring_back(other)
            return
        for broker in (one, other):
            self._say(f"  {broker.name} killed")
            broker.kill()
            _let_pass(self._luck.choice((0, 0.1, 1.5)))
        for broker in self._luck.sample((one, other), 2):
            self._bring_back(broker)

    def kill_all(self) -> None:
        for broker in self._cluster:
            self._say(f"  {broker.name} killed")
            broker.kill()
        for broker in self._luck.sample(list(self._cluster), len(list(self._cluster))):
            self._bring_back(broker)

    def _bring_back(self, broker: Broker) -> None:
        self._say(f"  {broker.name} comes back")
        broker.restart(same_port=True)

    @contextmanager
    def _paused(self, broker: Broker) -> Iterator[None]:
        eventually(lambda: self._stopped(broker), 10, "it writes metadata all the time")
        self._say(f"  {broker.name} stands still")
        try:
            yield
        finally:
            os.kill(broker.pid, signal.SIGCONT)
            self._say(f"  {broker.name} goes on")

    def _stopped(self, broker: Broker) -> bool:
        """Not with the lock of the metadata: who stops with it stops all, until the supervisor kills it."""
        os.kill(broker.pid, signal.SIGSTOP)
        if not _holds_a_lock(broker.pid, self._metadata):
            return True
        os.kill(broker.pid, signal.SIGCONT)
        return False

    def _anyone(self) -> Broker:
        return self._luck.choice(list(self._cluster))

    def _controller(self) -> Broker:
        def known() -> int | None:
            with RawClient(self._cluster.running[0].address) as client:
                controller = client.exchange(MetadataRequest(topics=[]), 9, MetadataResponse).controller_id
            return controller if controller > 0 else None

        return self._cluster[eventually(known)]

    def _until_all_get_on(self, what: str) -> None:
        for producer in self._producers:
            producer.mark()
        began = time.monotonic()
        try:
            eventually(self._all_get_on, GETS_ON_WITHIN_S, f"nothing is acknowledged any more: {what}")
        except AssertionError as error:
            for line in self._what_a_producer_is_told():
                error.add_note(line)
            raise
        self.seconds[what].append(time.monotonic() - began)
        self._say(f"  all get on, {what}: {self.seconds[what][-1]:.1f} s")

    def _all_get_on(self) -> bool:
        behind = [each for producer in self._producers for each in producer.behind]
        assert not behind, f"{', '.join(behind)}"
        return True

    def _what_a_producer_is_told(self) -> Iterator[str]:
        """By each broker: who leads each partition, and by who leads it, what becomes of one more record."""
        for broker in self._cluster.running:
            try:
                with RawClient(broker.address, timeout=5) as client:
                    for topic in client.exchange(MetadataRequest(topics=None), 9, MetadataResponse).topics:
                        for state in topic.partitions:
                            leads = not topic.is_internal and self._cluster[state.leader_id] is broker
                            told = _probe(client, topic.name or "", state.partition_index) if leads else ""
                            yield f"{broker.name} of {topic.name}: {state} {told}"
            except OSError as error:
                yield f"{broker.name} does not answer: {error}"

    def _say(self, what: str) -> None:
        """The time as in the brokers' logs, to find it there."""
        now = time.time()
        print(f"{time.strftime('%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03} {what}")


def _probe(client: RawClient, topic: str, partition: int) -> str:
    row = produce(client, topic, a_batch(b"probe"), partition=partition, timeout_ms=2_000)
    return f"answers a record with {row.error_code} {row.error_message or ''}"


def _holds_a_lock(pid: int, metadata: Path) -> bool:
    """On the database or on its lease: by the inodes in /proc/locks."""
    leases = Path(f"{metadata}-leases")
    files = [metadata, *metadata.parent.glob(f"{metadata.name}-*"), *(leases.iterdir() if leases.exists() else ())]
    inodes = set()
    for file in files:
        try:
            inodes.add(file.stat().st_ino)
        except FileNotFoundError:
            continue  # a lease that ended meanwhile
    for line in Path("/proc/locks").read_text().splitlines():
        _, *fields = line.split()
        if fields[0] == "->" or fields[2] != "WRITE":
            continue
        if int(fields[3]) == pid and int(fields[4].rpartition(":")[2]) in inodes:
            return True
    return False


def _let_pass(seconds: float) -> None:
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= until, seconds + 5)
