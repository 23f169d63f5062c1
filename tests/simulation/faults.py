"""A run that depends on its seed: clients at work, and one misfortune after the other; then all is mended and checked.

Half of the runs have a topic that does not flush as well. What it has acknowledged is in the page caches of those in
sync, so there power is lost only where all are: one broker after the other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from penstock.controller.commands import ElectionType, ElectLeaders
from penstock.core.errors import BrokerError
from penstock.core.internal_topics import GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.simulation.broker import SimulatedBroker, host_of
from tests.simulation.clients import Committer, Consumer, Pipeliner, Producer, Transactor
from tests.simulation.cluster import BROKERS, CACHED, FLUSHED, OTHER, SimulatedCluster

DEFAULT_EVENTS = 400
LONG_S = (0.05, 2.5)
BETWEEN_S = (0.02, 0.5)
HOUR_MS = 3_600_000


def run_seed(seed: int, events: int = DEFAULT_EVENTS, *, tell: Callable[[str], None] | None = None) -> SimulatedCluster:
    """Raises what went wrong, with how to see it again."""
    cluster = SimulatedCluster(seed, tell=tell)
    try:
        cluster.run(lambda each: _Misfortunes(each).run(events))
    except BaseException as error:
        error.add_note(f"again, with what happened: python -m tests.simulation --seed {seed} --events {events}")
        raise
    return cluster


class _Misfortunes:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._luck = random.Random(f"{cluster.seed}/misfortunes")
        self._has_cached = self._luck.random() < 0.5
        self._has_transactions = self._luck.random() < 0.3
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, events: int) -> None:
        cluster = self._cluster
        await cluster.start_all()
        await cluster.create(FLUSHED.topic, flush_messages="1", min_insync_replicas="2", segment_bytes="2000")
        if self._has_cached:
            await cluster.create(CACHED.topic, flush_messages="1000000", min_insync_replicas="2")
        await cluster.create(GROUP_OFFSETS_TOPIC, flush_messages="1", min_insync_replicas="2")
        if self._has_transactions:
            await cluster.create(OTHER.topic, flush_messages="1", min_insync_replicas="2")
            await cluster.create(TRANSACTIONS_TOPIC, flush_messages="1", min_insync_replicas="2")
        self._add_clients()
        looking = cluster.loop.create_task(cluster.keep_looking())
        while cluster.events < events:
            await asyncio.sleep(self._luck.uniform(*BETWEEN_S))
            self._something_happens()
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await cluster.settle()
        looking.cancel()

    def _add_clients(self) -> None:
        cluster = self._cluster
        cluster.add(Producer("first", cluster, FLUSHED, 1))
        cluster.add(Pipeliner("second", cluster, FLUSHED, 2))
        cluster.add(Producer("noise", cluster, FLUSHED, 3, acks=1))
        cluster.add(Consumer("reader", cluster, FLUSHED))
        cluster.add(Committer("group", cluster, FLUSHED.topic))
        if self._has_cached:
            cluster.add(Producer("third", cluster, CACHED, 4))
        if self._has_transactions:
            cluster.add(Transactor("transactions", cluster, (FLUSHED, OTHER)))

    def _something_happens(self) -> None:
        kinds: list[tuple[int, Callable[[SimulatedBroker], Coroutine[Any, Any, None]]]] = [
            (4, self._killed),
            (4, self._without_power),
            (3, self._stopped),
            (2, self._restarted),
            (4, self._cut_off_from_another),
            (2, self._cut_off_from_all),
            (4, self._cut_off_from_the_store),
            (2, self._reset),
            (2, self._slow_disk),
            (1, self._slow_network),
            (1, self._clock_step),
            (2, self._balanced),
        ]
        running = self._cluster.running()
        if not running:
            return
        broker = self._luck.choice(running)
        leader = self._cluster.leader(FLUSHED)
        if leader is not None and self._luck.random() < 0.4:
            broker = leader
        (happening,) = self._luck.choices([each for _, each in kinds], [weight for weight, _ in kinds])
        self._cluster.faults += 1
        task = self._cluster.loop.create_task(happening(broker))
        self._running.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._cluster.fail(error)

    def _tell(self, what: str) -> None:
        self._cluster.trace(what)

    async def _a_while(self) -> None:
        await asyncio.sleep(self._luck.uniform(*LONG_S))

    # Brokers

    async def _killed(self, broker: SimulatedBroker) -> None:
        self._tell(f"{broker.process.name} is killed")
        self._cluster.kill(broker.broker_id)
        await self._comes_back(broker)

    async def _without_power(self, broker: SimulatedBroker) -> None:
        if self._has_cached and not self._are_all_in_sync():
            return
        self._tell(f"{broker.process.name} loses power")
        self._cluster.cut_power(broker.broker_id)
        await self._comes_back(broker)

    def _are_all_in_sync(self) -> bool:
        return len(self._cluster.serving()) == len(BROKERS) and set(self._cluster.state(CACHED).isr) == set(BROKERS)

    async def _comes_back(self, broker: SimulatedBroker) -> None:
        await self._a_while()
        if broker.broker_id not in self._cluster.brokers:
            self._cluster.start(broker.broker_id)

    async def _stopped(self, broker: SimulatedBroker) -> None:
        self._tell(f"{broker.process.name} stands still")
        self._cluster.loop.stop_process(broker.process)
        await self._a_while()
        self._tell(f"{broker.process.name} goes on")
        self._cluster.loop.continue_process(broker.process)

    async def _restarted(self, broker: SimulatedBroker) -> None:
        if not broker.is_serving:
            return
        self._tell(f"{broker.process.name} is told to stop")
        try:
            async with asyncio.timeout(10):
                await self._cluster.stop(broker.broker_id)
        except TimeoutError:
            self._tell(f"{broker.process.name} does not stop, and is killed")
            if self._cluster.brokers.get(broker.broker_id) is broker:
                self._cluster.kill(broker.broker_id)
        await self._comes_back(broker)

    # Ways

    async def _cut_off_from_another(self, broker: SimulatedBroker) -> None:
        other = self._luck.choice([each for each in BROKERS if each != broker.broker_id])
        ways = self._luck.choice(("there", "back", "both"))
        await self._cut([(broker.host, host_of(other))], ways)

    async def _cut_off_from_all(self, broker: SimulatedBroker) -> None:
        pairs = [(broker.host, host_of(each)) for each in BROKERS if each != broker.broker_id]
        await self._cut(pairs, self._luck.choice(("there", "back", "both")))

    async def _cut(self, pairs: list[tuple[str, str]], ways: str) -> None:
        network = self._cluster.network
        self._tell(f"cut {ways}: {pairs}")
        for here, there in pairs:
            if ways != "back":
                network.cut(here, there)
            if ways != "there":
                network.cut(there, here)
        await self._a_while()
        self._tell(f"mended: {pairs}")
        for here, there in pairs:
            network.mend(here, there)
            network.mend(there, here)

    async def _cut_off_from_the_store(self, broker: SimulatedBroker) -> None:
        ways = self._luck.choice(("there", "back", "both"))
        self._tell(f"{broker.process.name} cut off from the store: {ways}")
        broker.link.is_cut_there |= ways != "back"
        broker.link.is_cut_back |= ways != "there"
        await self._a_while()
        self._tell(f"{broker.process.name} reaches the store again")
        broker.link.mend()

    async def _reset(self, broker: SimulatedBroker) -> None:
        for other in BROKERS:
            if other != broker.broker_id:
                self._cluster.network.reset(broker.host, host_of(other))

    async def _slow_disk(self, broker: SimulatedBroker) -> None:
        broker.process.disk_s = (0.01, 0.4)
        await self._a_while()
        broker.process.disk_s = (0.0001, 0.002)

    async def _slow_network(self, broker: SimulatedBroker) -> None:
        network = self._cluster.network
        network.slow_share = 0.3
        await self._a_while()
        network.slow_share = 0.02

    # Others

    async def _clock_step(self, broker: SimulatedBroker) -> None:
        broker.clock.step_ms += self._luck.choice((-HOUR_MS, HOUR_MS))

    async def _balanced(self, broker: SimulatedBroker) -> None:
        """Somebody wants the first replicas to lead again."""
        if broker.is_serving:
            with suppress(BrokerError):
                await self._cluster.within(broker, broker.controller.ask(ElectLeaders(ElectionType.PREFERRED, None)))
