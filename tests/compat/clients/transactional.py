"""The surface through which every client's transactions are tested.

Unlike the clients of interface.py a producer here lives from call to call: what is open, and who is fenced, takes more
than one. An adapter adds nothing to its client but names.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import ClassVar, Self

Partition = tuple[str, int]

TRANSACTION_TIMEOUT_MS = 60_000
READ_TIMEOUT_S = 20


class Failed(Exception):
    """What a client said when a step of a transaction was refused."""


class Fenced(Failed):
    """A newer producer has the transactional id, or the broker has ended the transaction for its client."""


class TransactionalProducer(ABC):
    """A producer that may begin a transaction. What the broker refuses is raised as `Failed`."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> None:
        """Returns when all of it is acknowledged."""

    @abstractmethod
    def send_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """For a group that has no members."""

    @abstractmethod
    def copy(self, source: str, target: str, group: str, *, count: int) -> None:
        """As a member of the group: as many records of the source into the target, with the positions after them."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def transact(self, topic: str, values: Sequence[bytes], *, partition: int = 0, commit: bool = True) -> None:
        """A whole transaction."""
        self.begin()
        self.send(topic, values, partition=partition)
        if commit:
            self.commit()
        else:
            self.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TransactionalClient(ABC):
    name: ClassVar[str]
    # Transaction version 2: its epoch rises with every transaction (KIP-890).
    raises_epochs: ClassVar[bool] = False
    # Whether it can be told to wait for offsets that a transaction has not settled (KIP-447).
    asks_for_stable_offsets: ClassVar[bool] = True

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @abstractmethod
    def producer(self, transactional_id: str, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> TransactionalProducer:
        """Its transactions are initialized: who had the id before is fenced."""

    @abstractmethod
    def read(self, topic: str, *, partitions: int = 1, committed: bool = True) -> list[list[bytes]]:
        """The values of each partition, up to the end that this isolation level has at this moment."""

    @abstractmethod
    def end(self, topic: str, *, committed: bool = True) -> int:
        """The end of partition 0: the last stable offset, or the high watermark."""

    @abstractmethod
    def committed(self, group: str, topic: str, *, timeout_s: float = 10) -> int | None:
        """The group's position in partition 0; None when it has none; TimeoutError while it is not settled."""
