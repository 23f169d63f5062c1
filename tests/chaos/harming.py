"""How a cluster is harmed while clients work: one kind after another, and what must be true after each.

Every kind comes once in each round, in an order by chance. While one broker is away, and after all are back, every
producer must be acknowledged something new in every partition, soon: a cluster that has lost nothing and takes nothing
any more is broken, too. How long they waited is kept.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from penstock.protocol.messages.cluster import MetadataRequest, MetadataResponse
from tests.chaos.cluster_clients import Clients
from tests.chaos.invariants import Invariants
from tests.cluster.finding import controller_of
from tests.testkit import Broker, Cluster, RawClient, eventually
from tests.testkit.asking import a_batch, produce

# A session ends (after 3 s), somebody is elected, clients notice: at the latest when a request is not answered
# (2 s), and when a connection that was silent tries again.
GETS_ON_WITHIN_S = 60

Kind = Callable[[], None]


class Harming:
    """What every kind of harm has at hand."""

    def __init__(self, cluster: Cluster, clients: Clients, invariants: Invariants, luck: random.Random) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        """The longest that a producer waited for an acknowledgement in one partition, by what was done."""

        self.cluster = cluster
        self.luck = luck
        self._clients = clients
        self._invariants = invariants

    def go_on_for(self, seconds: float, kinds: Sequence[Kind], *, first_round: int | None = None) -> None:
        """At least one round, of which `first_round` may name how many kinds are enough."""
        self.until_all_get_on("nothing")
        end = time.monotonic() + seconds
        for harm in self._rounds(end, kinds, first_round):
            self.say(harm.__name__)
            self._clients.take_longest_wait_s()
            harm()
            self.until_all_get_on(harm.__name__)
            self.seconds[harm.__name__].append(self._clients.take_longest_wait_s())
            self.say(f"  without an acknowledgement for {self.seconds[harm.__name__][-1]:.1f} s")
            self._clients.fleet.until_all_progress()
            self._invariants.check()
            let_pass(self.luck.random())

    def _rounds(self, end: float, kinds: Sequence[Kind], first_round: int | None) -> Iterator[Kind]:
        yield from self.luck.sample(kinds, first_round or len(kinds))
        while time.monotonic() < end:
            for kind in self.luck.sample(kinds, len(kinds)):
                if time.monotonic() < end:
                    yield kind

    # Who

    def anyone(self) -> Broker:
        return self.luck.choice(list(self.cluster))

    def controller(self) -> Broker:
        def known() -> int | None:
            controller = controller_of(self.cluster)
            return controller if controller > 0 else None

        return self.cluster[eventually(known)]

    # What must be true

    def until_all_get_on(self, what: str) -> None:
        began = time.monotonic()
        try:
            self._clients.until_all_get_on(GETS_ON_WITHIN_S, what)
        except AssertionError as error:
            for line in self._what_a_producer_is_told():
                error.add_note(line)
            raise
        self.say(f"  all get on, {what}: {time.monotonic() - began:.1f} s")

    def until_settled(self) -> None:
        """Until every partition has a leader, and all its replicas in sync."""
        eventually(self._clients.all_in_sync, GETS_ON_WITHIN_S, "replicas do not come back")

    def check_invariants(self) -> None:
        self._invariants.check()

    def _what_a_producer_is_told(self) -> Iterator[str]:
        """By each broker: who leads each partition, and by who leads it, what becomes of one more record."""
        for broker in self.cluster.running:
            try:
                with RawClient(broker.address, timeout=5) as client:
                    for topic in client.exchange(MetadataRequest(topics=None), 9, MetadataResponse).topics:
                        for state in topic.partitions:
                            leads = not topic.is_internal and state.leader_id in self.ids(broker)
                            told = _probe(client, topic.name or "", state.partition_index) if leads else ""
                            yield f"{broker.name} of {topic.name}: {state} {told}"
            except OSError as error:
                yield f"{broker.name} does not answer: {error}"

    def ids(self, broker: Broker) -> list[int]:
        """Its own, as the only one."""
        return [number for number in self.cluster.ids if self.cluster[number] is broker]

    def say(self, what: str) -> None:
        """The time as in the brokers' logs, to find it there."""
        now = time.time()
        print(f"{time.strftime('%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03} {what}")


def _probe(client: RawClient, topic: str, partition: int) -> str:
    row = produce(client, topic, a_batch(b"probe"), partition=partition, timeout_ms=2_000)
    return f"answers a record with {row.error_code} {row.error_message or ''}"


def let_pass(seconds: float) -> None:
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= until, seconds + 5)
