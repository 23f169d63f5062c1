# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The record kernel in C, some nanoseconds a record; `_pure` is its specification and gives it types and words.

Pointers are never moved past `end`: each read first compares with what is left. Sections of a megabyte and more are
walked without the GIL, smaller ones with it, since giving it up costs more than the walk.
"""

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from array import array as python_array

from penstock.protocol.records import _pure
from penstock.protocol.records._pure import InvalidRecords, RecordsInfo

ctypedef const unsigned char* Bytes

cdef enum:
    RELEASE_GIL_BYTES = 1 << 20
    MIN_RECORD_BYTES = 7
    SPAN_FIELDS = 8

cdef enum Reason:
    SOUND
    ENDS_EARLY
    FIELD_CUT
    VARINT_TOO_LONG
    LENGTH_WRONG
    KEY_WRONG
    VALUE_WRONG
    HEADERS_WRONG
    HEADER_KEY_WRONG
    HEADER_VALUE_WRONG
    BYTES_LEFT_IN_RECORD
    OFFSET_NOT_NEXT
    TIMESTAMP_OVERFLOW
    BYTES_LEFT_IN_BATCH

cdef tuple REASONS = (
    None,
    _pure.ENDS_EARLY,
    _pure.FIELD_CUT,
    _pure.VARINT_TOO_LONG,
    _pure.LENGTH_WRONG,
    _pure.KEY_WRONG,
    _pure.VALUE_WRONG,
    _pure.HEADERS_WRONG,
    _pure.HEADER_KEY_WRONG,
    _pure.HEADER_VALUE_WRONG,
    _pure.BYTES_LEFT_IN_RECORD,
    _pure.OFFSET_NOT_NEXT,
    _pure.TIMESTAMP_OVERFLOW,
    _pure.BYTES_LEFT_IN_BATCH,
)

cdef array.array ROWS = python_array("q")
cdef object new_tuple = tuple.__new__

cdef struct Row:
    int64_t offset_delta
    int64_t timestamp_delta
    int64_t key_start
    int64_t key_length
    int64_t value_start
    int64_t value_length
    int64_t headers_start
    int64_t headers_count

cdef struct Info:
    int64_t min_timestamp
    int64_t max_timestamp
    int64_t delta_of_min
    int64_t delta_of_max
    int64_t first_without_key
    int64_t index  # of the record that is wrong


cdef Reason read_long_varint(Bytes* at, Bytes end, int max_bytes, int max_last, int64_t* out) noexcept nogil:
    cdef uint64_t value = 0
    cdef unsigned char byte
    cdef int position
    for position in range(max_bytes):
        if at[0] >= end:
            return FIELD_CUT
        byte = at[0][0]
        at[0] += 1
        value |= <uint64_t>(byte & 0x7F) << (7 * position)
        if byte < 0x80:
            if position == max_bytes - 1 and byte > max_last:
                return VARINT_TOO_LONG
            out[0] = <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
            return SOUND
    return VARINT_TOO_LONG


cdef inline Reason read_short_varint(Bytes* at, Bytes end, int max_bytes, int max_last, int64_t* out) noexcept nogil:
    """Nearly all varints have one or two bytes: those without a loop."""
    cdef Bytes start = at[0]
    cdef int64_t value
    if end - start >= 2:
        value = start[0]
        if value < 0x80:
            at[0] = start + 1
            out[0] = (value >> 1) ^ -(value & 1)
            return SOUND
        if start[1] < 0x80:
            value = (value & 0x7F) | (<int64_t>start[1] << 7)
            at[0] = start + 2
            out[0] = (value >> 1) ^ -(value & 1)
            return SOUND
    return read_long_varint(at, end, max_bytes, max_last, out)


cdef inline Reason read_varint(Bytes* at, Bytes end, int64_t* out) noexcept nogil:
    return read_short_varint(at, end, 5, 0x0F, out)


cdef inline Reason read_varlong(Bytes* at, Bytes end, int64_t* out) noexcept nogil:
    return read_short_varint(at, end, 10, 0x01, out)


cdef inline Reason read_span(
    Bytes* at, Bytes end, int64_t at_least, Reason wrong, Bytes* start, int64_t* length
) noexcept nogil:
    cdef Reason reason = read_varint(at, end, length)
    if reason != SOUND:
        return reason
    if length[0] < at_least or length[0] > end - at[0]:
        return wrong
    start[0] = at[0]
    if length[0] > 0:
        at[0] += length[0]
    return SOUND


cdef Reason skip_headers(Bytes* at, Bytes end, int64_t count) noexcept nogil:
    cdef Reason reason
    cdef Bytes start
    cdef int64_t length
    while count > 0:
        reason = read_span(at, end, 0, HEADER_KEY_WRONG, &start, &length)
        if reason != SOUND:
            return reason
        reason = read_span(at, end, -1, HEADER_VALUE_WRONG, &start, &length)
        if reason != SOUND:
            return reason
        count -= 1
    return SOUND


cdef inline Reason read_record(Bytes section, Bytes* next_record, Bytes section_end, Row* row) noexcept nogil:
    cdef Bytes at = next_record[0]
    cdef Bytes end
    cdef Bytes start
    cdef int64_t length
    cdef Reason reason
    if at >= section_end:
        return ENDS_EARLY
    reason = read_varint(&at, section_end, &length)
    if reason != SOUND:
        return reason
    if length < 0 or length > section_end - at:
        return LENGTH_WRONG
    if length == 0:
        return FIELD_CUT
    end = at + length
    at += 1  # attributes
    reason = read_varlong(&at, end, &row.timestamp_delta)
    if reason != SOUND:
        return reason
    reason = read_varint(&at, end, &row.offset_delta)
    if reason != SOUND:
        return reason
    reason = read_span(&at, end, -1, KEY_WRONG, &start, &row.key_length)
    if reason != SOUND:
        return reason
    row.key_start = start - section
    reason = read_span(&at, end, -1, VALUE_WRONG, &start, &row.value_length)
    if reason != SOUND:
        return reason
    row.value_start = start - section
    reason = read_varint(&at, end, &row.headers_count)
    if reason != SOUND:
        return reason
    if row.headers_count < 0 or row.headers_count > end - at:
        return HEADERS_WRONG
    row.headers_start = at - section
    if row.headers_count > 0:
        reason = skip_headers(&at, end, row.headers_count)
        if reason != SOUND:
            return reason
    if at != end:
        return BYTES_LEFT_IN_RECORD
    next_record[0] = end  # not `at`: the processor may begin the next record before it is through with this one
    return SOUND


cdef inline bint overflows(int64_t base, int64_t delta) noexcept nogil:
    if delta >= 0:
        return base > INT64_MAX - delta
    return base < INT64_MIN - delta


cdef Reason walk_validating(Bytes section, Py_ssize_t size, int64_t count, int64_t base_timestamp, Info* info) noexcept nogil:
    cdef Bytes at = section
    cdef Bytes end = section + size
    cdef Row row
    cdef Reason reason
    cdef int64_t timestamp
    info.min_timestamp = INT64_MAX
    info.max_timestamp = INT64_MIN
    info.delta_of_min = info.delta_of_max = 0
    info.first_without_key = -1
    info.index = 0
    while info.index < count:
        reason = read_record(section, &at, end, &row)
        if reason != SOUND:
            return reason
        if row.offset_delta != info.index:
            return OFFSET_NOT_NEXT
        if overflows(base_timestamp, row.timestamp_delta):
            return TIMESTAMP_OVERFLOW
        timestamp = base_timestamp + row.timestamp_delta
        if timestamp > info.max_timestamp:
            info.max_timestamp = timestamp
            info.delta_of_max = info.index
        if timestamp < info.min_timestamp and timestamp != -1:
            info.min_timestamp = timestamp
            info.delta_of_min = info.index
        if row.key_length < 0 and info.first_without_key < 0:
            info.first_without_key = info.index
        info.index += 1
    if at != end:
        info.index -= 1
        return BYTES_LEFT_IN_BATCH
    return SOUND


cdef Reason walk_rows(Bytes section, Py_ssize_t size, int64_t count, Row* rows, int64_t* index) noexcept nogil:
    """Writes at most size / MIN_RECORD_BYTES rows: after so many records too little is left for one more."""
    cdef Bytes at = section
    cdef Bytes end = section + size
    cdef Row row
    cdef Reason reason
    index[0] = 0
    while index[0] < count:
        reason = read_record(section, &at, end, &row)
        if reason != SOUND:
            return reason
        rows[index[0]] = row
        index[0] += 1
    if at != end:
        index[0] -= 1
        return BYTES_LEFT_IN_BATCH
    return SOUND


def validate(records, int64_t count, int64_t base_timestamp):
    cdef Py_buffer view
    cdef Info info
    cdef Reason reason
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    if view.len >= RELEASE_GIL_BYTES:
        with nogil:
            reason = walk_validating(<Bytes>view.buf, view.len, count, base_timestamp, &info)
    else:
        reason = walk_validating(<Bytes>view.buf, view.len, count, base_timestamp, &info)
    PyBuffer_Release(&view)
    if reason != SOUND:
        raise InvalidRecords(info.index, REASONS[reason])
    if info.min_timestamp == INT64_MAX:
        info.min_timestamp = -1
    if count <= 0:
        info.max_timestamp = -1
    return new_tuple(
        RecordsInfo,
        (info.min_timestamp, info.max_timestamp, info.delta_of_min, info.delta_of_max, info.first_without_key),
    )


def spans(records, int64_t count):
    cdef Py_buffer view
    cdef array.array rows
    cdef Row* first
    cdef Reason reason
    cdef int64_t index
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        rows = array.clone(ROWS, SPAN_FIELDS * max(0, min(count, view.len // MIN_RECORD_BYTES)), zero=False)
        first = <Row*>rows.data.as_voidptr
        if view.len >= RELEASE_GIL_BYTES:
            with nogil:
                reason = walk_rows(<Bytes>view.buf, view.len, count, first, &index)
        else:
            reason = walk_rows(<Bytes>view.buf, view.len, count, first, &index)
    finally:
        PyBuffer_Release(&view)
    if reason != SOUND:
        raise InvalidRecords(index, REASONS[reason])
    return rows


cdef list read_headers(Bytes at, Bytes end, int64_t count):
    cdef Bytes key
    cdef Bytes value
    cdef int64_t key_length
    cdef int64_t value_length
    cdef Reason reason
    cdef list headers = []
    while count > 0:
        reason = read_span(&at, end, 0, HEADER_KEY_WRONG, &key, &key_length)
        if reason == SOUND:
            reason = read_span(&at, end, -1, HEADER_VALUE_WRONG, &value, &value_length)
        if reason != SOUND:
            raise InvalidRecords(-1, REASONS[reason])
        headers.append((
            PyUnicode_DecodeUTF8(<const char*>key, key_length, "replace"),
            None if value_length < 0 else PyBytes_FromStringAndSize(<const char*>value, value_length),
        ))
        count -= 1
    return headers


def headers_of(records, int64_t start, int64_t count):
    cdef Py_buffer view
    cdef Bytes section
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or start > view.len or count < 0 or count > view.len - start:
            raise InvalidRecords(-1, REASONS[HEADERS_WRONG])
        section = <Bytes>view.buf
        return read_headers(section + start, section + view.len, count)
    finally:
        PyBuffer_Release(&view)


cdef Reason walk_to_timestamp(
    Bytes section, Py_ssize_t size, int64_t count, int64_t base_timestamp, int64_t target_ms, Row* row, int64_t* index
) noexcept nogil:
    """Stops at the first record at or after `target_ms`; `index` is `count` when there is none."""
    cdef Bytes at = section
    cdef Reason reason
    index[0] = 0
    while index[0] < count:
        reason = read_record(section, &at, section + size, row)
        if reason != SOUND:
            return reason
        if overflows(base_timestamp, row.timestamp_delta):
            return TIMESTAMP_OVERFLOW
        if base_timestamp + row.timestamp_delta >= target_ms:
            return SOUND
        index[0] += 1
    return SOUND


def find_timestamp(records, int64_t count, int64_t base_offset, int64_t base_timestamp, int64_t target_ms):
    cdef Py_buffer view
    cdef Row row
    cdef Reason reason
    cdef int64_t index
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    reason = walk_to_timestamp(<Bytes>view.buf, view.len, count, base_timestamp, target_ms, &row, &index)
    PyBuffer_Release(&view)
    if reason != SOUND:
        raise InvalidRecords(index, REASONS[reason])
    if index >= count:
        return None
    return base_offset + row.offset_delta, base_timestamp + row.timestamp_delta


cdef class Writer:
    """Bytes that grow; the memory goes with the object."""

    cdef unsigned char* data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        free(self.data)

    cdef int reserve(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t capacity
        cdef unsigned char* data
        if self.size + more > self.capacity:
            capacity = max(2 * self.capacity, self.size + more, 1024)
            data = <unsigned char*>realloc(self.data, capacity)
            if data == NULL:
                raise MemoryError
            self.data = data
            self.capacity = capacity
        return 0

    cdef int varint(self, int64_t value) except -1:
        cdef uint64_t raw = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
        self.reserve(10)
        while raw > 0x7F:
            self.data[self.size] = (raw & 0x7F) | 0x80
            self.size += 1
            raw >>= 7
        self.data[self.size] = <unsigned char>raw
        self.size += 1
        return 0

    cdef int raw(self, const void* source, Py_ssize_t size) except -1:
        self.reserve(size)
        if size > 0:
            memcpy(self.data + self.size, source, size)
        self.size += size
        return 0

    cdef int nullable(self, bytes value) except -1:
        if value is None:
            return self.varint(-1)
        self.varint(PyBytes_GET_SIZE(value))
        return self.raw(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))


cdef int write_body(Writer body, record, int64_t base_timestamp, int64_t offset_delta) except -1:
    key, value, headers, timestamp = record
    body.size = 0
    body.varint(0)  # attributes
    body.varint(timestamp - base_timestamp)
    body.varint(offset_delta)
    body.nullable(key)
    body.nullable(value)
    body.varint(len(headers))
    for header_key, header_value in headers:
        body.nullable((<str?>header_key).encode())
        body.nullable(header_value)
    return 0


def encode_records(records, int64_t base_timestamp):
    cdef Writer section = Writer()
    cdef Writer body = Writer()
    cdef int64_t offset_delta = 0
    for record in records:
        write_body(body, record, base_timestamp, offset_delta)
        section.varint(body.size)
        section.raw(body.data, body.size)
        offset_delta += 1
    return PyByteArray_FromStringAndSize(<char*>section.data, section.size)
