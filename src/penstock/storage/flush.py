"""What has to reach the disk before an offset counts as flushed.

A ticket is taken on the loop, run in a thread and finished on the loop. It covers everything written when it was
taken: the log files, and what a start needs to trust them (indexes of segments closed since, producer snapshots,
leader epochs, the directories that name the files).

What must stay true: a failed flush is final. The kernel may have dropped the pages, so a second try would
succeed and lie. Only a full disk while writing the small files is no reason: they stay due, and the recovery point
stays behind until they are written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.storage import checkpoints, producer_snapshot
from penstock.storage.epochs import EpochEntry
from penstock.storage.log_file import DISK_FULL, LogFile, LogPosition, remove_if_there
from penstock.storage.producers import ProducerEntry

# A recovery needs one snapshot; the other is for the case that it is damaged.
_SNAPSHOTS_KEPT = 2


@dataclass(frozen=True, slots=True)
class DueSnapshot:
    offset: int
    entries: dict[int, ProducerEntry]


@dataclass(slots=True)
class Unflushed:
    """What was closed, created or changed since the last ticket; the active log file always counts."""

    files: list[LogFile] = field(default_factory=list)
    # Files that are opened to be flushed: indexes, and logs that nobody writes to.
    paths: list[str] = field(default_factory=list)
    snapshots: list[DueSnapshot] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    # None: no news.
    epochs: tuple[EpochEntry, ...] | None = None

    def __bool__(self) -> bool:
        return bool(self.files or self.paths or self.snapshots or self.directories or self.epochs is not None)


def obsolete_snapshots(offsets: Sequence[int], recovery_start: int) -> list[int]:
    """All but the one that a recovery that starts here begins with, and the newest."""
    needed = [offset for offset in offsets if offset <= recovery_start][-1:]
    keep = {*needed, *offsets[-_SNAPSHOTS_KEPT:]}
    return [offset for offset in offsets if offset not in keep]


@dataclass(slots=True)
class FlushTicket:
    directory: str
    position: LogPosition
    # Differs from the log's when the log was truncated since: then the ticket says nothing about the new end.
    generation: int
    active: LogFile | None
    due: Unflushed
    obsolete_snapshots: list[int]
    # Set by run() when the disk was too full for the small files.
    is_partial: bool = False

    def only_file(self) -> LogFile | None:
        """The file whose flush is all there is to do, as it nearly always is."""
        return None if self.due or self.obsolete_snapshots else self.active

    def run(self) -> None:
        """Blocking. OSError is final for the directory."""
        for file in self.due.files:
            os.fdatasync(file.fd)
        if self.active is not None:
            os.fdatasync(self.active.fd)
        for path in self.due.paths:
            try:
                checkpoints.sync_file(path)
            except FileNotFoundError:
                continue  # retention was quicker
        try:
            self._write_small_files()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            self.is_partial = True
        directories = dict.fromkeys(self.due.directories)
        if self.due.snapshots or self.due.epochs is not None:
            directories[self.directory] = None
        for directory in directories:
            checkpoints.sync_directory(directory)

    def _write_small_files(self) -> None:
        for snapshot in self.due.snapshots:
            producer_snapshot.write(self.directory, snapshot.offset, snapshot.entries)
        if self.due.epochs is not None:
            checkpoints.replace_epochs(f"{self.directory}/{checkpoints.LEADER_EPOCHS}", self.due.epochs)
        for offset in self.obsolete_snapshots:
            remove_if_there(producer_snapshot.snapshot_path(self.directory, offset))
