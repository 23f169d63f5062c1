"""How many index maps and closed segment files may be open at a time, in the whole process.

A broker may hold ten thousand partitions with many segments each and be allowed twenty thousand descriptors, so only
the active segment's file stays open for good. Everything else is opened when it is needed and given up here, the
least recently used first (second chance: touching an entry costs one attribute store on the hot path).
Giving up drops the reference and nothing more: a thread or a response in flight that still holds the map or the file
keeps it alive.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

# Python's mmap keeps a descriptor of its own, so a map counts like a file.
DEFAULT_CAPACITY = 512


class Evictable(Protocol):
    referenced: bool

    @property
    def is_open(self) -> bool: ...

    def evict(self) -> None: ...


class DescriptorCache:
    """Loop and worker threads share it, hence the lock; it is taken when something is opened, not when it is used."""

    __slots__ = ("_entries", "_lock", "capacity")

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self.capacity = capacity
        self._entries: deque[Evictable] = deque()
        self._lock = threading.Lock()

    def admit(self, entry: Evictable) -> None:
        """`entry` was just opened. May evict others; an entry that is closed since simply falls out."""
        with self._lock:
            entry.referenced = True
            self._entries.append(entry)
            while len(self._entries) > self.capacity:
                self._give_up_one()

    def _give_up_one(self) -> None:
        oldest = self._entries.popleft()
        if not oldest.is_open:
            return
        if oldest.referenced:
            oldest.referenced = False
            self._entries.append(oldest)
        else:
            oldest.evict()

    def __len__(self) -> int:
        return len(self._entries)


DESCRIPTORS = DescriptorCache()
