"""The broker, put together by hand on one page: what there is, in which order it starts, in which order it stops.

Starting: take the data directory (nobody else may have it), read the metadata, open the logs, then let clients in.
Stopping: let nobody in, finish what is in flight, flush, and write the clean-shutdown marker last. A broker that loses
its disk stops with exit code 1 and without the marker.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import resource
import signal
import sys
from pathlib import Path

from penstock import __version__
from penstock.controller.forwarding import Controller
from penstock.controller.producer_ids import ProducerIds
from penstock.controller.proposals import ask_for, resign_by
from penstock.controller.registration import Registration
from penstock.controller.service import ControllerService
from penstock.coordinators.groups import GroupCoordinators
from penstock.coordinators.transaction_peers import TransactionPeers
from penstock.coordinators.transactions import TransactionCoordinators
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.core.listeners import Listener as ListenerConfig
from penstock.core.metrics import ApiMetrics
from penstock.handlers.context import Broker
from penstock.handlers.fetch_sessions import FetchSessions
from penstock.handlers.internal_registry import INTERNAL_APIS
from penstock.handlers.pipeline import Pipeline
from penstock.handlers.registry import APIS
from penstock.metadata.follower import Follower
from penstock.metadata.image import ClusterImage, ImageDelta
from penstock.metadata.open_store import open_store
from penstock.metadata.records import Endpoint, InvalidMetadata, SessionState
from penstock.net.channel import Channels
from penstock.net.listener import ConnectionLimits, Listener
from penstock.replication.fetch_session import ServingSessions
from penstock.replication.housekeeping import Housekeeping
from penstock.replication.manager import ReplicaManager
from penstock.replication.replicas import Replicas
from penstock.replication.spoilt import SpoiltReplicas
from penstock.runtime import logs
from penstock.runtime.clock import SystemClock
from penstock.runtime.files import Files
from penstock.runtime.selector import new_event_loop
from penstock.runtime.stop_signals import StopSignals
from penstock.runtime.syncs import Syncs
from penstock.runtime.tasks import TaskGroup
from penstock.runtime.tick import Tick
from penstock.server.http import HttpServer
from penstock.server.internal_listener import (
    bind_internal_listener,
    credentials,
    internal_endpoint,
    internal_limits,
)
from penstock.server.joining import join_cluster
from penstock.server.readiness import ReadyBroker, commands_to_try, write_ready_file
from penstock.server.session import BrokerSession, Noted
from penstock.storage.flusher import Flusher
from penstock.storage.log_dirs import DataDirectory, DirectoryRefused

log = logging.getLogger(__name__)

FILE_THREADS = 8
# fdatasyncs only wait, and a disk takes many at once better than one after the other.
FLUSH_THREADS = 16
DRAIN_DEADLINE_MS = 5_000
DESCRIPTOR_RESERVE = 4  # a quarter of them
# mallopt's numbers for its parameters, and what they are set to: receive buffers for 1 MB batches stay on the heap.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MMAP_THRESHOLD_BYTES, TRIM_THRESHOLD_BYTES = 8 << 20, 1 << 20
DRAIN_POLL_S = 0.01
GARBAGE_THRESHOLDS = (10_000, 10, 10)


def run(config: BrokerConfig, ready_file: Path | None, *, hints: bool = False) -> int:
    """Serve until told to stop. Returns the process's exit code."""
    logs.configure()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(Node(config, ready_file, hints=hints).run())
    except (DirectoryRefused, InvalidMetadata, BrokerError, OSError) as error:
        print(f"penstock serve: {error}", file=sys.stderr)
    return 1


class Node:
    def __init__(self, config: BrokerConfig, ready_file: Path | None, *, hints: bool = False) -> None:
        self._static_config = self._config = config
        self._ready_file = ready_file
        self._hints = hints
        self._clock = SystemClock()
        self._stop = asyncio.Event()
        self._stop_signals = StopSignals()
        self._exit_code = 0
        self._state = "starting"
        self._listeners: list[Listener] = []
        self._internal: Listener | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._loop_failed)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, signal.Signals(number).name)
        _raise_descriptor_limit()
        _return_freed_memory()
        self._files = Files(FILE_THREADS, "files")
        self._flushes = Files(FLUSH_THREADS, "flush")
        self._data = await self._files.run(DataDirectory.open, self._static_config.data_dir)
        self._forget_ready_file()  # one that a crash left tells of a port where nobody listens
        await self._start()
        _collect_garbage_less_often()
        await self._stop.wait()
        await self._finish()
        return self._exit_code

    # Starting

    async def _start(self) -> None:
        self._tasks = TaskGroup(on_crash=self._task_crashed)
        self._store = await open_store(
            self._static_config.optional_str("penstock.metadata"), self._static_config.data_dir
        )
        self._follower = Follower(self._store, self._tasks)
        await self._follower.start()
        self._session = BrokerSession(
            self._store,
            self._follower,
            self._clock,
            self._static_config.int("broker.session.timeout.ms"),
            Noted(self._data.last_session, self._files),
        )
        identity = await join_cluster(self._static_config, self._data, self._store, self._follower, self._files)
        self._node_id = BrokerId(identity.node_id)
        self._static_config = self._static_config.as_node(identity.node_id)
        self._follow_configs(self._follower.image)
        self._follower.add_listener(self._configs_changed)
        self._service = ControllerService(
            self._store, self._follower, self._node_id, self._current_config, lambda: self._session.epoch
        )
        self._channels = Channels(credentials(self._node_id, lambda: self._follower.image))
        self._repeating_channels = Channels(credentials(self._node_id, lambda: self._follower.image))
        self._controller = Controller(
            self._service, self._follower, self._node_id, self._channels, repeating=self._repeating_channels
        )
        # Fetches wait at the other end, and what waits holds up what is behind it on its channel.
        self._fetch_channels = Channels(credentials(self._node_id, lambda: self._follower.image))
        # And acknowledgements wait for progress, which must not wait behind what is asked of a controller.
        self._progress_channels = Channels(credentials(self._node_id, lambda: self._follower.image))
        replicas = Replicas(
            self._node_id,
            image=lambda: self._follower.image,
            session_epoch=lambda: self._session.epoch,
            session_deadline_ms=lambda: self._session.deadline_ms,
            alter=ask_for(self._controller, self._node_id, lambda: self._session.epoch),
            fetching=self._fetch_channels,
            talking=self._progress_channels,
            config=self._current_config,
            tasks=self._tasks,
            clock=self._clock,
        )
        tick = Tick(asyncio.get_running_loop())
        self._syncs = Syncs(FLUSH_THREADS) if Syncs.are_there() else None
        self._flusher = Flusher(self._flushes, self._disk_failed, parallel=FLUSH_THREADS, syncs=self._syncs)
        self._partitions = ReplicaManager(
            self._node_id,
            self._current_config,
            self._data,
            tick=tick,
            flusher=self._flusher,
            files=self._files,
            tasks=self._tasks,
            clock=self._clock,
            replicas=replicas,
        )
        self._spoilt = SpoiltReplicas(
            self._partitions,
            image=lambda: self._follower.image,
            resign=resign_by(self._controller, self._node_id, lambda: self._session.epoch),
            files=self._files,
            tasks=self._tasks,
            clock=self._clock,
        )
        self._groups = GroupCoordinators(self._static_config, clock=self._clock, files=self._files, tasks=self._tasks)
        # What is asked for the sake of transactions waits for commits.
        self._marker_channels = Channels(credentials(self._node_id, lambda: self._follower.image))
        self._verification_channels = Channels(credentials(self._node_id, lambda: self._follower.image))
        self._transactions = TransactionCoordinators(
            self._static_config,
            broker_id=self._node_id,
            image=lambda: self._follower.image,
            partitions=self._partitions,
            groups=self._groups,
            peers=TransactionPeers(
                lambda: self._follower.image,
                marking=self._marker_channels,
                verifying=self._verification_channels,
                tasks=self._tasks,
            ),
            clock=self._clock,
            files=self._files,
            tasks=self._tasks,
        )
        self._partitions.add_listener(self._groups)
        self._partitions.add_listener(self._transactions)
        broker = self._assemble()
        pipeline = Pipeline(broker)
        self._listeners = [self._listener(wanted, pipeline, tick) for wanted in self._config.listeners]
        self._internal = bind_internal_listener(broker, self._limits(), tick)
        self._http = HttpServer(lambda: _metrics(broker, self._all_listeners), self._unready_reason)
        self._bind_http()
        self._internal.start()
        await self._session.begin(self._registration(identity.directory_id))
        self._tasks.spawn(self._session.keep(), name="session")
        self._tasks.spawn(self._service.campaign(), name="controller")
        self._tasks.spawn(self._service.balance(), name="balance")
        await self._open_logs()
        Housekeeping(self._partitions, self._current_config, self._files, self._tasks, self._clock).start()
        self._open_for_clients()

    async def _open_logs(self) -> None:
        """Only who has read its logs may lead; what a controller can elect is led when clients come."""
        self._follower.add_listener(self._partitions.follow)
        self._follower.add_listener(self._groups.follow)
        self._groups.start(self._follower.image)
        await self._partitions.start(self._follower.image)
        # Before they can be elected.
        await self._spoilt.tell_losses(self._data)
        self._tasks.spawn(self._spoilt.watch(), name="spoilt")
        await self._session.become(SessionState.SERVING)
        with contextlib.suppress(BrokerError):  # the campaign says why, and tries again
            await self._service.take_part()
        await self._partitions.caught_up()

    def _assemble(self) -> Broker:
        config = self._config
        return Broker(
            node_id=self._node_id,
            current_config=self._current_config,
            clock=self._clock,
            files=self._files,
            follower=self._follower,
            controller=self._controller,
            producer_ids=ProducerIds(self._controller),
            partitions=self._partitions,
            groups=self._groups,
            transactions=self._transactions,
            fetch_sessions=FetchSessions(
                config.int("max.incremental.fetch.session.cache.slots"), int.from_bytes(os.urandom(3), "big")
            ),
            replica_sessions=ServingSessions(int.from_bytes(os.urandom(3), "big")),
            tasks=self._tasks,
            loop=asyncio.get_running_loop(),
            api_metrics={key: ApiMetrics() for key in INTERNAL_APIS},
            apis=APIS,
        )

    def _listener(self, wanted: ListenerConfig, pipeline: Pipeline, tick: Tick) -> Listener:
        listener = Listener(name=wanted.name, limits=self._limits(), serve=pipeline.serve, tick=tick, clock=self._clock)
        try:
            listener.bind(wanted.host, wanted.port)
        except OSError as error:
            raise OSError(f"cannot listen on {wanted.host}:{wanted.port}: {error.strerror}") from error
        return listener

    def _bind_http(self) -> None:
        config = self._config
        host = config.optional_str("penstock.http.host") or config.listeners[0].host
        port = config.int("penstock.http.port")
        try:
            self._http_address = self._http.bind(host, port)
        except OSError as error:
            raise OSError(f"cannot listen on {host}:{port} (penstock.http.port): {error.strerror}") from error

    def _limits(self) -> ConnectionLimits:
        config = self._config
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return ConnectionLimits(
            max_frame_bytes=config.int("socket.request.max.bytes"),
            # Partitions and flushes need descriptors too: clients may not take the last of them.
            max_connections=min(config.int("max.connections"), descriptors - descriptors // DESCRIPTOR_RESERVE),
            max_connections_per_address=config.int("max.connections.per.ip"),
            idle_limit_ms=config.int("connections.max.idle.ms"),
            read_deadline_ms=config.int("penstock.request.read.deadline.ms"),
            send_buffer_bytes=config.int("socket.send.buffer.bytes"),
            receive_buffer_bytes=config.int("socket.receive.buffer.bytes"),
        )

    def _registration(self, directory_id: str) -> Registration:
        """What other brokers and clients need to find this one; a port of 0 has become a real one by now."""
        config = self._config
        assert self._internal is not None
        return Registration(
            broker_id=self._node_id,
            listeners=tuple(
                Endpoint(name=each.name, host=each.host, port=each.port or listener.address[1])
                for each, listener in zip(config.advertised_listeners, self._listeners, strict=True)
            ),
            host=config.optional_str("penstock.host") or "",
            rack=config.optional_str("broker.rack"),
            directory_id=directory_id,
            internal=internal_endpoint(config, self._internal),
        )

    @property
    def _all_listeners(self) -> list[Listener]:
        return self._listeners if self._internal is None else [*self._listeners, self._internal]

    def _open_for_clients(self) -> None:
        config = self._config
        for listener in self._listeners:
            listener.start()
        self._state = "serving"
        kafka = "{}:{}".format(*self._listeners[0].address)
        http = "{}:{}".format(*self._http_address)
        print(f"penstock {__version__} ready: kafka {kafka}, http {http}, data {config.data_dir}", flush=True)
        if self._hints:
            print(commands_to_try(kafka, "the broker"), flush=True)
        if self._ready_file is not None:
            facts = ReadyBroker(node_id=self._node_id, pid=os.getpid(), kafka=kafka, http=http)
            write_ready_file(self._ready_file, facts)
        self._tasks.spawn(self._http.serve(self._files), name="http")

    def _forget_ready_file(self) -> None:
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)

    # Serving

    def _current_config(self) -> BrokerConfig:
        return self._config

    def _configs_changed(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        if delta.broker_configs_changed:
            self._follow_configs(new)
            for listener in self._listeners:
                listener.limits = self._limits()
            if self._internal is not None:
                self._internal.limits = internal_limits(self._limits())

    def _follow_configs(self, image: ClusterImage) -> None:
        self._config = self._static_config.with_dynamic(
            image.broker_configs.get(None, {}), image.broker_configs.get(self._node_id, {})
        )

    def _unready_reason(self) -> str | None:
        """A broker without its metadata still serves what has a leader, but nothing of it may change."""
        if self._state != "serving":
            return self._state
        return None if self._store.trouble is None else f"metadata cannot change: {self._store.trouble}"

    # Stopping

    def _signalled(self, name: str) -> None:
        times = self._stop_signals.received(self._clock.monotonic_ms() / 1000)
        if times > 1:
            log.warning("stopping at once, unclean", extra={"signal": name})
            os._exit(1)
        if times == 1:
            log.info("stopping", extra={"signal": name})
            self._stop.set()

    def _disk_failed(self, error: BaseException) -> None:
        """Never retried: after a failed fsync nobody knows what is on disk."""
        log.error("a flush failed, the broker stops", extra={"error": error, "data": self._static_config.data_dir})
        offline = BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"the data directory failed: {error}")
        for partition in self._partitions.all():
            partition.fail(offline)
        self._crash()

    def _task_crashed(self, name: str, error: BaseException) -> None:
        self._crash()

    def _loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        log.error(
            "unexpected failure in the event loop",
            extra={"event": context.get("message")},
            exc_info=error if isinstance(error, BaseException) else None,
        )
        self._crash()

    def _crash(self) -> None:
        self._exit_code = 1
        self._stop.set()

    async def _finish(self) -> None:
        self._state = "stopping"
        self._forget_ready_file()
        if self._exit_code == 0:
            await self._hand_over()
        for listener in self._all_listeners:
            listener.stop_accepting()
        self._transactions.close()
        self._groups.close()
        await self._drain()
        for listener in self._all_listeners:
            listener.close()
        await self._channels.close()
        await self._repeating_channels.close()
        await self._fetch_channels.close()
        await self._progress_channels.close()
        await self._marker_channels.close()
        await self._verification_channels.close()
        await self._http.close()
        await self._tasks.stop()
        await self._session.end()
        await self._follower.stop()
        await self._store.close()
        if self._exit_code == 0:
            await self._flusher.drain()
            if self._syncs is not None:
                self._syncs.close()
            await self._files.drain()  # a log that is being shortened is not to be closed
            if not await self._partitions.close():
                self._exit_code = 1
        else:
            self._data.release()
        log.info("stopped", extra={"exit_code": self._exit_code})

    async def _hand_over(self) -> None:
        """Let others lead what this broker leads, before it goes; clients follow them and notice little."""
        deadline_ms = self._clock.monotonic_ms() + self._config.int("penstock.handover.timeout.ms")
        try:
            await self._session.become(SessionState.STOPPING)
        except BrokerError as error:
            log.warning("stopping without handing over", extra={"reason": error.message})
            return
        while self._clock.monotonic_ms() < deadline_ms and self._can_hand_over():  # noqa: ASYNC110 - with a deadline
            await asyncio.sleep(DRAIN_POLL_S)

    def _can_hand_over(self) -> bool:
        """Whether something that this broker leads could be led by another."""
        image = self._follower.image
        others = image.serving().keys() - {self._node_id}
        return bool(others) and any(
            partition.leader == self._node_id and not others.isdisjoint(partition.isr)
            for topic in image.topics.values()
            for partition in topic.partitions
        )

    async def _drain(self) -> None:
        """Answer what was asked: parked fetches now, appends when they are as durable as they must be."""
        deadline_ms = self._clock.monotonic_ms() + DRAIN_DEADLINE_MS
        for partition in self._partitions.all():
            partition.wake_waiters()
        while self._clock.monotonic_ms() < deadline_ms:
            if all(connection.is_quiet for listener in self._all_listeners for connection in listener.connections):
                return
            await asyncio.sleep(DRAIN_POLL_S)


def _metrics(broker: Broker, listeners: list[Listener]) -> bytes:
    from penstock.server.metrics import render

    return render(broker, listeners)


def _collect_garbage_less_often() -> None:
    """Requests under way look like garbage to come: with Python's 700 objects a tenth of the time goes into looking.

    What was made while starting stays for good, and is not looked at again.
    """
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def _return_freed_memory() -> None:
    """glibc learns from large buffers to keep such memory for good, once per thread; fixed thresholds stop that."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def _raise_descriptor_limit() -> None:
    """Partitions and connections take one descriptor each; what the system allows us, we use."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
