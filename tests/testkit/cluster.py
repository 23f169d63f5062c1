"""Several brokers that share their metadata, each known by its id: a file, unless `penstock.metadata` says otherwise.

As for a single one: nothing of them outlives the `with` block, and brokers that leave it without a failure must stop
cleanly. They stop at the same time, as they do under `penstock up`.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.testkit.broker import Broker

# The default is three seconds, for which tests would wait again and again.
SESSION_MS = 1_000


class Cluster:
    """Use as `with Cluster.start(tmp_path, brokers=3, num_partitions=3) as cluster: cluster[1].kill()`."""

    BROKER: type[Broker] = Broker

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self._directory = directory
        self._settings = {
            "penstock.metadata": f"sqlite:{directory / 'metadata.db'}",
            "broker.session.timeout.ms": SESSION_MS,
            **settings,
        }
        self._brokers: dict[int, Broker] = {}

    @classmethod
    def start(cls, directory: Path, brokers: int = 3, **settings: Any) -> Self:
        """Brokers 1, 2, ... on directories of `directory`; settings as for a broker. Returns when all are ready.

        Broker 1 comes first, and so is the controller.
        """
        cluster = cls(directory, {name.replace("_", "."): value for name, value in settings.items()})
        try:
            cluster.add(1)
            with ThreadPoolExecutor(brokers) as pool:
                list(pool.map(cluster.add, range(2, brokers + 1)))
        except BaseException:
            cluster._end()
            raise
        return cluster

    def add(self, broker_id: int, **settings: Any) -> Broker:
        """One more broker, which returns when it is ready."""
        # Without an id of its own the brokers would be numbered in the order in which they come.
        broker = self.BROKER.start(
            self._directory / f"broker-{broker_id}", **{"node.id": broker_id, **self._settings, **settings}
        )
        self._brokers[broker_id] = broker
        return broker

    def __getitem__(self, broker_id: int) -> Broker:
        return self._brokers[broker_id]

    def __iter__(self) -> Iterator[Broker]:
        """In the order of their ids, whether they run or not."""
        return (broker for _, broker in sorted(self._brokers.items()))

    @property
    def ids(self) -> list[int]:
        return sorted(self._brokers)

    @property
    def running(self) -> list[Broker]:
        return [broker for broker in self if broker.is_running]

    @property
    def bootstrap(self) -> str:
        """Of all brokers that run, with commas between."""
        return ",".join(broker.bootstrap for broker in self.running)

    def stop(self) -> None:
        """SIGTERM to all that run; fails when one of them does not stop cleanly, but not before all have ended."""
        failed = [error for error in self._together(_stop) if error is not None]
        if failed:
            raise failed[0]

    def restart(self) -> None:
        """All that do not run, at the same time; returns when they are ready."""
        stopped = [broker for broker in self if not broker.is_running]
        with ThreadPoolExecutor(max(1, len(stopped))) as pool:
            list(pool.map(Broker.restart, stopped))

    def log_tail(self) -> str:
        return "\n".join(broker.log_tail() for broker in self)

    def _together(self, work: Callable[[Broker], AssertionError | None]) -> list[AssertionError | None]:
        with ThreadPoolExecutor(max(1, len(self._brokers))) as pool:
            return list(pool.map(work, self.running))

    def _end(self) -> None:
        for broker in self.running:
            broker.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self._end()
            error.add_note(self.log_tail())


def _stop(broker: Broker) -> AssertionError | None:
    try:
        broker.stop()
    except AssertionError as error:
        return error
    return None
