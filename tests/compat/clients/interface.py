"""The surface every client is tested through.

An adapter says what its client does and adds nothing: no retries, and no waiting that the client does not do itself.
Consumers are assigned their partitions; none joins a group.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

ALL_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

CONSUME_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Message:
    """A record as its producer sees it; no timestamp means the client's own clock."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A record as its consumer sees it."""

    offset: int
    message: Message


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a client learns about the cluster it is connected to; no id where the client does not tell it."""

    controller_id: int
    nodes: frozenset[tuple[int, str, int]]
    cluster_id: str | None = None


class Refused(Exception):
    """The broker answered with an error code; whichever exception the client makes of it, this is what it means."""

    def __init__(self, error_code: int, message: str = "") -> None:
        super().__init__(f"error code {error_code}: {message}")
        self.error_code = error_code


class Client(ABC):
    """Producing, and consuming by assignment."""

    name: ClassVar[str]
    codecs: ClassVar[tuple[str, ...]] = ALL_CODECS
    sets_timestamps: ClassVar[bool] = True
    sends_null_headers: ClassVar[bool] = True

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @abstractmethod
    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        """Returns the offsets the broker acknowledged, or nothing where the client does not tell them."""

    @abstractmethod
    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Received]: ...

    @abstractmethod
    def offset_for_time(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        """The first offset with that timestamp or a later one; None when there is none."""

    @abstractmethod
    def bounds(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        """The log start offset and the high watermark."""


class AdminClient(ABC):
    """Administration of topics. What the broker refuses is raised as `Refused`."""

    name: ClassVar[str]

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @abstractmethod
    def create_topic(self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None: ...

    @abstractmethod
    def topic_names(self) -> set[str]: ...

    @abstractmethod
    def partition_leaders(self, topic: str) -> dict[int, int]:
        """Partition to the id of its leader, from the client's description of the topic."""

    @abstractmethod
    def topic_configs(self, topic: str) -> dict[str, str | None]: ...

    @abstractmethod
    def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None: ...

    @abstractmethod
    def grow_topic(self, topic: str, *, partitions: int) -> None: ...

    @abstractmethod
    def delete_records(self, topic: str, *, before_offset: int, partition: int = 0) -> int:
        """Returns the partition's new low watermark."""

    @abstractmethod
    def delete_topic(self, topic: str) -> None: ...

    @abstractmethod
    def cluster(self) -> Cluster: ...
