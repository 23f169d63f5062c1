# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The record kernel in C, some nanoseconds a record; `_pure` is its specification and gives it types and words. At the
end, the Produce request of the usual shape in one call, for `protocol/produce.py`.

Sections of a megabyte and more are walked without the GIL, smaller ones with it, since giving it up costs more than the
walk.
"""

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from array import array as python_array

from crc32c_rs import crc32c

from penstock.protocol.batch import BatchHeader
from penstock.protocol.records import _pure
from penstock.protocol.records._pure import InvalidRecords, RecordsInfo

include "_reading.pxi"

cdef enum:
    RELEASE_GIL_BYTES = 1 << 20
    SPAN_FIELDS = 8

cdef array.array ROWS = python_array("q")
cdef object new_tuple = tuple.__new__

cdef struct Info:
    int64_t min_timestamp
    int64_t max_timestamp
    int64_t delta_of_min
    int64_t delta_of_max
    int64_t first_without_key
    int64_t index  # of the record that is wrong


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


# The usual Produce request

cdef enum:
    HEADER_BYTES = 61
    CRC_START = 21
    FIRST_FLEXIBLE_VERSION = 9
    LAST_VERSION_WITH_NAMES = 12
    LAST_CODEC = 4


cdef inline bint has(Bytes at, Bytes end, int64_t size) noexcept nogil:
    return end - at >= size


cdef Bytes find_usual_body(Bytes at, Bytes end) noexcept nogil:
    """Behind a flexible request header without tags and a null transactional id; NULL when it is another one."""
    cdef int64_t client_id
    if not has(at, end, 10) or read_integer(at, 2) != 0:
        return NULL
    if not FIRST_FLEXIBLE_VERSION <= read_integer(at + 2, 2) <= LAST_VERSION_WITH_NAMES:
        return NULL
    client_id = read_integer(at + 8, 2)
    if client_id < -1:
        return NULL
    at += 10
    if client_id > 0:
        if not has(at, end, client_id):
            return NULL
        at += client_id
    if not has(at, end, 2) or at[0] != 0 or at[1] != 0:
        return NULL
    return at + 2


cdef bint is_sound_batch(Bytes batch, int64_t size) noexcept nogil:
    """All that a producer's batch must be, but for its CRC; nothing about transactions, timestamps or limits."""
    cdef int64_t attributes, count, producer_id
    cdef Info info
    if size < HEADER_BYTES or read_integer(batch, 8) != 0 or read_integer(batch + 8, 4) != size - 12 or batch[16] != 2:
        return False
    attributes = read_integer(batch + 21, 2)
    count = read_integer(batch + 57, 4)
    if attributes < 0 or attributes > LAST_CODEC or count <= 0 or count != read_integer(batch + 23, 4) + 1:
        return False
    producer_id = read_integer(batch + 43, 8)
    if producer_id >= 0 and (read_integer(batch + 51, 2) < 0 or read_integer(batch + 53, 4) < 0):
        return False
    if attributes != 0:
        return True
    if walk_validating(batch + HEADER_BYTES, size - HEADER_BYTES, count, read_integer(batch + 27, 8), &info) != SOUND:
        return False
    return info.max_timestamp == read_integer(batch + 35, 8)


cdef object batch_header(Bytes batch):
    return new_tuple(BatchHeader, (
        read_integer(batch, 8),
        read_integer(batch + 8, 4),
        read_integer(batch + 12, 4),
        read_integer(batch + 16, 1),
        <uint32_t>read_integer(batch + 17, 4),
        read_integer(batch + 21, 2),
        read_integer(batch + 23, 4),
        read_integer(batch + 27, 8),
        read_integer(batch + 35, 8),
        read_integer(batch + 43, 8),
        read_integer(batch + 51, 2),
        read_integer(batch + 53, 4),
        read_integer(batch + 57, 4),
    ))


def usual_produce(frame):
    """Of Produce v9 to v12: no transaction, one topic, one partition, one sound batch with the right CRC, no tags.

    (correlation_id, acks, timeout_ms, topic, partition, records, BatchHeader), or None when anything is otherwise: then
    the general way finds out what. `frame` is a memoryview.
    """
    cdef Py_buffer view
    cdef Bytes start, at, end, name, batch
    cdef int64_t name_size, size = 0
    cdef int32_t partition
    cdef unsigned char byte
    cdef int shift = 0
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        start = <Bytes>view.buf
        end = start + view.len
        at = find_usual_body(start, end)
        # acks, timeout_ms, a topic count of 1 and a short name
        if at == NULL or not has(at, end, 8) or at[6] != 2 or at[7] < 2 or at[7] > 127:
            return None
        name = at + 8
        name_size = at[7] - 1
        # a partition count of 1, its index, and the size of its records
        if not has(name, end, name_size + 6) or name[name_size] != 2:
            return None
        partition = <int32_t>read_integer(name + name_size + 1, 4)
        batch = name + name_size + 5
        while True:
            if shift > 28 or batch >= end:
                return None
            byte = batch[0]
            size |= <int64_t>(byte & 0x7F) << shift
            batch += 1
            shift += 7
            if byte < 0x80:
                break
        size -= 1
        # the tags of partition, topic and request, and nothing behind them
        if size < 0 or end - batch != size + 3 or batch[size] or batch[size + 1] or batch[size + 2]:
            return None
        if not is_sound_batch(batch, size):
            return None
        records = frame[batch - start : batch - start + size]
        if crc32c(records[CRC_START:]) != <uint32_t>read_integer(batch + 17, 4):
            return None
        return (
            read_integer(start + 4, 4),
            read_integer(at, 2),
            read_integer(at + 2, 4),
            PyBytes_FromStringAndSize(<const char*>name, name_size),
            partition,
            records,
            batch_header(batch),
        )
    finally:
        PyBuffer_Release(&view)


def usual_response(
    int64_t correlation_id,
    bytes topic,
    int64_t partition,
    int64_t base_offset,
    int64_t log_append_time_ms,
    int64_t log_start_offset,
):
    """The whole frame of a success for what `usual_produce` found."""
    cdef Py_ssize_t name_size = PyBytes_GET_SIZE(topic)
    cdef Py_ssize_t size = 51 + name_size
    if name_size > 126:
        raise ValueError("not the usual name")
    cdef bytes response = PyBytes_FromStringAndSize(NULL, size)
    cdef unsigned char* at = <unsigned char*>PyBytes_AS_STRING(response)
    write_integer(at, size - 4, 4)
    write_integer(at + 4, correlation_id, 4)
    at[8] = 0  # the header's tags
    at[9] = 2  # one topic
    at[10] = <unsigned char>(name_size + 1)
    memcpy(at + 11, PyBytes_AS_STRING(topic), name_size)
    at += 11 + name_size
    at[0] = 2  # one partition
    write_integer(at + 1, partition, 4)
    write_integer(at + 5, 0, 2)
    write_integer(at + 7, base_offset, 8)
    write_integer(at + 15, log_append_time_ms, 8)
    write_integer(at + 23, log_start_offset, 8)
    at[31] = 1  # no record errors
    at[32] = 0  # no error message
    at[33] = at[34] = 0  # the tags of partition and topic
    write_integer(at + 35, 0, 4)  # throttle_time_ms
    at[39] = 0  # the response's tags
    return response
