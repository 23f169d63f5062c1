"""What the broker's event loop waits with: epoll, with less Python around it than asyncio's own, and fewer polls.

A turn of the loop that found requests is followed by one that carries them out (see `tick`), and asyncio polls before
each. The second of these polls is left out: what arrives meanwhile is found a moment later, with more beside it.
Against asyncio's selector, in turns: 20 instead of 27 us of CPU for a batch of 16 KiB, 7.5 instead of 8.5 for a single
record.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import selectors
from collections.abc import Mapping
from selectors import EVENT_READ, EVENT_WRITE, SelectorKey
from types import MappingProxyType
from typing import Any

# As many events as one poll tells of; the next one tells of the others.
_MAX_EVENTS = 256


def new_event_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(EpollSelector())


class EpollSelector(selectors.BaseSelector):
    """For descriptors by number, as asyncio has them, and for what has one, as gRPC hands over its socket."""

    __slots__ = ("_epoll", "_keys", "_poll_next")

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._keys: dict[int, SelectorKey] = {}
        # False right after a poll that found something.
        self._poll_next = True

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        descriptor = _descriptor(fileobj)
        if descriptor in self._keys:
            raise KeyError(f"{fileobj} is registered already")
        self._epoll.register(descriptor, _mask(events))
        key = self._keys[descriptor] = SelectorKey(fileobj, descriptor, events, data)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        descriptor = _descriptor(fileobj)
        before = self._keys[descriptor]
        if events != before.events:
            self._epoll.modify(descriptor, _mask(events))
        key = self._keys[descriptor] = SelectorKey(fileobj, descriptor, events, data)
        return key

    def unregister(self, fileobj: Any) -> SelectorKey:
        key = self._keys.pop(_descriptor(fileobj))
        with contextlib.suppress(OSError):  # closed before: epoll has forgotten it by itself
            self._epoll.unregister(key.fd)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if timeout is None:
            timeout = -1
        elif timeout <= 0:
            if not self._poll_next:
                self._poll_next = True
                return []
            timeout = 0
        found = self._epoll.poll(timeout, _MAX_EVENTS)
        self._poll_next = not found
        ready = []
        keys = self._keys
        for descriptor, event in found:
            key = keys.get(descriptor)
            if key is not None:
                if event == select.EPOLLIN:
                    ready.append((key, EVENT_READ & key.events))
                else:  # an error or a hang-up is for whoever reads and for whoever writes
                    mask = (event & ~select.EPOLLIN and EVENT_WRITE) | (event & ~select.EPOLLOUT and EVENT_READ)
                    ready.append((key, mask & key.events))
        return ready

    def close(self) -> None:
        self._epoll.close()
        self._keys.clear()

    def get_map(self) -> Mapping[Any, SelectorKey]:
        return MappingProxyType(self._keys)

    def get_key(self, fileobj: Any) -> SelectorKey:
        return self._keys[_descriptor(fileobj)]


def _descriptor(fileobj: Any) -> int:
    descriptor: int = fileobj if type(fileobj) is int else fileobj.fileno()
    return descriptor


def _mask(events: int) -> int:
    return (events & EVENT_READ and select.EPOLLIN) | (events & EVENT_WRITE and select.EPOLLOUT)
