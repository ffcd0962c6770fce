# HPACK, as in service/http2/_hpack.py.
#
# A field in the decoder's table carries what is known of it: the number of its name, and whether a
# request may have it at all. So a field that a client has sent before costs a look at its entry and
# a copy of its text.

cdef enum:
    DEFAULT_TABLE_BYTES = 4096
    FIELD_OVERHEAD = 32
    FIRST_DYNAMIC = 62
    FOLLOWED = 4
    CODE_BITS = 30
    LENGTHS = 21
    END_OF_STRING = 256

cdef int64_t MAX_INTEGER = 2147483647


class HpackError(Exception):
    """A block that is no HPACK."""


# --- Huffman ------------------------------------------------------------------------------------

cdef dict SYMBOLS_BY_LENGTH = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4"
    b"\xc6\xe4\xe8\xe9",
    23: b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4"
    b"\xb6\xb7\xbc\xbf\xc5\xe7\xef",
    24: b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe",
    28: b"\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b"
    b"\x1c\x1d\x1e\x1f\x7f\xdc\xf9",
    30: b"\n\r\x16",
}

# Per length: its bits, the first code of that length, left-aligned, and where its symbols begin.
cdef uint8_t length_bits[LENGTHS]
cdef uint32_t length_first[LENGTHS]
cdef uint16_t length_offset[LENGTHS]
cdef uint16_t code_symbols[257]
cdef uint32_t symbol_code[257]
cdef uint8_t symbol_bits[257]
# By the first 8 bits: the length and symbol of codes that are no longer, or a length of 0.
cdef uint8_t short_bits[256]
cdef uint8_t short_symbol[256]


cdef int prepare_huffman() except -1:
    cdef int number = 0, offset = 0, bits, i
    cdef uint32_t first = 0, code
    for bits, text in SYMBOLS_BY_LENGTH.items():
        symbols = [*text, END_OF_STRING] if bits == CODE_BITS else list(text)
        length_bits[number] = bits
        length_first[number] = first
        length_offset[number] = offset
        number += 1
        for symbol in symbols:
            code = first >> (CODE_BITS - bits)
            code_symbols[offset] = symbol
            symbol_code[<int> symbol] = code
            symbol_bits[<int> symbol] = bits
            if bits <= 8:
                for i in range(1 << (8 - bits)):
                    short_bits[(code << (8 - bits)) + i] = bits
                    short_symbol[(code << (8 - bits)) + i] = symbol
            first += 1 << (CODE_BITS - bits)
            offset += 1
    assert number == LENGTHS and offset == 257 and first == 1 << CODE_BITS
    return 0


prepare_huffman()


cdef Py_ssize_t unfold_huffman(const uint8_t* data, Py_ssize_t size, char* out) noexcept:
    """Decode into `out`, which has room for 8/5 of `size`. Returns the length, or -1."""
    cdef uint64_t bits = 0
    cdef uint32_t window, mask = (1 << CODE_BITS) - 1
    cdef int count = 0, length, number
    cdef Py_ssize_t at = 0, written = 0
    cdef uint16_t symbol
    while True:
        while count < CODE_BITS and at < size:
            bits = bits << 8 | data[at]
            count += 8
            at += 1
        if count >= CODE_BITS:
            window = <uint32_t> (bits >> (count - CODE_BITS)) & mask
        else:
            window = <uint32_t> (bits << (CODE_BITS - count)) & mask
            window |= (<uint32_t> 1 << (CODE_BITS - count)) - 1
        length = short_bits[window >> 22]
        if length:
            symbol = short_symbol[window >> 22]
        else:
            number = LENGTHS - 1
            while length_first[number] > window:
                number -= 1
            length = length_bits[number]
            symbol = code_symbols[
                length_offset[number] + ((window - length_first[number]) >> (CODE_BITS - length))
            ]
        if length > count or symbol == END_OF_STRING:
            break
        out[written] = <char> symbol
        written += 1
        count -= length
    bits &= (<uint64_t> 1 << count) - 1
    if count > 7 or bits != (<uint64_t> 1 << count) - 1:
        return -1
    return written


cdef Py_ssize_t huffman_size(const uint8_t* text, Py_ssize_t size) noexcept:
    cdef Py_ssize_t bits = 0, i
    for i in range(size):
        bits += symbol_bits[text[i]]
    return (bits + 7) // 8


cdef void fold_huffman(const uint8_t* text, Py_ssize_t size, uint8_t* out) noexcept:
    cdef uint64_t bits = 0
    cdef int count = 0
    cdef Py_ssize_t i
    for i in range(size):
        bits = bits << symbol_bits[text[i]] | symbol_code[text[i]]
        count += symbol_bits[text[i]]
        while count >= 8:
            count -= 8
            out[0] = <uint8_t> (bits >> count)
            out += 1
    if count:
        out[0] = <uint8_t> (bits << (8 - count)) | <uint8_t> ((1 << (8 - count)) - 1)


def encode_huffman(bytes text not None):
    cdef Py_ssize_t size = huffman_size(text, len(text))
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
    fold_huffman(text, len(text), <uint8_t*> PyBytes_AS_STRING(out))
    return out


def decode_huffman(bytes data not None):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, len(data) * 8 // 5 + 1)
    cdef Py_ssize_t size = unfold_huffman(data, len(data), PyBytes_AS_STRING(out))
    if size < 0:
        raise HpackError("a Huffman-coded string does not end with fewer than 8 ones")
    return out[:size]


# --- The static table ---------------------------------------------------------------------------

cdef list STATIC_TABLE = [
    tuple(word.partition(b" ")[::2])
    for word in b"""
:authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https
:status 200|:status 204|:status 206|:status 304|:status 400|:status 404|:status 500|accept-charset
accept-encoding gzip, deflate|accept-language|accept-ranges|accept|access-control-allow-origin|age
allow|authorization|cache-control|content-disposition|content-encoding|content-language
content-length|content-location|content-range|content-type|cookie|date|etag|expect|expires|from
host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|link
location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after
server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate
""".strip().replace(b"\n", b"|").split(b"|")
]
cdef dict STATIC_INDEX = {pair: number for number, pair in enumerate(STATIC_TABLE, 1)}
cdef dict STATIC_NAME = {pair[0]: number for number, pair in reversed([*enumerate(STATIC_TABLE, 1)])}
cdef TableEntry* static_entries[FIRST_DYNAMIC]


cdef inline const char* name_in(const TableEntry* entry) noexcept:
    return <const char*> entry + sizeof(TableEntry)


cdef inline const char* value_in(const TableEntry* entry) noexcept:
    return <const char*> entry + sizeof(TableEntry) + entry.name_size


cdef TableEntry* new_entry(Span name, Span value) except NULL:
    cdef TableEntry* entry = <TableEntry*> PyMem_Malloc(sizeof(TableEntry) + name.size + value.size)
    if entry == NULL:
        raise MemoryError
    entry.name_size = <uint32_t> name.size
    entry.value_size = <uint32_t> value.size
    memcpy(<char*> name_in(entry), name.at, name.size)
    memcpy(<char*> value_in(entry), value.at, value.size)
    entry.known = number_of_name(name.at, name.size)
    entry.flags = flags_of(entry.known, name, value)
    return entry


cdef uint8_t flags_of(uint8_t known, Span name, Span value) noexcept:
    """Whether it is a pseudo-field, and whether no request may have it."""
    cdef Py_ssize_t path_size
    cdef bint good
    if name.size and name.at[0] == c":":
        if known == NAME_METHOD:
            good = is_method(value.at, value.size)
        elif known == NAME_PATH:
            good = is_target(value.at, value.size, &path_size)
        elif known == NAME_SCHEME:
            good = equals(value, "http", 4) or equals(value, "https", 5)
        elif known == NAME_AUTHORITY:
            good = is_authority(value.at, value.size)
        else:
            good = False
        return FIELD_PSEUDO if good else FIELD_PSEUDO | FIELD_MALFORMED
    if known == NAME_TE:
        good = equals(value, "trailers", 8)
    elif (
        known == NAME_CONNECTION or known == NAME_KEEP_ALIVE or known == NAME_PROXY_CONNECTION
        or known == NAME_TRANSFER_ENCODING or known == NAME_UPGRADE
    ):
        good = False
    else:
        good = (known or (name.size and all_in(name.at, name.size, IN_NAME)))
        good = good and all_in(value.at, value.size, IN_VALUE)
    return 0 if good else FIELD_MALFORMED


cdef inline bint is_method(const char* text, Py_ssize_t size) noexcept:
    cdef Py_ssize_t i
    if not 0 < size <= 32:
        return False
    for i in range(size):
        if not c"A" <= text[i] <= c"Z":
            return False
    return True


cdef inline bint is_authority(const char* text, Py_ssize_t size) noexcept:
    cdef Py_ssize_t i
    for i in range(size):
        if not c"!" <= text[i] <= c"~":
            return False
    return True


cdef int prepare_static() except -1:
    cdef int number
    assert len(STATIC_TABLE) == FIRST_DYNAMIC - 1
    for number in range(1, FIRST_DYNAMIC):
        name, value = STATIC_TABLE[number - 1]
        static_entries[number] = new_entry(span_of(name, len(name)), span_of(value, len(value)))
    return 0


prepare_static()


# --- Decoding -----------------------------------------------------------------------------------

# The text of the list that is being decoded.
cdef Buffer list_text
# What Huffman-coded names and values unfold into.
cdef Buffer unfolded_name
cdef Buffer unfolded_value


cdef inline int64_t read_integer(
    const uint8_t** at, const uint8_t* end, int prefix_bits, const char** error
) noexcept:
    """The integer that begins in the low bits of the next byte, or -1."""
    cdef int64_t limit = (1 << prefix_bits) - 1
    cdef int64_t value = at[0][0] & limit
    cdef int shift = 0
    cdef uint8_t byte
    at[0] += 1
    if value < limit:
        return value
    while at[0] < end:
        byte = at[0][0]
        at[0] += 1
        if shift > 28:
            error[0] = "an integer is too large"
            return -1
        value += <int64_t> (byte & 127) << shift
        if value > MAX_INTEGER:
            error[0] = "an integer is too large"
            return -1
        if byte < 128:
            return value
        shift += 7
    error[0] = "a block ends within an integer"
    return -1


cdef int read_string(
    const uint8_t** at, const uint8_t* end, Buffer* unfolded, Span* text, const char** error
) except -1:
    """1 if there is one, 0 and an error if not."""
    cdef bint coded
    cdef int64_t size
    cdef Py_ssize_t written
    if at[0] >= end:
        error[0] = "a block ends before a string"
        return 0
    coded = at[0][0] & 0x80
    size = read_integer(at, end, 7, error)
    if size < 0:
        return 0
    if size > end - at[0]:
        error[0] = "a block ends within a string"
        return 0
    if coded:
        unfolded.at = unfolded.end = 0
        reserve_bytes(unfolded, size * 8 // 5 + 1)
        written = unfold_huffman(at[0], size, unfolded.data)
        if written < 0:
            error[0] = "a Huffman-coded string does not end with fewer than 8 ones"
            return 0
        text[0] = span_of(unfolded.data, written)
    else:
        text[0] = span_of(<const char*> at[0], size)
    at[0] += size
    return 1


cdef inline int keep_field(Decoder self, Span name, Span value, uint8_t known, uint8_t flags, int64_t* room) except -1:
    cdef FieldRef* ref
    room[0] -= name.size + value.size + FIELD_OVERHEAD
    if room[0] < 0 or list_count >= self.max_fields:
        room[0] = -1
        return 0
    ref = new_ref()
    ref.known = known
    ref.flags = flags
    ref.name_size = <uint32_t> name.size
    ref.value_size = <uint32_t> value.size
    reserve_bytes(&list_text, name.size + value.size)
    ref.name_at = <uint32_t> list_text.end
    memcpy(list_text.data + list_text.end, name.at, name.size)
    list_text.end += name.size
    ref.value_at = <uint32_t> list_text.end
    memcpy(list_text.data + list_text.end, value.at, value.size)
    list_text.end += value.size
    return 0


cdef inline const TableEntry* entry_at(Decoder self, int64_t index) noexcept:
    if index < FIRST_DYNAMIC:
        return static_entries[index] if index > 0 else NULL
    index -= FIRST_DYNAMIC
    if index >= self.held:
        return NULL
    return self.ring[(self.newest - <uint32_t> index) & (self.capacity - 1)]


cdef void evict_entries(Decoder self, int64_t room) noexcept:
    cdef TableEntry* entry
    while self.size > room and self.held:
        entry = self.ring[(self.newest - (self.held - 1)) & (self.capacity - 1)]
        self.size -= entry.name_size + entry.value_size + FIELD_OVERHEAD
        self.held -= 1
        PyMem_Free(entry)


cdef int insert_entry(Decoder self, TableEntry* entry) except -1:
    """Takes the entry over. Room was made for it."""
    cdef TableEntry** ring
    cdef uint32_t i, capacity
    if self.held >= self.capacity:
        capacity = max(<uint32_t> 8, self.capacity * 2)
        ring = <TableEntry**> PyMem_Malloc(capacity * sizeof(TableEntry*))
        if ring == NULL:
            PyMem_Free(entry)
            raise MemoryError
        for i in range(self.held):
            ring[self.held - 1 - i] = self.ring[(self.newest - i) & (self.capacity - 1)]
        PyMem_Free(self.ring)
        self.ring = ring
        self.capacity = capacity
        self.newest = self.held - 1
    self.newest = (self.newest + 1) & (self.capacity - 1)
    self.ring[self.newest] = entry
    self.held += 1
    self.size += entry.name_size + entry.value_size + FIELD_OVERHEAD
    return 0


cdef int read_size_updates(Decoder self, const uint8_t** at, const uint8_t* end) noexcept:
    cdef int updates = 0
    cdef int64_t size
    while at[0] < end and at[0][0] & 0xE0 == 0x20:
        size = read_integer(at, end, 5, &self.error)
        if size < 0:
            return 0
        updates += 1
        if size > self.limit:
            self.error = "a table that is larger than was announced"
            return 0
        if updates > 2:
            self.error = "more than two changes of the table's size in one block"
            return 0
        self.table_bytes = size
        evict_entries(self, size)
    return 1


cdef int read_literal(
    Decoder self, const uint8_t** at, const uint8_t* end, int prefix_bits, Span* name, Span* value
) except -1:
    cdef const TableEntry* entry
    cdef int64_t index = read_integer(at, end, prefix_bits, &self.error)
    if index < 0:
        return 0
    if index:
        entry = entry_at(self, index)
        if entry == NULL:
            self.error = "an index that is in neither table"
            return 0
        name[0] = span_of(name_in(entry), entry.name_size)
    elif not read_string(at, end, &unfolded_name, name, &self.error):
        return 0
    return read_string(at, end, &unfolded_value, value, &self.error)


cdef int read_block(Decoder self, const uint8_t* at, Py_ssize_t size) except -1:
    """Read a block into the one list. 1, or 0 and an error."""
    global list_count
    cdef const uint8_t* end = at + size
    cdef const TableEntry* entry
    cdef TableEntry* added
    cdef Span name, value
    cdef int64_t index, entry_size, room = self.max_list_bytes, left = self.max_fields * FOLLOWED
    cdef uint8_t known
    list_count = 0
    empty(&list_text, 65536)
    if not read_size_updates(self, &at, end):
        return 0
    while at < end:
        if not left:
            self.error = "a block of too many fields"
            return 0
        left -= 1
        if at[0] & 0x80:
            index = read_integer(&at, end, 7, &self.error)
            if index < 0:
                return 0
            entry = entry_at(self, index)
            if entry == NULL:
                self.error = "an index that is in neither table"
                return 0
        elif at[0] & 0x40:
            if not read_literal(self, &at, end, 6, &name, &value):
                return 0
            # Made before others have to go: the name may be that of one of them.
            added = new_entry(name, value)
            entry_size = name.size + value.size + FIELD_OVERHEAD
            evict_entries(self, self.table_bytes - entry_size)
            if entry_size > self.table_bytes:
                try:
                    keep_entry(self, added, &room)
                finally:
                    PyMem_Free(added)
                continue
            insert_entry(self, added)
            entry = added
        elif at[0] & 0x20:
            self.error = "a change of the table's size behind a field"
            return 0
        else:
            if not read_literal(self, &at, end, 4, &name, &value):
                return 0
            known = number_of_name(name.at, name.size)
            keep_field(self, name, value, known, flags_of(known, name, value), &room)
            continue
        keep_entry(self, entry, &room)
    self.truncated = room < 0
    return 1


cdef inline int keep_entry(Decoder self, const TableEntry* entry, int64_t* room) except -1:
    return keep_field(
        self,
        span_of(name_in(entry), entry.name_size),
        span_of(value_in(entry), entry.value_size),
        entry.known,
        entry.flags,
        room,
    )


@cython.final
cdef class Decoder:
    """Reads the blocks of one connection, in their order."""

    def __init__(self, max_list_bytes=16384, max_fields=128, table_bytes=DEFAULT_TABLE_BYTES):
        self.max_list_bytes = max_list_bytes
        self.max_fields = max_fields
        self.limit = self.table_bytes = table_bytes

    def __dealloc__(self):
        evict_entries(self, -1)
        PyMem_Free(self.ring)

    @property
    def table_size(self):
        return self.size

    def decode(self, bytes block not None):
        """The fields of a block, as many as the bounds allow."""
        cdef FieldList fields
        if not read_block(self, block, len(block)):
            raise HpackError(self.error.decode("ascii"))
        fields.pseudo = 0
        take_list(&fields, list_text.data, list_text.end)
        try:
            return pairs_of(&fields)
        finally:
            PyMem_Free(fields.refs)


# --- Encoding -----------------------------------------------------------------------------------

cdef inline uint8_t* write_integer(uint8_t* out, int64_t value, int prefix_bits, int flags) noexcept:
    cdef int64_t limit = (1 << prefix_bits) - 1
    if value < limit:
        out[0] = <uint8_t> (flags | value)
        return out + 1
    out[0] = <uint8_t> (flags | limit)
    out += 1
    value -= limit
    while value >= 128:
        out[0] = <uint8_t> (value & 127 | 128)
        out += 1
        value >>= 7
    out[0] = <uint8_t> value
    return out + 1


cdef bytes packed_integer(int64_t value, int prefix_bits, int flags):
    cdef uint8_t out[16]
    cdef uint8_t* end = write_integer(out, value, prefix_bits, flags)
    return PyBytes_FromStringAndSize(<char*> out, end - out)


cdef bytes packed_string(bytes text):
    """Whichever form is shorter."""
    cdef Py_ssize_t folded = huffman_size(text, len(text))
    if folded < len(text):
        return packed_integer(folded, 7, 0x80) + encode_huffman(text)
    return packed_integer(len(text), 7, 0) + text


@cython.final
cdef class PreparedField:
    """A field in every form it may take."""

    def __init__(self, bytes name not None, bytes value not None, bint repeated):
        self.name = name
        self.value = value
        self.repeated = repeated
        self.size = len(name) + len(value) + FIELD_OVERHEAD
        self.key = hash((name, value))
        static = STATIC_INDEX.get((name, value))
        self.index = None if static is None else packed_integer(static, 7, 0x80)
        named = STATIC_NAME.get(name, 0)
        text = (b"" if named else packed_string(name)) + packed_string(value)
        self.adding = packed_integer(named, 6, 0x40) + text
        self.plain = packed_integer(named, 4, 0) + text


@cython.final
cdef class HeaderBlock:
    """Fields that are prepared once and sent often. Names are in lower case."""

    def __init__(self, repeated=(), others=()):
        self.repeated = tuple(repeated)
        self.others = tuple(others)
        self.fields = [PreparedField(name, value, True) for name, value in self.repeated]
        self.fields += [PreparedField(name, value, False) for name, value in self.others]
        self.bound = 16
        for field in self.fields:
            self.bound += len((<PreparedField> field).adding) + 8


cdef HeaderBlock compiled_block(object block):
    """A block of either kind. The other one keeps what is made of it here."""
    cdef HeaderBlock compiled
    if type(block) is HeaderBlock:
        return <HeaderBlock> block
    compiled = block.compiled
    if compiled is None:
        block.compiled = compiled = HeaderBlock(block.repeated, block.others)
    return compiled


cdef inline uint8_t* put_bytes(uint8_t* out, bytes text) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
    memcpy(out, PyBytes_AS_STRING(text), size)
    return out + size


cdef void resize_encoder(Encoder self, int64_t table_bytes):
    self.table_bytes = min(table_bytes, <int64_t> DEFAULT_TABLE_BYTES)
    self.smallest = min(self.smallest, self.table_bytes)
    evict_fields(self, self.table_bytes)


cdef void evict_fields(Encoder self, int64_t room):
    cdef Py_ssize_t gone = 0
    while self.size > room and gone < len(self.table):
        self.size -= (<PreparedField> self.table[gone]).size
        gone += 1
    if gone:
        del self.table[:gone]


cdef inline bint same_field(PreparedField one, PreparedField other):
    if one is other:
        return True
    return one.key == other.key and one.name == other.name and one.value == other.value


cdef uint8_t* put_field(Encoder self, uint8_t* out, PreparedField field) except NULL:
    cdef Py_ssize_t count, back
    if field.index is not None:
        return put_bytes(out, field.index)
    if not field.repeated or field.size > self.table_bytes:
        return put_bytes(out, field.plain)
    count = len(self.table)
    for back in range(count):
        if same_field(<PreparedField> self.table[count - 1 - back], field):
            return write_integer(out, FIRST_DYNAMIC + back, 7, 0x80)
    evict_fields(self, self.table_bytes - field.size)
    self.table.append(field)
    self.size += field.size
    return put_bytes(out, field.adding)


cdef uint8_t* put_block(Encoder self, uint8_t* out, HeaderBlock block) except NULL:
    """Write a block; there is room for its bound."""
    cdef bint both = self.smallest < min(self.told, self.table_bytes)
    if both:
        out = write_integer(out, self.smallest, 5, 0x20)
    if both or self.table_bytes != self.told:
        out = write_integer(out, self.table_bytes, 5, 0x20)
    self.told = self.smallest = self.table_bytes
    for field in block.fields:
        out = put_field(self, out, <PreparedField> field)
    return out


@cython.final
cdef class Encoder:
    """Writes the blocks of one connection, in their order."""

    def __cinit__(self):
        self.table = []
        self.table_bytes = self.told = self.smallest = DEFAULT_TABLE_BYTES

    def resize(self, int64_t table_bytes):
        resize_encoder(self, table_bytes)

    def encode(self, block):
        cdef HeaderBlock compiled = compiled_block(block)
        cdef bytes out = PyBytes_FromStringAndSize(NULL, compiled.bound)
        cdef uint8_t* start = <uint8_t*> PyBytes_AS_STRING(out)
        cdef uint8_t* end = put_block(self, start, compiled)
        return out[: end - start]
