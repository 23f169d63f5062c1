"""The small files beside the logs, in Kafka's layouts: offset checkpoints, leader epochs, identities, the marker.

What must stay true: a file is either the old one or the new one, whatever happens in between. It is written under
another name, flushed, renamed, and the directory is flushed. Everything here blocks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from penstock.core.ids import TopicId, TopicPartition, topic_id_from_text, topic_id_to_text
from penstock.storage.epochs import EpochEntry

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
PAGE_CACHE = ".penstock_page_cache"
DAMAGE = "damage-cut-off"

_VERSION = 0
_Row = TypeVar("_Row")


class BadCheckpoint(Exception):
    """A file that is there and cannot be read as what it should be."""


def sync_directory(path: str) -> None:
    with changed_directory(path):
        pass


@contextmanager
def changed_directory(path: str) -> Iterator[None]:
    """What the block does to the names in the directory is durable after it. Not begun without a descriptor."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def write_file(path: str, content: bytes) -> None:
    """Atomic, and durable on return."""
    replace_file(path, content)
    sync_directory(os.path.dirname(path))


def replace_file(path: str, content: bytes, *, flush: bool = True) -> None:
    """Atomic; the new name is durable when the caller has flushed the directory (and the file, without `flush`)."""
    temporary = f"{path}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        with memoryview(content) as rest:
            written = 0
            while written < len(content):
                written += os.write(fd, rest[written:])
        if flush:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)


def read_text(path: str) -> str | None:
    """None when there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "replace")
    finally:
        os.close(fd)


# Version, number of rows, rows: the layout of all of Kafka's checkpoints.


def _rows_to_bytes(rows: Iterable[str]) -> bytes:
    lines = list(rows)
    return "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode()


def _rows_from_text(path: str, text: str, parse: Callable[[list[str]], _Row]) -> list[_Row]:
    lines = text.splitlines()
    try:
        version, count = int(lines[0]), int(lines[1])
        rows = [parse(line.split(" ")) for line in lines[2:]]
    except (ValueError, IndexError) as error:
        raise BadCheckpoint(f"{path} is damaged: {error}") from None
    if version != _VERSION:
        raise BadCheckpoint(f"{path} has version {version}, not {_VERSION}")
    if count != len(rows):
        raise BadCheckpoint(f"{path} has {len(rows)} rows and announces {count}")
    return rows


def write_offsets(path: str, offsets: Mapping[TopicPartition, int]) -> None:
    write_file(path, _rows_to_bytes(f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())))


def read_offsets(path: str) -> dict[TopicPartition, int]:
    text = read_text(path)
    if text is None:
        return {}

    def parse(fields: list[str]) -> tuple[TopicPartition, int]:
        topic, partition, offset = fields
        return TopicPartition(topic, int(partition)), int(offset)

    return dict(_rows_from_text(path, text, parse))


def replace_epochs(path: str, entries: Iterable[EpochEntry]) -> None:
    """Durable when the caller has flushed the directory."""
    replace_file(path, _rows_to_bytes(f"{epoch} {start_offset}" for epoch, start_offset in entries))


def read_epochs(path: str) -> tuple[EpochEntry, ...]:
    text = read_text(path)
    if text is None:
        return ()

    def parse(fields: list[str]) -> EpochEntry:
        epoch, start_offset = fields
        return EpochEntry(int(epoch), int(start_offset))

    return tuple(_rows_from_text(path, text, parse))


def place_partition_metadata(directory: str, topic_id: TopicId) -> str:
    """The path; durable when the caller has flushed file and directory."""
    path = f"{directory}/{PARTITION_METADATA}"
    content = f"version: {_VERSION}\ntopic_id: {topic_id_to_text(topic_id)}\n"
    replace_file(path, content.encode(), flush=False)
    return path


def read_partition_metadata(directory: str) -> TopicId | None:
    """None when the file is missing or empty, as a power cut right after the partition's creation leaves it."""
    path = f"{directory}/{PARTITION_METADATA}"
    text = read_text(path)
    if not text:
        return None
    values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        return topic_id_from_text(values["topic_id"])
    except (KeyError, ValueError) as error:
        raise BadCheckpoint(f"{path} is damaged: {error}") from None


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Whose directory it is. A broker refuses one that belongs to another cluster or node."""

    cluster_id: str
    node_id: int
    directory_id: str


def write_meta_properties(data_directory: str, meta: MetaProperties) -> None:
    lines = ["version=1", f"cluster.id={meta.cluster_id}", f"node.id={meta.node_id}"]
    lines.append(f"directory.id={meta.directory_id}")
    write_file(f"{data_directory}/{META_PROPERTIES}", ("\n".join(lines) + "\n").encode())


def read_meta_properties(data_directory: str) -> MetaProperties | None:
    path = f"{data_directory}/{META_PROPERTIES}"
    text = read_text(path)
    if text is None:
        return None
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    try:
        if values["version"] != "1":
            raise BadCheckpoint(f"{path} has version {values['version']}, not 1")
        return MetaProperties(values["cluster.id"], int(values["node.id"]), values["directory.id"])
    except (KeyError, ValueError) as error:
        raise BadCheckpoint(f"{path} is damaged: {error}") from None


def write_clean_shutdown(data_directory: str, broker_epoch: int) -> None:
    content = json.dumps({"version": "0", "broker_epoch": str(broker_epoch)})
    write_file(f"{data_directory}/{CLEAN_SHUTDOWN}", content.encode())


def has_page_cache(data_directory: str, current: str | None) -> bool:
    """Whether the last process that said so wrote into the same page cache."""
    return current is not None and read_text(f"{data_directory}/{PAGE_CACHE}") == current


def write_page_cache(data_directory: str, current: str) -> None:
    write_file(f"{data_directory}/{PAGE_CACHE}", current.encode())


def has_damage(log_directory: str) -> bool:
    """Whether a recovery has cut off more than a write that was never finished, and nobody was told."""
    return os.path.exists(f"{log_directory}/{DAMAGE}")


def write_damage(log_directory: str) -> None:
    write_file(f"{log_directory}/{DAMAGE}", b"")


def forget_damage(log_directory: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(f"{log_directory}/{DAMAGE}")


def read_clean_shutdown(data_directory: str) -> int | None:
    """The broker epoch of the marker (-1: it names none). None: the stop was not clean."""
    text = read_text(f"{data_directory}/{CLEAN_SHUTDOWN}")
    if text is None:
        return None
    try:
        return int(json.loads(text)["broker_epoch"])
    except (ValueError, KeyError, TypeError):
        return -1


def remove_clean_shutdown(data_directory: str) -> None:
    os.unlink(f"{data_directory}/{CLEAN_SHUTDOWN}")
    sync_directory(data_directory)
