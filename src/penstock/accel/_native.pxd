# What a compiled server may use of decisions. It cimports this.

from libc.stdint cimport int64_t


cdef class Decision:
    cdef readonly bint allowed
    cdef readonly int64_t limit
    cdef readonly int64_t remaining
    cdef readonly int64_t reset_at
    cdef readonly int64_t retry_after_ms
    cdef bint made
    cdef tuple _fields(self)


cdef class CountedCheck:
    cdef object gate
    cdef object failed
    cdef object tally
    cdef Decision decide(self, object key, object cost)


cdef enum:
    MOST_BOUNDS = 15


cdef class Durations:
    cdef double[MOST_BOUNDS] bounds_s
    cdef int64_t[MOST_BOUNDS + 1] counted
    cdef Py_ssize_t bounds
    cdef readonly double sum_s
    cdef void count(self, double seconds) noexcept
