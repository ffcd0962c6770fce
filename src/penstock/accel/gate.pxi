# The gate: the calls of a limiter over a native table that need no Python frame.
#
# `Gate` is a base class for a limiter in Python, which supplies everything that is not hot. It
# reads the steady clock itself, from the same source and anchor as SystemClock, where the platform
# has one that is cheap to read; any other clock is called.

cdef extern from *:
    """
    #if defined(__linux__)
    #include <time.h>
    #define PENSTOCK_STEADY 1
    static inline int64_t penstock_monotonic_ns(void) {
        struct timespec at;
        clock_gettime(CLOCK_MONOTONIC, &at);
        return (int64_t) at.tv_sec * 1000000000 + at.tv_nsec;
    }
    #else
    #define PENSTOCK_STEADY 0
    static inline int64_t penstock_monotonic_ns(void) { return 0; }
    #endif

    /* The two slots through which an `await` asks for its result. A coroutine written in Cython
       would build a StopIteration with a traceback here; since 3.10 `am_send` needs none at all,
       and where the interpreter asks `tp_iternext` instead the bare exception will do. */
    typedef PyObject* (*penstock_finishfunc)(PyObject*);
    static penstock_finishfunc penstock_finish;

    static PySendResult penstock_am_send(PyObject* self, PyObject* value, PyObject** result) {
        *result = penstock_finish(self);
        return *result ? PYGEN_RETURN : PYGEN_ERROR;
    }

    static PyObject* penstock_iternext(PyObject* self) {
        PyObject* result = penstock_finish(self);
        if (result) {
            PyErr_SetObject(PyExc_StopIteration, result);
            Py_DECREF(result);
        }
        return NULL;
    }

    static inline void penstock_make_awaitable(PyObject* type, penstock_finishfunc finish) {
        penstock_finish = finish;
        ((PyTypeObject*) type)->tp_as_async->am_send = penstock_am_send;
        ((PyTypeObject*) type)->tp_iternext = penstock_iternext;
    }
    """
    bint PENSTOCK_STEADY
    int64_t monotonic_ns "penstock_monotonic_ns"() noexcept
    ctypedef object (*finishfunc "penstock_finishfunc")(object)
    void make_awaitable "penstock_make_awaitable"(PyObject* type, finishfunc finish) noexcept
    long long PyLong_AsLongLongAndOverflow(object value, int* overflow) except? -1

cdef extern from *:
    """
    static inline PyObject* penstock_make_of(PyObject* type, PyObject* none, PyObject* named) {
        return ((PyTypeObject*) type)->tp_new((PyTypeObject*) type, none, named);
    }
    """
    object make_of "penstock_make_of"(PyObject* type, object none, PyObject* named)
    PyObject* PyDict_GetItemWithError(object mapping, object key) except? NULL
    PyObject* PyList_GET_ITEM(list items, Py_ssize_t place)

cdef tuple NO_ARGUMENTS = ()
cdef enum:
    MOST_JOINED = 128

# The interpreter keeps one object for this integer, and True is another.
cdef object ONE = 1

reads_steady_clock = bool(PENSTOCK_STEADY)


cdef class Gate:
    """The hot calls of a limiter."""

    cdef Table _table
    cdef Kernel _kernel
    cdef object _transform
    cdef str _gate_lead
    cdef bint _has_lead
    cdef bint _steady
    cdef int64_t _anchor_ns
    cdef object _read_clock
    cdef object _require_key
    cdef object _require_keys
    cdef object _require_cost

    def _open_gate(
        self,
        Table table not None,
        transform not None,
        str lead not None,
        read_clock,
        anchor_ns,
        require_key,
        require_keys,
        require_cost,
    ):
        """Set at construction. If `anchor_ns` is None, `read_clock` is called."""
        self._table = table
        self._kernel = Kernel(transform.native)
        self._transform = transform
        self._gate_lead = lead
        self._has_lead = len(lead) > 0
        self._steady = anchor_ns is not None
        self._anchor_ns = anchor_ns or 0
        self._read_clock = read_clock
        self._require_key = require_key
        self._require_keys = require_keys
        self._require_cost = require_cost

    def check(self, key, cost=1):
        """Decide a request of `cost` and, if it is allowed, spend it."""
        return self._decide(key, cost)

    def acheck(self, key, cost=1):
        """The awaitable twin of `check`."""
        cdef PendingCheck pending = PendingCheck.__new__(PendingCheck)
        pending.gate = self
        pending.key = key
        pending.cost = cost
        return pending

    def check_many(self, keys, cost=1):
        """As one `check` per key, in order, all at the same instant."""
        cdef int64_t units = self._units(cost)
        cdef list names = [self._name(key) for key in self._require_keys(keys)]
        cdef list decisions = []
        cdef int64_t now = self._now()
        for name in names:
            decisions.append(
                self._table.check(self._kernel, <str> name, now, units, self._transform)
            )
        return decisions

    cdef inline Decision _decide(self, object key, object cost):
        cdef int64_t units = self._units(cost)
        cdef str name = self._name(key)
        return self._table.check(self._kernel, name, self._now(), units, self._transform)

    cdef inline str _name(self, object key):
        if not is_plain_key(<PyObject*> key):
            key = self._require_key(key)
        return self._gate_lead + <str> key if self._has_lead else <str> key

    cdef inline int64_t _units(self, object cost) except -1:
        cdef int overflow = 0
        cdef long long units
        if PyLong_CheckExact(cost):
            units = PyLong_AsLongLongAndOverflow(cost, &overflow)
            if overflow == 0 and 0 < units <= MAX_SAFE:
                return units
        return self._require_cost(cost)

    cdef inline int64_t _now(self) except -1:
        if self._steady:
            return (self._anchor_ns + monotonic_ns()) // 1000000
        return self._read_clock()


@cython.no_gc
cdef class VerdictFields:
    """The fields of a verdict, none of which can refer back to it."""

    cdef readonly tuple _names
    cdef readonly tuple _decisions
    cdef readonly tuple _shadows
    cdef readonly int64_t _at
    cdef readonly bint allowed

    def __init__(
        self,
        tuple names not None,
        tuple decisions not None,
        tuple shadows not None,
        int64_t at=0,
    ):
        if self._names is not None:
            raise AttributeError("a Verdict is frozen: cannot make it again")
        if not len(names) == len(decisions) == len(shadows):
            raise ValueError("a Verdict has a name, a decision and a flag for each limit")
        self._names = names
        self._decisions = decisions
        self._shadows = shadows
        self._at = 0 if False in shadows else at
        self.allowed = True
        for decision, shadow in zip(decisions, shadows):
            if not (<Decision?> decision).allowed and not shadow:
                self.allowed = False


@cython.final
cdef class LimitsGate:
    """`check` of several limits, where each has a key and all cost the same."""

    cdef Table _table
    cdef list _leads
    cdef list _names
    cdef list _kernels
    cdef tuple _all_names
    cdef tuple _shadows
    cdef bytes _flags
    cdef bint _enforces
    cdef Py_ssize_t _count
    cdef Py_ssize_t _keyed
    cdef Py_ssize_t _longest
    cdef bint _steady
    cdef int64_t _anchor_ns
    cdef object _read_clock
    cdef type _verdict
    cdef object _otherwise

    @staticmethod
    def fits(Table table not None, Py_ssize_t count):
        """Whether so many limits on that table can be decided here."""
        return count <= MOST_AT_ONCE

    def __init__(
        self, Table table not None, list parts, tuple shadows, read_clock, anchor_ns, type verdict,
        otherwise
    ):
        self._table = table
        # None instead of the name, for a limit that takes no key.
        self._names = [None if keyless else name for name, _, _, keyless in parts]
        self._all_names = tuple([name for name, _, _, _ in parts])
        self._leads = [lead for _, lead, _, _ in parts]
        self._kernels = [Kernel(transform.native) for _, _, transform, _ in parts]
        self._shadows = shadows
        self._flags = bytes(shadows)
        self._enforces = False in shadows
        self._count = len(parts)
        self._longest = min(table.longest, MOST_JOINED)
        self._keyed = len([name for name in self._names if name is not None])
        self._steady = anchor_ns is not None
        self._anchor_ns = anchor_ns or 0
        self._read_clock = read_clock
        self._verdict = verdict
        self._otherwise = otherwise

    def check(self, keys, cost=1):
        """Decide a request and, if all limits admit it, spend its cost on each of them."""
        cdef PyObject* found[MOST_AT_ONCE]
        cdef PyObject* name
        cdef Py_ssize_t place
        cdef int64_t now
        cdef bint allowed
        cdef VerdictFields verdict
        cdef int overflow = 0
        cdef long long units = 1
        if cost is not ONE:
            units = PyLong_AsLongLongAndOverflow(cost, &overflow) if PyLong_CheckExact(cost) else 0
        if type(keys) is not dict or len(<dict> keys) != self._keyed or not 0 < units <= MAX_SAFE:
            return self._otherwise(keys, cost)
        for place in range(self._count):
            name = PyList_GET_ITEM(self._names, place)
            found[place] = NULL
            if name != <PyObject*> None:
                found[place] = PyDict_GetItemWithError(keys, <object> name)
                if found[place] == NULL:
                    return self._otherwise(keys, cost)
        decisions = self.decided(found, units, &now, &allowed)
        if decisions is None:
            return self._otherwise(keys, cost)
        verdict = <VerdictFields> make_of(<PyObject*> self._verdict, NO_ARGUMENTS, NULL)
        verdict._names = self._all_names
        verdict._decisions = decisions
        verdict._shadows = self._shadows
        verdict._at = 0 if self._enforces else now
        verdict.allowed = allowed
        return verdict

    cdef tuple decided(self, PyObject** keys, int64_t units, int64_t* now, bint* allowed):
        """The verdict on a request with these keys, NULL for a keyless limit, and this cost for
        each limit; None if it has to be decided in Python, and then nothing was charged."""
        cdef Sought[MOST_AT_ONCE] sought
        cdef char[MOST_AT_ONCE][MOST_JOINED] rooms
        cdef Py_ssize_t place
        cdef PyObject* lead
        for place in range(self._count):
            lead = PyList_GET_ITEM(self._leads, place)
            if keys[place] == NULL:
                if not seek_ascii(lead, self._longest, &sought[place]):
                    return None
            elif not is_plain_key(keys[place]) or not seek_joined(
                lead, keys[place], self._longest, rooms[place], &sought[place]
            ):
                return None
        if self._steady:
            now[0] = (self._anchor_ns + monotonic_ns()) // 1000000
        else:
            now[0] = self._read_clock()
        return self._table.check_all(
            self._kernels,
            sought,
            self._count,
            now[0],
            units,
            <const unsigned char*> <const char*> self._flags,
            allowed,
        )


@cython.final
cdef class Spending:
    """A check of local credits. If there are too few, or few left, it calls Python, which takes a
    lease."""

    cdef Gate gate
    cdef int64_t level
    cdef object otherwise

    def __init__(self, Gate gate not None, int64_t level, otherwise):
        self.gate = gate
        self.level = level
        self.otherwise = otherwise

    def check(self, key, cost=1):
        """The decision; that of `otherwise(key, cost, decision)` if no more than `level` is left."""
        cdef Decision decision = self.gate._decide(key, cost)
        if decision.allowed and decision.remaining > self.level:
            return decision
        return self.otherwise(key, cost, decision)


@cython.final
@cython.freelist(64)
cdef class PendingCheck:
    """The result of `acheck`: a coroutine that decides when it is awaited and never suspends."""

    cdef Gate gate
    cdef object key
    cdef object cost

    def __dealloc__(self):
        # As for any coroutine: a check that was never awaited was never made.
        if self.gate is not None:
            PyErr_WarnEx(RuntimeWarning, b"coroutine 'acheck' was never awaited", 1)

    cdef Decision _finish(self):
        cdef Gate gate = self.gate
        if gate is None:
            raise RuntimeError("cannot reuse already awaited coroutine")
        self.gate = None
        try:
            return gate._decide(self.key, self.cost)
        except StopIteration as error:
            # Otherwise it would be taken for the result of the await.
            raise RuntimeError("coroutine raised StopIteration") from error

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration(self._finish())

    def send(self, _value):
        raise StopIteration(self._finish())

    def throw(self, kind, value=None, trace=None):
        self.gate = None
        if value is None:
            value = kind if isinstance(kind, BaseException) else kind()
        elif not isinstance(value, BaseException):
            value = kind(value)
        raise value if trace is None else value.with_traceback(trace)

    def close(self):
        self.gate = None


cdef object _finish(object pending):
    return (<PendingCheck> pending)._finish()


make_awaitable(<PyObject*> PendingCheck, _finish)
