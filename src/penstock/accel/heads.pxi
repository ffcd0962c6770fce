# Heads of HTTP requests, validated and reduced to what answers depend on, as in
# `service/http/_head.py`.
#
# For unusual heads these functions return None, and the Python twin is called; so error messages
# have one source. The part that is removed from a head is validated here; the rest is validated by
# the parser, once for all heads with the same result.

cdef enum:
    IN_NAME = 1  # of a header
    IN_VALUE = 2  # of a header
    IN_SEGMENT = 4  # of a path; besides, percent signs with two digits
    IS_HEX = 8
    MOST_DIGITS = 15  # of a length
    MOST_HEAD = 16 * 1024

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
    """The number in these bytes, which may have spaces around it, or -1."""
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


cdef inline bint is_hex(char digit) noexcept:
    return CLASS_OF[<unsigned char> digit] & IS_HEX != 0


cdef inline const char* segment_end(const char* at, const char* end) noexcept:
    """Where a segment of a path ends that begins at `at`, or NULL if it is not well-formed."""
    while at < end:
        if CLASS_OF[<unsigned char> at[0]] & IN_SEGMENT:
            at += 1
        elif at[0] == c"%":
            if end - at < 3 or not is_hex(at[1]) or not is_hex(at[2]):
                return NULL
            at += 3
        else:
            break
    return at


def reduced_head(bytes raw not None, Py_ssize_t most_fields, bytes lead not None):
    """`reduced_head` of `service/http/_head.py`, or None if that has to be called."""
    return reduced(raw, len(raw), most_fields, lead)


cdef tuple reduced(const char* at, Py_ssize_t size, Py_ssize_t most_fields, bytes lead):
    cdef char[MOST_HEAD] room
    cdef char* put = room
    cdef const char* end = at + size - 2
    cdef const char* line
    cdef const char* space
    cdef const char* colon
    cdef bint has_length = False, has_coding = False
    cdef int64_t length = 0
    cdef object name = None
    cdef int use
    if not 4 <= size <= MOST_HEAD or memcmp(end - 2, b"\r\n\r\n", 4) != 0:
        return None
    # The first line, which is kept, except the name in a path.
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
