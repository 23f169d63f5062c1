"""A log as those see it who read: what is in it, from where to where, and what of it was aborted.

Nothing here changes the log. Unless its docstring says that it blocks, a method never waits for the disk: it raises
ColdRead, and the same call with wait=True belongs into a thread, which may run beside the loop that writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.core.errors import BrokerError, ErrorCode
from penstock.runtime.files import Files
from penstock.storage import aborted, lookup
from penstock.storage.log_file import FileSpan, LogPosition
from penstock.storage.producers import Producers
from penstock.storage.reader import Reader, find_batch, storage_error, storage_errors
from penstock.storage.segment import CorruptSegment, Segment
from penstock.storage.txn_index import AbortedTransaction

_T = TypeVar("_T")


class ReadableLog:
    __slots__ = (
        "_closed_bytes",
        "_last_abort_offset",
        "_reader",
        "_segments",
        "end_position",
        "is_being_cut",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "readers",
        "suspicion",
    )

    def __init__(
        self, segments: tuple[Segment, ...], log_start_offset: int, end_position: LogPosition, producers: Producers
    ) -> None:
        self.log_start_offset = log_start_offset
        # Staged batches included.
        self.log_end_offset = end_position.offset
        self.end_position = end_position
        self.producers = producers
        self._segments = segments
        self._reader = Reader()
        # What all segments but the last hold, of the segments it was summed up for.
        self._closed_bytes: tuple[tuple[Segment, ...], int] = ((), 0)
        self._last_abort_offset = aborted.no_abort_behind(segments, end_position.offset)
        # Why somebody believes that its files are damaged: worth a look at all of them (`soundness.py`).
        self.suspicion: str | None = None
        # Threads that read it. It is cut when there are none, and while it is no other begins.
        self.readers: set[object] = set()
        self.is_being_cut = False

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._segments

    @property
    def size_bytes(self) -> int:
        """Every fetch asks, and there may be thousands of segments: only the last changes its size."""
        segments = self._segments
        summed, closed_bytes = self._closed_bytes
        if summed is not segments:
            closed_bytes = sum(segment.size for segment in segments[:-1])
            self._closed_bytes = segments, closed_bytes
        return closed_bytes + segments[-1].size

    def read(
        self, offset: int, max_bytes: int, upper: LogPosition, *, at_least_one: bool, wait: bool = False
    ) -> FileSpan | None:
        """The bytes from the batch that holds `offset`, below `upper`; they may end inside a batch.

        None when there are none, or when the first batch is above `max_bytes` and need not be given. Never waits for
        the disk: raises ColdRead. With wait=True it blocks, is thread-safe and leaves the bytes in the page cache.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset} to {self.log_end_offset}",
            )
        try:
            return self._reader.read(self._segments, offset, max_bytes, upper, at_least_one=at_least_one, wait=wait)
        except (OSError, CorruptSegment) as error:
            self.suspect(error)
            raise storage_error(error) from error

    async def in_thread(self, files: Files, read: Callable[..., _T], *args: object) -> _T:
        """What `read` finds in this log, in a thread beside which nobody cuts it."""
        if self.is_being_cut:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the log is being cut")
        return await files.run_among(self.readers, read, *args)

    def suspect(self, error: BaseException) -> None:
        """Whether what a reader met is damage is found out later; a file that went meanwhile is none."""
        if not isinstance(error, FileNotFoundError):
            self.suspicion = str(error)

    def position_of(self, offset: int, *, wait: bool = True) -> LogPosition:
        """Blocking, thread-safe. Where the batch that holds `offset` starts; the end, if no batch does.

        With wait=False it never waits for the disk: raises ColdRead.
        """
        upper = self.end_position
        with storage_errors():
            found = find_batch(self._segments, offset, upper, wait=wait)
        if found is None:
            return upper
        segment, (position, header) = found
        return LogPosition(max(header.base_offset, self.log_start_offset), segment.base_offset, position)

    def offset_for_timestamp(self, timestamp: int, upper: LogPosition) -> lookup.TimestampAndOffset | None:
        """Blocking, thread-safe. The first record below `upper` that is not older than `timestamp`."""
        with storage_errors():
            return lookup.first_at_or_after(self._segments, timestamp, self.log_start_offset, upper)

    def offset_of_max_timestamp(self, upper: LogPosition) -> lookup.TimestampAndOffset | None:
        """Blocking, thread-safe. The first record below `upper` with the largest timestamp."""
        with storage_errors():
            return lookup.largest(self._segments, self.log_start_offset, upper)

    # Transactions

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Of the earliest transaction that is open, or whose marker is not below the high watermark. None: of none.

        The high watermark of one call must not be below that of an earlier one, but after a truncation.
        """
        offset = self.producers.transactions.first_unstable_offset(high_watermark)
        return max(offset, self.log_start_offset) if offset is not None else None

    def open_transactions(self) -> dict[int, int]:
        """Producer id to first offset."""
        return dict(self.producers.transactions.open)

    def may_have_aborted(self, from_offset: int) -> bool:
        """False: no aborted transaction ends at or behind `from_offset`, so `aborted_transactions` finds none."""
        return from_offset <= self._last_abort_offset

    def aborted_transactions(
        self, from_offset: int, upper_offset: int, *, wait: bool = True
    ) -> list[AbortedTransaction]:
        """Thread-safe. Those that overlap [from_offset, upper_offset), by first offset. Without `wait`, ColdRead."""
        with storage_errors():
            entries = list(aborted.aborted_between(self._segments, from_offset, upper_offset, wait=wait))
        return sorted((AbortedTransaction(*entry[:2]) for entry in entries), key=lambda each: each.first_offset)

    def upper_offset_of(self, span: FileSpan, offset: int, upper: LogPosition, *, wait: bool = True) -> int:
        """Thread-safe. Above all offsets in the span, and not far above; `offset` is in it or before it. Without
        `wait`, ColdRead.
        """
        with storage_errors():
            return aborted.upper_offset_of(self._segments, span, offset, upper, wait=wait)
