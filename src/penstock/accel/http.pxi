# What the HTTP server reads and writes for every request, as in `service/http/`: heads, bodies that
# are flat JSON objects, and the reply to an admitted check.
#
# Each function answers what its Python twin would, or None: then the twin is asked. So whatever is
# refused is refused, and put into words, in one place, and this file need not know every shape of a
# request, only the usual ones.

cdef enum:
    IN_NAME = 1     # of a header
    IN_VALUE = 2    # of a header
    IN_SEGMENT = 4  # of a path; besides, percent signs with two digits
    IS_HEX = 8
    MOST_DIGITS = 15       # of a length
    MOST_HEAD = 16 * 1024
    MOST_REPLY = 1024

cdef unsigned char[256] CLASS_OF


cdef void classify(bytes members, unsigned char flag) noexcept:
    for member in members:
        CLASS_OF[<unsigned char> member] |= flag


cdef bytes DIGITS = b"0123456789"
cdef bytes LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
classify(DIGITS + LETTERS + b"!#$%&'*+-.^_`|~", IN_NAME)
classify(b"\t" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100)), IN_VALUE)
classify(DIGITS + LETTERS + b"-._~!$&'()*+,;=:@", IN_SEGMENT)
classify(DIGITS + b"ABCDEFabcdef", IS_HEX)


cdef inline bint spells(const char* name, Py_ssize_t size, const char* lowered) noexcept:
    """`lowered` is as long, and has letters and dashes only."""
    cdef Py_ssize_t place
    for place in range(size):
        if name[place] | 0x20 != lowered[place]:
            return False
    return True


cdef enum:
    NO_MATTER = 0  # does not change the answer
    ESSENTIAL = 1
    LENGTH = 2
    CODING = 3


cdef inline int use_of(const char* name, Py_ssize_t size) noexcept:
    if size == 4:
        return ESSENTIAL if spells(name, size, b"host") else NO_MATTER
    if size == 6:
        if spells(name, size, b"expect") or spells(name, size, b"origin"):
            return ESSENTIAL
    elif size == 10:
        return ESSENTIAL if spells(name, size, b"connection") else NO_MATTER
    elif size == 13:
        return ESSENTIAL if spells(name, size, b"authorization") else NO_MATTER
    elif size == 14:
        if spells(name, size, b"content-length"):
            return LENGTH
        if spells(name, size, b"sec-fetch-site"):
            return ESSENTIAL
    elif size == 17:
        return CODING if spells(name, size, b"transfer-encoding") else NO_MATTER
    elif size == 18:
        return ESSENTIAL if spells(name, size, b"x-ratelimit-format") else NO_MATTER
    return NO_MATTER


cdef inline int64_t digits_of(const char* at, const char* end) noexcept:
    """The number that these bytes are, between spaces, or -1."""
    cdef int64_t number = 0
    while at < end and (at[0] == c" " or at[0] == c"\t"):
        at += 1
    while at < end and ((end - 1)[0] == c" " or (end - 1)[0] == c"\t"):
        end -= 1
    if not 0 < end - at <= MOST_DIGITS:
        return -1
    while at < end:
        if not c"0" <= at[0] <= c"9":
            return -1
        number = number * 10 + (at[0] - c"0")
        at += 1
    return number


cdef inline const char* segment_end(const char* at, const char* end) noexcept:
    """Where a segment of a path ends that begins at `at`, or NULL if it is not well-formed."""
    while at < end:
        if CLASS_OF[<unsigned char> at[0]] & IN_SEGMENT:
            at += 1
        elif at[0] == c"%":
            if end - at < 3 or not CLASS_OF[<unsigned char> at[1]] & CLASS_OF[<unsigned char> at[2]] & IS_HEX:
                return NULL
            at += 3
        else:
            break
    return at


def reduced_head(bytes raw not None, Py_ssize_t most_fields, bytes lead not None):
    """`reduced_head` of `service/http/_head.py`, or None where it has to be asked."""
    cdef char[MOST_HEAD] room
    cdef char* put = room
    cdef const char* at = raw
    cdef const char* end = at + len(raw) - 2
    cdef const char* line
    cdef const char* space
    cdef const char* colon
    cdef bint has_length = False, has_coding = False
    cdef int64_t length = 0
    cdef object name = None
    cdef int use
    if not 4 <= len(raw) <= MOST_HEAD or memcmp(end - 2, b"\r\n\r\n", 4) != 0:
        return None
    # The first line, which stays as it is, apart from the name in a path.
    line = <const char*> memchr(at, c"\r", end - at)
    space = <const char*> memchr(at, c" ", line - at)
    if line[1] != c"\n" or space == NULL or space[1] != c"/":
        return None
    if line - at > len(lead) and memcmp(at, <const char*> lead, len(lead)) == 0:
        put = copied(put, at, at + len(lead))
        at += len(lead)
        space = segment_end(at, line)
        if space != NULL and space > at and (space[0] == c" " or space[0] == c"?"):
            name = at[: space - at]
            put = copied(put, b"*", <const char*> b"*" + 1)
            at = space
    line += 2
    put = copied(put, at, line)
    while line < end:
        at = line
        while CLASS_OF[<unsigned char> at[0]] & IN_NAME:
            at += 1
        colon = at
        most_fields -= 1
        if colon == line or colon[0] != c":" or most_fields < 0:
            return None
        at += 1
        while CLASS_OF[<unsigned char> at[0]] & IN_VALUE:
            at += 1
        if at[0] != c"\r" or at[1] != c"\n":
            return None
        use = use_of(line, colon - line)
        if use == LENGTH:
            length = digits_of(colon + 1, at)
            if length < 0 or has_length:
                return None
            has_length = True
        elif use != NO_MATTER:
            has_coding = has_coding or use == CODING
            put = copied(put, line, at + 2)
        line = at + 2
    if line != end or (has_coding and has_length):
        return None
    put = copied(put, end, end + 2)
    return room[: put - room], -1 if has_coding else length, name


cdef inline char* copied(char* put, const char* start, const char* end) noexcept:
    memcpy(put, start, end - start)
    return put + (end - start)


# Flat objects: {"name": "text", "other": 12}, as nearly all bodies are.

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


def flat_object(bytes body not None):
    """The object in `body`, if it is one of plain texts and whole numbers; or None."""
    # The byte behind the last one is 0, which ends every loop here.
    cdef const char* at = past_spaces(body)
    cdef const char* start
    cdef dict fields = {}
    cdef Py_ssize_t count = 0
    cdef object name, value
    cdef int64_t number
    cdef bint is_negative
    if at[0] != c"{":
        return None
    while True:
        at = past_spaces(at + 1)
        if at[0] != c'"':
            return None
        start = at + 1
        at = text_end(start)
        if at == NULL:
            return None
        name = usual_name(start, at - start) or plain_text(start, at)
        if name is None:
            return None
        at = past_spaces(at + 1)
        if at[0] != c":":
            return None
        at = past_spaces(at + 1)
        if at[0] == c'"':
            start = at + 1
            at = text_end(start)
            if at == NULL:
                return None
            value = plain_text(start, at)
            if value is None:
                return None
            at += 1
        else:
            is_negative = at[0] == c"-"
            start = at + is_negative
            at = start
            number = 0
            while c"0" <= at[0] <= c"9" and at - start <= MOST_DIGITS:
                number = number * 10 + (at[0] - c"0")
                at += 1
            if at == start or at - start > MOST_DIGITS or (start[0] == c"0" and at - start > 1):
                return None
            value = -number if is_negative else number
        fields[name] = value
        count += 1
        at = past_spaces(at)
        if at[0] != c",":
            break
    if at[0] != c"}" or len(fields) != count:
        return None
    at = past_spaces(at + 1)
    return fields if at == <const char*> body + len(body) else None


cdef inline str usual_name(const char* name, Py_ssize_t size):
    """A name that nearly every body has, which is not made anew; or None."""
    if size == 3 and memcmp(name, b"key", 3) == 0:
        return "key"
    if size == 4 and memcmp(name, b"cost", 4) == 0:
        return "cost"
    if size == 5 and memcmp(name, b"limit", 5) == 0:
        return "limit"
    if size == 6 and memcmp(name, b"policy", 6) == 0:
        return "policy"
    if size == 9 and memcmp(name, b"window_ms", 9) == 0:
        return "window_ms"
    return None


cdef inline object plain_text(const char* start, const char* end):
    try:
        return PyUnicode_DecodeUTF8(start, end - start, NULL)
    except UnicodeDecodeError:
        return None


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


def decision_reply(
    bytes head not None, bytes label not None, Decision decision not None, int64_t seconds, bint nested
):
    """`decision_reply` of `service/http/_answers.py`."""
    cdef char[MOST_REPLY] room
    cdef char* body
    cdef char* lines
    cdef char* put = room
    cdef char* out
    cdef bytes reply
    put = put_text(put, b'{"decision":{"allowed":' if nested else b'{"allowed":')
    put = put_text(put, b"true" if decision.allowed else b"false")
    put = put_number(put_text(put, b',"remaining":'), decision.remaining)
    put = put_number(put_text(put, b',"limit":'), decision.limit)
    put = put_number(put_text(put, b',"reset_at":'), decision.reset_at)
    put = put_number(put_text(put, b',"retry_after_ms":'), decision.retry_after_ms)
    put = put_text(put, b"}}" if nested else b"}")
    body = put
    put = put_number(put_text(put, b"Content-Length: "), body - room)
    put = put_text(put, b"\r\n")
    lines = put
    put = put_number(put, min(decision.remaining, MOST_IN_FIELD))
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
