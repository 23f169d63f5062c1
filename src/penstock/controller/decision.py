"""A decision of the controller: what is to be written, in which order, and what is then to be answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.metadata import records
from penstock.metadata.store import Expect, Put, Transaction

Reply_co = TypeVar("Reply_co", covariant=True)

# Below the store's own limits: the service adds its fence to every transaction.
CHUNK_OPERATIONS = 100
CHUNK_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Decision(Generic[Reply_co]):
    """The transactions are to be committed in order. When they stop half way nothing half done can be seen."""

    transactions: tuple[Transaction, ...]
    reply: Reply_co


class Writes:
    """Collects writes in the order they must happen, and cuts them into transactions that every store takes.

    With `mod_revision` a write happens only if its key was last written at that revision; without, the controller's
    fence alone guards it.
    """

    def __init__(self) -> None:
        self._transactions: list[Transaction] = []
        self._expected: list[Expect] = []
        self._puts: list[Put] = []
        self._deletes: list[str] = []
        self._bytes = 0

    def expect(self, key: str, mod_revision: int) -> None:
        """The next write happens only if this key, which is not written itself, was last written at that revision."""
        self._make_room(key, mod_revision, 0)

    def put(self, key: str, record: records.VersionedRecord, mod_revision: int | None = None) -> None:
        value = records.encode(record)
        self._make_room(key, mod_revision, len(value))
        self._puts.append(Put(key, value))

    def delete(self, key: str, mod_revision: int | None = None) -> None:
        self._make_room(key, mod_revision, 0)
        self._deletes.append(key)

    def transactions(self) -> tuple[Transaction, ...]:
        self._cut()
        return tuple(self._transactions)

    def _make_room(self, key: str, mod_revision: int | None, value_bytes: int) -> None:
        size_bytes = 2 * len(key) + value_bytes
        operations = len(self._puts) + len(self._deletes)
        if operations >= CHUNK_OPERATIONS or self._bytes + size_bytes > CHUNK_BYTES:
            self._cut()
        self._bytes += size_bytes
        if mod_revision is not None:
            self._expected.append(Expect(key, mod_revision))

    def _cut(self) -> None:
        if self._puts or self._deletes:
            self._transactions.append(Transaction(tuple(self._expected), tuple(self._puts), tuple(self._deletes)))
        self._expected, self._puts, self._deletes, self._bytes = [], [], [], 0
