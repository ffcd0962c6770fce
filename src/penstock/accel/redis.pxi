# The first exchange of a call on Redis: one EVALSHA out, integers in.
#
# `stores/redis/_flows.py` says how a call is asked, and `stores/redis/_multiplexed.py` how replies
# are paired with requests. Nearly every call is answered by its first exchange, which is what is
# here, without a flow; one that is answered otherwise goes on as a flow.

cdef bytes in_resp(bytes text):
    """A part of a command, as it is sent."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


@cython.final
cdef class ScriptCommand:
    """The command of a script on one key, of which only the key, the instant, the cost and, if it
    takes one, the argument differ. What it packs is what hiredis packs of the same words."""

    cdef bytes head
    cdef bytes before
    cdef bytes after
    cdef bytes usual
    cdef bint takes_argument

    def __init__(
        self,
        bytes sha1 not None,
        tuple before not None,
        tuple after not None,
        bint takes_argument=False,
    ):
        count = 6 + len(before) + len(after) + takes_argument
        self.head = b"*%d\r\n" % count + in_resp(b"EVALSHA") + in_resp(sha1) + in_resp(b"1")
        self.before = b"".join([in_resp(each) for each in before])
        self.after = b"".join([in_resp(each) for each in after])
        self.takes_argument = takes_argument
        # One unit by the server's clock: what nearly every call asks for.
        self.usual = self.parameters(0, 1)

    cdef bytes parameters(self, now, cost):
        return in_resp(b"%d" % now) + self.before + in_resp(b"%d" % cost) + self.after

    def pack(self, str key not None, now, cost, str argument=None):
        cdef bytes head = self.head, packed
        cdef bytes parameters = self.usual if now == 0 and cost == 1 else self.parameters(now, cost)
        cdef Py_ssize_t size, argument_size = 0
        cdef const char* text = PyUnicode_AsUTF8AndSize(key, &size)
        cdef const char* argument_text = NULL
        cdef char[24] length, argument_length
        cdef Py_ssize_t lead = put_lead(length, size), argument_lead = 0
        cdef Py_ssize_t total = len(head) + lead + size + 2 + len(parameters)
        if self.takes_argument != (argument is not None):
            raise TypeError("an argument is wanted exactly where the script takes one")
        if argument is not None:
            argument_text = PyUnicode_AsUTF8AndSize(argument, &argument_size)
            argument_lead = put_lead(argument_length, argument_size)
            total += argument_lead + argument_size + 2
        packed = PyBytes_FromStringAndSize(NULL, total)
        cdef char* put = <char*> packed
        memcpy(put, <const char*> head, len(head))
        put = put_word(put + len(head), length, lead, text, size)
        memcpy(put, <const char*> parameters, len(parameters))
        if argument is not None:
            put_word(put + len(parameters), argument_length, argument_lead, argument_text, argument_size)
        return packed


cdef inline Py_ssize_t put_lead(char* length, Py_ssize_t size) noexcept:
    """What a word of that size begins with, and how long that is."""
    return put_text(put_number(put_text(length, b"$"), size), b"\r\n") - length


cdef inline char* put_word(
    char* put, const char* length, Py_ssize_t lead, const char* text, Py_ssize_t size
) noexcept:
    memcpy(put, length, lead)
    memcpy(put + lead, text, size)
    return put_text(put + lead + size, b"\r\n")


# The largest number in a decision.
cdef int64_t MOST = 9007199254740991

# More numbers in a reply are read by the reader.
DEF MOST_NUMBERS = 160


@cython.final
@cython.freelist(64)
cdef class FirstExchange:
    """A call that waits in the queue of a connection, as an `Exchange` does.

    It asks for `steps`: a check by itself, for which there is no `plan`, or what a plan sends as one
    script. `told` is a future, or a function where `calls`. The future is given the answer where it
    `is_answered`, else whatever was heard instead of one: a refusal, or how the connection failed.
    The function is told the answer; anything else is handed to `by.go_on`, with this and the
    function. Denials are shown to `by.denied` before.
    """

    cdef readonly object where
    cdef readonly object steps
    cdef readonly object plan
    cdef readonly object now
    cdef readonly double deadline
    cdef readonly object told
    cdef readonly bint is_answered
    cdef bint calls
    cdef bint only_checks
    cdef int place
    cdef bint counts
    cdef object by

    def __init__(self, where, steps, plan, now, double deadline, told, bint calls, by):
        self.where = where
        self.steps = steps
        self.plan = plan
        self.now = now
        self.deadline = deadline
        self.told = told
        self.calls = calls
        self.place = -1
        if plan is not None:
            self.only_checks = plan.only_checks
            self.place = plan.place
            self.counts = plan.counts
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
        cdef int64_t[MOST_NUMBERS] numbers
        cdef int count = 0
        if self.is_done():
            return 0
        if type(reply) is list and len(<list> reply) <= MOST_NUMBERS:
            for number in <list> reply:
                if not PyLong_CheckExact(number):
                    break
                numbers[count] = number
                count += 1
            else:
                return self.hear_numbers(numbers, count)
        return self.tell(reply)

    cdef int hear_numbers(self, const int64_t* numbers, int count) except -1:
        try:
            answer = self.answer_to(numbers, count)
            self.is_answered = answer is not None
        except Exception:
            # It is told where the rest of the call reads the reply once more.
            answer = None
        if answer is None:
            answer = [numbers[place] for place in range(count)]
        return self.tell(answer)

    cdef object answer_to(self, const int64_t* numbers, int count):
        """None if these are not the numbers that were asked for."""
        cdef Decision decision
        cdef bint all_allowed = True
        cdef int place
        if self.plan is None:
            if count != 5 or not is_sound(numbers):
                return None
            decision = decision_from(numbers)
            if not decision.allowed:
                self.by.denied(self.steps, (decision,))
            return decision
        # One operation, and perhaps steps that ask for the instant. A denial is left to the plan.
        if self.place >= 0 and count == 6 and (self.counts or numbers[1] == 1):
            if numbers[2] < 0 if self.counts else not is_sound(numbers + 1):
                return None
            answers = [numbers[0]] * len(self.steps)
            answers[self.place] = numbers[2] if self.counts else decision_from(numbers + 1)
            return answers
        if not self.only_checks:
            return self.plan.answers(self.steps, [numbers[place] for place in range(count)], {})
        # The instant comes first.
        if count != 1 + 5 * len(self.steps):
            return None
        decisions = []
        for place in range(1, count, 5):
            if not is_sound(numbers + place):
                return None
            decision = decision_from(numbers + place)
            all_allowed = all_allowed and decision.allowed
            decisions.append(decision)
        if not all_allowed:
            self.by.denied(self.steps, decisions)
        return decisions

    cdef int tell(self, heard) except -1:
        cdef object told = self.told
        self.told = None
        try:
            if not self.calls:
                told.set_result(heard)
            elif self.is_answered:
                told(heard, None)
            else:
                self.by.go_on(self, heard, told)
        except Exception as failure:
            # The replies of others come behind this one.
            self.by.failed(failure)
        return 0


cdef inline bint is_sound(const int64_t* numbers) noexcept:
    """Whether five numbers can be a decision: as `decision_of` of `stores/redis/_plans.py`."""
    cdef int64_t retry = numbers[4]
    if not ((numbers[0] == 1 and retry == 0) or (numbers[0] == 0 and 0 < retry <= MOST)):
        return False
    return 0 <= numbers[1] <= MOST and 0 <= numbers[2] <= MOST and 0 <= numbers[3] <= MOST


cdef inline Decision decision_from(const int64_t* numbers):
    cdef Decision decision = Decision.__new__(Decision)
    decision.made = True
    decision.allowed = numbers[0] == 1
    decision.limit = numbers[1]
    decision.remaining = numbers[2]
    decision.reset_at = numbers[3]
    decision.retry_after_ms = numbers[4]
    return decision


cdef inline bint read_number(const char** at, const char* end, char mark, int64_t* number) noexcept:
    """A whole number behind its mark; False if it is anything else, or not all there."""
    cdef const char* here = at[0]
    cdef int64_t value = 0
    cdef int digits = 0
    if here == end or here[0] != mark:
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


cdef int read_numbers(const char** at, const char* end, int64_t* numbers) noexcept:
    """A list of whole numbers, and how many they are; -1 if that is not what comes next, or not all
    there."""
    cdef const char* here = at[0]
    cdef int64_t count
    cdef int place
    if not read_number(&here, end, c"*", &count) or count > MOST_NUMBERS:
        return -1
    for place in range(<int> count):
        if not read_number(&here, end, c":", &numbers[place]):
            return -1
    at[0] = here
    return <int> count


def pair_replies(waiting, reader, bytes data not None):
    """`pair_replies` of `stores/redis/_multiplexed.py`. It reads the usual answer by itself, and
    all others by the reader, which goes first if it is amid a reply."""
    cdef const char* start = data
    cdef const char* end = start + len(data)
    cdef const char* at = start
    cdef int64_t[MOST_NUMBERS] numbers
    cdef FirstExchange first
    cdef int count
    if not reader.has_data():
        while at < end and waiting:
            head = waiting[0]
            if type(head) is not FirstExchange:
                break
            count = read_numbers(&at, end, numbers)
            if count < 0:
                break
            first = <FirstExchange> head
            if not first.is_done():
                first.hear_numbers(numbers, count)
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
