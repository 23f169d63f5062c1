"""Where a fetch finds its bytes.

A consumer that keeps up asks for exactly the offset at which its last answer ended, so those places are remembered and
most reads touch neither index nor file. Nothing here waits for a disk unless it is told to: pages that are not in the
cache raise ColdRead, and the caller repeats the read in a thread with wait=True, which brings them in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from penstock.core.errors import BrokerError, ErrorCode
from penstock.storage.log_file import FileSpan, LogPosition, probe, warm
from penstock.storage.segment import CorruptSegment, LocatedBatch, Segment

_MAX_PLACES = 64
# What was written last is in the page cache; older bytes are probed.
_HOT_TAIL_BYTES = 16 * 1024 * 1024

_base_offset = attrgetter("base_offset")


def segment_at(segments: Sequence[Segment], offset: int) -> int:
    """The place of the segment that holds `offset`, or would; -1 below the first."""
    if segments and segments[-1].base_offset <= offset:  # where most read
        return len(segments) - 1
    return bisect_right(segments, offset, key=_base_offset) - 1


def readable_end(segment: Segment, upper: LogPosition) -> int:
    """The position in `segment` at which `upper` lies, 0 when the whole segment is beyond it."""
    if segment.base_offset == upper.segment_base_offset:
        # Compaction made it shorter, if it is: then `upper` is its end.
        return min(upper.position, segment.size)
    return segment.size if segment.base_offset < upper.segment_base_offset else 0


class Reader:
    """`read` with wait=True may run in threads, beside the loop."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        # Offset to (segment, position) for the ends of recent answers. Only the loop thread touches it.
        self._places: dict[int, tuple[Segment, int]] = {}

    def forget(self) -> None:
        """After truncation, or when segments went."""
        self._places.clear()

    def read(
        self,
        segments: Sequence[Segment],
        offset: int,
        max_bytes: int,
        upper: LogPosition,
        *,
        at_least_one: bool,
        wait: bool,
    ) -> FileSpan | None:
        place = None if wait else self._places.get(offset)
        if offset >= upper.offset:
            if place is None and not wait and offset == upper.offset:
                self._remember(segments[-1], upper)
            return None
        if place is not None:
            segment, position = place
            available = readable_end(segment, upper) - position
            if 0 < available <= max_bytes:
                self._remember(segment, upper)
                return self._span(segment, position, available, wait=wait)
        return self._search(segments, offset, max_bytes, upper, at_least_one=at_least_one, wait=wait)

    def _search(
        self,
        segments: Sequence[Segment],
        offset: int,
        max_bytes: int,
        upper: LogPosition,
        *,
        at_least_one: bool,
        wait: bool,
    ) -> FileSpan | None:
        if not wait and (usual := self._usual(segments, offset, max_bytes, upper, at_least_one)) is not None:
            return usual if usual.length else None
        found = find_batch(segments, offset, upper, wait=wait)
        if found is None:
            return None
        segment, (position, header) = found
        available = readable_end(segment, upper) - position
        length = min(max_bytes, available)
        if length < header.size:
            if not at_least_one:
                return None
            length = header.size
        if length == available and not wait:
            self._remember(segment, upper)
        return self._span(segment, position, length, wait=wait)

    def _usual(
        self, segments: Sequence[Segment], offset: int, max_bytes: int, upper: LogPosition, at_least_one: bool
    ) -> FileSpan | None:
        """What `_search` does for nearly all fetches, in one call into C; None: it has to do it itself."""
        segment = segments[max(0, segment_at(segments, offset))]
        if not segment.indexes_are_checked:
            return None
        file, end = segment.file(), readable_end(segment, upper)
        found = segment.offset_index.find_span(file.fd, offset, end, max_bytes, at_least_one, _probed_below(segment))
        if found is None:
            return None
        position, length = found
        if position + length == end:
            self._remember(segment, upper)
        return FileSpan(file, position, length)

    def _span(self, segment: Segment, position: int, length: int, *, wait: bool) -> FileSpan:
        span = FileSpan(segment.file(), position, length)
        if wait:
            warm(span)
        elif position < _probed_below(segment):
            probe(span)
        return span

    def _remember(self, segment: Segment, upper: LogPosition) -> None:
        """A reader that has everything below `upper` will ask for `upper` next."""
        if segment.base_offset == upper.segment_base_offset:
            places = self._places
            places[upper.offset] = (segment, upper.position)
            if len(places) > _MAX_PLACES:
                del places[next(iter(places))]


def _probed_below(segment: Segment) -> int:
    """What begins at this position or behind it is in the page cache."""
    return max(segment.warm_from, segment.size - _HOT_TAIL_BYTES) if segment.is_active else segment.size


def find_batch(
    segments: Sequence[Segment], offset: int, upper: LogPosition, *, wait: bool
) -> tuple[Segment, LocatedBatch] | None:
    """The first batch below `upper` that ends at or after `offset`, in whatever segment it is."""
    for segment in segments[max(0, segment_at(segments, offset)) :]:
        if segment.base_offset > upper.segment_base_offset:
            return None
        # Compaction may have left nothing in a segment: what is asked for is then in one behind it.
        batch = segment.locate(offset, readable_end(segment, upper), wait=wait)
        if batch is not None:
            return segment, batch
    return None


def storage_error(error: OSError | CorruptSegment) -> BrokerError:
    """Reads that fail: a segment that retention took meanwhile, or a disk that does not give its bytes."""
    if isinstance(error, FileNotFoundError):
        return BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, "the segment was deleted while it was read")
    return BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log cannot be read: {error}")


class _StorageErrors:
    """What the disk and damaged files raise, as what a client is told. Every fetch comes through `read`, which does
    without.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | CorruptSegment):
            raise storage_error(error) from error


_STORAGE_ERRORS = _StorageErrors()


def storage_errors() -> _StorageErrors:
    return _STORAGE_ERRORS
