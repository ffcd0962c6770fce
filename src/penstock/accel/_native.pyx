# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=False
# cython: embedsignature=True, embedsignature.format=clinic
"""The compiled path: the same decisions, in machine code.

It imports nothing of the package, so that any layer may use it; what it needs of Python (the
validators, the error for a clash of kinds) is handed to it. It holds eleven things, one per include:

- kernels: the five transitions, operation for operation as in `strategies/`;
- runs:    the growing (instant, count) lists of the two sliding windows;
- records: what is kept under a key, and how the key itself is;
- order:   which keys a table with bounds lets go of first;
- table:   keys to states, with the timing wheel;
- gate:    `check`, `check_many` and `acheck` of a limiter, without a Python frame;
- counts:  what a service counts with every check;
- heads:   what the HTTP server reads of the head of a request;
- replies: what it answers about decisions and verdicts;
- checks:  its usual requests, from their bytes to those of the reply;
- redis:   the first exchange of a check on Redis.

Atomicity is the interpreter lock's: from the look-up of a key to the write of its state no Python
code can run. Free-threaded interpreters are therefore not declared supported; importing this
module there turns their lock back on. Where a transition is Python code (a strategy of the
user's), the table runs it outside and commits only if nobody wrote in between.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_WarnEx
from cpython.long cimport PyLong_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_DecodeUTF8
from libc.math cimport ceil, floor
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

import threading
from sys import getsizeof

cdef int64_t MAX_SAFE = 9007199254740991
cdef double MAX_SAFE_D = 9007199254740991.0
cdef double MAX_INSTANT_D = 70368744177664.0
cdef double MAX_STORED_D = 140737488355328.0
cdef double MAX_SPAN_D = 4398046511104.0
# As in core/_figures.py and strategies/_token_bucket.py.
cdef double NUDGE = 1.0 - 2.0 ** -50
cdef double NEARLY_ONE = 1.0 - 2.0 ** -53

cdef object MAX_WORD = 2**63 - 1

cdef object rebuild = None


def set_rebuild(function):
    """What pickles of a Decision name instead of this module, which may be absent elsewhere."""
    global rebuild
    rebuild = function


cdef int64_t whole(str name, value) except? -1:
    if not isinstance(value, int) or not -MAX_WORD <= value <= MAX_WORD:
        raise TypeError(f"a Decision's {name} must be a whole number of 64 bits, not {value!r}")
    return value


@cython.freelist(512)
cdef class Decision:
    """The answer to one request. `bool(decision)` is `decision.allowed`.

    `limit` is the ceiling (burst, capacity or window quota), `remaining` what is left of it,
    `reset_at` the instant (epoch ms) from which nothing of this is remembered, and
    `retry_after_ms` how long to wait before the same request is worth repeating: 0 exactly when
    allowed.
    """

    __match_args__ = ("allowed", "limit", "remaining", "reset_at", "retry_after_ms")

    def __init__(self, bint allowed, limit, remaining, reset_at, retry_after_ms):
        if self.made:
            raise AttributeError("a Decision is frozen: cannot make it again")
        self.made = True
        self.allowed = allowed
        self.limit = whole("limit", limit)
        self.remaining = whole("remaining", remaining)
        self.reset_at = whole("reset_at", reset_at)
        self.retry_after_ms = whole("retry_after_ms", retry_after_ms)

    @property
    def degraded(self):
        """The fail mode that decided; None if the limit was asked. A subclass has it: see
        `core/_decision.py`."""
        return None

    cdef tuple _fields(self):
        return self.allowed, self.limit, self.remaining, self.reset_at, self.retry_after_ms

    def __bool__(self):
        return self.allowed

    def __eq__(self, other):
        if type(other) is not Decision:
            return NotImplemented
        return self._fields() == (<Decision> other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        return (
            f"Decision(allowed={self.allowed}, limit={self.limit}, remaining={self.remaining}, "
            f"reset_at={self.reset_at}, retry_after_ms={self.retry_after_ms})"
        )

    def __reduce__(self):
        return rebuild or Decision, self._fields()


include "runs.pxi"
include "kernels.pxi"
include "records.pxi"
include "order.pxi"
include "table.pxi"
include "gate.pxi"
include "counts.pxi"
include "heads.pxi"
include "replies.pxi"
include "checks.pxi"
include "redis.pxi"
