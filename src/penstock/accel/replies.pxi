# Replies of the HTTP server about decisions, as bytes: `service/http/_answers.py` does the same for
# one decision, and `service/http/_charge_calls.py` for the verdict of several limits.

cdef enum:
    MOST_REPLY = 1024
    MOST_VERDICT = 12288
    # Of a decision in JSON, with the largest numbers there are.
    MOST_DECISION = 192

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


cdef inline char* put_bytes(char* put, bytes text) noexcept:
    return copied(put, text, <const char*> text + len(text))


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
        if type(decision) is not Decision:
            put = put_mode(put, decision, b', "degraded": "')
        return put_text(put, b"}")
    put = put_text(put, b'{"decision":{"allowed":' if form == NESTED else b'{"allowed":')
    put = put_text(put, b"true" if decision.allowed else b"false")
    put = put_number(put_text(put, b',"remaining":'), decision.remaining)
    put = put_number(put_text(put, b',"limit":'), decision.limit)
    put = put_number(put_text(put, b',"reset_at":'), decision.reset_at)
    put = put_number(put_text(put, b',"retry_after_ms":'), decision.retry_after_ms)
    if type(decision) is not Decision:
        put = put_mode(put, decision, b',"degraded":"')
    return put_text(put, b"}}" if form == NESTED else b"}")


cdef char* put_mode(char* put, Decision decision, const char* lead) noexcept:
    """The fail mode that decided, of which the names are short."""
    cdef bytes mode = decision.degraded.encode("ascii")
    return put_text(put_bytes(put_text(put, lead), mode), b'"')


cdef inline char* put_unlimited(char* put, int64_t now) noexcept:
    """The decision of `unlimited()`."""
    put = put_number(put_text(put, b'{"allowed":true,"remaining":'), MAX_SAFE)
    put = put_number(put_text(put, b',"limit":'), MAX_SAFE)
    put = put_number(put_text(put, b',"reset_at":'), now)
    return put_text(put, b',"retry_after_ms":0}')


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


# Replies about the verdict of several limits.

cdef double more_in_ms(Kernel kernel, Decision decision, int64_t now) noexcept:
    """`more_in_ms` of the strategies, for an admission that left something to come back."""
    cdef double ms = <double> (decision.reset_at - now)
    cdef double w, used, elapsed, at
    if kernel.kind == GCRA:
        ms = ms - <double> (kernel.i0 - decision.remaining - 1) * kernel.d0
        return ms if ms < kernel.d0 else kernel.d0
    if kernel.kind == TOKEN_BUCKET:
        return ms - <double> (kernel.i1 - decision.remaining - 1) / kernel.d1
    if kernel.kind == SLIDING_WINDOW:
        w = kernel.d0
        used = <double> (kernel.i0 - decision.remaining)
        elapsed = ceil(w / used)
        if used * ((w - elapsed) / w) > used - 1:
            elapsed += 1
        at = <double> decision.reset_at - w + elapsed
        return min(at, <double> decision.reset_at) - <double> now
    return ms


@cython.final
cdef class LimitWords:
    """One of several limits in a reply. `quoted` is its name in JSON, `policy` its member of
    `RateLimit-Policy`, `lead` that of `RateLimit` up to its numbers. The time until there is more
    is computed from `kernel`, the arguments of its strategy's kernel, or else by `seconds`."""

    cdef bytes quoted
    cdef bytes policy
    cdef bytes lead
    cdef bint shadow
    cdef Kernel kernel
    cdef object seconds_until_more

    def __init__(
        self,
        bytes quoted not None,
        bytes policy not None,
        bytes lead not None,
        bint shadow,
        kernel,
        seconds,
    ):
        self.quoted = quoted
        self.policy = policy
        self.lead = lead
        self.shadow = shadow
        self.kernel = None if kernel is None else Kernel(kernel)
        self.seconds_until_more = seconds

    cdef Py_ssize_t most(self):
        """An upper bound of its bytes in a reply."""
        cdef Py_ssize_t named = 4 * (len(self.quoted) + 2)
        return named + len(self.policy) + len(self.lead) + MOST_DECISION + 64

    cdef int64_t seconds(self, Decision decision, int64_t now) except? -1:
        cdef double ms
        if not decision.allowed:
            return seconds_to_wait(decision)
        if decision.remaining >= decision.limit:
            return 0
        if self.kernel is None:
            return self.seconds_until_more(decision, now)
        ms = more_in_ms(self.kernel, decision, now)
        return <int64_t> ceil(ms / 1000) if ms > 1000 else 1


cdef inline int64_t seconds_to_wait(Decision decision) noexcept:
    cdef int64_t ms = decision.retry_after_ms
    return 1 if ms <= 1000 else (ms + 999) // 1000


@cython.final
cdef class VerdictReplies:
    """Replies about verdicts of the same limits, as `VerdictForm` of
    `service/http/_charge_calls.py` makes them."""

    cdef list words
    cdef bytes shadows
    cdef Py_ssize_t count

    @staticmethod
    def fits(list words not None, bytes shadows not None):
        """Whether every reply fits into the buffer here."""
        cdef Py_ssize_t most = MOST_DECISION + 256 + len(shadows)
        for each in words:
            most += (<LimitWords?> each).most()
        return len(words) > 0 and most <= MOST_VERDICT

    def __init__(self, list words not None, bytes shadows not None):
        if not VerdictReplies.fits(words, shadows):
            raise ValueError("a reply about these limits would be too long")
        self.words = words
        self.shadows = shadows
        self.count = len(words)

    def reply(self, bytes head not None, tuple decisions not None, bint allowed, int64_t now):
        """The reply about these decisions at `now`, after its first lines."""
        self.require(decisions)
        return self.written(head, decisions, allowed, now)

    cdef int require(self, tuple decisions) except -1:
        if len(decisions) != self.count:
            raise ValueError("a verdict has a decision for each limit")
        for decision in decisions:
            if not isinstance(decision, Decision):
                raise TypeError("a verdict consists of decisions")
        return 0

    cdef bint admit(self, tuple decisions) except -1:
        """Whether all limits that are not shadows allow the request."""
        cdef Py_ssize_t place
        self.require(decisions)
        for place in range(self.count):
            if not (<Decision> decisions[place]).allowed:
                if not (<LimitWords> self.words[place]).shadow:
                    return False
        return True

    cdef bytes written(self, bytes head, tuple decisions, bint allowed, int64_t now):
        cdef char[MOST_VERDICT] room
        cdef Py_ssize_t binding = self._binding(decisions, allowed)
        cdef char* body_end = self._put_body(room, decisions, allowed, binding, now)
        cdef char* put = put_number(put_text(body_end, b"Content-Length: "), body_end - room)
        cdef bytes reply
        cdef char* out
        put = self._put_lines(put_text(put, b"\r\n"), decisions, allowed, binding, now)
        put = put_text(put, b"\r\n")
        reply = PyBytes_FromStringAndSize(NULL, len(head) + (put - room))
        out = put_bytes(<char*> reply, head)
        out = copied(out, body_end, put)
        copied(out, room, body_end)
        return reply

    cdef Py_ssize_t _binding(self, tuple decisions, bint allowed) noexcept:
        """The place of the binding limit: `binding_place` of a Verdict; -1 if none is enforced."""
        cdef Py_ssize_t place, found = -1
        cdef int64_t least = 0
        cdef int64_t longest = -1
        cdef Decision decision
        for place in range(self.count):
            if (<LimitWords> self.words[place]).shadow:
                continue
            decision = <Decision> decisions[place]
            if allowed:
                if found < 0 or decision.remaining < least:
                    found = place
                    least = decision.remaining
            elif not decision.allowed and decision.retry_after_ms > longest:
                found = place
                longest = decision.retry_after_ms
        return found

    cdef char* _put_body(
        self, char* put, tuple decisions, bint allowed, Py_ssize_t binding, int64_t now
    ) noexcept:
        cdef Py_ssize_t place
        put = put_text(put, b'{"decision":')
        if binding < 0:
            put = put_unlimited(put, now)
        else:
            put = put_body(put, <Decision> decisions[binding], PLAIN)
        put = put_text(put, b',"limits":')
        for place in range(self.count):
            put = put_text(put, b"," if place else b"{")
            put = put_text(put_bytes(put, (<LimitWords> self.words[place]).quoted), b":")
            put = put_body(put, <Decision> decisions[place], PLAIN)
        put = put_text(put, b'},"binding":')
        if binding < 0:
            put = put_text(put, b'""')
        else:
            put = put_bytes(put, (<LimitWords> self.words[binding]).quoted)
        put = self._put_denying(put_text(put, b',"violated":'), decisions, False)
        put = put_text(put, b',"shadowed":')
        put = self._put_denying(put, decisions, True) if allowed else put_text(put, b"[]")
        return put_text(put_bytes(put_text(put, b',"shadows":'), self.shadows), b"}")

    cdef char* _put_denying(self, char* put, tuple decisions, bint shadow) noexcept:
        """The names of the limits, or of the shadows, that deny."""
        cdef Py_ssize_t place
        cdef bint is_first = True
        cdef LimitWords words
        put = put_text(put, b"[")
        for place in range(self.count):
            words = <LimitWords> self.words[place]
            if words.shadow == shadow and not (<Decision> decisions[place]).allowed:
                put = put_bytes(put if is_first else put_text(put, b", "), words.quoted)
                is_first = False
        return put_text(put, b"]")

    cdef char* _put_lines(
        self, char* put, tuple decisions, bint allowed, Py_ssize_t binding, int64_t now
    ) except NULL:
        cdef LimitWords words
        cdef Py_ssize_t place
        if binding >= 0:
            words = <LimitWords> self.words[binding]
            put = put_bytes(put_text(put, b"RateLimit-Policy: "), words.policy)
            for place in range(self.count):
                words = <LimitWords> self.words[place]
                if place != binding and not words.shadow:
                    put = put_bytes(put_text(put, b", "), words.policy)
            put = put_text(put, b"\r\nRateLimit: ")
            put = self._put_member(put, decisions, binding, now)
            for place in range(self.count):
                if place != binding and not (<LimitWords> self.words[place]).shadow:
                    put = self._put_member(put_text(put, b", "), decisions, place, now)
            put = put_text(put, b"\r\n")
        if not allowed:
            put = put_text(put, b"Retry-After: ")
            put = put_number(put, seconds_to_wait(<Decision> decisions[binding]))
            put = put_text(put, b"\r\n")
        return put

    cdef char* _put_member(
        self, char* put, tuple decisions, Py_ssize_t place, int64_t now
    ) except NULL:
        cdef LimitWords words = <LimitWords> self.words[place]
        cdef Decision decision = <Decision> decisions[place]
        put = put_number(put_bytes(put, words.lead), min(decision.remaining, MOST_IN_FIELD))
        return put_number(put_text(put, b";t="), words.seconds(decision, now))
