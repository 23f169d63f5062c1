"""The data directory: whose it is, which logs are in it, and how they come and go.

What must stay true:
- One broker at a time: the lock is held as long as the directory is used.
- The clean-shutdown marker is the last thing written, and removed before the first log is opened, each durably. Without
  it every log is checked from its recovery point on. A start that is refused before that leaves it.
- Nothing is deleted because it is not understood. A directory that no topic claims is renamed and kept. A data
  directory with partitions that does not say whose they are is not used: any broker but theirs would remove them.
- A name can be used again at once: before a log's directory is renamed away, its checkpoints are gone.

Everything here blocks, but for `checkpoint_of`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from penstock.core.ids import TopicId, TopicPartition, topic_id_to_text
from penstock.storage import checkpoints
from penstock.storage.checkpoints import BadCheckpoint, MetaProperties
from penstock.storage.last_session import LastSession
from penstock.storage.log import Log, LogConfig
from penstock.storage.page_cache import page_cache_id

log = logging.getLogger(__name__)

_LOCK = ".lock"
_DELETE_SUFFIX = "-delete"
_STRAY_SUFFIX = "-stray"
_SPOILT_SUFFIX = "-spoilt"
_MAX_NAME = 255
# Opening is mostly Python, closing mostly waiting for the disk.
_OPENING_THREADS = 4
# Closing waits for the disk, which takes many flushes at once better than one after the other.
_CLOSING_THREADS = 16

# A topic's configuration if the partition with this id belongs here, None if it does not.
Claim = Callable[[TopicPartition, TopicId | None], LogConfig | None]


class DirectoryRefused(Exception):
    """The directory cannot be used by this broker; the message says why, for the person who starts it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    recovery_points: dict[TopicPartition, int]
    log_starts: dict[TopicPartition, int]
    high_watermarks: dict[TopicPartition, int]
    cleaned: dict[TopicPartition, int]


class DataDirectory:
    __slots__ = (
        "_lock_fd",
        "_page_cache",
        "_writing",
        "_written",
        "broker_epoch",
        "failed",
        "has_page_cache",
        "last_session",
        "meta",
        "new_directory_id",
        "path",
        "was_clean",
        "without_id",
    )

    def __init__(self, path: str, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd
        self.meta = checkpoints.read_meta_properties(path)
        self.last_session = LastSession(path, lock_fd)
        # What `claim` calls a directory that has no id yet.
        self.new_directory_id = _new_directory_id()
        epoch = checkpoints.read_clean_shutdown(path)
        self.was_clean = epoch is not None
        # Whether what was written before, and not flushed, is there as it was: a process was killed, not a machine.
        self._page_cache = page_cache_id(path)
        self.has_page_cache = checkpoints.has_page_cache(path, self._page_cache)
        # Of the broker that stopped cleanly, -1 if none did.
        self.broker_epoch = -1 if epoch is None else epoch
        # A broker that stops does not wait for the thread of a checkpoint that is no longer waited for.
        self._writing = threading.Lock()
        self._written = Checkpoint(*(self._read_offsets(name) for name in _CHECKPOINT_FILES))
        # Partitions whose partition.metadata a crash took.
        self.without_id: set[TopicPartition] = set()
        # Partitions whose logs could not be opened, and why.
        self.failed: dict[TopicPartition, str] = {}

    @classmethod
    def open(cls, path: str) -> DataDirectory:
        """Makes the directory if need be and locks it. Raises DirectoryRefused."""
        try:
            os.makedirs(path, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise DirectoryRefused(f"{path} is a file, or in one: name a directory") from None
        lock_fd = os.open(f"{path}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(path, lock_fd)
        except BlockingIOError:
            os.close(lock_fd)
            raise DirectoryRefused(f"{path} is in use by another broker") from None
        except BadCheckpoint as error:
            os.close(lock_fd)
            raise DirectoryRefused(str(error)) from None

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        try:
            return checkpoints.read_offsets(f"{self.path}/{name}")
        except BadCheckpoint as error:
            # Without recovery points everything is checked; without log starts, records deleted by request reappear.
            log.warning("checkpoint ignored", extra={"reason": str(error)})
            return {}

    def holds_partitions_of_nobody(self) -> bool:
        """Whether meta.properties was lost: it is written before the first partition is made."""
        return self.meta is None and bool(self._partitions())

    def claim(self, cluster_id: str, node_id: int) -> MetaProperties:
        """Writes meta.properties into a new directory, checks it in an old one. Raises DirectoryRefused."""
        meta = self.meta
        if meta is None:
            if self.holds_partitions_of_nobody():
                raise DirectoryRefused(f"{self.path} holds partitions, and no meta.properties that says whose")
            meta = MetaProperties(cluster_id, node_id, self.new_directory_id)
            checkpoints.write_meta_properties(self.path, meta)
            self.meta = meta
        elif meta.cluster_id != cluster_id:
            raise DirectoryRefused(f"{self.path} belongs to cluster {meta.cluster_id}, not {cluster_id}")
        elif meta.node_id != node_id:
            raise DirectoryRefused(f"{self.path} belongs to node {meta.node_id}, not {node_id}")
        return meta

    @property
    def high_watermarks(self) -> Mapping[TopicPartition, int]:
        """As last checkpointed."""
        return self._written.high_watermarks

    # Logs

    def load(self, claim: Claim, now_ms: int) -> dict[TopicPartition, Log]:
        """Opens the logs of all partitions that `claim` knows, several at a time. Once: the stop is clean no more."""
        if self.was_clean:
            checkpoints.remove_clean_shutdown(self.path)
        with ThreadPoolExecutor(_OPENING_THREADS, thread_name_prefix="open-log") as pool:
            opened = dict(pool.map(lambda tp: (tp, self._open(tp, claim, now_ms)), self._partitions()))
        if not self.was_clean:
            self._tell_of_recovery(opened.values())
        set_aside = [tp for tp, opened_log in opened.items() if opened_log is None and tp not in self.failed]
        if set_aside:
            self._forget(set_aside)
        return {tp: opened_log for tp, opened_log in opened.items() if opened_log is not None}

    def _tell_of_recovery(self, logs: Iterable[Log | None]) -> None:
        reports = [each.recovery_report for each in logs if each is not None and each.recovery_report is not None]
        if reports:
            facts = {
                "logs": len(reports),
                "checked_bytes": sum(report.scanned_bytes for report in reports),
                "cut_bytes": sum(report.truncated_bytes for report in reports),
            }
            log.warning("the last stop was not clean: logs checked", extra=facts)

    def _partitions(self) -> list[TopicPartition]:
        with os.scandir(self.path) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
        found = []
        for name in names:
            topic, _, partition = name.rpartition("-")
            if topic and partition.isascii() and partition.isdigit():
                found.append(TopicPartition(topic, int(partition)))
        return found

    def _open(self, tp: TopicPartition, claim: Claim, now_ms: int) -> Log | None:
        directory = self.directory_of(tp)
        try:
            topic_id = checkpoints.read_partition_metadata(directory)
            if topic_id is None:
                self.without_id.add(tp)
            config = claim(tp, topic_id)
            if config is None:
                self._set_aside(tp, topic_id)
                return None
            opened = Log.open(
                directory,
                config,
                recovery_point=self._written.recovery_points.get(tp, 0),
                log_start_offset=self._written.log_starts.get(tp, 0),
                clean=self.was_clean,
                now_ms=now_ms,
                is_expected=True,
            )
        except (OSError, BadCheckpoint) as error:
            self.failed[tp] = str(error)
            log.error("log not opened", extra={"partition": str(tp), "reason": str(error)})
            return None
        opened.cleaning.cleaned_offset = self._written.cleaned.get(tp, 0)
        if not self.was_clean or opened.end_position.offset == 0:
            # Perhaps never flushed since it was made: the next flush must cover what `create` left to it.
            opened.flush_also(f"{directory}/{checkpoints.PARTITION_METADATA}", self.path)
        report = opened.recovery_report
        if report is not None and report.truncated_bytes:
            log.warning("log cut", extra={"partition": str(tp), "report": report})
        return opened

    def _set_aside(self, tp: TopicPartition, topic_id: TopicId | None) -> None:
        name = _new_name(tp, _STRAY_SUFFIX)
        os.rename(self.directory_of(tp), f"{self.path}/{name}")
        told_id = None if topic_id is None else topic_id_to_text(topic_id)
        log.warning("unknown partition set aside", extra={"partition": str(tp), "topic_id": told_id, "kept_as": name})

    def directory_of(self, tp: TopicPartition) -> str:
        return f"{self.path}/{tp}"

    def adopt(self, opened: Log, topic_id: TopicId) -> None:
        """For one of `without_id`, which was claimed all the same: it gets its partition.metadata again."""
        opened.flush_also(checkpoints.place_partition_metadata(opened.directory, topic_id), self.path)

    def create(
        self, tp: TopicPartition, topic_id: TopicId, config: LogConfig, now_ms: int, *, is_expected: bool = False
    ) -> Log:
        """A new, empty log; durable with its first flush. `is_expected`: one that a start has looked for in vain."""
        directory = self.directory_of(tp)
        created = Log.open(directory, config, now_ms=now_ms, is_expected=is_expected)
        created.flush_also(checkpoints.place_partition_metadata(directory, topic_id))
        return created

    def set_deleted(self, partitions: Iterable[TopicPartition]) -> list[str]:
        """Renames the directories, so that the names are free; returns what `remove` then takes away."""
        gone = list(partitions)
        self._forget(gone)
        renamed = []
        with checkpoints.changed_directory(self.path):
            for tp in gone:
                path = f"{self.path}/{_new_name(tp, _DELETE_SUFFIX)}"
                with contextlib.suppress(FileNotFoundError):
                    os.rename(self.directory_of(tp), path)
                    renamed.append(path)
        return renamed

    def set_spoilt_aside(self, tp: TopicPartition) -> str | None:
        """Keeps a log that is to begin anew under another name, for whoever wants to look into it. The name is free."""
        self._forget([tp])
        name = _new_name(tp, _SPOILT_SUFFIX)
        with checkpoints.changed_directory(self.path):
            try:
                os.rename(self.directory_of(tp), f"{self.path}/{name}")
            except FileNotFoundError:
                return None
        return name

    def _forget(self, gone: Collection[TopicPartition]) -> None:
        """Checkpoints go by name: those of a log that is no more must not be taken for its successor's."""
        for tp in gone:
            self.failed.pop(tp, None)  # it is no more, and whoever has its name next did not fail
        written = self._written
        self.write(
            Checkpoint(
                _without(written.recovery_points, gone),
                _without(written.log_starts, gone),
                _without(written.high_watermarks, gone),
                _without(written.cleaned, gone),
            )
        )

    def deleted(self) -> list[str]:
        """Directories whose removal an earlier run did not finish."""
        with os.scandir(self.path) as entries:
            return [entry.path for entry in entries if entry.name.endswith(_DELETE_SUFFIX) and entry.is_dir()]

    @staticmethod
    def remove(path: str) -> None:
        """OSError: some of it is still there."""
        assert path.endswith(_DELETE_SUFFIX)
        if os.path.exists(path):  # it may have been helped along
            shutil.rmtree(path)

    # Checkpoints

    @staticmethod
    def checkpoint_of(logs: Mapping[TopicPartition, Log], high_watermarks: Mapping[TopicPartition, int]) -> Checkpoint:
        """What `write` should write, as it is now; on the loop."""
        return Checkpoint(
            {tp: each.recovery_point for tp, each in logs.items()},
            {
                tp: each.log_start_offset
                for tp, each in logs.items()
                if each.log_start_offset > each.segments[0].base_offset
            },
            dict(high_watermarks),
            {tp: each.cleaning.cleaned_offset for tp, each in logs.items() if each.cleaning.cleaned_offset},
        )

    def vouches_beyond(self, tp: TopicPartition, end_offset: int) -> bool:
        """Whether the checkpoints on disk say more of a log than is true now that it ends here, as after a truncation.

        They must be written again before the log grows. To be asked while no checkpoint is being written.
        """
        return any(
            offsets.get(tp, 0) > end_offset for offsets in (self._written.recovery_points, self._written.log_starts)
        )

    def write(self, checkpoint: Checkpoint) -> None:
        """Files that would not change are left alone, and so is what they say of logs that could not be opened."""
        with self._writing:
            written = self._written
            after = Checkpoint(
                self._with_failed(checkpoint.recovery_points, written.recovery_points),
                self._with_failed(checkpoint.log_starts, written.log_starts),
                self._with_failed(checkpoint.high_watermarks, written.high_watermarks),
                self._with_failed(checkpoint.cleaned, written.cleaned),
            )
            contents = (
                (after.recovery_points, written.recovery_points),
                (after.log_starts, written.log_starts),
                (after.high_watermarks, written.high_watermarks),
                (after.cleaned, written.cleaned),
            )
            for name, (offsets, before) in zip(_CHECKPOINT_FILES, contents, strict=True):
                if offsets != before:
                    checkpoints.write_offsets(f"{self.path}/{name}", offsets)
            self._written = after

    def _with_failed(
        self, offsets: dict[TopicPartition, int], written: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Without its log start, a log that is mended would have records again that were deleted by request."""
        return {tp: written[tp] for tp in self.failed if tp in written} | offsets

    # The end

    def losses_told(self, logs: Iterable[Log]) -> None:
        """Whoever has to know of what these may have lost, knows. A start that is killed before that finds it again."""
        for each in logs:
            checkpoints.forget_damage(each.directory)
        if self._page_cache is not None and not self.has_page_cache:
            checkpoints.write_page_cache(self.path, self._page_cache)

    def close(
        self,
        logs: Mapping[TopicPartition, Log],
        high_watermarks: Mapping[TopicPartition, int],
        broker_epoch: int = -1,
    ) -> bool:
        """Closes the logs, leaves the marker if every one of them went well, and gives the lock back."""
        with ThreadPoolExecutor(_CLOSING_THREADS, thread_name_prefix="close-log") as pool:
            is_clean = all(list(pool.map(_close, logs.values()))) and not self.failed
        try:
            self.write(self.checkpoint_of(logs, high_watermarks))
            if is_clean:
                checkpoints.write_clean_shutdown(self.path, broker_epoch)
        except OSError as error:
            is_clean = False
            log.error("checkpoints not written", extra={"reason": str(error)})
        self.release()
        return is_clean

    def release(self) -> None:
        """Gives the lock back, without closing anything."""
        os.close(self._lock_fd)


_CHECKPOINT_FILES = (
    checkpoints.RECOVERY_POINTS,
    checkpoints.LOG_STARTS,
    checkpoints.HIGH_WATERMARKS,
    checkpoints.CLEANED_OFFSETS,
)


def _close(each: Log) -> bool:
    try:
        each.close()
    except OSError as error:
        log.error("log not closed", extra={"directory": each.directory, "reason": str(error)})
        return False
    return not each.is_failed


def _without(offsets: Mapping[TopicPartition, int], gone: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    names = set(gone)
    return {tp: offset for tp, offset in offsets.items() if tp not in names}


def _new_name(tp: TopicPartition, suffix: str) -> str:
    """Kafka's: unique, and not longer than a file system takes."""
    ending = f"-{tp.partition}.{os.urandom(16).hex()}{suffix}"
    return tp.topic[: _MAX_NAME - len(ending)] + ending


def _new_directory_id() -> str:
    """An id of the same kind as a topic's, as in Kafka."""
    return topic_id_to_text(TopicId(os.urandom(16)))
