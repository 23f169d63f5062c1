"""Memory that grows as it is written, for the compiled kernels that write more than they know beforehand."""

from libc.stdint cimport int64_t
from libc.stdlib cimport realloc

cdef struct Growing:
    unsigned char* data
    int64_t size
    int64_t capacity


cdef bint enlarge(Growing* buffer, int64_t more) noexcept nogil:
    cdef int64_t capacity = max(2 * buffer.capacity, buffer.size + more, 4096)
    cdef unsigned char* data = <unsigned char*>realloc(buffer.data, capacity)
    if data == NULL:
        return False
    buffer.data = data
    buffer.capacity = capacity
    return True


cdef inline bint grow(Growing* buffer, int64_t more) noexcept nogil:
    """Room for `more` bytes; False when there is no memory for them."""
    return buffer.size + more <= buffer.capacity or enlarge(buffer, more)
