"""The contract every metadata store keeps; nothing outside `metadata/` knows which store is behind it.

Each method is documented by the guarantee the broker needs from it. Whatever an implementation does, these hold:

- **Linearizable.** All commits are in one order, numbered by a revision that only rises. A read or commit sees every
  commit that returned before it began, from whichever process.
- **Durable.** A commit that returned survives the power going off.
- **Compare-and-set.** A key carries the revision that wrote it last (its mod revision; 0 while it does not exist). A
  transaction names the mod revisions it was decided on and happens wholly or, when one differs, not at all.
- **Nothing is trusted to a watch alone.** A watch may end at any time, and may say that the history is gone.

Limits are those of the narrowest store (etcd: 128 operations a transaction, 1.5 MiB a request), and a transaction that
exceeds them cannot be made, so that no implementation meets one that another would refuse.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import NewType, Protocol

# etcd's defaults are 128 and 1.5 MiB; the difference is room for the framing and for the controller's own fence.
MAX_TRANSACTION_OPERATIONS = 120
MAX_TRANSACTION_BYTES = 1024 * 1024

LeaseId = NewType("LeaseId", int)


@dataclass(frozen=True, slots=True)
class Expect:
    """The key was last written at this revision; 0 means that it does not exist."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write a value. With a lease the key is deleted when the lease ends; without one it stays."""

    key: str
    value: bytes
    lease_id: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Transaction:
    """Puts and deletes that happen together if every expectation holds. A key may be written once in it."""

    expected: tuple[Expect, ...] = ()
    puts: tuple[Put, ...] = ()
    deletes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        written = [put.key for put in self.puts] + list(self.deletes)
        if len(set(written)) != len(written):
            raise ValueError("a transaction writes each key at most once")
        if max(len(written), len(self.expected)) > MAX_TRANSACTION_OPERATIONS:
            raise ValueError(f"a transaction has at most {MAX_TRANSACTION_OPERATIONS} operations")
        if self.size_bytes > MAX_TRANSACTION_BYTES:
            raise ValueError(f"a transaction has at most {MAX_TRANSACTION_BYTES} bytes, this one {self.size_bytes}")
        if not all(key and key.isascii() for key in written):
            raise ValueError("keys are ASCII and not empty: every store then sorts them alike")

    @property
    def size_bytes(self) -> int:
        compared = sum(len(expect.key) for expect in self.expected)
        return compared + sum(len(put.key) + len(put.value) for put in self.puts) + sum(map(len, self.deletes))


@dataclass(frozen=True, slots=True)
class Committed:
    """The store's revision after the transaction. It rises only when something was written or deleted."""

    revision: int


class Conflict(Exception):
    """An expectation did not hold and nothing was written. Decide again on what is there now."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        super().__init__(f"changed meanwhile: {', '.join(keys)}")
        self.keys = keys


class Compacted(Exception):
    """The changes since the asked revision are no longer kept: read everything again and watch from there."""


class LeaseExpired(Exception):
    """The lease is over (or never was), and the keys attached to it are gone or about to go."""


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every entry under a prefix, sorted by key, as of one revision."""

    revision: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A key's new value, or None when it was deleted."""

    key: str
    value: bytes | None
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes of one or more whole transactions, in revision order, up to and including `revision`."""

    revision: int
    changes: tuple[Change, ...]


class MetadataStore(Protocol):
    """Raises BrokerError (KAFKA_STORAGE_ERROR) when the store cannot do its work: full disk, unreachable, stuck.

    After such an error from `commit` the outcome is unknown: read before deciding again.
    """

    @property
    def trouble(self) -> str | None:
        """Why nothing can be committed at present; None while the store has no reason to think so."""
        ...

    async def commit(self, transaction: Transaction) -> Committed:
        """Compare and write in one atomic, durable step, or raise Conflict and change nothing.

        A transaction without writes only compares. Deleting a key that does not exist is no change.
        """
        ...

    async def read(self, prefix: str) -> Snapshot:
        """Everything under the prefix ("" is everything) at one revision, linearizably: no stale reads."""
        ...

    def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Changes, None]:
        """Every change under the prefix after the revision, in order, none left out, a transaction never split.

        Raises Compacted when that history is no longer kept. Pass the revision of a Snapshot, or of the last Changes
        that was seen, to go on from there without a gap.
        """
        ...

    async def grant_lease(self, ttl_ms: int) -> LeaseId:
        """A lease that ends `ttl_ms` after its last `keep_alive`, measured by a clock that no one can set.

        The store may prolong the time, never shorten it: the holder must take its own deadline from before it asked.
        """
        ...

    async def keep_alive(self, lease_id: LeaseId) -> None:
        """Start the lease's time anew. Raises LeaseExpired once it has run out: it never comes back to life."""
        ...

    async def revoke_lease(self, lease_id: LeaseId) -> None:
        """End the lease now and delete its keys. Revoking one that has ended is no error."""
        ...

    async def close(self) -> None:
        """Release files, threads and connections. Watches end. Leases are left to run out."""
        ...


def prefix_end(prefix: str) -> str | None:
    """The first key that sorts after every key with the prefix; None when nothing does."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else None
