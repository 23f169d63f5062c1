"""The brokers of a run, each on its core, and the places where they keep their data.

Scenarios about one broker share it: a broker in use is not a fresh one, and Kafka's compiler needs the practice. All
systems are up at the same time then, and who is not measured has nothing to do. A scenario about starting, or about a
cluster, has brokers of its own, with nobody else around.
"""

import itertools
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from tests.testkit.broker_process import BrokerProcess

from bench import brokers
from bench.side_by_side.cores import Cores


class Laboratory:
    """Use as `with Laboratory(directory) as laboratory: laboratory.broker("kafka")`."""

    def __init__(self, directory: Path, *, pin: bool = True) -> None:
        self.cores = Cores.of_this_machine(pin=pin)
        self._directory = directory
        self._numbers = itertools.count(1)
        self._shared: dict[str, BrokerProcess] = {}
        self._brokers = ExitStack()
        self._clients = ExitStack()

    def broker(self, system: str) -> BrokerProcess:
        """The one that scenarios share, started when it is asked for."""
        if system not in self._shared:
            broker = brokers.start(system, self._directory / "shared", launcher=self.broker_launcher)
            self._shared[system] = self._brokers.enter_context(broker)
        return self._shared[system]

    @property
    def broker_launcher(self) -> list[str]:
        return self.cores.launcher(self.cores.broker)

    def own_broker(self, system: str, directory: Path, **settings: Any) -> BrokerProcess:
        """Started for one scenario; the caller ends it."""
        return brokers.start(system, directory, launcher=self.broker_launcher, **settings)

    def topic(self, name: str) -> str:
        """A name that no other topic of this run has."""
        return f"bench-{name}-{next(self._numbers)}"

    @contextmanager
    def own_directory(self, name: str) -> Iterator[Path]:
        """For brokers of one scenario, which are alone; gone afterwards."""
        self.stop_shared()
        with self.directory(name) as directory:
            yield directory

    @contextmanager
    def directory(self, name: str) -> Iterator[Path]:
        """On the disk under measurement, gone afterwards."""
        directory = self._directory / f"{name}-{next(self._numbers)}"
        directory.mkdir(parents=True)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    @contextmanager
    def all_cores(self) -> Iterator[None]:
        """For brokers and a client that share the machine."""
        self._clients.close()
        try:
            with self.cores.clients_run_on(self.cores.all):
                yield
        finally:
            self._clients.enter_context(self.cores.clients_run_on(self.cores.client))

    def stop_shared(self) -> None:
        self._shared.clear()
        self._brokers.close()

    def __enter__(self) -> Self:
        self._clients.enter_context(self.cores.clients_run_on(self.cores.client))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_shared()
        self._clients.close()
