# Text: growing buffers, classes of characters, names that have a number, and lists of fields.

cdef extern from *:
    """
    /* What a character may be part of. */
    #define PENSTOCK_NAME 1        /* a name in lower case */
    #define PENSTOCK_VALUE 2       /* a value */
    #define PENSTOCK_PATH 8        /* a path, beside its slashes */
    #define PENSTOCK_QUERY 16      /* a query */
    #define PENSTOCK_HEX 32
    static uint8_t penstock_class[256];

    static void penstock_mark(const char* characters, int class_bit) {
        for (; *characters; characters++)
            penstock_class[(uint8_t) *characters] |= class_bit;
    }

    static void penstock_mark_range(int first, int last, int class_bit) {
        for (; first <= last; first++)
            penstock_class[first] |= class_bit;
    }

    static void penstock_mark_all(void) {
        int word = PENSTOCK_PATH | PENSTOCK_QUERY;
        penstock_mark_range('0', '9', word | PENSTOCK_NAME | PENSTOCK_HEX);
        penstock_mark_range('a', 'z', word | PENSTOCK_NAME);
        penstock_mark_range('A', 'Z', word);
        penstock_mark_range('a', 'f', PENSTOCK_HEX);
        penstock_mark_range('A', 'F', PENSTOCK_HEX);
        penstock_mark("!#$%&'*+-.^_`|~", PENSTOCK_NAME);
        penstock_mark("-._~!$&'()*+,;=:@", PENSTOCK_PATH | PENSTOCK_QUERY);
        penstock_mark("/?", PENSTOCK_QUERY);
        penstock_mark_range('!', '~', PENSTOCK_VALUE);
        penstock_mark_range(0x80, 0xff, PENSTOCK_VALUE);
        penstock_mark("\\t ", PENSTOCK_VALUE);
    }

    static inline int penstock_all(const char* text, Py_ssize_t size, int class_bit) {
        const uint8_t* at = (const uint8_t*) text;
        const uint8_t* end = at + size;
        while (at < end)
            if (!(penstock_class[*at++] & class_bit))
                return 0;
        return 1;
    }

    /* How many characters at the front are of a class, escapes of the form %XX included. */
    static inline Py_ssize_t penstock_encoded(const char* text, Py_ssize_t size, int class_bit) {
        const uint8_t* at = (const uint8_t*) text;
        Py_ssize_t i = 0;
        while (i < size) {
            if (penstock_class[at[i]] & class_bit)
                i++;
            else if (at[i] == '%' && i + 2 < size && (penstock_class[at[i + 1]] & PENSTOCK_HEX)
                     && (penstock_class[at[i + 2]] & PENSTOCK_HEX))
                i += 3;
            else
                break;
        }
        return i;
    }
    """
    int IN_NAME "PENSTOCK_NAME"
    int IN_VALUE "PENSTOCK_VALUE"
    int IN_PATH "PENSTOCK_PATH"
    int IN_QUERY "PENSTOCK_QUERY"
    uint8_t* class_of "penstock_class"
    void mark_classes "penstock_mark_all"() noexcept
    bint all_in "penstock_all"(const char* text, Py_ssize_t size, int class_bit) noexcept
    Py_ssize_t encoded_in "penstock_encoded"(const char* text, Py_ssize_t size, int class_bit) noexcept

mark_classes()

cdef enum:
    MAX_NAME = 32
    FIELD_MALFORMED = 1
    FIELD_PSEUDO = 2

# In the order of KnownName, which is that of their lengths.
cdef list KNOWN_NAMES = [
    b"", b"te", b"host", b":path", b"expect", b"cookie", b":method", b":scheme", b"upgrade",
    b"connection", b"keep-alive", b"user-agent", b":authority", b"traceparent", b"content-type",
    b"grpc-timeout", b"authorization", b"grpc-encoding", b"content-length", b"proxy-connection",
    b"transfer-encoding", b"grpc-accept-encoding",
]
cdef Span known_names[NAME_COUNT]
# The first known name of each length; the next length ends it.
cdef uint8_t first_of_size[MAX_NAME + 2]


cdef int prepare_names() except -1:
    assert len(KNOWN_NAMES) == NAME_COUNT
    cdef int number, size
    for number in range(NAME_COUNT):
        known_names[number].at = KNOWN_NAMES[number]
        known_names[number].size = len(KNOWN_NAMES[number])
    for size in range(MAX_NAME + 2):
        first_of_size[size] = NAME_COUNT
        for number in range(NAME_COUNT - 1, 0, -1):
            if known_names[number].size >= size:
                first_of_size[size] = number
    return 0


prepare_names()


cdef inline uint8_t number_of_name(const char* name, Py_ssize_t size) noexcept:
    cdef int number, end
    if size > MAX_NAME:
        return NAME_OTHER
    end = first_of_size[size + 1]
    for number in range(first_of_size[size], end):
        if memcmp(known_names[number].at, name, size) == 0:
            return number
    return NAME_OTHER


cdef inline bint equals(Span span, const char* text, Py_ssize_t size) noexcept:
    return span.size == size and memcmp(span.at, text, size) == 0


cdef inline Span span_of(const char* at, Py_ssize_t size) noexcept:
    cdef Span span
    span.at = at
    span.size = size
    return span


cdef inline bytes bytes_of(Span span):
    return PyBytes_FromStringAndSize(span.at, span.size)


cdef inline str text_of(Span span):
    return PyUnicode_DecodeLatin1(span.at, span.size, NULL)


# --- Buffers ------------------------------------------------------------------------------------

cdef int grow(Buffer* buffer, Py_ssize_t more) except -1:
    """Room for `more` bytes, by moving what is there to the front or into a larger place."""
    cdef Py_ssize_t size = buffer.end - buffer.at
    cdef Py_ssize_t capacity = buffer.capacity
    cdef char* data
    if buffer.at and size + more <= capacity:
        memmove(buffer.data, buffer.data + buffer.at, size)
    else:
        if capacity < 256:
            capacity = 256
        while capacity < size + more:
            capacity *= 2
        data = <char*> PyMem_Malloc(capacity)
        if data == NULL:
            raise MemoryError
        if size:
            memcpy(data, buffer.data + buffer.at, size)
        PyMem_Free(buffer.data)
        buffer.data = data
        buffer.capacity = capacity
    buffer.at = 0
    buffer.end = size
    return 0


cdef inline int reserve_bytes(Buffer* buffer, Py_ssize_t more) except -1:
    if buffer.capacity - buffer.end < more:
        return grow(buffer, more)
    return 0


cdef inline int append(Buffer* buffer, const char* data, Py_ssize_t size) except -1:
    if size:
        reserve_bytes(buffer, size)
        memcpy(buffer.data + buffer.end, data, size)
        buffer.end += size
    return 0


cdef inline void discard(Buffer* buffer) noexcept:
    PyMem_Free(buffer.data)
    buffer.data = NULL
    buffer.at = buffer.end = buffer.capacity = 0


cdef inline void empty(Buffer* buffer, Py_ssize_t keep) noexcept:
    """Forget what is there; the place is kept if it is not larger than `keep`."""
    if buffer.capacity > keep:
        discard(buffer)
    else:
        buffer.at = buffer.end = 0


# --- What requests share ------------------------------------------------------------------------

@cython.final
cdef class Room:
    """Bytes that all connections together may hold in bodies that are not complete."""

    def __init__(self, int64_t limit):
        self.limit = limit

    cdef bint reserve(self, int64_t amount) noexcept:
        if self.taken + amount > self.limit:
            return False
        self.taken += amount
        return True

    cdef void release(self, int64_t amount) noexcept:
        self.taken -= amount

    def take(self, int64_t amount):
        return self.reserve(amount)

    def give(self, int64_t amount):
        self.release(amount)


@cython.final
cdef class RouteTable:
    """Paths that are known beforehand."""

    def __init__(self, routes):
        self.paths = [bytes(path) for path in routes]
        self.entries = <RouteEntry*> PyMem_Malloc(max(1, len(self.paths)) * sizeof(RouteEntry))
        if self.entries == NULL:
            raise MemoryError
        cdef RouteEntry* entry
        for path in self.paths:
            route = routes[path]
            entry = &self.entries[self.count]
            entry.path = path
            entry.size = len(path)
            entry.number = route.number
            entry.body_bytes = route.body_bytes
            entry.streaming = route.streaming
            self.count += 1

    def __dealloc__(self):
        PyMem_Free(self.entries)

    cdef const RouteEntry* find(self, const char* path, Py_ssize_t size) noexcept:
        cdef Py_ssize_t i
        for i in range(self.count):
            if self.entries[i].size == size and memcmp(self.entries[i].path, path, size) == 0:
                return &self.entries[i]
        return NULL


cdef bint find_field(const FieldList* fields, int known, Span* value) noexcept:
    """The first value of a name. False if there is none."""
    cdef int i
    for i in range(fields.pseudo, fields.count):
        if fields.refs[i].known == known:
            value[0] = value_of(fields, i)
            return True
    return False


cdef inline Span value_of(const FieldList* fields, int number) noexcept:
    return span_of(fields.text + fields.refs[number].value_at, fields.refs[number].value_size)


cdef list pairs_of(const FieldList* fields):
    cdef list pairs = []
    cdef FieldRef* ref
    cdef int i
    for i in range(fields.pseudo, fields.count):
        ref = &fields.refs[i]
        pairs.append((
            PyBytes_FromStringAndSize(fields.text + ref.name_at, ref.name_size),
            PyBytes_FromStringAndSize(fields.text + ref.value_at, ref.value_size),
        ))
    return pairs


cdef dict joined(const FieldList* fields):
    """Fields by name; those of one name as one list."""
    cdef dict found = {}
    for name_bytes, value_bytes in pairs_of(fields):
        name, value = name_bytes.decode("ascii"), value_bytes.decode("latin-1")
        if name in found:
            found[name] += ("; " if name == "cookie" else ", ") + value
        else:
            found[name] = value
    return found


# The places of the list that is being read. There is one: nothing else runs until its request has
# taken it over, so no Python object may be made until then.
cdef FieldRef* list_refs = NULL
cdef int list_capacity = 0
cdef int list_count = 0


cdef inline FieldRef* new_ref() except NULL:
    global list_refs, list_capacity, list_count
    cdef FieldRef* refs
    if list_count >= list_capacity:
        refs = <FieldRef*> PyMem_Realloc(
            list_refs, max(32, list_capacity * 2) * sizeof(FieldRef)
        )
        if refs == NULL:
            raise MemoryError
        list_capacity = max(32, list_capacity * 2)
        list_refs = refs
    list_count += 1
    return &list_refs[list_count - 1]


cdef int take_list(FieldList* fields, const char* text, Py_ssize_t size) except -1:
    """The list becomes that of a request, with a copy of the text that it refers to."""
    cdef Py_ssize_t refs_size = list_count * sizeof(FieldRef)
    fields.refs = <FieldRef*> PyMem_Malloc(refs_size + size + 1)
    if fields.refs == NULL:
        raise MemoryError
    fields.text = <char*> fields.refs + refs_size
    fields.count = list_count
    if refs_size:
        memcpy(fields.refs, list_refs, refs_size)
    if size:
        memcpy(fields.text, text, size)
    return 0


cdef inline uint32_t single_bit(uint8_t known) noexcept:
    """A bit for each of the names that may be there once at most."""
    if (
        known == NAME_HOST or known == NAME_CONTENT_LENGTH or known == NAME_TRANSFER_ENCODING
        or known == NAME_AUTHORIZATION or known == NAME_EXPECT
    ):
        return <uint32_t> 1 << known
    return 0


cdef inline bint is_target(const char* text, Py_ssize_t size, Py_ssize_t* path_size) noexcept:
    """A path and perhaps a query, or a star; where the path ends is put into `path_size`."""
    cdef Py_ssize_t at = 0
    if size == 1 and text[0] == c"*":
        path_size[0] = 1
        return True
    if size == 0 or text[0] != c"/":
        return False
    while at < size and text[at] == c"/":
        at += 1
        at += encoded_in(text + at, size - at, IN_PATH)
    path_size[0] = at
    if at == size:
        return True
    if text[at] != c"?":
        return False
    at += 1
    return encoded_in(text + at, size - at, IN_QUERY) == size - at


cdef inline int64_t parse_length(Span text) noexcept:
    """Up to 15 digits, or -1."""
    cdef int64_t number = 0
    cdef Py_ssize_t i
    if not 0 < text.size <= 15:
        return -1
    for i in range(text.size):
        if not c"0" <= text.at[i] <= c"9":
            return -1
        number = number * 10 + (text.at[i] - c"0")
    return number
