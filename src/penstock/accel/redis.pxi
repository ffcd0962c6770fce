# The first exchange of a check on Redis: one EVALSHA out, five integers in.
#
# `stores/redis/_flows.py` says how a check is asked, and `stores/redis/_multiplexed.py` how replies
# are paired with requests. Nearly every check is answered by its first exchange, which is what is
# here, without a flow; one that is answered otherwise goes on as a flow.

cdef bytes in_resp(bytes text):
    """A part of a command, as it is sent."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


@cython.final
cdef class CheckCommand:
    """The command of a check, of which only the key, the instant and the cost differ. What it packs
    is what hiredis packs of the same words."""

    cdef bytes head
    cdef bytes before
    cdef bytes after
    cdef bytes usual

    def __init__(self, bytes sha1 not None, tuple before not None, tuple after not None):
        count = 6 + len(before) + len(after)
        self.head = b"*%d\r\n" % count + in_resp(b"EVALSHA") + in_resp(sha1) + in_resp(b"1")
        self.before = b"".join([in_resp(each) for each in before])
        self.after = b"".join([in_resp(each) for each in after])
        # One unit by the server's clock: what nearly every check asks for.
        self.usual = self.arguments(0, 1)

    cdef bytes arguments(self, now, cost):
        return in_resp(b"%d" % now) + self.before + in_resp(b"%d" % cost) + self.after

    def pack(self, str key not None, now, cost):
        cdef bytes head = self.head, packed
        cdef bytes arguments = self.usual if now == 0 and cost == 1 else self.arguments(now, cost)
        cdef Py_ssize_t size, lead
        cdef const char* text = PyUnicode_AsUTF8AndSize(key, &size)
        cdef char[24] length
        cdef char* put = put_text(put_number(put_text(length, b"$"), size), b"\r\n")
        lead = put - length
        packed = PyBytes_FromStringAndSize(NULL, len(head) + lead + size + 2 + len(arguments))
        put = <char*> packed
        memcpy(put, <const char*> head, len(head))
        put += len(head)
        memcpy(put, length, lead)
        put += lead
        memcpy(put, text, size)
        put = put_text(put + size, b"\r\n")
        memcpy(put, <const char*> arguments, len(arguments))
        return packed


@cython.final
@cython.freelist(64)
cdef class FirstExchange:
    """A check that waits in the queue of a connection, as an `Exchange` does.

    `told` is a future, or a function where `calls`. The future is given the decision, or whatever
    was heard instead of one: a refusal, or how the connection failed. The function is told the
    decision; anything else is handed to `by.go_on`, with this and the function. A denial is shown
    to `by.denied` before.
    """

    cdef readonly object where
    cdef readonly object key
    cdef readonly object transform
    cdef readonly object now
    cdef readonly object cost
    cdef readonly double deadline
    cdef readonly object told
    cdef bint calls
    cdef object by

    def __init__(self, where, key, transform, now, cost, double deadline, told, bint calls, by):
        self.where = where
        self.key = key
        self.transform = transform
        self.now = now
        self.cost = cost
        self.deadline = deadline
        self.told = told
        self.calls = calls
        self.by = by

    @property
    def answer(self):
        """It is told the replies itself."""
        return self

    def done(self):
        return self.is_done()

    def set_exception(self, error):
        self.tell(error)

    def forget(self):
        """Tell nobody."""
        self.told = None

    cdef bint is_done(self) except -1:
        return self.told is None or (not self.calls and self.told.done())

    cdef int hear(self, reply) except -1:
        """A reply as hiredis reads it."""
        cdef Decision decision
        if self.is_done():
            return 0
        if type(reply) is list and len(<list> reply) == 5:
            for number in <list> reply:
                if not PyLong_CheckExact(number):
                    break
            else:
                allowed, limit, remaining, reset_at, retry_after_ms = reply
                reply = Decision(allowed == 1, limit, remaining, reset_at, retry_after_ms)
        return self.tell(reply)

    cdef int tell(self, heard) except -1:
        cdef object told = self.told
        self.told = None
        try:
            if type(heard) is Decision and not (<Decision> heard).allowed:
                self.by.denied(heard, self.transform, self.cost)
            if not self.calls:
                told.set_result(heard)
            elif type(heard) is Decision:
                told(heard, None)
            else:
                self.by.go_on(self, heard, told)
        except Exception as failure:
            # The replies of others come behind this one.
            self.by.failed(failure)
        return 0


cdef inline bint read_number(const char** at, const char* end, int64_t* number) noexcept:
    """A whole number, as a reply has it; False if it is anything else, or not all there."""
    cdef const char* here = at[0]
    cdef int64_t value = 0
    cdef int digits = 0
    if here == end or here[0] != c":":
        return False
    here += 1
    while here < end and c"0" <= here[0] <= c"9":
        if digits == 18:
            return False
        value = value * 10 + (here[0] - c"0")
        digits += 1
        here += 1
    if digits == 0 or end - here < 2 or here[0] != c"\r" or here[1] != c"\n":
        return False
    at[0] = here + 2
    number[0] = value
    return True


cdef Decision read_decision(const char** at, const char* end):
    """The five numbers of a check; None if that is not what comes next, or not all there."""
    cdef const char* here = at[0]
    cdef int64_t[5] numbers
    cdef Decision decision
    cdef int place
    if end - here < 4 or memcmp(here, b"*5\r\n", 4):
        return None
    here += 4
    for place in range(5):
        if not read_number(&here, end, &numbers[place]):
            return None
    at[0] = here
    decision = Decision.__new__(Decision)
    decision.made = True
    decision.allowed = numbers[0] == 1
    decision.limit = numbers[1]
    decision.remaining = numbers[2]
    decision.reset_at = numbers[3]
    decision.retry_after_ms = numbers[4]
    return decision


def pair_replies(waiting, reader, bytes data not None):
    """`pair_replies` of `stores/redis/_multiplexed.py`. It reads the usual answer by itself, and
    all others by the reader, which goes first if it is amid a reply."""
    cdef const char* start = data
    cdef const char* end = start + len(data)
    cdef const char* at = start
    cdef Decision decision
    cdef FirstExchange first
    if not reader.has_data():
        while at < end and waiting:
            head = waiting[0]
            if type(head) is not FirstExchange:
                break
            decision = read_decision(&at, end)
            if decision is None:
                break
            first = <FirstExchange> head
            if not first.is_done():
                first.tell(decision)
            # Who is told may ask again, and that may have ended the connection.
            if waiting:
                waiting.popleft()
        if at == end:
            return
    reader.feed(data if at == start else data[at - start:])
    while (reply := reader.gets()) is not False:
        head = waiting[0]
        if type(head) is FirstExchange:
            (<FirstExchange> head).hear(reply)
        else:
            replies = head.replies
            replies.append(reply)
            if len(replies) < len(head.commands):
                continue
            answer = head.answer
            if not answer.done():
                answer.set_result(replies)
        if waiting:
            waiting.popleft()
