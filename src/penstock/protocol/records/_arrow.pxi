"""Arrow's columns as the compiled kernels read them: buffers that are held, and entries that are looked for in them."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t

from penstock.protocol.records._pure_checksum import check_room, check_span

ctypedef const unsigned char* Bytes

cdef struct Column:
    Bytes validity  # NULL: none is null
    Bytes offsets
    Bytes data
    int64_t data_size
    int64_t first
    bint is_large


cdef inline bint is_null(Bytes validity, int64_t entry) noexcept nogil:
    return validity != NULL and not (validity[entry >> 3] >> (entry & 7)) & 1


cdef inline int64_t offset_at(Bytes offsets, int64_t entry, bint is_large) noexcept nogil:
    return (<const int64_t*>offsets)[entry] if is_large else (<const int32_t*>offsets)[entry]


cdef class Held:
    """A buffer for as long as this lives."""

    cdef Py_buffer view
    cdef bint is_held

    def __cinit__(self, buffer):
        PyObject_GetBuffer(b"" if buffer is None else buffer, &self.view, PyBUF_SIMPLE)
        self.is_held = True

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.view)

    cdef Bytes bytes(self) noexcept:
        return <Bytes>self.view.buf


cdef class HeldColumn:
    """The buffers of Blobs, or of anything that has offsets and no data."""

    cdef Held validity
    cdef Held offsets
    cdef Held data
    cdef Column column

    def __cinit__(self, column, int64_t rows, data):
        check_width(column.offset_bytes)
        check_room(column.validity, column.offsets, column.first, rows, column.offset_bytes, ends=1)
        self.validity = Held(column.validity)
        self.offsets = Held(column.offsets)
        self.data = Held(data)
        self.column.validity = NULL if column.validity is None else self.validity.bytes()
        self.column.offsets = self.offsets.bytes()
        self.column.data = self.data.bytes()
        self.column.data_size = self.data.view.len
        self.column.first = column.first
        self.column.is_large = column.offset_bytes == 8

    cdef object misplaced(self, int64_t entry):
        check_span(
            offset_at(self.column.offsets, entry, self.column.is_large),
            offset_at(self.column.offsets, entry + 1, self.column.is_large),
            self.column.data_size,
        )


cdef int check_width(offset_bytes) except -1:
    if offset_bytes not in (4, 8):
        raise KeyError(offset_bytes)
    return 0
