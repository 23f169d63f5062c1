# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Where in a segment's file a fetch finds its bytes, in C: an index looked up, a header or two read, pages probed.

It gives up whenever anything is out of the ordinary, and `Segment.locate` and `probe` find out what. Every read says
RWF_NOWAIT, so none waits for a disk, and the interpreter's lock is kept: to give it up for a read of the page cache
costs more than the read.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t preadv2(int descriptor, const iovec *pieces, int count, int64_t position, int flags)
    int RWF_NOWAIT

ctypedef const unsigned char* Bytes

cdef enum:
    ENTRY_BYTES = 8
    HEADER_BYTES = 61
    LENGTH_END = 12
    MAGIC = 2
    CHUNK_BYTES = 8192
    MAX_READS = 16
    PROBE_STEP_BYTES = 128 * 1024

cdef struct Entry:
    int64_t last_offset
    int64_t position

cdef struct Batch:
    int64_t position
    int64_t size
    int64_t base_offset
    int64_t last_offset


cdef inline int32_t read_i32(Bytes at) noexcept nogil:
    return <int32_t>(<uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3])


cdef inline int64_t read_i64(Bytes at) noexcept nogil:
    return <int64_t>(<uint64_t><uint32_t>read_i32(at) << 32 | <uint32_t>read_i32(at + 4))


cdef Entry entry_at(Bytes index, int64_t slot, int64_t base_offset) noexcept nogil:
    cdef Entry entry
    entry.last_offset = base_offset + read_i32(index + slot * ENTRY_BYTES)
    entry.position = read_i32(index + slot * ENTRY_BYTES + 4)
    return entry


cdef int64_t slot_before(Bytes index, int64_t count, int64_t relative) noexcept nogil:
    """The last entry whose offset is at most this one, -1 if there is none."""
    cdef int64_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) // 2
        if read_i32(index + middle * ENTRY_BYTES) <= relative:
            low = middle + 1
        else:
            high = middle
    return low - 1


cdef ssize_t read_cached(int descriptor, void *buffer, size_t size, int64_t position) noexcept nogil:
    cdef iovec piece
    piece.iov_base = buffer
    piece.iov_len = size
    return preadv2(descriptor, &piece, 1, position, RWF_NOWAIT)


cdef bint read_batch(Bytes header, int64_t position, int64_t end, Batch *batch) noexcept nogil:
    """False when there is none."""
    cdef int64_t delta = read_i32(header + 23)
    batch.position = position
    batch.size = <int64_t>read_i32(header + 8) + LENGTH_END
    batch.base_offset = read_i64(header)
    batch.last_offset = batch.base_offset + delta
    return header[16] == MAGIC and delta >= 0 and HEADER_BYTES <= batch.size <= end - position


cdef bint is_large_batch(int descriptor, Entry entry, int64_t offset, int64_t end, Batch *batch) noexcept nogil:
    """Whether the batch that an entry points to is the one: large batches have an entry each."""
    cdef unsigned char header[HEADER_BYTES]
    return (
        entry.position + HEADER_BYTES <= end
        and read_cached(descriptor, header, HEADER_BYTES, entry.position) == HEADER_BYTES
        and read_batch(header, entry.position, end, batch)
        and batch.last_offset == entry.last_offset
        and batch.base_offset <= offset
    )


cdef bint walk(
    int descriptor, int64_t position, int64_t end, int64_t offset, int64_t first_ends_with, Batch *batch
) noexcept nogil:
    """The first batch from `position` on that ends at or after `offset`. -1: whatever the first one ends with."""
    cdef unsigned char chunk[CHUNK_BYTES]
    cdef int64_t start = position, size = 0, wanted
    cdef int reads = 0
    while position < end:
        if position + HEADER_BYTES > start + size:
            wanted = end - position
            size = read_cached(descriptor, chunk, CHUNK_BYTES if wanted > CHUNK_BYTES else wanted, position)
            start = position
            reads += 1
            if size < HEADER_BYTES or reads > MAX_READS:
                return False
        if not read_batch(chunk + position - start, position, end, batch):
            return False
        if first_ends_with >= 0 and batch.last_offset != first_ends_with:
            return False
        first_ends_with = -1
        if batch.last_offset >= offset:
            return True
        position += batch.size
    return False


cdef bint find(int descriptor, Bytes index, int64_t count, int64_t base_offset, int64_t offset, int64_t end, Batch *batch) noexcept nogil:
    cdef int64_t slot = slot_before(index, count, offset - base_offset)
    cdef Entry before, following
    before.last_offset = -1
    before.position = 0
    if slot >= 0:
        before = entry_at(index, slot, base_offset)
        if before.position >= end:
            return False
    if slot + 1 < count:
        following = entry_at(index, slot + 1, base_offset)
        if following.position - before.position >= CHUNK_BYTES:
            if is_large_batch(descriptor, following, offset, end, batch):
                return True
    return walk(descriptor, before.position, end, offset, before.last_offset, batch)


cdef bint is_cached(int descriptor, int64_t position, int64_t length) noexcept nogil:
    """By samples: one in each readahead window, and the last byte."""
    cdef unsigned char byte
    cdef int64_t last = position + length - 1
    while position < last:
        if read_cached(descriptor, &byte, 1, position) != 1:
            return False
        position += PROBE_STEP_BYTES
    return read_cached(descriptor, &byte, 1, last) == 1


def find_span(
    int descriptor,
    index,
    int64_t count,
    int64_t base_offset,
    int64_t offset,
    int64_t end,
    int64_t max_bytes,
    bint at_least_one,
    int64_t probed_below,
):
    """(position, length) of what is to be read from `offset` on, below `end`; a length of 0: the first batch is longer
    than `max_bytes` and need not be given. None: the general way is to find it, or to say why it cannot.

    `index` holds `count` entries of a segment that begins with `base_offset`. Bytes that begin below `probed_below` may
    not be in the page cache.
    """
    cdef Py_buffer view
    cdef Batch batch
    cdef int64_t length
    cdef bint found
    if offset < base_offset:
        return None
    PyObject_GetBuffer(index, &view, PyBUF_SIMPLE)
    if count > view.len // ENTRY_BYTES:
        count = view.len // ENTRY_BYTES
    found = find(descriptor, <Bytes>view.buf, count, base_offset, offset, end, &batch)
    PyBuffer_Release(&view)
    if not found:
        return None
    length = end - batch.position
    if length > max_bytes:
        length = max_bytes
    if length < batch.size:
        length = batch.size if at_least_one else 0
    if length > 0 and batch.position < probed_below and not is_cached(descriptor, batch.position, length):
        return None
    return batch.position, length
