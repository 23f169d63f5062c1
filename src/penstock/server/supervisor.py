"""A cluster on one machine: brokers as processes, started together, started again when they end, stopped together.

What must stay true:
- No broker outlives its supervisor: the kernel kills it when the supervisor dies (`serve --parent`).
- A broker that was never ready and refuses to start will refuse again: that ends the command. One that was ready once,
  or was killed, is started again, after longer and longer pauses.
- A restarted broker has the ports it had, because clients and other brokers know it by them.
- A broker that is not heard of for two session timeouts is killed: a process that stands still may hold the lock for
  writing the metadata, and with it everybody else.
- The ready file names the brokers that are ready, and is there only once all of them have been.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.core.errors import BrokerError
from penstock.core.ids import BrokerId
from penstock.runtime import logs
from penstock.runtime.files import Files
from penstock.runtime.stop_signals import StopSignals
from penstock.runtime.tasks import TaskGroup
from penstock.server.log_stream import LogStream
from penstock.server.readiness import ReadyBroker, commands_to_try, read_ready_file, write_ready_file

log = logging.getLogger(__name__)

OWN_NAME = "penstock"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1, 30
SETTLED_AFTER_S = 60
READY_POLL_S = 0.05
# A broker renews its session three times in a session timeout.
LOOKS_PER_SESSION = 4
# What asyncio holds of a broker's output before it leaves the rest in the pipe.
PIPE_BUFFER_BYTES = 512 * 1024


class Refused(Exception):
    """The cluster cannot be run; the message says why, for the person who starts it."""


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """`arguments` are those of `penstock serve` that are not given here. Port 0 takes a free one, and keeps it."""

    name: str
    port: int
    http_port: int
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """`metadata_file` is that of SQLite, None for another store: whether brokers stand still is seen only there."""

    directory: Path
    brokers: tuple[BrokerPlan, ...]
    ready_file: Path | None
    session_timeout_ms: int
    metadata_file: Path | None
    hints: bool = False


def run(plan: ClusterPlan) -> int:
    """Runs the cluster until told to stop. The exit code of the process: 0 when every broker stopped cleanly.

    Raises Refused.
    """
    if plan.ready_file is not None and not plan.ready_file.parent.is_dir():
        raise Refused(f"--ready-file {plan.ready_file}: there is no such directory")
    with _sole_use_of(plan.directory), asyncio.Runner() as runner:
        return runner.run(Supervisor(plan).run())


@contextlib.contextmanager
def _sole_use_of(directory: Path) -> Iterator[None]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise Refused(f"{directory} is a file, or in one: name a directory") from None
    if (directory / "meta.properties").exists():
        raise Refused(f"{directory} is the data directory of one broker: give the cluster one of its own")
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"{directory} is in use by another penstock up, or by a broker") from None
        yield


class Pauses:
    """How long to wait before a broker is started again: longer each time, until it has run for a while."""

    def __init__(self) -> None:
        self._last_s = 0

    def next_s(self, was_ready_for_s: float) -> int:
        is_settled = was_ready_for_s >= SETTLED_AFTER_S
        self._last_s = FIRST_PAUSE_S if is_settled or not self._last_s else min(2 * self._last_s, LONGEST_PAUSE_S)
        return self._last_s


class SupervisedBroker:
    """One broker and its process, of which there is one after the other."""

    def __init__(self, plan: BrokerPlan, directory: Path) -> None:
        self.name = plan.name
        self.pauses = Pauses()
        self.was_ever_ready = False
        # What its ready file says; None while it is not ready.
        self.facts: ReadyBroker | None = None
        self.looks_without_session = 0
        self._ready_since_s = 0.0
        self._data_dir = directory / plan.name
        self._ready_path = directory / f"{plan.name}.ready.json"
        self._arguments = plan.arguments
        self._port, self._http_port = plan.port, plan.http_port
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> asyncio.subprocess.Process:
        self._ready_path.unlink(missing_ok=True)
        self.looks_without_session = 0
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock.cli.main", "serve", f"--parent={os.getpid()}"),
            *(f"--data-dir={self._data_dir}", f"--port={self._port}", f"--http-port={self._http_port}"),
            f"--ready-file={self._ready_path}",
            *self._arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            # One pipe for both, or nobody knows which line came first.
            stderr=asyncio.subprocess.STDOUT,
            limit=PIPE_BUFFER_BYTES,
            # Ctrl-C goes to every process of the terminal's group, and two signals are one too many.
            process_group=0,
        )
        return self._process

    async def until_ready(self) -> None:
        while (facts := read_ready_file(self._ready_path)) is None:  # noqa: ASYNC110 - ends with the process
            await asyncio.sleep(READY_POLL_S)
        self._port, self._http_port = _port_of(facts["kafka"]), _port_of(facts["http"])
        self._ready_since_s = time.monotonic()
        self.was_ever_ready = True
        self.facts = facts

    def ended(self) -> float:
        """For how many seconds it was ready."""
        self._process = None
        was_ready, self.facts = self.facts is not None, None
        return time.monotonic() - self._ready_since_s if was_ready else 0

    @property
    def broker_id(self) -> BrokerId | None:
        """None while it starts or stops: a broker removes its ready file first, and ends its session later."""
        return BrokerId(self.facts["node_id"]) if self.facts and self._ready_path.exists() else None

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


class Supervisor:
    def __init__(self, plan: ClusterPlan) -> None:
        self._plan = plan
        self._brokers = [SupervisedBroker(broker, plan.directory) for broker in plan.brokers]
        self._stop = asyncio.Event()
        self._stop_signals = StopSignals()
        self._refusal: str | None = None
        self._is_clean = True
        self._were_all_ready = False

    async def run(self) -> int:
        """Raises Refused."""
        self._stream = LogStream(sys.stdout.fileno(), [OWN_NAME, *(broker.name for broker in self._brokers)])
        logs.configure(stream=self._stream.text_of(OWN_NAME))
        self._catch_signals()
        self._forget_ready_file()
        self._tasks = TaskGroup(on_crash=self._task_crashed)
        running = [self._tasks.spawn(self._keep_running(broker), name=broker.name) for broker in self._brokers]
        if self._plan.metadata_file is not None:
            self._tasks.spawn(self._watch_sessions(self._plan.metadata_file), name="sessions")
        await self._stop.wait()
        self._forget_ready_file()
        for broker in self._brokers:
            self._stop_broker(broker)
        await asyncio.wait(running)
        await self._tasks.stop()
        log.info("stopped" if self._is_clean else "stopped, not cleanly")
        await self._stream.finish()
        if self._refusal is not None:
            raise Refused(self._refusal)
        return 0 if self._is_clean else 1

    # Running brokers

    async def _keep_running(self, broker: SupervisedBroker) -> None:
        while not self._stop.is_set():
            process = await broker.start()
            if self._stop.is_set():
                self._stop_broker(broker)
            assert process.stdout is not None
            relaying = self._tasks.spawn(self._stream.relay(process.stdout, broker.name), name=f"{broker.name}-log")
            announcing = self._tasks.spawn(self._announce(broker), name=f"{broker.name}-ready")
            exit_code = await process.wait()
            announcing.cancel()
            was_ready_for_s = broker.ended()
            if self._stop.is_set():
                await relaying
                self._stopped(broker, exit_code)
            elif exit_code > 0 and not broker.was_ever_ready:
                self._refused(broker, exit_code, await relaying)
            else:
                self._tell_who_is_ready()
                pause_s = broker.pauses.next_s(was_ready_for_s)
                log.warning(
                    "a broker ended, starting it again",
                    extra={"broker": broker.name, "exit": _exit_text(exit_code), "in_s": pause_s},
                )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), pause_s)

    def _refused(self, broker: SupervisedBroker, exit_code: int, last_line: list[str]) -> None:
        """What it could not do at first it will not be able to do at the next try either."""
        reason = last_line[0].removeprefix("penstock serve: ") if last_line else f"exit code {exit_code}"
        self._refusal = self._refusal or f"{broker.name} did not start: {reason}"
        self._stop.set()

    def _stopped(self, broker: SupervisedBroker, exit_code: int) -> None:
        # A broker that is still being loaded dies of the signal, and has nothing to finish.
        if exit_code not in (0, -signal.SIGTERM):
            self._is_clean = False
            log.warning("a broker did not stop cleanly", extra={"broker": broker.name, "exit": _exit_text(exit_code)})

    async def _announce(self, broker: SupervisedBroker) -> None:
        await broker.until_ready()
        self._tell_who_is_ready()

    def _tell_who_is_ready(self) -> None:
        ready = [broker.facts for broker in self._brokers if broker.facts is not None]
        if len(ready) == len(self._brokers):
            kafka = ",".join(facts["kafka"] for facts in ready)
            log.info("all brokers are ready", extra={"kafka": kafka})
            if self._plan.hints and not self._were_all_ready:
                self._stream.print(commands_to_try(ready[0]["kafka"], "the brokers"), OWN_NAME)
            self._were_all_ready = True
        if self._were_all_ready and self._plan.ready_file is not None and not self._stop.is_set():
            try:
                write_ready_file(self._plan.ready_file, ready)
            except OSError as error:
                log.error("ready file not written", extra={"file": self._plan.ready_file, "reason": error.strerror})

    def _forget_ready_file(self) -> None:
        if self._plan.ready_file is not None:
            self._plan.ready_file.unlink(missing_ok=True)

    async def _watch_sessions(self, metadata_file: Path) -> None:
        """Looks are counted, not seconds: those in which the supervisor itself stood still prove nothing."""
        from penstock.metadata.sqlite_sessions import living_brokers

        files = Files(threads=1, name="sessions")
        while True:
            await asyncio.sleep(self._plan.session_timeout_ms / 1000 / LOOKS_PER_SESSION)
            if all(broker.broker_id is None for broker in self._brokers):
                continue  # then the file may not be there either
            try:
                alive = await files.run(living_brokers, metadata_file)
            except BrokerError as error:
                log.warning("not seen which brokers are alive", extra={"reason": error.message})
                continue
            for broker in self._brokers:
                self._look_at(broker, alive)

    def _look_at(self, broker: SupervisedBroker, alive: frozenset[BrokerId]) -> None:
        is_missed = broker.broker_id is not None and broker.broker_id not in alive
        broker.looks_without_session = broker.looks_without_session + 1 if is_missed else 0
        if broker.looks_without_session > LOOKS_PER_SESSION:
            log.warning("a broker has lost its session and stands still, killing it", extra={"broker": broker.name})
            broker.signal(signal.SIGKILL)

    # Stopping

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        caught = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            caught.append(signal.SIGHUP)
        for number in caught:
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: signal.Signals) -> None:
        times = self._stop_signals.received(time.monotonic())
        if times == 1:
            log.info("stopping", extra={"signal": number.name})
            self._stop.set()
        elif times == 2:
            log.warning("killing the brokers", extra={"signal": number.name})
            for broker in self._brokers:
                broker.signal(signal.SIGKILL)
        elif times > 2:
            os._exit(1)  # nobody reads what we print

    def _stop_broker(self, broker: SupervisedBroker) -> None:
        """All at the same time: they see of each other that nobody is left to hand over to, and wait for nobody."""
        broker.signal(signal.SIGTERM)
        broker.signal(signal.SIGCONT)  # one that stands still would not hear it

    def _task_crashed(self, name: str, error: BaseException) -> None:
        self._is_clean = False
        self._stop.set()


def _exit_text(exit_code: int) -> str:
    return f"code {exit_code}" if exit_code >= 0 else f"signal {-exit_code} ({signal.strsignal(-exit_code)})"
