"""What an interrupted deletion or segment swap left in a partition's directory, and what is there besides.

Kafka's protocol for replacing segments: the new ones are written as `.cleaned`, renamed to `.swap` when they are
complete, the old ones renamed to `.deleted`, and `.swap` dropped from the names. So `.cleaned` is never complete, and a
`.swap` always is and wins over the segments it covers: the swap is undone or completed, never half of each.
Everything here blocks.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from penstock.storage.checkpoints import sync_directory
from penstock.storage.log_config import LogConfig
from penstock.storage.log_file import remove_if_there
from penstock.storage.segment import Segment

_SEGMENT_FILE = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)(\.deleted|\.cleaned|\.swap|\.tmp)?")


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    # Base offset to size.
    log_files: dict[int, int]
    # Ascending.
    snapshot_offsets: list[int]
    # Base offset to size, of segments in which transactions were aborted.
    txn_indexes: dict[int, int]


def tidy(directory: str, config: LogConfig) -> DirectoryListing:
    """Removes and completes what was interrupted, and lists what then is there."""
    log_files: dict[int, int] = {}
    snapshots: list[int] = []
    indexes: list[tuple[int, str]] = []
    txn_indexes: dict[int, int] = {}
    interrupted: list[tuple[int, str, str]] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            match = _SEGMENT_FILE.fullmatch(entry.name)
            if match is None:
                if entry.name.endswith(".tmp"):
                    remove_if_there(entry.path)
                continue
            offset, kind, suffix = int(match[1]), match[2], match[3]
            if suffix is not None:
                interrupted.append((offset, entry.name, suffix))
            elif kind == "log":
                log_files[offset] = entry.stat().st_size
            elif kind == "snapshot":
                snapshots.append(offset)
            else:
                indexes.append((offset, entry.path))
                if kind == "txnindex":
                    txn_indexes[offset] = entry.stat().st_size
    if interrupted:
        _finish(directory, config, interrupted, log_files)
        return tidy(directory, config)
    for offset, path in indexes:
        if offset not in log_files:
            remove_if_there(path)
    snapshots.sort()
    return DirectoryListing(log_files, snapshots, txn_indexes)


def _finish(
    directory: str, config: LogConfig, interrupted: list[tuple[int, str, str]], log_files: dict[int, int]
) -> None:
    first_cleaned = min((offset for offset, _, suffix in interrupted if suffix == ".cleaned"), default=None)
    swaps = []
    for offset, name, suffix in interrupted:
        if suffix == ".swap" and (first_cleaned is None or offset < first_cleaned):
            swaps.append((offset, name))
        else:
            # Deleted, written by half (.cleaned, .tmp), or a swap that belongs to what is written by half.
            remove_if_there(f"{directory}/{name}")
    _remove_replaced(directory, config, swaps, log_files)
    for _, name in swaps:
        os.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix('.swap')}")
    sync_directory(directory)


def _remove_replaced(
    directory: str, config: LogConfig, swaps: list[tuple[int, str]], log_files: dict[int, int]
) -> None:
    """The segments whose records are in the swapped ones."""
    new_logs = [(offset, name) for offset, name in swaps if name.endswith(".log.swap")]
    if not new_logs:
        return
    first = min(offset for offset, _ in new_logs)
    end = max(_end_offset(directory, config, offset, name) for offset, name in new_logs)
    for base_offset in log_files:
        if first <= base_offset < end:
            Segment(directory, base_offset, config, created_ms=0).remove()


def _end_offset(directory: str, config: LogConfig, base_offset: int, name: str) -> int:
    segment = Segment(directory, base_offset, config, created_ms=0)
    segment.deleted_suffix = ".swap"
    end = base_offset
    for _, header in segment.walk(0, os.stat(f"{directory}/{name}").st_size, wait=True):
        end = header.next_offset
    return end
