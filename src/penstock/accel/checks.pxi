# HTTP checks from the bytes of a request to those of its reply: `service/http/_ready.py` says for
# which, and makes the objects; `service/http/_calls.py` and `_answers.py` do the same for all.

cdef enum:
    MOST_REPLY = 1024

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
    """Reads a name and its value, behind the brace or comma at `at`. Returns the comma or brace
    behind them, the brace that begins an object, which is left to the caller, or NULL if they are
    not plain. A 0 behind the last byte ends every loop here."""
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
    """Reads an object of texts and numbers that begins at `at`. Returns what is behind it, or NULL
    if it is not plain."""
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


# Replies about one decision.

cdef int64_t MOST_IN_FIELD = 999999999999999


cdef inline char* put_text(char* put, const char* text) noexcept:
    while text[0]:
        put[0] = text[0]
        put += 1
        text += 1
    return put


cdef inline char* put_number(char* put, int64_t number) noexcept:
    cdef char[20] digits
    cdef int count = 0
    cdef uint64_t rest = <uint64_t> number
    if number < 0:
        put[0] = c"-"
        put += 1
        rest = 0 - rest
    while True:
        digits[count] = c"0" + <char> (rest % 10)
        count += 1
        rest //= 10
        if not rest:
            break
    while count:
        count -= 1
        put[0] = digits[count]
        put += 1
    return put


cdef enum:
    PLAIN = 0   # `POST /check`
    NESTED = 1  # the calls under `/v1`
    CLIENT = 2  # `GET /check/{client}`


def decision_reply(
    bytes head not None,
    bytes lines not None,
    Decision decision not None,
    int64_t seconds,
    int form,
):
    """`decision_reply` of `service/http/_answers.py`."""
    return written(head, lines, decision, seconds, form)


cdef inline char* put_body(char* put, Decision decision, int form) noexcept:
    if form == CLIENT:
        put = put_text(put, b'{"allowed": ')
        put = put_text(put, b"true" if decision.allowed else b"false")
        put = put_number(put_text(put, b', "remaining": '), decision.remaining)
        put = put_number(put_text(put, b', "resetAt": '), decision.reset_at)
        if not decision.allowed:
            put = put_text(put, b', "message": "rate limit exceeded; window resets at ')
            put = put_text(put_number(put, decision.reset_at), b'"')
        return put_text(put, b"}")
    put = put_text(put, b'{"decision":{"allowed":' if form == NESTED else b'{"allowed":')
    put = put_text(put, b"true" if decision.allowed else b"false")
    put = put_number(put_text(put, b',"remaining":'), decision.remaining)
    put = put_number(put_text(put, b',"limit":'), decision.limit)
    put = put_number(put_text(put, b',"reset_at":'), decision.reset_at)
    put = put_number(put_text(put, b',"retry_after_ms":'), decision.retry_after_ms)
    return put_text(put, b"}}" if form == NESTED else b"}")


cdef bytes written(bytes head, bytes label, Decision decision, int64_t seconds, int form):
    cdef char[MOST_REPLY] room
    cdef char* body = put_body(room, decision, form)
    cdef char* lines = put_number(put_text(body, b"Content-Length: "), body - room)
    cdef char* put
    cdef char* out
    cdef bytes reply
    lines = put_text(lines, b"\r\n")
    put = put_number(lines, min(decision.remaining, MOST_IN_FIELD))
    put = put_number(put_text(put, b";t="), seconds)
    if not decision.allowed:
        put = put_number(put_text(put, b"\r\nRetry-After: "), seconds)
    put = put_text(put, b"\r\n\r\n")
    reply = PyBytes_FromStringAndSize(NULL, len(head) + len(label) + (put - room))
    out = copied(<char*> reply, head, <const char*> head + len(head))
    out = copied(out, body, lines)
    out = copied(out, label, <const char*> label + len(label))
    out = copied(out, lines, put)
    copied(out, room, body)
    return reply


# Whole requests, from their bytes to those of the reply.

@cython.final
cdef class DecisionReplies:
    """How replies about decisions begin, by their status, and how many there were."""

    cdef public bytes allowed_head
    cdef public bytes denied_head
    cdef readonly int64_t ok
    cdef readonly int64_t denied

    def count(self, int status):
        if status == 200:
            self.ok += 1
        else:
            self.denied += 1


@cython.final
cdef class ReadyLimit:
    """A limit that is decided at once, and what is said of it. `seconds_until_more` is asked only
    where `until_reset` is false: otherwise there is more at the decision's `reset_at`."""

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

    cdef bytes reply(self, object key, object cost, int form, DecisionReplies replies):
        cdef Decision decision = <Decision?> self.decide(key, cost)
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
            ms = decision.retry_after_ms
            return 1 if ms <= 1000 else (ms + 999) // 1000
        if decision.remaining >= decision.limit:
            return 0
        now = (self.anchor_ns + monotonic_ns()) // 1000000 if self.steady else self.read_clock()
        if not self.until_reset:
            return self.seconds_until_more(decision, now)
        ms = decision.reset_at - now
        return 1 if ms <= 1000 else (ms + 999) // 1000


@cython.final
cdef class ReadyCheck:
    """A path that checks one key. `by_policy(name)` and `by_terms(limit, window_ms)` find a
    ReadyLimit, or None where it has to be waited for; without `by_terms` requests bring no limit of
    their own. `by_attributes(policy, attributes, cost)` answers requests with attributes, or with
    None those that have to be read again; without it none are taken."""

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

    cdef bytes reply(self, const char* body, Py_ssize_t size, bytes client):
        cdef ReadyLimit limit
        if self.form != CLIENT:
            return self._reply_to(body, size)
        if size or client is None or b"%" in client:
            return None
        limit = self.by_policy(None)
        if limit is None:
            return None
        return limit.reply(client.decode("ascii"), ONE, CLIENT, self.replies)

    cdef bytes _reply_to(self, const char* body, Py_ssize_t size):
        cdef const char* at = past_spaces(body)
        cdef ReadyLimit limit
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
            return self.by_attributes(policy, attributes, ONE if cost is None else cost)
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
    """Answers bytes that are one whole request of a kind that was met before, and that a ReadyCheck
    is for. `routes` are by reduced head, and have a ReadyCheck, or None, as their `ready`."""

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
        """The reply, or None where the reader has to be asked: then nothing was done. The body that
        was answered last had `body_bytes`."""
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
