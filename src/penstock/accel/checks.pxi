# HTTP checks, from the bytes of a request to those of its reply. `service/http/_ready.py` decides
# which requests, and makes the objects; `service/http/_calls.py` and `_answers.py` do all others.

# Bodies, if they are flat objects, {"name": "text", "other": 12}, but for one within them.

cdef inline const char* past_spaces(const char* at) noexcept:
    while at[0] == c" " or at[0] == c"\n" or at[0] == c"\r" or at[0] == c"\t":
        at += 1
    return at


cdef inline const char* text_end(const char* at) noexcept:
    """The quote that ends a text without escapes, or NULL."""
    while at[0] != c'"':
        if <unsigned char> at[0] < 0x20 or at[0] == c"\\":
            return NULL
        at += 1
    return at


cdef struct Field:
    const char* name
    Py_ssize_t name_size
    # NULL for a number, and for an object.
    const char* text
    Py_ssize_t text_size
    int64_t number
    # Where one begins; NULL for anything else.
    const char* object


cdef const char* past_field(const char* at, Field* field) noexcept:
    """Reads a name and its value, after the brace or comma at `at`. Returns the comma or brace
    after them, the brace that begins an object, which is left to the caller, or NULL if they are
    not plain. A 0 after the last byte ends every loop here."""
    cdef const char* start
    cdef bint is_negative
    at = past_spaces(at + 1)
    if at[0] != c'"':
        return NULL
    field.name = at + 1
    at = text_end(field.name)
    if at == NULL:
        return NULL
    field.name_size = at - field.name
    at = past_spaces(at + 1)
    if at[0] != c":":
        return NULL
    at = past_spaces(at + 1)
    field.object = NULL
    if at[0] == c"{":
        field.text = NULL
        field.object = at
        return at
    if at[0] == c'"':
        field.text = at + 1
        at = text_end(field.text)
        if at == NULL:
            return NULL
        field.text_size = at - field.text
        return past_spaces(at + 1)
    is_negative = at[0] == c"-"
    start = at + is_negative
    at = start
    field.text = NULL
    field.number = 0
    while c"0" <= at[0] <= c"9" and at - start <= MOST_DIGITS:
        field.number = field.number * 10 + (at[0] - c"0")
        at += 1
    if at == start or at - start > MOST_DIGITS or (start[0] == c"0" and at - start > 1):
        return NULL
    if is_negative:
        field.number = -field.number
    return past_spaces(at)


cdef inline bint is_called(Field* field, const char* name, Py_ssize_t size) noexcept:
    return field.name_size == size and memcmp(field.name, name, size) == 0


cdef inline object plain_text(const char* start, Py_ssize_t size):
    try:
        return PyUnicode_DecodeUTF8(start, size, NULL)
    except UnicodeDecodeError:
        return None


cdef const char* past_object(const char* at, dict put) except? NULL:
    """Reads an object of texts and numbers that begins at `at`. Returns the position after it, or
    NULL if it is not plain."""
    cdef Field field
    while True:
        at = past_field(at, &field)
        if at == NULL or field.object != NULL:
            return NULL
        name = plain_text(field.name, field.name_size)
        value = field.number if field.text == NULL else plain_text(field.text, field.text_size)
        if name is None or value is None or name in put:
            return NULL
        put[name] = value
        if at[0] != c",":
            break
    return past_spaces(at + 1) if at[0] == c"}" else NULL


# Whole requests, from their bytes to those of the reply.

@cython.final
cdef class ReadyLimit:
    """A limit and its form in replies. It is decided at once, or else `decide` returns a `Later`.
    `seconds_until_more` is called only if `until_reset` is false: otherwise there is more at the
    decision's `reset_at`."""

    cdef object decide
    cdef bytes lines
    cdef bint until_reset
    cdef object seconds_until_more
    cdef object read_clock
    cdef bint steady
    cdef int64_t anchor_ns

    def __init__(
        self, decide, bytes lines not None, bint until_reset, seconds, read_clock, anchor_ns
    ):
        self.decide = decide
        self.lines = lines
        self.until_reset = until_reset
        self.seconds_until_more = seconds
        self.read_clock = read_clock
        self.steady = anchor_ns is not None
        self.anchor_ns = anchor_ns or 0

    cdef object reply(self, object key, object cost, int form, DecisionReplies replies):
        """The reply, or an object that will make it."""
        asked = self.decide(key, cost)
        if isinstance(asked, Decision):
            return self.told(<Decision> asked, form, replies)
        return AwaitedReply.of(asked, self, form, replies)

    cdef bytes told(self, Decision decision, int form, DecisionReplies replies):
        cdef bytes head = replies.allowed_head
        cdef int64_t seconds = self._seconds(decision)
        if decision.allowed or form == NESTED:
            replies.ok += 1
        else:
            replies.denied += 1
            head = replies.denied_head
        return written(head, self.lines, decision, seconds, form)

    cdef int64_t _seconds(self, Decision decision) except? -1:
        cdef int64_t now, ms
        if not decision.allowed:
            return seconds_to_wait(decision)
        if decision.remaining >= decision.limit:
            return 0
        now = (self.anchor_ns + monotonic_ns()) // 1000000 if self.steady else self.read_clock()
        if not self.until_reset:
            return self.seconds_until_more(decision, now)
        ms = decision.reset_at - now
        return 1 if ms <= 1000 else (ms + 999) // 1000


@cython.final
cdef class AwaitedReply:
    """A reply about a decision that is not made yet. `asked` is the `Later` of the decision."""

    cdef readonly object asked
    cdef ReadyLimit limit
    cdef int form
    cdef DecisionReplies replies

    @staticmethod
    cdef AwaitedReply of(asked, ReadyLimit limit, int form, DecisionReplies replies):
        cdef AwaitedReply made = AwaitedReply.__new__(AwaitedReply)
        made.asked = asked
        made.limit = limit
        made.form = form
        made.replies = replies
        return made

    def about(self, Decision decision not None):
        return self.limit.told(decision, self.form, self.replies)


cdef enum:
    MOST_LIMITS = 16


@cython.final
cdef class ReadyLimits:
    """Several limits that decide together, and their form in replies. They are decided at once by a
    `gate`, or else `ask(keys, cost)` returns a `Later`. `places` are their places among the limits
    of the policy, and `tallies` count their decisions."""

    cdef LimitsGate gate
    cdef object ask
    cdef object read_clock
    cdef VerdictReplies words
    cdef list tallies
    cdef Py_ssize_t count
    cdef Py_ssize_t[MOST_LIMITS] places

    def __init__(
        self,
        LimitsGate gate,
        ask,
        read_clock,
        VerdictReplies words not None,
        list places not None,
        list tallies not None,
    ):
        if not words.count == len(places) == len(tallies) <= MOST_LIMITS:
            raise ValueError("limits at work have words, a place and a tally each")
        if gate is not None and gate._count != words.count:
            raise ValueError("a gate has the limits that there are words for")
        self.gate = gate
        self.ask = ask
        self.read_clock = read_clock
        self.words = words
        self.tallies = tallies
        self.count = words.count
        for at in range(self.count):
            self.places[at] = places[at]

    cdef object reply(self, PyObject** by_place, object cost, object tally, DecisionReplies replies):
        """The reply to a request with these keys, or an object that will make it, or None if
        Python has to decide: then nothing was charged."""
        cdef PyObject* keys[MOST_LIMITS]
        cdef Py_ssize_t at
        cdef int64_t now
        cdef bint allowed
        cdef tuple decisions
        for at in range(self.count):
            keys[at] = by_place[self.places[at]]
        if self.gate is None:
            named = [None if keys[at] == NULL else <object> keys[at] for at in range(self.count)]
            return AwaitedVerdict.of(self.ask(named, cost), self, tally, replies)
        decisions = self.gate.decided(keys, cost, &now, &allowed)
        if decisions is None:
            return None
        return self.told(decisions, allowed, now, tally, replies)

    cdef bytes told(
        self, tuple decisions, bint allowed, int64_t now, object tally, DecisionReplies replies
    ):
        cdef Py_ssize_t at
        count_one(tally, allowed)
        for at in range(self.count):
            # A shadow shows what it would newly deny, so it counts admitted requests only.
            if allowed or not (<LimitWords> self.words.words[at]).shadow:
                count_one(self.tallies[at], (<Decision> decisions[at]).allowed)
        replies.ok += 1
        return self.words.written(replies.allowed_head, decisions, allowed, now)


@cython.final
cdef class AwaitedVerdict:
    """A reply about a verdict that is not made yet. `asked` is the `Later` of its decisions."""

    cdef readonly object asked
    cdef ReadyLimits limits
    cdef object tally
    cdef DecisionReplies replies

    @staticmethod
    cdef AwaitedVerdict of(asked, ReadyLimits limits, tally, DecisionReplies replies):
        cdef AwaitedVerdict made = AwaitedVerdict.__new__(AwaitedVerdict)
        made.asked = asked
        made.limits = limits
        made.tally = tally
        made.replies = replies
        return made

    def about(self, list decisions not None):
        cdef ReadyLimits limits = self.limits
        cdef tuple told = tuple(decisions)
        return limits.told(
            told, limits.words.admit(told), limits.read_clock(), self.tally, self.replies
        )


cdef inline int count_one(tally, bint allowed) except -1:
    if allowed:
        tally.allowed += 1
    else:
        tally.denied += 1
    return 0


@cython.final
cdef class ReadyPolicy:
    """A policy of several limits, all of which apply to every request at the same cost. `keys` are
    the attributes with their keys, None for a keyless limit. The figures may depend on a plan, the
    attribute `plan_by` (None: there are no plans); `of_plan(plan)` returns its ReadyLimits, or
    None. Keys in `overrides`, a mapping or None for each limit, have figures of their own. Requests
    that are not decided here go to `otherwise(attributes, cost)`."""

    cdef tuple keys
    cdef tuple overrides
    cdef Py_ssize_t attributes
    cdef object plan_by
    cdef bint is_plan_apart
    cdef dict plans
    cdef object of_plan
    cdef object tally
    cdef object otherwise

    @staticmethod
    def fits(Py_ssize_t count):
        """Whether a policy of so many limits can be decided here."""
        return count <= MOST_LIMITS

    def __init__(
        self, tuple keys not None, tuple overrides not None, plan_by, of_plan, tally, otherwise
    ):
        if not (len(keys) == len(overrides) and ReadyPolicy.fits(len(keys))):
            raise ValueError("each limit has a key, or None, and overrides, or None")
        told = {key for key in keys if key is not None}
        self.keys = keys
        self.overrides = overrides
        self.attributes = len(told)
        self.plan_by = plan_by
        self.is_plan_apart = plan_by not in told
        self.plans = {}
        self.of_plan = of_plan
        self.tally = tally
        self.otherwise = otherwise

    cdef object reply(self, dict attributes, object cost, DecisionReplies replies):
        cdef PyObject* keys[MOST_LIMITS]
        cdef ReadyLimits limits = self._limits(attributes)
        cdef int overflow = 0
        cdef long long units = PyLong_AsLongLongAndOverflow(cost, &overflow)
        cdef object reply = None
        if limits is not None and 0 < units <= MAX_SAFE and self._find_keys(attributes, keys):
            reply = limits.reply(keys, units, self.tally, replies)
        return self.otherwise(attributes, cost) if reply is None else reply

    cdef ReadyLimits _limits(self, dict attributes):
        """The limits of a request's plan, if it has exactly the attributes of the policy."""
        cdef Py_ssize_t wanted = self.attributes
        cdef PyObject* plan = NULL
        cdef PyObject* found
        if self.plan_by is not None:
            plan = PyDict_GetItemWithError(attributes, self.plan_by)
        if plan != NULL and self.is_plan_apart:
            wanted += 1
        if len(attributes) != wanted:
            return None
        named = None if plan == NULL else <object> plan
        found = PyDict_GetItemWithError(self.plans, named)
        if found != NULL:
            return <ReadyLimits> found
        limits = self.of_plan(named)
        if limits is not None:
            self.plans[named] = limits
        return limits

    cdef bint _find_keys(self, dict attributes, PyObject** keys) except -1:
        """Whether each limit has a plain key, for which it has no other figures."""
        cdef Py_ssize_t place
        for place in range(len(self.keys)):
            keys[place] = NULL
            name = self.keys[place]
            if name is None:
                continue
            keys[place] = PyDict_GetItemWithError(attributes, name)
            if keys[place] == NULL or not is_plain_key(keys[place]):
                return False
            overridden = self.overrides[place]
            if overridden is not None and <object> keys[place] in overridden:
                return False
        return True


@cython.final
cdef class ReadyCheck:
    """A path for checks. `by_policy(name)` and `by_terms(limit, window_ms)` return a ReadyLimit, or
    None; without `by_terms` requests with a limit of their own are left to Python.
    `by_attributes(policy)` returns a ReadyPolicy, or None, for requests with attributes; without it
    these are left to Python as well."""

    cdef DecisionReplies replies
    cdef int form
    cdef Py_ssize_t most_bytes
    cdef object by_policy
    cdef object by_terms
    cdef object by_attributes

    def __init__(
        self,
        DecisionReplies replies not None,
        int form,
        Py_ssize_t most_bytes,
        by_policy,
        by_terms,
        by_attributes=None,
    ):
        self.replies = replies
        self.form = form
        self.most_bytes = most_bytes
        self.by_policy = by_policy
        self.by_terms = by_terms
        self.by_attributes = by_attributes

    cdef object reply(self, const char* body, Py_ssize_t size, bytes client):
        cdef ReadyLimit limit
        if self.form != CLIENT:
            return self._reply_to(body, size)
        if size or client is None or b"%" in client:
            return None
        limit = self.by_policy(None)
        if limit is None:
            return None
        return limit.reply(client.decode("ascii"), ONE, CLIENT, self.replies)

    cdef object _reply_to(self, const char* body, Py_ssize_t size):
        cdef const char* at = past_spaces(body)
        cdef ReadyLimit limit
        cdef ReadyPolicy several
        cdef Field field
        cdef object key = None, policy = None, units = None, window_ms = None, cost = None
        cdef dict attributes = None
        if size > self.most_bytes or at[0] != c"{":
            return None
        while True:
            at = past_field(at, &field)
            if at == NULL:
                return None
            if is_called(&field, b"key", 3) and field.text != NULL and key is None:
                key = plain_text(field.text, field.text_size)
                if key is None:
                    return None
            elif is_called(&field, b"policy", 6) and field.text != NULL and policy is None:
                policy = plain_text(field.text, field.text_size)
                if policy is None:
                    return None
            elif field.object != NULL:
                if not is_called(&field, b"attributes", 10) or attributes is not None:
                    return None
                attributes = {}
                at = past_object(at, attributes)
                if at == NULL:
                    return None
            elif field.text != NULL:
                return None
            elif is_called(&field, b"limit", 5) and units is None:
                units = field.number
            elif is_called(&field, b"window_ms", 9) and window_ms is None:
                window_ms = field.number
            elif is_called(&field, b"cost", 4) and cost is None:
                cost = field.number
            else:
                return None
            if at[0] != c",":
                break
        if at[0] != c"}" or past_spaces(at + 1) != body + size:
            return None
        if attributes is not None:
            if self.by_attributes is None or policy is None:
                return None
            if units is not None or window_ms is not None:
                return None
            if key is not None:
                attributes["key"] = key
            several = self.by_attributes(policy)
            if several is None:
                return None
            return several.reply(attributes, ONE if cost is None else cost, self.replies)
        if key is None:
            return None
        if policy is not None:
            if units is not None or window_ms is not None:
                return None
            limit = self.by_policy(policy)
        elif self.by_terms is None or units is None or window_ms is None:
            return None
        else:
            limit = self.by_terms(units, window_ms)
        if limit is None:
            return None
        return limit.reply(key, ONE if cost is None else cost, self.form, self.replies)


@cython.final
cdef class WholeRequests:
    """Answers bytes that are one whole request, with a reduced head that is known and has a
    ReadyCheck. `routes` are by reduced head, and have a ReadyCheck, or None, as their `ready`."""

    cdef dict routes
    cdef Py_ssize_t most_head
    cdef Py_ssize_t most_fields
    cdef bytes lead
    cdef readonly Py_ssize_t body_bytes

    def __init__(
        self,
        dict routes not None,
        Py_ssize_t most_head,
        Py_ssize_t most_fields,
        bytes lead not None,
    ):
        self.routes = routes
        self.most_head = most_head
        self.most_fields = most_fields
        self.lead = lead

    def answer(self, bytes data not None):
        """The reply, or an object that will make it, or None if the reader has to be used: then
        nothing was done. `body_bytes` is the length of the last body that was answered."""
        cdef const char* start = data
        cdef const char* at = start
        cdef const char* end = start + len(data)
        cdef tuple found
        cdef int64_t length
        cdef PyObject* route
        while True:
            at = <const char*> memchr(at, c"\n", end - at)
            if at == NULL or end - at < 3:
                return None
            if at[1] == c"\r" and at[2] == c"\n" and at > start and (at - 1)[0] == c"\r":
                break
            at += 1
        at += 3
        if at - start - 4 > self.most_head:
            return None
        found = reduced(start, at - start, self.most_fields, self.lead)
        if found is None:
            return None
        length = found[1]
        route = PyDict_GetItemWithError(self.routes, found[0])
        if route == NULL or length != end - at:
            return None
        ready = (<object> route).ready
        if ready is None:
            return None
        self.body_bytes = length
        return (<ReadyCheck?> ready).reply(at, length, found[2])
