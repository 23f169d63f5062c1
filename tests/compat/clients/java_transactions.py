"""Transactions of Kafka's own Java client: transaction version 2."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.compat.clients.transactional import (
    TRANSACTION_TIMEOUT_MS,
    Failed,
    Fenced,
    Partition,
    TransactionalClient,
    TransactionalProducer,
)
from tests.testkit.java import JavaDriver, JavaError, from_java, to_java

_NUMBERS = itertools.count(1)
_FENCED = ("ProducerFencedException", "InvalidProducerEpochException")


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except JavaError as failure:
        if any(name in str(failure) for name in _FENCED):
            raise Fenced(str(failure)) from failure
        raise Failed(str(failure)) from failure


class JavaTransactionalProducer(TransactionalProducer):
    def __init__(self, driver: JavaDriver, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._driver = driver
        self._bootstrap = bootstrap
        self._name = f"producer-{next(_NUMBERS)}"
        config = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        self._call("open_producer", config=config)

    def _call(self, command: str, **arguments: Any) -> Any:
        with _told():
            return self._driver.call(command, producer=self._name, bootstrap=self._bootstrap, **arguments)

    def begin(self) -> None:
        self._call("begin_transaction")

    def send(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> None:
        self._call("send_in_transaction", topic=topic, partition=partition, values=[to_java(value) for value in values])

    def send_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        positions = [[topic, partition, offset] for (topic, partition), offset in offsets.items()]
        self._call("send_offsets_to_transaction", group=group, offsets=positions)

    def copy(self, source: str, target: str, group: str, *, count: int) -> None:
        self._call("copy_in_transaction", source=source, target=target, group=group, count=count)

    def commit(self) -> None:
        self._call("commit_transaction")

    def abort(self) -> None:
        self._call("abort_transaction")

    def close(self) -> None:
        self._call("close_producer")


class JavaTransactions(TransactionalClient):
    name = "java"
    raises_epochs = True

    def __init__(self, bootstrap: str, driver: JavaDriver) -> None:
        super().__init__(bootstrap)
        self._driver = driver

    def producer(self, transactional_id: str, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> TransactionalProducer:
        return JavaTransactionalProducer(self._driver, self.bootstrap, transactional_id, timeout_ms)

    def read(self, topic: str, *, partitions: int = 1, committed: bool = True) -> list[list[bytes]]:
        found = self._call("read_to_end", committed, topic=topic, partitions=partitions)
        return [[from_java(value) or b"" for value in values] for values in found]

    def end(self, topic: str, *, committed: bool = True) -> int:
        return int(self._call("bounds", committed, topic=topic, partition=0)["end"])

    def committed(self, group: str, topic: str, *, timeout_s: float = 10) -> int | None:
        try:
            found = self._call("committed", True, group=group, topic=topic, timeout_ms=int(timeout_s * 1000))
        except JavaError as failure:
            if failure.name == "TimeoutException":
                raise TimeoutError(str(failure)) from failure
            raise
        return None if found is None else int(found)

    def _call(self, command: str, committed: bool, **arguments: Any) -> Any:
        config = {
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.max.wait.ms": 20,
            "auto.offset.reset": "none",
        }
        return self._driver.call(command, bootstrap=self.bootstrap, config=config, **arguments)
