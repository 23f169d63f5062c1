"""A broker of the simulation: the parts of `server/node.py`, put together in the same order, on simulated ground.

Left out is what the cluster's safety does not rest on: sockets and the proof of the cluster's key, HTTP, signals, the
cleaner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from penstock.controller.forwarding import Controller
from penstock.controller.producer_ids import ProducerIds
from penstock.controller.proposals import ask_for, resign_by
from penstock.controller.registration import Registration
from penstock.controller.service import ControllerService
from penstock.coordinators.groups import GroupCoordinators
from penstock.coordinators.transaction_peers import TransactionPeers
from penstock.coordinators.transactions import TransactionCoordinators
from penstock.core.config import Assignment, BrokerConfig
from penstock.core.ids import BrokerId
from penstock.core.listeners import INTERNAL_LISTENER
from penstock.core.metrics import ApiMetrics
from penstock.handlers.context import Broker
from penstock.handlers.fetch_sessions import FetchSessions
from penstock.handlers.internal_registry import INTERNAL_APIS, INTERNAL_FLEXIBLE_SINCE
from penstock.handlers.pipeline import Pipeline
from penstock.handlers.registry import APIS
from penstock.metadata.follower import Follower
from penstock.metadata.records import Endpoint, SessionState
from penstock.net.channel import Channels
from penstock.net.cluster_key import Credentials
from penstock.net.connection import Connection, Session
from penstock.replication.fetch_session import ServingSessions
from penstock.replication.housekeeping import Housekeeping
from penstock.replication.manager import PartitionListener, ReplicaManager
from penstock.replication.replicas import Replicas
from penstock.replication.spoilt import SpoiltReplicas
from penstock.runtime.tasks import TaskGroup
from penstock.runtime.tick import Tick
from penstock.server.joining import join_cluster
from penstock.server.session import BrokerSession, Noted
from penstock.storage.flusher import Flusher
from penstock.storage.log_dirs import DataDirectory
from tests.simulation.loop import Process, SimulatedClock, SimulatedFiles, SimulatedLoop
from tests.simulation.network import CLIENT_PORT, INTERNAL_PORT, Network, ServerSocket
from tests.simulation.store import SimulatedStore, StoreLink, StoreServer

SETTINGS = {
    "broker.session.timeout.ms": "1000",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.wait.max.ms": "400",
    "log.cleaner.enable": "false",
    "log.index.size.max.bytes": "4096",
    "log.flush.offset.checkpoint.interval.ms": "1500",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "leader.imbalance.check.interval.seconds": "4",
}
MAX_FRAME_BYTES = 1 << 20
HANDOVER_POLL_S = 0.01
HANDOVER_TIMEOUT_S = 3.0


def host_of(broker_id: int) -> str:
    return f"broker-{broker_id}"


class _Directory(DataDirectory):
    """One whose lock somebody else can give back: a process that dies does, and no more."""

    __slots__ = ("is_released",)

    def __init__(self, path: str, lock_fd: int) -> None:
        super().__init__(path, lock_fd)
        self.is_released = False

    def release(self) -> None:
        self.is_released = True
        super().release()


class SimulatedBroker:
    """One process; a broker that comes back is another one on the same directory."""

    def __init__(
        self,
        broker_id: int,
        run: int,
        directory: str,
        *,
        loop: SimulatedLoop,
        network: Network,
        server: StoreServer,
        seed: object,
        settings: dict[str, str],
        crashed: Callable[[SimulatedBroker, str, BaseException], None],
        listener: Callable[[SimulatedBroker], PartitionListener],
    ) -> None:
        self.broker_id = BrokerId(broker_id)
        self.host = host_of(broker_id)
        self.directory = directory
        self.process = Process(f"{self.host}/{run}", seed)
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.link = StoreLink(self.process.luck)
        self.is_serving = False
        self.is_stopping = False
        self.data: _Directory | None = None
        self._network = network
        self._server = server
        self._crashed = crashed
        self._listener = listener
        values = {"node.id": str(broker_id), "log.dirs": directory, **SETTINGS, **settings}
        self.config = BrokerConfig([Assignment(name, text, "the simulation") for name, text in values.items()])

    # Starting

    async def start(self) -> None:
        self.tasks = TaskGroup(on_crash=lambda name, error: self._crashed(self, name, error))
        self.files = files = SimulatedFiles(self.process)
        data = _Directory.open(self.directory)
        assert isinstance(data, _Directory)
        self.data = data
        self.store = SimulatedStore(self._server, self.link)
        self.follower = Follower(self.store, self.tasks)
        await self.follower.start()
        self.session = BrokerSession(
            self.store,
            self.follower,
            self.clock,
            self.config.int("broker.session.timeout.ms"),
            Noted(data.last_session, files),
        )
        identity = await join_cluster(self.config, data, self.store, self.follower, files)
        self.service = ControllerService(
            self.store, self.follower, self.broker_id, lambda: self.config, lambda: self.session.epoch
        )
        self.controller = Controller(
            self.service, self.follower, self.broker_id, self._channels(), repeating=self._channels()
        )
        replicas = Replicas(
            self.broker_id,
            image=lambda: self.follower.image,
            session_epoch=lambda: self.session.epoch,
            session_deadline_ms=lambda: self.session.deadline_ms,
            alter=ask_for(self.controller, self.broker_id, lambda: self.session.epoch),
            fetching=self._channels(),
            talking=self._channels(),
            config=lambda: self.config,
            tasks=self.tasks,
            clock=self.clock,
        )
        self._tick = Tick(self.loop)
        self.flusher = Flusher(files, lambda error: self._crashed(self, "flush", error))
        self.partitions = ReplicaManager(
            self.broker_id,
            lambda: self.config,
            data,
            tick=self._tick,
            flusher=self.flusher,
            files=files,
            tasks=self.tasks,
            clock=self.clock,
            replicas=replicas,
        )
        spoilt = SpoiltReplicas(
            self.partitions,
            image=lambda: self.follower.image,
            resign=resign_by(self.controller, self.broker_id, lambda: self.session.epoch),
            files=files,
            tasks=self.tasks,
            clock=self.clock,
        )
        self.groups = GroupCoordinators(self.config, clock=self.clock, files=files, tasks=self.tasks)
        self.transactions = TransactionCoordinators(
            self.config,
            broker_id=self.broker_id,
            image=lambda: self.follower.image,
            partitions=self.partitions,
            groups=self.groups,
            peers=TransactionPeers(
                lambda: self.follower.image, marking=self._channels(), verifying=self._channels(), tasks=self.tasks
            ),
            clock=self.clock,
            files=files,
            tasks=self.tasks,
        )
        self.partitions.add_listener(self.groups)
        self.partitions.add_listener(self.transactions)
        self.partitions.add_listener(self._listener(self))
        broker = self._assemble()
        self._for_clients = Pipeline(broker)
        self._for_brokers = Pipeline(replace(broker, apis=INTERNAL_APIS), INTERNAL_APIS, INTERNAL_FLEXIBLE_SINCE)
        self._network.listen(self.host, self.process, self._accept)
        await self.session.begin(
            Registration(
                self.broker_id,
                (Endpoint(name="PLAINTEXT", host=self.host, port=CLIENT_PORT),),
                host=self.host,
                directory_id=identity.directory_id,
                internal=Endpoint(name=INTERNAL_LISTENER, host=self.host, port=INTERNAL_PORT),
            )
        )
        self.tasks.spawn(self.session.keep(), name="session")
        self.tasks.spawn(self.service.campaign(), name="controller")
        self.tasks.spawn(self.service.balance(), name="balance")
        self.follower.add_listener(self.partitions.follow)
        self.follower.add_listener(self.groups.follow)
        self.groups.start(self.follower.image)
        await self.partitions.start(self.follower.image)
        await spoilt.tell_losses(data)
        self.tasks.spawn(spoilt.watch(), name="spoilt")
        await self.session.become(SessionState.SERVING)
        await self.service.take_part()
        await self.partitions.caught_up()
        Housekeeping(self.partitions, lambda: self.config, files, self.tasks, self.clock).start()
        self.is_serving = True

    def _channels(self) -> Channels:
        return Channels(
            lambda: Credentials(self.broker_id, "known to all"), opener=self._network.opener(self.host, self.process)
        )

    def _assemble(self) -> Broker:
        return Broker(
            node_id=self.broker_id,
            current_config=lambda: self.config,
            clock=self.clock,
            files=self.files,
            follower=self.follower,
            controller=self.controller,
            producer_ids=ProducerIds(self.controller),
            partitions=self.partitions,
            groups=self.groups,
            transactions=self.transactions,
            fetch_sessions=FetchSessions(100, 1),
            replica_sessions=ServingSessions(self.process.luck.randrange(1 << 24)),
            tasks=self.tasks,
            loop=self.loop,
            api_metrics={key: ApiMetrics() for key in INTERNAL_APIS},
            apis=APIS,
        )

    def _accept(self, socket: ServerSocket, session: Session) -> None:
        pipeline = self._for_brokers if session.broker_id is not None else self._for_clients
        Connection(
            socket,  # type: ignore[arg-type]
            session,
            serve=pipeline.serve,
            on_closed=lambda connection, reason: None,
            tick=self._tick,
            loop=self.loop,
            max_frame_bytes=MAX_FRAME_BYTES,
            now_ms=self.clock.monotonic_ms(),
        )

    # Stopping

    async def hand_over(self) -> None:
        """As a clean stop begins: others lead first."""
        await self.session.become(SessionState.STOPPING)
        give_up_s = self.loop.time() + HANDOVER_TIMEOUT_S
        while self.loop.time() < give_up_s and any(each.is_led for each in self.partitions.all()):  # noqa: ASYNC110
            await asyncio.sleep(HANDOVER_POLL_S)

    async def finish(self) -> bool:
        self.is_serving = False
        self.transactions.close()
        self.groups.close()
        await self.tasks.stop()
        await self.session.end()
        await self.follower.stop()
        await self.store.close()
        await self.flusher.drain()
        return await self.partitions.close()

    def die(self) -> None:
        """Nothing of it runs any more; its files are as they are."""
        self.is_serving = False
        self.loop.kill_process(self.process)
        if hasattr(self, "store"):
            self.store.forget()
        if self.data is not None and not self.data.is_released:
            self.data.release()
