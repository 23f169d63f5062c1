"""What commits leave behind, and when it can go.

A commit that replaces files leaves the old ones for those who read the table as it was. After a while their snapshots
expire; directories and metadata that no snapshot has any more are removed then. A directory that was never committed
goes the same way: it is named for the snapshot that its files were to follow, and once the table has another one, no
commit of them can succeed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from uuid import uuid4

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from penstock.spark.pipelines.files import Files, joined

log = logging.getLogger(__name__)

DEFAULT_KEPT_S = 3_600.0


class Upkeep:
    """`kept_s` is for how long a reader may go on with the table as it was. What it has read it remembers."""

    def __init__(self, files: Files, kept_s: float = DEFAULT_KEPT_S) -> None:
        self._files = files
        self._kept_s = kept_s
        self._metadata: dict[int, frozenset[str]] = {}
        self._directories: dict[int, frozenset[str]] = {}

    def new_directory(self, table: Table) -> str:
        """For files that are not part of the table yet."""
        return joined(table.location(), "data", f"{_snapshot_id(table)}-{uuid4().hex[:8]}")

    def tidy(self, table: Table) -> None:
        left = self._expired(table)
        kept = table.metadata.snapshots
        in_use = self._of(kept, table, self._directories)
        for entry in self._files.list(joined(table.location(), "data")):
            may_be_committed = entry.name.startswith(f"{_snapshot_id(table)}-")
            if entry.is_directory and entry.name not in in_use and not may_be_committed:
                self._files.delete(entry.path)
        for path in left - self._of(kept, table, self._metadata) if left else ():
            self._files.delete(path)

    def _expired(self, table: Table) -> set[str]:
        """Files of metadata of snapshots that are gone now; some of them others may have too."""
        before_ms = (time.time() - self._kept_s) * 1_000
        named = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [
            snapshot
            for snapshot in table.metadata.snapshots
            if snapshot.timestamp_ms < before_ms and snapshot.snapshot_id not in named
        ]
        if not old:
            return set()
        had = self._of(old, table, self._metadata)
        try:
            table.maintenance.expire_snapshots().by_ids([snapshot.snapshot_id for snapshot in old]).commit()
        except CommitFailedException:  # another time, then
            had = set()
        table.refresh()
        return had

    def _of(self, snapshots: Iterable[Snapshot], table: Table, what: dict[int, frozenset[str]]) -> set[str]:
        found: set[str] = set()
        for snapshot in snapshots:
            if snapshot.snapshot_id not in self._metadata:
                self._read(snapshot, table)
            found |= what[snapshot.snapshot_id]
        return found

    def _read(self, snapshot: Snapshot, table: Table) -> None:
        manifests = snapshot.manifests(table.io)
        self._metadata[snapshot.snapshot_id] = frozenset(
            [snapshot.manifest_list, *(manifest.manifest_path for manifest in manifests)]
        )
        prefix = joined(table.location(), "data", "")
        self._directories[snapshot.snapshot_id] = frozenset(
            entry.data_file.file_path.removeprefix(prefix).split("/", 1)[0]
            for manifest in manifests
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        )


def _snapshot_id(table: Table) -> int:
    snapshot = table.current_snapshot()
    return 0 if snapshot is None else snapshot.snapshot_id
