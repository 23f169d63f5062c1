"""How C reads records: what the compiled kernels share, by inclusion, so that it is inlined in each.

Pointers are never moved past `end`: each read first compares with what is left.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint64_t

from penstock.protocol.records import _pure

ctypedef const unsigned char* Bytes

cdef enum:
    MIN_RECORD_BYTES = 7

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
    OFFSET_WRONG

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
    _pure.OFFSET_WRONG,
)

cdef struct Row:
    int64_t offset_delta
    int64_t timestamp_delta
    int64_t key_start
    int64_t key_length
    int64_t value_start
    int64_t value_length
    int64_t headers_start
    int64_t headers_count


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


cdef inline int64_t read_integer(Bytes at, int size) noexcept nogil:
    """Big-endian and signed."""
    cdef int64_t value = <signed char>at[0]
    cdef int position
    for position in range(1, size):
        value = (value << 8) | at[position]
    return value


cdef inline void write_integer(unsigned char* at, int64_t value, int size) noexcept nogil:
    cdef int position
    for position in range(size):
        at[position] = <unsigned char>(<uint64_t>value >> (8 * (size - 1 - position)))
