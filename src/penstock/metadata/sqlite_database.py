"""The SQLite file behind the embedded metadata store. Everything here blocks and runs on the store's one thread.

What must stay true:

- A commit that returned is on disk: write-ahead log with synchronous=FULL (NORMAL may lose the last commits when the
  power goes).
- SQLite 3.7.0 to 3.51.2 is refused: resetting the write-ahead log could corrupt a file that several processes write.
- A failed write (full disk) is rolled back and says so; the next one works as soon as there is room. A failed fsync is
  never tried again: what the kernel then believes to be on disk may not be, so the store stays closed for writing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from penstock.core.errors import BrokerError, ErrorCode
from penstock.metadata.records import InvalidMetadata
from penstock.metadata.store import (
    Change,
    Changes,
    Committed,
    Compacted,
    Conflict,
    Entry,
    LeaseExpired,
    LeaseId,
    Put,
    Snapshot,
    Transaction,
    prefix_end,
)

FORMAT_VERSION = 1
BUSY_TIMEOUT_MS = 5_000
BUSY_RETRY_S = 0.01
# How many changes are kept for watches to resume, and how often (in revisions) older ones are removed.
HISTORY_CHANGES = 20_000
PRUNE_EVERY_REVISIONS = 64

_FSYNC_ERRORS = (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC)

_SCHEMA = """
CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, mod_revision INTEGER NOT NULL, lease_id INTEGER)
    WITHOUT ROWID;
CREATE INDEX entries_by_lease ON entries (lease_id) WHERE lease_id IS NOT NULL;
CREATE TABLE changes (revision INTEGER, key TEXT, value BLOB, PRIMARY KEY (revision, key)) WITHOUT ROWID;
CREATE TABLE revisions (latest INTEGER NOT NULL, compacted INTEGER NOT NULL);
CREATE TABLE leases (lease_id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_ms INTEGER NOT NULL);
INSERT INTO revisions VALUES (0, 0);
"""


def refuse_unsafe_sqlite(library_version: str) -> None:
    numbers = tuple(int(number) for number in library_version.split("."))
    if (3, 7, 0) <= numbers <= (3, 51, 2):
        raise InvalidMetadata(
            f"SQLite {library_version} can corrupt a database that several processes write: "
            "install apsw 3.51.3 or newer, which brings its own SQLite"
        )


class SqliteDatabase:
    def __init__(self, path: Path, *, history_changes: int = HISTORY_CHANGES) -> None:
        refuse_unsafe_sqlite(apsw.sqlite_lib_version())
        self.path = path
        self._history_changes = history_changes
        self.failed_fsync: str | None = None
        _keep_private(path)
        with self._storage_errors():
            self._connection = apsw.Connection(str(path))
            self._connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            self._prepare()
        _fsync_directory(path.parent)

    def _prepare(self) -> None:
        mode = self._use_write_ahead_log()
        if mode != "wal":
            raise InvalidMetadata(f"{self.path} cannot use a write-ahead log (got {mode!r}): is it on a network disk?")
        self._connection.execute("PRAGMA synchronous = FULL")
        with self._write_transaction():
            version = self._number("PRAGMA user_version")
            if version == 0:
                self._connection.execute(_SCHEMA)
                self._connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            elif version != FORMAT_VERSION:
                raise InvalidMetadata(f"{self.path} has format {version}, this release reads {FORMAT_VERSION}")

    def _use_write_ahead_log(self) -> object:
        """SQLite does not wait here, as it does elsewhere, while another process makes the same file."""
        give_up_s = time.monotonic() + BUSY_TIMEOUT_MS / 1000
        while True:
            try:
                ((mode,),) = self._connection.execute("PRAGMA journal_mode = WAL").fetchall()
                return mode
            except apsw.BusyError:
                if time.monotonic() >= give_up_s:
                    raise
                time.sleep(BUSY_RETRY_S)

    def close(self) -> None:
        self._connection.close()

    def commit(self, transaction: Transaction) -> Committed:
        with self._storage_errors(), self._write_transaction():
            self._check_expected(transaction)
            self._check_leases(transaction)
            revision = self._latest_revision()
            deletes = [key for key in transaction.deletes if self._mod_revision(key) != 0]
            if not transaction.puts and not deletes:
                return Committed(revision)
            self._write(revision + 1, transaction.puts, deletes)
            return Committed(revision + 1)

    def read(self, prefix: str) -> Snapshot:
        where, bounds = _within(prefix)
        with self._storage_errors(), self._read_transaction():
            rows = self._connection.execute(
                f"SELECT key, value, mod_revision FROM entries WHERE {where} ORDER BY key", bounds
            )
            entries = tuple(Entry(key, value, mod_revision) for key, value, mod_revision in rows)
            return Snapshot(self._latest_revision(), entries)

    def changes_after(self, prefix: str, after_revision: int) -> Changes:
        """What happened under the prefix since; its revision is the store's, also when nothing did."""
        where, bounds = _within(prefix)
        with self._storage_errors(), self._read_transaction():
            if after_revision < self._number("SELECT compacted FROM revisions"):
                raise Compacted(f"changes after revision {after_revision} are no longer kept")
            rows = self._connection.execute(
                f"SELECT revision, key, value FROM changes WHERE revision > ? AND {where} ORDER BY revision, key",
                (after_revision, *bounds),
            )
            changes = tuple(Change(key, value, revision) for revision, key, value in rows)
            return Changes(self._latest_revision(), changes)

    def data_version(self) -> int:
        """A number that changes when another connection, of this process or another, has committed."""
        with self._storage_errors():
            return self._number("PRAGMA data_version")

    @contextmanager
    def new_lease(self, ttl_ms: int) -> Iterator[LeaseId]:
        """A lease id that no other lease ever had; it exists once the block ends well."""
        with self._storage_errors(), self._write_transaction():
            self._connection.execute("INSERT INTO leases (ttl_ms) VALUES (?)", (ttl_ms,))
            yield LeaseId(self._connection.last_insert_rowid())

    def lease_ids(self) -> list[LeaseId]:
        with self._storage_errors():
            return [LeaseId(lease_id) for (lease_id,) in self._connection.execute("SELECT lease_id FROM leases")]

    def end_lease(self, lease_id: LeaseId) -> bool:
        """Forget the lease and delete its keys; whether a key was deleted."""
        with self._storage_errors(), self._write_transaction():
            self._connection.execute("DELETE FROM leases WHERE lease_id = ?", (lease_id,))
            rows = self._connection.execute("SELECT key FROM entries WHERE lease_id = ?", (lease_id,))
            keys = [key for (key,) in rows]
            if keys:
                self._write(self._latest_revision() + 1, (), keys)
            return bool(keys)

    def _check_expected(self, transaction: Transaction) -> None:
        changed = [
            expect.key for expect in transaction.expected if self._mod_revision(expect.key) != expect.mod_revision
        ]
        if changed:
            raise Conflict(tuple(changed))

    def _check_leases(self, transaction: Transaction) -> None:
        for lease_id in {put.lease_id for put in transaction.puts} - {None}:
            if not self._connection.execute("SELECT 1 FROM leases WHERE lease_id = ?", (lease_id,)).fetchall():
                raise LeaseExpired(f"lease {lease_id} has ended")

    def _write(self, revision: int, puts: tuple[Put, ...], deletes: list[str]) -> None:
        self._connection.executemany(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)",
            [(put.key, put.value, revision, put.lease_id) for put in puts],
        )
        self._connection.executemany("DELETE FROM entries WHERE key = ?", [(key,) for key in deletes])
        changed = [(revision, put.key, put.value) for put in puts] + [(revision, key, None) for key in deletes]
        self._connection.executemany("INSERT INTO changes VALUES (?, ?, ?)", changed)
        self._connection.execute("UPDATE revisions SET latest = ?", (revision,))
        if revision % PRUNE_EVERY_REVISIONS == 0:
            self._prune()

    def _prune(self) -> None:
        """Forget the oldest changes, whole revisions at a time."""
        oldest_kept = self._connection.execute(
            "SELECT revision FROM changes ORDER BY revision DESC, key DESC LIMIT 1 OFFSET ?", (self._history_changes,)
        ).fetchall()
        if oldest_kept:
            self._connection.execute("DELETE FROM changes WHERE revision <= ?", oldest_kept[0])
            self._connection.execute("UPDATE revisions SET compacted = ?", oldest_kept[0])

    def _mod_revision(self, key: str) -> int:
        rows = self._connection.execute("SELECT mod_revision FROM entries WHERE key = ?", (key,)).fetchall()
        mod_revision = rows[0][0] if rows else 0
        assert isinstance(mod_revision, int)
        return mod_revision

    def _latest_revision(self) -> int:
        return self._number("SELECT latest FROM revisions")

    def _number(self, sql: str) -> int:
        ((number,),) = self._connection.execute(sql).fetchall()
        assert isinstance(number, int)
        return number

    @contextmanager
    def _read_transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    @contextmanager
    def _write_transaction(self) -> Iterator[None]:
        if self.failed_fsync is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, self.failed_fsync)
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # Some errors (a full disk among them) make SQLite roll back by itself.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except (apsw.NotADBError, apsw.CorruptError) as error:
            raise InvalidMetadata(f"{self.path} is damaged: {error}") from error
        except apsw.Error as error:
            text = f"the metadata store {self.path} failed: {error}"
            if getattr(error, "extendedresult", 0) in _FSYNC_ERRORS:
                self.failed_fsync = f"{text}; restart the broker once the disk is sound"
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, text) from error


def _within(prefix: str) -> tuple[str, tuple[str, ...]]:
    """The condition on `key` for a prefix; a range, so that the primary key answers it."""
    end = prefix_end(prefix)
    return ("TRUE", ()) if end is None else ("key >= ? AND key < ?", (prefix, end))


def _keep_private(path: Path) -> None:
    """The cluster's key is in it: for its owner only. SQLite gives the files beside it the same mode.

    A file that is there is not opened: closing it would end the locks that this process has on it.
    """
    with suppress(OSError):  # SQLite will say what is wrong
        if path.exists():
            path.chmod(0o600)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _fsync_directory(directory: Path) -> None:
    """A new file survives a power cut only when its directory does."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
