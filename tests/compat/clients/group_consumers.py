"""What a member of a group needs of a client, whichever it is; each client's own is in a module of its own.

Every member is a process: it imports the client it is about, and not the others.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

Partition = tuple[str, int]
Record = tuple[str, int, int]
Options = Mapping[str, Any]

MAX_POLL_INTERVAL_MS = 60_000
MAX_RECORDS = 50

_MODULES = {"confluent-kafka": "confluent_group", "kafka-python": "kafka_python_group", "aiokafka": "aiokafka_group"}


class Refusal(Exception):
    """A commit that was not accepted."""


class Listener(Protocol):
    def assigned(self, partitions: Sequence[Partition]) -> None: ...
    def revoked(self, partitions: Sequence[Partition]) -> None: ...
    def lost(self, partitions: Sequence[Partition]) -> None: ...


class GroupConsumer(ABC):
    @abstractmethod
    def start(self, options: Options, listener: Listener) -> None: ...

    @abstractmethod
    def poll(self, timeout_s: float) -> list[Record]: ...

    @abstractmethod
    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Raises Refusal."""

    @abstractmethod
    def generation(self) -> int | None:
        """None where the client does not tell."""

    @abstractmethod
    def member_id(self) -> str: ...

    @abstractmethod
    def close(self) -> None: ...


def consumer_of(client: str) -> GroupConsumer:
    consumer: GroupConsumer = import_module(f"tests.compat.clients.{_MODULES[client]}").Consumer()
    return consumer


def pairs(partitions: Sequence[Any]) -> list[Partition]:
    return [(partition.topic, partition.partition) for partition in partitions]
