"""Three brokers, their clients and a checker on one simulated ground, for a seeded run or for a scripted one."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from penstock.controller.commands import CreatedTopic, CreateTopics, NewTopic
from penstock.core.errors import BrokerError
from penstock.core.ids import BrokerId, TopicPartition
from penstock.core.internal_topics import INTERNAL_TOPICS
from penstock.metadata.image import EMPTY_IMAGE, ClusterImage, PartitionImage
from penstock.replication.partition import Partition
from tests.simulation.broker import SimulatedBroker, host_of
from tests.simulation.checker import Checker, Violation
from tests.simulation.clients import Client, Committer, Pipeliner, Producer, Transactor
from tests.simulation.disk import Disk, simulated_system
from tests.simulation.loop import NothingHappens, Process, ProcessState, SimulatedLoop
from tests.simulation.network import Network
from tests.simulation.store import StoreServer

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
BROKERS = (1, 2, 3)
# Records are committed when they are on the disks of all that are in sync, or in their page caches.
FLUSHED, OTHER, CACHED = TopicPartition("flushed", 0), TopicPartition("other", 0), TopicPartition("cached", 0)
CREATE_TRIES = 5
LOOK_EVERY_S = 0.1
# In simulated time: leases, changes of in-sync sets and back-offs are over well before.
PATIENCE_S = 20.0
# Said as errors, and no more than what a fault does.
EXPECTED = frozenset({"coordinator lost an append, loading again"})

_T = TypeVar("_T")


class SimulatedCluster:
    def __init__(
        self, seed: object, *, tell: Callable[[str], None] | None = None, settings: dict[str, str] | None = None
    ) -> None:
        self.seed = seed
        self.luck = random.Random(f"{seed}/faults")
        self.loop = SimulatedLoop()
        self.disk = Disk()
        self.network = Network(self.loop, seed)
        self.store = StoreServer()
        self.checker = Checker()
        self.brokers: dict[int, SimulatedBroker] = {}
        self.clients: list[Client] = []
        self._clients: set[Client] = set()
        self.faults = 0
        self.failure: BaseException | None = None
        self._settings = settings or {}
        self._tell = tell
        self._runs = dict.fromkeys(BROKERS, 0)
        self._dead: list[SimulatedBroker] = []
        self._image = EMPTY_IMAGE
        self._tasks: list[asyncio.Task[Any]] = []
        self.trace_lines: list[str] = []

    @property
    def events(self) -> int:
        """What came over the network or happened to somebody."""
        return self.network.delivered + self.faults

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.loop.time() * 1000)

    def trace(self, what: str) -> None:
        line = f"{self.loop.time() - 1000:9.4f}  {what}"
        self.trace_lines.append(line)
        if self._tell is not None:
            self._tell(line)

    # Running

    def run(self, script: Callable[[SimulatedCluster], Coroutine[Any, Any, None]]) -> None:
        """Raises what went wrong first: a Violation, or whatever a broker died of."""
        self._directory = tempfile.mkdtemp(prefix="simulation-", dir=MEMORY)
        watching = _Errors(self)
        logger = logging.getLogger("penstock")
        level, propagates = logger.level, logger.propagate
        logger.addHandler(watching)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        self.loop.set_exception_handler(self._loop_failed)
        try:
            with simulated_system(self.disk):
                self._main = self.loop.create_task(script(self), name="script")
                self._main.add_done_callback(lambda task: self.loop.stop())
                try:
                    self.loop.run_forever()
                except NothingHappens:
                    self.fail(Violation("nothing is left to happen"))
                if self.failure is None and not self._main.cancelled():
                    self.failure = self._main.exception()
                self._main.cancel()
        finally:
            logger.removeHandler(watching)
            logger.setLevel(level)
            logger.propagate = propagates
            with simulated_system(self.disk):
                self.loop.forget_tasks()
            shutil.rmtree(self._directory, ignore_errors=True)
        if self.failure is not None:
            raise self.failure

    def fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self.trace(f"FAILED: {error}")
            self.loop.stop()

    def _loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.fail(error if isinstance(error, BaseException) else Violation(str(context.get("message"))))

    def _crashed(self, broker: SimulatedBroker, task: str, error: BaseException) -> None:
        if broker.process.state is not ProcessState.DEAD:
            error.add_note(f"{task} of {broker.process.name} died")
            self.fail(error)

    # Brokers

    async def start_all(self) -> None:
        for broker_id in BROKERS:
            self.start(broker_id)
        await self.until(lambda: len(self.serving()) == len(BROKERS), "all brokers serve")

    def start(self, broker_id: int) -> SimulatedBroker:
        self._runs[broker_id] += 1
        broker = SimulatedBroker(
            broker_id,
            self._runs[broker_id],
            f"{self._directory}/{host_of(broker_id)}",
            loop=self.loop,
            network=self.network,
            server=self.store,
            seed=self.seed,
            settings=self._settings,
            crashed=self._crashed,
            listener=lambda each: _Roles(self, each),
        )
        self.network.lit(broker.host)
        self.brokers[broker_id] = broker
        self.trace(f"{broker.process.name} starts")
        task = self.loop.spawn(broker.process, self._start(broker))
        self._tasks.append(task)
        return broker

    async def _start(self, broker: SimulatedBroker) -> None:
        """A broker that cannot reach the metadata store ends, and is started again."""
        try:
            await broker.start()
        except BrokerError as error:
            self.trace(f"{broker.process.name} did not start: {error.message}")
            self.loop.call_later(0.5, self._try_again, broker, context=Process("supervisor", 0).context)
            self.kill(int(broker.broker_id))
        except Exception as error:
            self._crashed(broker, "start", error)

    def _try_again(self, broker: SimulatedBroker) -> None:
        if self.brokers.get(broker.broker_id) is None:
            self.start(broker.broker_id)

    def running(self) -> list[SimulatedBroker]:
        return [each for _, each in sorted(self.brokers.items())]

    def serving(self) -> list[SimulatedBroker]:
        return [each for each in self.running() if each.is_serving]

    def kill(self, broker_id: int) -> None:
        """SIGKILL: what it had written is in the page cache."""
        broker = self.brokers.pop(broker_id, None)
        if broker is not None:
            self._dead.append(broker)
            broker.die()
            self.network.killed(broker.host)

    def cut_power(self, broker_id: int, luck: random.Random | None = None) -> None:
        broker = self.brokers.pop(broker_id, None)
        if broker is not None:
            self._dead.append(broker)
            broker.die()
            self.network.darkened(broker.host)
            self.disk.power_cut(broker.directory, luck or self.luck)

    async def stop(self, broker_id: int) -> None:
        """SIGTERM."""
        broker = self.brokers[broker_id]
        broker.is_stopping = True
        with suppress(BrokerError):
            await self.within(broker, broker.hand_over())
        if broker.process.state is ProcessState.DEAD or self.brokers.get(broker_id) is not broker:
            return
        broker.is_serving = False
        self.network.killed(broker.host)
        await self.within(broker, broker.finish())
        if self.brokers.get(broker_id) is broker:
            del self.brokers[broker_id]
            self._dead.append(broker)
            broker.die()

    async def within(self, broker: SimulatedBroker, work: Coroutine[Any, Any, _T]) -> _T:
        """Done by the broker, and never done if it dies."""
        task = self.loop.spawn(broker.process, work)
        task.add_done_callback(lambda each: each.cancelled() or each.exception())
        await asyncio.wait((task,))  # who gives up waiting is not kept waiting by it
        return task.result()

    # The truth

    def image(self) -> ClusterImage:
        if self._image.revision < self.store.revision:
            self._image, _ = self._image.apply(self.store.changes_after("", self._image.revision))
        return self._image

    def state(self, where: TopicPartition) -> PartitionImage:
        state = self.image().partition(where)
        assert state is not None
        return state

    def leader(self, where: TopicPartition) -> SimulatedBroker | None:
        """Who leads it and knows it."""
        leader = self.state(where).leader
        broker = None if leader is None else self.brokers.get(leader)
        if broker is None or not broker.is_serving:
            return None
        with suppress(BrokerError):
            return broker if broker.partitions.find(where.topic, where.partition).is_led else None
        return None

    def replica(self, broker_id: int, where: TopicPartition) -> Partition:
        return self.brokers[broker_id].partitions.find(where.topic, where.partition)

    def forget_promises(self) -> None:
        """For a script that changes what is on the disks."""
        self.checker = Checker()

    def look(self) -> None:
        try:
            self.checker.look(self.running(), self.image())
        except Violation as error:
            self.fail(error)

    async def keep_looking(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def until(self, condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        give_up_s = self.loop.time() + patience_s
        while not condition():
            if self.loop.time() > give_up_s:
                raise Violation(f"no progress: {what}")
            await asyncio.sleep(0.02)

    async def create(self, name: str, replicas: tuple[BrokerId, ...] = (), **configs: str) -> None:
        """Asked by the first broker. Of the replicas, if they are named, the first leads."""
        # The clocks of brokers are set back: records of an hour ago, or of an hour from now, are fine all the same.
        configs = {"message_timestamp_after_max_ms": str(2**63 - 1), **configs}
        pairs = tuple((key.replace("_", "."), value) for key, value in configs.items())
        topic = NewTopic(name, 1, 3, configs=pairs)
        if replicas:
            topic = NewTopic(name, assignments=((0, replicas),), configs=pairs)
        outcome: object = None
        for _ in range(CREATE_TRIES):  # who has just lost its session, by bad luck, is back in a moment
            await self.until(self._all_know_all, "all know that all serve")
            broker = self.serving()[0]
            (result,) = await self.within(broker, broker.controller.ask(CreateTopics((topic,))))
            outcome = result.outcome
            if isinstance(outcome, CreatedTopic):
                break
        assert isinstance(outcome, CreatedTopic), outcome
        await self.until(lambda: self.leader(TopicPartition(name, 0)) is not None, f"{name} is led")

    def _all_know_all(self) -> bool:
        return all(len(each.follower.image.serving()) == len(BROKERS) for each in self.serving())

    def add(self, client: Client) -> None:
        self.clients.append(client)
        self._clients.add(client)
        self._tasks.append(self.loop.spawn(client.process, self._client(client)))

    async def _client(self, client: Client) -> None:
        try:
            await client.run()
        except Exception as error:
            self.fail(error)
        self._clients.discard(client)

    # The end

    async def settle(self) -> None:
        """All is mended: then everybody gets on with it, and in the end all replicas are the same."""
        self.network.mend_all()
        self.network.slow_share = 0.0
        for broker in self.running():
            if broker.is_stopping:
                self.kill(broker.broker_id)
            broker.link.mend()
            broker.link.slow_share = 0.0
            self.loop.continue_process(broker.process)
        for broker_id in BROKERS:
            if broker_id not in self.brokers:
                self.start(broker_id)
        self.trace("everything is mended")
        before = {
            client: client.acknowledged
            for client in self.clients
            if isinstance(client, Producer | Committer | Transactor)
        }
        await self.until(lambda: len(self.serving()) == len(BROKERS), "all brokers serve again")
        for each, count in before.items():
            await self.until(lambda: each.acknowledged > count, f"{each.name} gets answers again")  # noqa: B023
        for client in self.clients:
            client.is_wanted = False
        await self.until(lambda: not self._clients, "clients come to an end")
        partitions = [TopicPartition(topic.name, 0) for topic in self.image().topics.values()]
        for where in partitions:
            await self.until(lambda: self._is_whole(where), f"{where} is in sync again")  # noqa: B023
        self.look()
        for where in partitions:
            values = self.checker.final(self.running(), where)
            if where.topic not in INTERNAL_TOPICS:
                self._no_duplicates(where, values)
            for client in self.clients:
                if isinstance(client, Pipeliner) and client.where == where:
                    client.check(values)
        for client in self.clients:
            if isinstance(client, Transactor):
                client.check(self.running()[0])

    def _is_whole(self, where: TopicPartition) -> bool:
        leader = self.leader(where)
        if leader is None or len(self.state(where).isr) < len(BROKERS):
            return False
        partition = self.replica(leader.broker_id, where)
        return partition.high_watermark.offset == partition.log.log_end_offset and all(
            self.replica(each, where).log.log_end_offset == partition.log.log_end_offset for each in BROKERS
        )

    def _no_duplicates(self, where: TopicPartition, values: list[bytes]) -> None:
        once = [value for value in values if not value.startswith(b"noise")]
        if len(set(once)) != len(once):
            raise Violation(f"duplicates in {where}: {sorted(value for value in set(once) if once.count(value) > 1)}")


class _Roles:
    """Told by a broker what it leads."""

    def __init__(self, cluster: SimulatedCluster, broker: SimulatedBroker) -> None:
        self._cluster = cluster
        self._broker = broker

    def began_leading(self, partition: Partition) -> None:
        name = self._broker.process.name
        self._cluster.trace(
            f"{name} leads {partition.topic_partition} in epoch {partition.leader_epoch}, from "
            f"{partition.log.log_end_offset} on, high watermark {partition.high_watermark.offset}"
        )
        try:
            self._cluster.checker.began_leading(self._broker, partition)
        except Violation as error:
            self._cluster.fail(error)

    def stopped_leading(self, partition: Partition) -> None:
        self._cluster.trace(f"{self._broker.process.name} leads {partition.topic_partition} no more")


class _Errors(logging.Handler):
    """What a broker logs as an error is one."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        facts = {
            key: value
            for key, value in record.__dict__.items()
            if key in ("partition", "step", "leader", "reason", "epoch", "partitions", "controller_epoch", "error")
        }
        self._cluster.trace(f"{record.levelname.lower()}: {record.getMessage()} {facts}")
        if record.levelno >= logging.ERROR and record.getMessage() not in EXPECTED:
            error = record.exc_info[1] if record.exc_info else None
            self._cluster.fail(error or Violation(f"{record.getMessage()}: {facts}"))
