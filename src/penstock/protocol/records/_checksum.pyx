# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The checksum of rows in C; `_pure_checksum` is the specification and gives types and words.

A word of 8 bytes at a time, each a multiplication that waits for the one before: some gigabytes a second.
Whatever raises leaves the hashes as they were in part: they are of no use then.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from penstock.protocol.records import _pure_checksum

include "_arrow.pxi"

cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define PENSTOCK_LITTLE(word) __builtin_bswap64(word)
    #else
    #define PENSTOCK_LITTLE(word) (word)
    #endif
    static inline unsigned long long penstock_fold(unsigned long long left, unsigned long long right) {
        unsigned __int128 product = (unsigned __int128)left * right;
        return (unsigned long long)(product >> 64) ^ (unsigned long long)product;
    }
    """
    uint64_t penstock_fold(uint64_t left, uint64_t right) noexcept nogil
    uint64_t PENSTOCK_LITTLE(uint64_t word) noexcept nogil

cdef uint64_t SEED = _pure_checksum.SEED
cdef uint64_t MULTIPLIER = _pure_checksum.MULTIPLIER
cdef uint64_t FINISHER = _pure_checksum.FINISHER
cdef uint64_t NULL_WORD = _pure_checksum.NULL
cdef uint64_t PRESENT = _pure_checksum.PRESENT


cdef inline uint64_t absorbed(uint64_t state, uint64_t word) noexcept nogil:
    return penstock_fold(state ^ word, MULTIPLIER)


cdef inline uint64_t with_bytes(uint64_t state, Bytes at, int64_t size) noexcept nogil:
    cdef uint64_t word
    cdef Bytes end = at + size
    state = absorbed(state, <uint64_t>size)
    while end - at >= 8:
        memcpy(&word, at, 8)
        state = absorbed(state, PENSTOCK_LITTLE(word))
        at += 8
    if at < end:
        word = 0
        memcpy(&word, at, end - at)
        state = absorbed(state, PENSTOCK_LITTLE(word))
    return state


cdef inline bint put_blob(uint64_t* state, Column* column, int64_t entry) noexcept nogil:
    """False when the entry lies outside of its data."""
    cdef int64_t start, end
    if is_null(column.validity, entry):
        state[0] = absorbed(state[0], NULL_WORD)
        return True
    start = offset_at(column.offsets, entry, column.is_large)
    end = offset_at(column.offsets, entry + 1, column.is_large)
    if not 0 <= start <= end or end > column.data_size:
        return False
    state[0] = with_bytes(state[0], column.data + start, end - start)
    return True


cdef class RowHashes:
    cdef uint64_t* states
    cdef int64_t rows

    def __cinit__(self, int64_t rows):
        cdef int64_t row
        if rows < 0:
            raise ValueError(f"there cannot be {rows} rows")
        self.states = <uint64_t*>malloc(max(rows, 1) * sizeof(uint64_t))
        if self.states == NULL:
            raise MemoryError
        self.rows = rows
        for row in range(rows):
            self.states[row] = SEED

    def __dealloc__(self):
        free(self.states)

    def add_same(self, bytes entry):
        cdef int64_t row, size
        cdef Bytes data
        if entry is None:
            for row in range(self.rows):
                self.states[row] = absorbed(self.states[row], NULL_WORD)
            return
        data = entry
        size = len(entry)
        for row in range(self.rows):
            self.states[row] = with_bytes(self.states[row], data, size)

    def add_blobs(self, column):
        cdef HeldColumn held = HeldColumn(column, self.rows, column.data)
        cdef int64_t row
        for row in range(self.rows):
            if not put_blob(&self.states[row], &held.column, held.column.first + row):
                held.misplaced(held.column.first + row)

    def add_numbers(self, column):
        check_room(column.validity, column.values, column.first, self.rows, 8, ends=0)
        cdef Held values = Held(column.values)
        cdef Held validity = Held(column.validity)
        cdef Bytes bits = NULL if column.validity is None else validity.bytes()
        cdef const int64_t* numbers = <const int64_t*>values.bytes()
        cdef int64_t first = column.first
        cdef int64_t row
        for row in range(self.rows):
            if is_null(bits, first + row):
                self.states[row] = absorbed(self.states[row], NULL_WORD)
            else:
                self.states[row] = absorbed(absorbed(self.states[row], PRESENT), <uint64_t>numbers[first + row])

    def add_pairs(self, column):
        cdef HeldColumn lists = HeldColumn(column, self.rows, None)
        cdef int64_t entries = 0, row, start, end
        cdef Column* spans = &lists.column
        for row in range(spans.first, spans.first + self.rows):
            if not is_null(spans.validity, row):
                start = offset_at(spans.offsets, row, spans.is_large)
                end = offset_at(spans.offsets, row + 1, spans.is_large)
                if not 0 <= start <= end:
                    check_span(start, end, None)
                entries = max(entries, end)
        cdef HeldColumn keys = HeldColumn(column.keys, entries, column.keys.data)
        cdef HeldColumn values = HeldColumn(column.values, entries, column.values.data)
        for row in range(self.rows):
            self.put_pairs(row, spans, keys, values)

    cdef int put_pairs(self, int64_t row, Column* spans, HeldColumn keys, HeldColumn values) except -1:
        cdef uint64_t* state = &self.states[row]
        cdef int64_t start, end, entry
        if is_null(spans.validity, spans.first + row):
            state[0] = absorbed(state[0], NULL_WORD)
            return 0
        start = offset_at(spans.offsets, spans.first + row, spans.is_large)
        end = offset_at(spans.offsets, spans.first + row + 1, spans.is_large)
        state[0] = absorbed(state[0], <uint64_t>(end - start))
        for entry in range(start, end):
            if not put_blob(state, &keys.column, keys.column.first + entry):
                keys.misplaced(keys.column.first + entry)
            if not put_blob(state, &values.column, values.column.first + entry):
                values.misplaced(values.column.first + entry)
        return 0

    def total(self):
        cdef uint64_t total = 0, state
        cdef int64_t row
        for row in range(self.rows):
            state = self.states[row]
            state ^= state >> 32
            state *= FINISHER
            total += state ^ (state >> 29)
        return total
