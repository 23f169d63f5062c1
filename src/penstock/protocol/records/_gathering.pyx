# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Rows to record batches in C; `_pure_gathering` is the specification and gives types and words.

A row is measured, then written straight from Arrow's buffers into the batch of its partition, whose memory becomes the
batch that is sent. A call takes rows for some megabytes at most, and keeps the GIL.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from penstock.protocol.batch import HEADER_BYTES as _HEADER_BYTES
from penstock.protocol.records._pure_gathering import (
    Gathered,
    TooLarge,
    check_limits,
    check_partition,
    check_start,
    null_header_key,
)

include "_arrow.pxi"
include "_growing.pxi"
include "_handing.pxi"

cdef int64_t HEADER_BYTES = _HEADER_BYTES

cdef enum:
    NONE_FULL = -1

cdef struct Open:
    Growing batch
    int64_t count
    int64_t base_timestamp
    int64_t max_timestamp

cdef struct Entry:
    Bytes start
    int64_t length  # -1: null

cdef struct Sizes:
    int64_t body
    int64_t record
    int64_t timestamp_delta
    int64_t headers


cdef inline uint32_t hashed(Bytes at, int64_t length) noexcept nogil:
    cdef uint32_t multiplier = 0x5BD1E995
    cdef uint32_t seed = 0x9747B28C
    cdef uint32_t state = seed ^ <uint32_t>length
    cdef uint32_t word
    cdef Bytes whole = at + (length & ~3)
    while at < whole:
        word = (at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24) * multiplier
        state = state * multiplier ^ (word ^ word >> 24) * multiplier
        at += 4
    if length & 3:
        if length & 3 == 3:
            state ^= <uint32_t>at[2] << 16
        if length & 3 >= 2:
            state ^= <uint32_t>at[1] << 8
        state = (state ^ at[0]) * multiplier
    state = (state ^ state >> 13) * multiplier
    return (state ^ state >> 15) & 0x7FFFFFFF


def murmur2(key):
    cdef Held held = Held(key)
    return hashed(held.bytes(), held.view.len)


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline int64_t varint_bytes(int64_t value) noexcept nogil:
    cdef uint64_t raw = zigzag(value)
    cdef int64_t size = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


cdef inline unsigned char* put_varint(unsigned char* at, int64_t value) noexcept nogil:
    cdef uint64_t raw = zigzag(value)
    while raw > 0x7F:
        at[0] = <unsigned char>(raw & 0x7F | 0x80)
        raw >>= 7
        at += 1
    at[0] = <unsigned char>raw
    return at + 1


cdef inline int64_t entry_bytes(Entry entry) noexcept nogil:
    return varint_bytes(entry.length) + max(entry.length, 0)


cdef inline unsigned char* put_entry(unsigned char* at, Entry entry) noexcept nogil:
    at = put_varint(at, entry.length)
    if entry.length > 0:
        memcpy(at, entry.start, entry.length)
        at += entry.length
    return at


cdef class Words:
    """Numbers, held; without them every one is null."""

    cdef Held validity
    cdef Held values
    cdef Bytes bits
    cdef const int64_t* numbers
    cdef int64_t first

    def __cinit__(self, column, int64_t rows):
        if column is None:
            return
        check_room(column.validity, column.values, column.first, rows, 8, ends=0)
        self.validity = Held(column.validity)
        self.values = Held(column.values)
        self.bits = NULL if column.validity is None else self.validity.bytes()
        self.numbers = <const int64_t*>self.values.bytes()
        self.first = column.first

    cdef inline bint lacks(self, int64_t row) noexcept:
        return self.numbers == NULL or is_null(self.bits, self.first + row)

    cdef inline int64_t at(self, int64_t row) noexcept:
        return self.numbers[self.first + row]


cdef class HeldRows:
    """The columns of rows, with every buffer that they need."""

    cdef HeldColumn keys
    cdef HeldColumn values
    cdef HeldColumn lists
    cdef HeldColumn header_keys
    cdef HeldColumn header_values
    cdef Words partitions
    cdef Words timestamps

    def __cinit__(self, rows, int64_t start):
        cdef int64_t count = rows.rows
        check_start(start, count)
        self.values = HeldColumn(rows.values, count, rows.values.data)
        self.keys = None if rows.keys is None else HeldColumn(rows.keys, count, rows.keys.data)
        self.partitions = Words(rows.partitions, count)
        self.timestamps = Words(rows.timestamps_ms, count)
        if rows.headers is not None:
            self.lists = HeldColumn(rows.headers, count, None)
            self.hold_headers(rows.headers, start, count)

    cdef int hold_headers(self, headers, int64_t start, int64_t count) except -1:
        cdef Column* spans = &self.lists.column
        cdef int64_t entries = 0, row, begin, end
        for row in range(spans.first + start, spans.first + count):
            if not is_null(spans.validity, row):
                begin = offset_at(spans.offsets, row, spans.is_large)
                end = offset_at(spans.offsets, row + 1, spans.is_large)
                if not 0 <= begin <= end:
                    check_span(begin, end, None)
                entries = max(entries, end)
        self.header_keys = HeldColumn(headers.keys, entries, headers.keys.data)
        self.header_values = HeldColumn(headers.values, entries, headers.values.data)
        return 0


cdef int find(HeldColumn held, int64_t row, Entry* entry) except -1:
    cdef Column* column
    cdef int64_t start, end
    entry.start = NULL
    entry.length = -1
    if held is None:
        return 0
    column = &held.column
    row += column.first
    if is_null(column.validity, row):
        return 0
    start = offset_at(column.offsets, row, column.is_large)
    end = offset_at(column.offsets, row + 1, column.is_large)
    if not 0 <= start <= end or end > column.data_size:
        held.misplaced(row)
    entry.start = column.data + start
    entry.length = end - start
    return 0


cdef inline int header_span(HeldRows rows, int64_t row, int64_t* start, int64_t* end) noexcept:
    cdef Column* spans
    start[0] = end[0] = 0
    if rows.lists is None:
        return 0
    spans = &rows.lists.column
    row += spans.first
    if not is_null(spans.validity, row):
        start[0] = offset_at(spans.offsets, row, spans.is_large)
        end[0] = offset_at(spans.offsets, row + 1, spans.is_large)
    return 0


cdef int64_t headers_bytes(HeldRows rows, int64_t start, int64_t end) except -1:
    cdef int64_t size = varint_bytes(end - start), at
    cdef Entry entry
    for at in range(start, end):
        find(rows.header_keys, at, &entry)
        if entry.length < 0:
            raise null_header_key()
        size += entry_bytes(entry)
        find(rows.header_values, at, &entry)
        size += entry_bytes(entry)
    return size


cdef unsigned char* put_headers(unsigned char* to, HeldRows rows, int64_t start, int64_t end) except NULL:
    cdef int64_t at
    cdef Entry entry
    to = put_varint(to, end - start)
    for at in range(start, end):
        find(rows.header_keys, at, &entry)
        to = put_entry(to, entry)
        find(rows.header_values, at, &entry)
        to = put_entry(to, entry)
    return to


cdef class Gathering:
    cdef Open* opens
    cdef int64_t opens_count
    cdef int64_t batch_bytes
    cdef int64_t max_bytes
    cdef int64_t open_bytes
    cdef int64_t sticky
    cdef readonly int64_t size
    cdef readonly int64_t full

    def __cinit__(self, int64_t partitions, *, batch_bytes, max_bytes, open_bytes, int64_t sticky=0):
        check_limits(partitions, batch_bytes, max_bytes, open_bytes, sticky)
        self.batch_bytes = batch_bytes
        self.max_bytes = max_bytes
        self.open_bytes = open_bytes
        self.sticky = sticky
        self.full = NONE_FULL
        self.widen(partitions)

    def __dealloc__(self):
        cdef int64_t partition
        for partition in range(self.opens_count):
            free(self.opens[partition].batch.data)
        free(self.opens)

    @property
    def partitions(self):
        return self.opens_count

    def widen(self, int64_t partitions):
        if partitions <= self.opens_count:
            return
        cdef Open* opens = <Open*>realloc(self.opens, partitions * sizeof(Open))
        if opens == NULL:
            raise MemoryError
        memset(opens + self.opens_count, 0, (partitions - self.opens_count) * sizeof(Open))
        self.opens = opens
        self.opens_count = partitions

    def add(self, rows, int64_t start, int64_t now_ms):
        cdef HeldRows held = HeldRows(rows, start)
        cdef int64_t count = rows.rows, row, partition, timestamp
        cdef Open* one
        cdef Entry key, value
        cdef Sizes sizes
        self.full = NONE_FULL
        for row in range(start, count):
            find(held.keys, row, &key)
            find(held.values, row, &value)
            partition = self.partition_of(held.partitions, row, key)
            one = &self.opens[partition]
            timestamp = now_ms if held.timestamps.lacks(row) else held.timestamps.at(row)
            self.measure(held, row, one, timestamp, key, value, &sizes)
            if one.count and one.batch.size + sizes.record > self.batch_bytes:
                self.full = partition
                return row
            if HEADER_BYTES + sizes.record > self.max_bytes:
                raise TooLarge(row, HEADER_BYTES + sizes.record)
            self.put(held, row, one, timestamp, key, value, &sizes)
            if self.size >= self.open_bytes:
                return row + 1
        return count

    cdef int64_t partition_of(self, Words partitions, int64_t row, Entry key) except -1:
        cdef int64_t wanted
        if not partitions.lacks(row):
            wanted = partitions.at(row)
            if not 0 <= wanted < self.opens_count:
                check_partition(wanted, self.opens_count)
            return wanted
        return self.sticky if key.length < 0 else hashed(key.start, key.length) % self.opens_count

    cdef int measure(
        self, HeldRows held, int64_t row, Open* one, int64_t timestamp, Entry key, Entry value, Sizes* sizes
    ) except -1:
        cdef int64_t base = one.base_timestamp if one.count else timestamp
        cdef int64_t start, end
        if (base > 0 and timestamp < INT64_MIN + base) or (base < 0 and timestamp > INT64_MAX + base):
            raise OverflowError(f"timestamp {timestamp} is too far from {base}")
        sizes.timestamp_delta = timestamp - base
        header_span(held, row, &start, &end)
        sizes.headers = 1 if start == end else headers_bytes(held, start, end)
        sizes.body = (
            1
            + varint_bytes(sizes.timestamp_delta)
            + varint_bytes(one.count)
            + entry_bytes(key)
            + entry_bytes(value)
            + sizes.headers
        )
        sizes.record = varint_bytes(sizes.body) + sizes.body
        return 0

    cdef int put(
        self, HeldRows held, int64_t row, Open* one, int64_t timestamp, Entry key, Entry value, Sizes* sizes
    ) except -1:
        cdef unsigned char* at
        cdef int64_t start, end
        cdef Growing* batch = &one.batch
        if not grow(batch, sizes.record + (0 if one.count else HEADER_BYTES)):
            raise MemoryError
        if one.count == 0:
            memset(batch.data, 0, HEADER_BYTES)
            batch.size = HEADER_BYTES
            one.base_timestamp = one.max_timestamp = timestamp
        at = put_varint(batch.data + batch.size, sizes.body)
        at[0] = 0  # attributes
        at = put_varint(at + 1, sizes.timestamp_delta)
        at = put_varint(at, one.count)
        at = put_entry(at, key)
        at = put_entry(at, value)
        header_span(held, row, &start, &end)
        if start == end:
            at[0] = 0
        else:
            put_headers(at, held, start, end)
        batch.size += sizes.record
        one.max_timestamp = max(one.max_timestamp, timestamp)
        one.count += 1
        self.size += sizes.record
        return 0

    def waiting(self):
        cdef int64_t partition
        return [partition for partition in range(self.opens_count) if self.opens[partition].count]

    def take(self, int64_t partition):
        check_partition(partition, self.opens_count)
        cdef Open* one = &self.opens[partition]
        if one.count == 0:
            raise ValueError(f"there is nothing for partition {partition}")
        self.size -= one.batch.size - HEADER_BYTES
        taken = Gathered(hand_out(&one.batch, False), one.count, one.base_timestamp, one.max_timestamp)
        memset(one, 0, sizeof(Open))
        if partition == self.sticky:
            self.sticky = (partition + 1) % self.opens_count
        return taken
