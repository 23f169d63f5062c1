"""Memory that grew (`_growing.pxi`), handed to Python as it is: nothing is copied."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdlib cimport free, realloc


cdef class Memory:
    """What was written; the views of it keep it alive."""

    cdef unsigned char* data
    cdef Py_ssize_t size
    cdef bint is_readonly

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, self.is_readonly, flags)


cdef object hand_out(Growing* buffer, bint is_readonly=True):
    """A view; `buffer` is then empty."""
    cdef Memory memory = Memory()
    # What was too much goes back, and nothing at all has an address as well.
    cdef unsigned char* data = <unsigned char*>realloc(buffer.data, max(buffer.size, 1))
    if data == NULL:
        raise MemoryError
    memory.data = data
    memory.size = buffer.size
    memory.is_readonly = is_readonly
    drop(buffer)
    return memoryview(memory)


cdef inline void drop(Growing* buffer) noexcept nogil:
    buffer.data = NULL
    buffer.size = buffer.capacity = 0
