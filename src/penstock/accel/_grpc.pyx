# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=False, nonecheck=False
# cython: embedsignature=True, embedsignature.format=clinic
"""The usual Check of gRPC in machine code, from the frame that ends it to those of its reply.

That is a plain call with a policy, a key and perhaps a cost, by a client that is known, for a limit
that is decided at once, while there is a place for it and room for its reply. Any other is listed
as an event, and answered the same, by `service/grpc/_dispatch.py`.

Besides the other two compiled modules it imports nothing of the package.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.accel._http2 cimport (
    EVENT_REQUEST,
    NAME_AUTHORIZATION,
    Http2Connection,
    Http2Options,
    Span,
    Stream,
    find_field,
)
from penstock.accel._native cimport CountedCheck, Decision, Durations

from time import perf_counter

cdef extern from *:
    """
    /* The clock of time.perf_counter, where asking it takes no call. */
    #if defined(__linux__)
    #include <time.h>
    #define PENSTOCK_COUNTER 1
    static inline double penstock_counter_s(void) {
        struct timespec at;
        clock_gettime(CLOCK_MONOTONIC, &at);
        return (double) at.tv_sec + (double) at.tv_nsec * 1e-9;
    }
    #else
    #define PENSTOCK_COUNTER 0
    static inline double penstock_counter_s(void) { return 0; }
    #endif
    """
    bint PENSTOCK_COUNTER
    double counter_s "penstock_counter_s"() noexcept
    bint PyCFunction_CheckExact(object value)
    PyObject* PyCFunction_GET_SELF(object function)

cdef enum:
    # A decision has five numbers of at most ten bytes, each behind its tag, perhaps the short name
    # of a fail mode behind three, and is behind two more.
    MOST_REPLY = 80
    MOST_MODE = 16

cdef int64_t MOST_COST = 9007199254740991
cdef uint32_t LAST_STREAM = 2147483647


# --- Messages -----------------------------------------------------------------------------------

cdef struct Asked:
    # The fields of a CheckRequest.
    Span policy
    Span key
    int64_t cost


cdef const uint8_t* read_varint(const uint8_t* at, const uint8_t* end, uint64_t* number) noexcept:
    """What is behind the number at `at`, or NULL if there is none of 63 bits."""
    cdef int shift = 0
    number[0] = 0
    while at < end and shift < 63:
        number[0] |= <uint64_t> (at[0] & 0x7F) << shift
        if not at[0] & 0x80:
            return at + 1
        at += 1
        shift += 7
    return NULL


cdef bint read_check(Span message, Asked* asked) noexcept:
    """Whether this is a CheckRequest with each of its fields at most once, and nothing else."""
    cdef const uint8_t* at = <const uint8_t*> message.at
    cdef const uint8_t* end = at + message.size
    cdef uint64_t number
    cdef uint8_t tag
    cdef Span text
    asked.policy.at = asked.key.at = NULL
    asked.policy.size = asked.key.size = 0
    asked.cost = 0
    while at < end:
        tag = at[0]
        at = read_varint(at + 1, end, &number)
        if at == NULL:
            return False
        if tag == 0x18:
            if asked.cost or not 0 < number <= <uint64_t> MOST_COST:
                return False
            asked.cost = <int64_t> number
            continue
        if number > <uint64_t> (end - at):
            return False
        text.at = <const char*> at
        text.size = <Py_ssize_t> number
        at += number
        if tag == 0x0A and asked.policy.at == NULL:
            asked.policy = text
        elif tag == 0x12 and asked.key.at == NULL:
            asked.key = text
        else:
            return False
    return asked.policy.at != NULL and asked.key.at != NULL


cdef inline uint8_t* put_number(uint8_t* put, uint8_t tag, int64_t number) noexcept:
    """A field, which is left out if it is 0."""
    cdef uint64_t rest = <uint64_t> number
    if not rest:
        return put
    put[0] = tag
    put += 1
    while rest >= 0x80:
        put[0] = <uint8_t> rest | 0x80
        put += 1
        rest >>= 7
    put[0] = <uint8_t> rest
    return put + 1


cdef Py_ssize_t put_reply(uint8_t* room, Decision decision) except -1:
    """A CheckResponse; returns its size."""
    cdef uint8_t* put = room + 2
    cdef bytes mode
    put = put_number(put, 0x08, decision.allowed)
    put = put_number(put, 0x10, decision.limit)
    put = put_number(put, 0x18, decision.remaining)
    put = put_number(put, 0x20, decision.reset_at)
    put = put_number(put, 0x28, decision.retry_after_ms)
    if type(decision) is not Decision:
        mode = decision.degraded.encode("ascii")[:MOST_MODE]
        put[0] = 0x82
        put[1] = 0x01
        put[2] = <uint8_t> len(mode)
        put += 3
        for byte in mode:
            put[0] = <uint8_t> byte
            put += 1
    room[0] = 0x0A
    room[1] = <uint8_t> (put - room - 2)
    return put - room


# --- Calls --------------------------------------------------------------------------------------

@cython.final
cdef class ReadyChecks:
    """What all connections of a server have in common. `route` is the number of Check's path and
    `entry_of(policy)` finds a policy, whose `decide` is asked if it is compiled. `authorization` is
    what a client with the token sends; until somebody did, none is answered here."""

    cdef int route
    cdef Py_ssize_t max_bytes
    cdef object entry_of
    cdef object places
    cdef Durations durations
    cdef object codes
    cdef bint asks_token
    cdef public bytes authorization

    def __init__(
        self,
        *,
        int route,
        Py_ssize_t max_bytes,
        entry_of,
        places,
        Durations durations not None,
        codes,
        bint asks_token,
    ):
        self.route = route
        self.max_bytes = max_bytes
        self.entry_of = entry_of
        self.places = places
        self.durations = durations
        self.codes = codes
        self.asks_token = asks_token

    def connect(self, Http2Options options not None, int64_t now_ms):
        """A connection on which they are answered."""
        return GrpcConnection(options, now_ms, self)

    cdef bint accept(self, Stream stream) noexcept:
        """Whether the call has the token. Takes as long for any wrong one of the same length."""
        cdef const char* good
        cdef Span given
        cdef Py_ssize_t place
        cdef uint8_t differing = 0
        if not self.asks_token:
            return True
        if self.authorization is None or not find_field(&stream.list, NAME_AUTHORIZATION, &given):
            return False
        if given.size != len(self.authorization):
            return False
        good = self.authorization
        for place in range(given.size):
            differing |= <uint8_t> (given.at[place] ^ good[place])
        return differing == 0

    cdef CountedCheck find(self, object policy):
        """The check of a policy, or None if it has none that is compiled."""
        decide = self.entry_of(policy).decide
        if not PyCFunction_CheckExact(decide):
            return None
        check = <object> PyCFunction_GET_SELF(decide)
        return <CountedCheck> check if type(check) is CountedCheck else None


cdef class GrpcConnection(Http2Connection):
    """A connection that answers checks by itself."""

    cdef ReadyChecks checks
    # Checks that have come in while a known client is read from.
    cdef list asked
    # When the last answer was there, or the reading began.
    cdef double since_s

    def __init__(self, Http2Options options not None, int64_t now_ms, ReadyChecks checks not None):
        Http2Connection.__init__(self, options, now_ms)
        self.checks = checks

    def serve(self, bytes data not None, double now_s, double arrived_s, bint is_known):
        """`feed`, for data that has arrived at `arrived_s`. `is_known`: the client has made such a
        call before, and may go on. Returns the events or, if there are none and all that was read
        is answered, what is to be written."""
        cdef Stream stream
        cdef list asked = []
        cdef int64_t answered = 0
        if is_known:
            self.asked = asked
        self.receive(data, len(data), <int64_t> (now_s * 1000))
        self.asked = None
        self.since_s = now_s
        for stream in asked:
            # It may have been cancelled in the same breath.
            if stream.closed:
                continue
            if self.answer(stream, arrived_s):
                answered += 1
            else:
                Http2Connection.emit(self, EVENT_REQUEST, stream, 0)
        if answered:
            self.checks.codes["OK"] += answered
            if (
                self.events is None and not self.pending and not self.ended
                and self.final_id == LAST_STREAM and self.held == 0 and not self.block_stream
                and self.input.at == self.input.end
            ):
                return self.collect()
        events, self.events = self.events, None
        return () if events is None else events

    cdef int emit(self, int kind, Stream stream, object value) except -1:
        if (
            kind == EVENT_REQUEST and self.asked is not None
            and stream.route == self.checks.route and not stream.fault_set
        ):
            self.asked.append(stream)
            return 0
        return Http2Connection.emit(self, kind, stream, value)

    cdef bint answer(self, Stream stream, double arrived_s) except -1:
        """Returns whether the call was answered. If not, nothing was done, or its error is in its
        context."""
        cdef ReadyChecks checks = self.checks
        cdef Span message
        cdef Asked asked
        cdef int64_t timeout_ms
        cdef CountedCheck check
        cdef Decision decision
        cdef uint8_t room[MOST_REPLY]
        cdef double now_s
        if not stream.plain_call(checks.max_bytes, &message, &timeout_ms):
            return False
        if not checks.accept(stream) or not read_check(message, &asked):
            return False
        if MOST_REPLY > self.window or MOST_REPLY > self.initial_window + stream.window:
            return False
        if timeout_ms >= 0 and timeout_ms <= <int64_t> ((self.read_clock() - arrived_s) * 1000):
            return False
        if checks.places.taken >= checks.places.limit:
            return False
        try:
            policy = PyUnicode_DecodeUTF8(asked.policy.at, asked.policy.size, NULL)
            key = PyUnicode_DecodeUTF8(asked.key.at, asked.key.size, NULL)
        except UnicodeDecodeError:
            return False
        try:
            check = checks.find(policy)
            if check is None:
                return False
            decision = check.decide(key, asked.cost or 1)
        except Exception as error:
            stream.context = error
            return False
        self.put_reply(stream, <const char*> room, put_reply(room, decision))
        now_s = self.read_clock()
        checks.durations.count(now_s - self.since_s)
        self.since_s = now_s
        return True

    cdef double read_clock(self) except? -1:
        return counter_s() if PENSTOCK_COUNTER else perf_counter()
