"""Reading a segment that nobody vouches for, as fast as the page cache gives it.

Only what passes every check is given out, and everything stops at the first that does not: zeros are no batch, a length
that leads beyond the file is none, and neither is one whose CRC or whose offset is wrong.

Offsets are under no CRC. One that leaves a gap is right where the topic is compacted, or was once, damage elsewhere;
what comes next tells, so that without compaction only the very last batch of a log may not follow a gap.
"""

from __future__ import annotations

from collections.abc import Iterator

from crc32c_rs import crc32c

from penstock.protocol.batch import CRC_START, HEADER_BYTES, MAGIC, MAGIC_AT, BatchHeader, read_header, sound_batches
from penstock.storage.log_file import LogFile, ReadAhead
from penstock.storage.segment import CorruptSegment, LocatedBatch, Segment

_CHUNK_BYTES = 4 * 1024 * 1024
_OFFSET_BYTES = 8
# Of offsets between two batches; a number that happens to stand where one could is hardly ever that close.
_LARGEST_GAP = 1 << 32


def sound_batches_of(
    segment: Segment, ahead: ReadAhead, recovery_point: int, following_base_offset: int | None, *, is_compacted: bool
) -> Iterator[LocatedBatch]:
    """The segment's batches up to the first bad one. Below the recovery point CRCs are not computed again."""
    file = segment.file()
    next_offset = segment.base_offset
    position = 0
    for batch in _flushed_batches(segment, ahead, recovery_point):
        if batch.header.base_offset < next_offset:
            return
        yield batch
        position, next_offset = batch.position + batch.header.size, batch.header.next_offset
    for batch in checked_batches(file, position, segment.size):
        header = batch.header
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            return
        if header.base_offset > next_offset and not is_compacted:
            end = batch.position + header.size
            after = following_base_offset if end == segment.size else _base_offset_at(file, end, segment.size)
            if after is None or after < header.next_offset:
                return
        yield batch
        next_offset = header.next_offset


def _flushed_batches(segment: Segment, ahead: ReadAhead, recovery_point: int) -> Iterator[LocatedBatch]:
    try:
        for batch in segment.walk(0, segment.size, wait=True, file=ahead):
            if batch.header.next_offset > recovery_point:
                return
            yield batch
    except CorruptSegment:
        return


def _base_offset_at(file: LogFile, position: int, size: int) -> int | None:
    """Of the batch at `position`, None if there is none."""
    raw = file.read(HEADER_BYTES, position)
    if len(raw) < HEADER_BYTES:
        return None
    header = read_header(raw)
    is_batch = header.magic == MAGIC and HEADER_BYTES <= header.size <= size - position
    return header.base_offset if is_batch else None


def checked_batches(file: LogFile, position: int, size: int) -> Iterator[LocatedBatch]:
    """Those between the two positions, up to the first without its length or its CRC."""
    buffer = bytearray(min(_CHUNK_BYTES, max(size - position, 0)))
    with memoryview(buffer) as view:
        while position < size:
            read = file.read_into(view[: size - position], position)
            consumed = 0
            for at, header in sound_batches(view, 0, read):
                consumed = at + header.size
                yield LocatedBatch(position + at, header)
            if consumed == 0:
                large = _large_batch(file, view[:read], position, size)
                if large is None:
                    return
                consumed = large.size
                yield LocatedBatch(position, large)
            position += consumed


def is_torn(segment: Segment, position: int) -> bool:
    """Whether the file ends inside what begins at `position`, and not just by a length that is damaged."""
    remaining = segment.size - position
    if remaining < HEADER_BYTES:
        return True
    file = segment.file()
    header = read_header(file.read(HEADER_BYTES, position))
    if header.magic != MAGIC or header.size <= remaining:
        return False
    return not _is_whole(file.read(min(remaining, _CHUNK_BYTES), position), header)


def _is_whole(raw: bytes | bytearray, header: BatchHeader) -> bool:
    """Whether the batch has its CRC if it ends where another one may begin, or with what there is."""
    crc, at = 0, CRC_START
    for end in (*_possible_ends(raw, header), len(raw)):
        crc = crc32c(raw[at:end], crc)
        if crc == header.crc:
            return True
        at = end
    return False


def _possible_ends(raw: bytes | bytearray, header: BatchHeader) -> Iterator[int]:
    """Where the magic byte and an offset of a batch stand that could be the next one, gaps of compaction included."""
    magic = raw.find(MAGIC, HEADER_BYTES + MAGIC_AT)
    while magic >= 0:
        start = magic - MAGIC_AT
        base_offset = int.from_bytes(raw[start : start + _OFFSET_BYTES], "big", signed=True)
        if 0 <= base_offset - header.next_offset < _LARGEST_GAP:
            yield start
        magic = raw.find(MAGIC, magic + 1)


def _large_batch(file: LogFile, chunk: memoryview, position: int, size: int) -> BatchHeader | None:
    """A sound batch that is larger than the chunk it starts in."""
    if len(chunk) < HEADER_BYTES:
        return None
    header = read_header(chunk)
    if header.magic != MAGIC or not len(chunk) < header.size <= size - position:
        return None
    crc = crc32c(chunk[CRC_START:])
    end = position + header.size
    at = position + len(chunk)
    while at < end:
        piece = file.read(min(_CHUNK_BYTES, end - at), at)
        if not piece:
            return None
        crc = crc32c(piece, crc)
        at += len(piece)
    return header if crc == header.crc else None
