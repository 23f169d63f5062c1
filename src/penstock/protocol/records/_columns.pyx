# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records as columns in C; `_pure_columns` is the specification and gives types and words.

One walk copies as it reads, into memory that grows and is handed out as it is.

Sections of a megabyte and more are walked without the GIL, smaller ones with it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from penstock.protocol.records._pure import InvalidRecords
from penstock.protocol.records._pure_columns import MAX_COLUMN, Binary, Headers, Taken, too_much

include "_reading.pxi"
include "_growing.pxi"
include "_handing.pxi"

cdef enum:
    RELEASE_GIL_BYTES = 1 << 20
    LOG_APPEND_TIME_BIT = 0x08

# What a walk may end with besides a Reason.
cdef enum:
    FULL = -1
    NO_MEMORY = -2

cdef struct Column:
    Growing bits  # of the entries up to the last null, 0 where it is null
    Growing ends
    Growing data
    int64_t entries
    int64_t nulls

cdef struct Extent:
    int64_t entries
    int64_t nulls
    int64_t data_size

cdef struct Extents:
    int64_t rows
    Extent keys
    Extent values
    Extent header_keys
    Extent header_values

cdef struct Batch:
    int64_t base_offset
    int64_t max_offset_delta
    int64_t base_timestamp
    int64_t max_timestamp
    bint is_log_append_time
    int64_t count
    int64_t first_offset
    int64_t end_offset


cdef inline bint put_int64(Growing* buffer, int64_t value) noexcept nogil:
    if not grow(buffer, 8):
        return False
    (<int64_t*>(buffer.data + buffer.size))[0] = value
    buffer.size += 8
    return True


cdef bint enlarge_ends(Growing* ends) noexcept nogil:
    """The first end follows the 0 where the first entry begins."""
    if not enlarge(ends, 8):
        return False
    if ends.size == 0:
        (<int32_t*>ends.data)[0] = 0
        ends.size = 4
    return True


cdef inline bint put_end(Growing* ends, int64_t end) noexcept nogil:
    if ends.size + 4 > ends.capacity and not enlarge_ends(ends):
        return False
    (<int32_t*>(ends.data + ends.size))[0] = <int32_t>end
    ends.size += 4
    return True


cdef bint extend_bits(Column* column, int64_t entries) noexcept nogil:
    cdef int64_t more = (entries + 7) // 8 - column.bits.size
    if more > 0:
        if not grow(&column.bits, more):
            return False
        memset(column.bits.data + column.bits.size, 0xFF, more)
        column.bits.size += more
    return True


cdef inline int put(Column* column, Bytes start, int64_t length, int64_t limit) noexcept nogil:
    """FULL, NO_MEMORY or SOUND; a length of -1 is null."""
    if column.entries >= limit or length > limit - column.data.size:
        return FULL
    if length > 0:
        if not grow(&column.data, length):
            return NO_MEMORY
        memcpy(column.data.data + column.data.size, start, length)
        column.data.size += length
    elif length < 0:
        if not extend_bits(column, column.entries + 1):
            return NO_MEMORY
        column.bits.data[column.entries >> 3] &= ~(1 << (column.entries & 7))
        column.nulls += 1
    if not put_end(&column.ends, column.data.size):
        return NO_MEMORY
    column.entries += 1
    return SOUND


cdef inline Extent extent_of(Column* column) noexcept nogil:
    cdef Extent extent
    extent.entries = column.entries
    extent.nulls = column.nulls
    extent.data_size = column.data.size
    return extent


cdef inline void cut_ends(Growing* ends, int64_t entries) noexcept nogil:
    ends.size = min(ends.size, 4 * (entries + 1))


cdef void cut(Column* column, Extent extent) noexcept nogil:
    column.entries = extent.entries
    column.nulls = extent.nulls
    column.data.size = extent.data_size
    cut_ends(&column.ends, extent.entries)
    column.bits.size = min(column.bits.size, (extent.entries + 7) // 8)
    if column.bits.size * 8 > extent.entries:
        column.bits.data[extent.entries >> 3] |= 0xFF << (extent.entries & 7) & 0xFF


cdef void drop_column(Column* column) noexcept nogil:
    free(column.bits.data)
    free(column.ends.data)
    free(column.data.data)
    memset(column, 0, sizeof(Column))


cdef object hand_out_ends(Growing* ends):
    if ends.size == 0 and not enlarge_ends(ends):
        raise MemoryError
    return hand_out(ends)


cdef object hand_out_column(Column* column):
    validity = None
    if column.nulls:
        if not extend_bits(column, column.entries):
            raise MemoryError
        if column.entries & 7:
            column.bits.data[column.entries >> 3] &= (1 << (column.entries & 7)) - 1
        validity = hand_out(&column.bits)
    binary = Binary(validity, hand_out_ends(&column.ends), hand_out(&column.data))
    drop_column(column)
    return binary


cdef bint is_utf8(Bytes at, int64_t length) noexcept nogil:
    """As Python has it: the shortest form only, and no surrogates."""
    cdef Bytes end = at + length
    cdef unsigned char lead, low, high
    cdef int more, position
    while at < end:
        lead = at[0]
        if lead < 0x80:
            at += 1
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        if end - at <= more:
            return False
        low = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
        high = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
        if at[1] < low or at[1] > high:
            return False
        for position in range(2, more + 1):
            if at[position] & 0xC0 != 0x80:
                return False
        at += more + 1
    return True


cdef int put_replaced(Column* column, Bytes start, int64_t length, int64_t limit) noexcept with gil:
    """A string that is not UTF-8, with replacement characters, which make it no shorter."""
    if length > limit - column.data.size:
        return FULL
    try:
        replaced = PyUnicode_DecodeUTF8(<const char*>start, length, "replace").encode()
    except MemoryError:
        return NO_MEMORY
    return put(column, <Bytes>PyBytes_AS_STRING(replaced), PyBytes_GET_SIZE(replaced), limit)


cdef class Columns:
    cdef Growing offsets
    cdef Growing timestamps
    cdef Growing header_ends
    cdef Column keys
    cdef Column values
    cdef Column header_keys
    cdef Column header_values
    cdef int64_t limit
    cdef bint with_headers
    cdef bint is_busy

    def __cinit__(self, *, bint with_headers=True, int64_t limit=MAX_COLUMN):
        if not 0 < limit <= MAX_COLUMN:
            raise ValueError(f"a column's limit is 1 to {MAX_COLUMN}")
        self.with_headers = with_headers
        self.limit = limit

    def __dealloc__(self):
        self.clear()

    cdef void clear(self) noexcept:
        free(self.offsets.data)
        free(self.timestamps.data)
        free(self.header_ends.data)
        drop(&self.offsets)
        drop(&self.timestamps)
        drop(&self.header_ends)
        drop_column(&self.keys)
        drop_column(&self.values)
        drop_column(&self.header_keys)
        drop_column(&self.header_values)

    @property
    def rows(self):
        return self.offsets.size // 8

    @property
    def size(self):
        return self.keys.data.size + self.values.data.size + self.header_keys.data.size + self.header_values.data.size

    cdef Extents extents(self) noexcept nogil:
        cdef Extents extents
        extents.rows = self.offsets.size // 8
        extents.keys = extent_of(&self.keys)
        extents.values = extent_of(&self.values)
        extents.header_keys = extent_of(&self.header_keys)
        extents.header_values = extent_of(&self.header_values)
        return extents

    cdef void cut_to(self, Extents* extents) noexcept nogil:
        self.offsets.size = self.timestamps.size = 8 * extents.rows
        cut_ends(&self.header_ends, extents.rows)
        cut(&self.keys, extents.keys)
        cut(&self.values, extents.values)
        cut(&self.header_keys, extents.header_keys)
        cut(&self.header_values, extents.header_values)

    cdef int put_headers(self, Bytes at, Bytes end, int64_t count) noexcept nogil:
        """Checked once more, so that whoever writes to the section meanwhile does not lead us out of it."""
        cdef Bytes start
        cdef int64_t length
        cdef int outcome
        while count > 0:
            outcome = read_span(&at, end, 0, HEADER_KEY_WRONG, &start, &length)
            if outcome == SOUND:
                if is_utf8(start, length):
                    outcome = put(&self.header_keys, start, length, self.limit)
                else:
                    outcome = put_replaced(&self.header_keys, start, length, self.limit)
            if outcome == SOUND:
                outcome = read_span(&at, end, -1, HEADER_VALUE_WRONG, &start, &length)
            if outcome == SOUND:
                outcome = put(&self.header_values, start, length, self.limit)
            if outcome != SOUND:
                return outcome
            count -= 1
        return SOUND

    cdef inline int put_row(self, Bytes section, Bytes end, Row* row, int64_t offset, int64_t timestamp) noexcept nogil:
        cdef int outcome = put(&self.keys, section + row.key_start, row.key_length, self.limit)
        if outcome == SOUND:
            outcome = put(&self.values, section + row.value_start, row.value_length, self.limit)
        if outcome == SOUND and self.with_headers:
            if row.headers_count > 0:
                outcome = self.put_headers(section + row.headers_start, end, row.headers_count)
            if outcome == SOUND and not put_end(&self.header_ends, self.header_keys.entries):
                outcome = NO_MEMORY
        if outcome != SOUND:
            return outcome
        if not put_int64(&self.offsets, offset) or not put_int64(&self.timestamps, timestamp):
            return NO_MEMORY
        return SOUND

    cdef int walk(self, Bytes section, int64_t size, Batch* batch, int64_t* index) noexcept nogil:
        """A Reason, FULL or NO_MEMORY."""
        cdef Bytes at = section
        cdef Bytes end = section + size
        cdef Row row
        cdef int outcome
        cdef int64_t previous = -1, offset, timestamp = batch.max_timestamp
        index[0] = 0
        while index[0] < batch.count:
            outcome = read_record(section, &at, end, &row)
            if outcome != SOUND:
                return outcome
            if row.offset_delta <= previous or row.offset_delta > batch.max_offset_delta:
                return OFFSET_WRONG
            previous = row.offset_delta
            offset = batch.base_offset + row.offset_delta
            if not batch.is_log_append_time:
                if overflows(batch.base_timestamp, row.timestamp_delta):
                    return TIMESTAMP_OVERFLOW
                timestamp = batch.base_timestamp + row.timestamp_delta
            if batch.first_offset <= offset < batch.end_offset:
                outcome = self.put_row(section, at, &row, offset, timestamp)
                if outcome != SOUND:
                    return outcome
            index[0] += 1
        if at != end:
            index[0] -= 1
            return BYTES_LEFT_IN_BATCH
        return SOUND

    cdef int walk_or_undo(self, Bytes section, int64_t size, Batch* batch, int64_t* index) noexcept nogil:
        cdef Extents extents = self.extents()
        cdef int outcome = self.walk(section, size, batch, index)
        if outcome != SOUND:
            self.cut_to(&extents)
        return outcome

    cdef int be_alone(self) except -1:
        if self.is_busy:
            raise RuntimeError("another thread is adding to these columns")
        return 0

    def add(self, section, header, int64_t first_offset, int64_t end_offset):
        cdef Py_buffer view
        cdef Batch batch
        cdef int64_t index
        cdef int outcome
        batch_of(header, &batch)
        batch.first_offset = first_offset
        batch.end_offset = end_offset
        PyObject_GetBuffer(section, &view, PyBUF_SIMPLE)
        try:
            self.be_alone()
            self.is_busy = True
            if view.len >= RELEASE_GIL_BYTES:
                with nogil:
                    outcome = self.walk_or_undo(<Bytes>view.buf, view.len, &batch, &index)
            else:
                outcome = self.walk_or_undo(<Bytes>view.buf, view.len, &batch, &index)
            self.is_busy = False
        finally:
            PyBuffer_Release(&view)
        if outcome == FULL:
            raise too_much(self.limit)
        if outcome == NO_MEMORY:
            raise MemoryError
        if outcome != SOUND:
            raise InvalidRecords(index, REASONS[outcome])

    def take(self):
        self.be_alone()
        rows = self.offsets.size // 8
        try:
            headers = None
            if self.with_headers:
                headers = Headers(
                    hand_out_ends(&self.header_ends),
                    hand_out_column(&self.header_keys),
                    hand_out_column(&self.header_values),
                )
            return Taken(
                rows,
                hand_out(&self.offsets),
                hand_out(&self.timestamps),
                hand_out_column(&self.keys),
                hand_out_column(&self.values),
                headers,
            )
        except:
            self.clear()  # rather nothing than some columns without the others
            raise


cdef int batch_of(header, Batch* batch) except -1:
    cdef int64_t attributes = header.attributes
    batch.base_offset = header.base_offset
    batch.max_offset_delta = header.last_offset_delta
    if batch.max_offset_delta > 0 and overflows(batch.base_offset, batch.max_offset_delta):
        batch.max_offset_delta = INT64_MAX - batch.base_offset
    batch.base_timestamp = header.base_timestamp
    batch.max_timestamp = header.max_timestamp
    batch.is_log_append_time = attributes & LOG_APPEND_TIME_BIT != 0
    batch.count = header.records_count
    return 0
