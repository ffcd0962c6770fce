# What a table keeps under a key, and how it keeps the key.
#
# A key is kept as UTF-8 in a block of its own, and as a digest if it is long (see
# core/_validation.py), so that its size depends on its bytes and not on Python's representation: a
# string with one emoji takes four bytes per character.
#
# A key that is looked up is `Sought`: a pointer to its text, and 32 bits of its hash. A short ASCII
# string, as nearly all keys are, has both already.

cdef extern from *:
    """
    typedef struct { uint32_t mark; uint32_t length; char text[1]; } PenstockName;
    typedef struct { const char* text; uint32_t length; uint32_t mark; } PenstockSought;

    static inline Py_hash_t penstock_hash(PyObject* text) {
        Py_hash_t hash = ((PyASCIIObject*) text)->hash;
        return hash != -1 ? hash : PyObject_Hash(text);
    }

    static inline int penstock_seek_ascii(
        PyObject* key, Py_ssize_t longest, PenstockSought* sought
    ) {
        if (!PyUnicode_IS_COMPACT_ASCII(key) || PyUnicode_GET_LENGTH(key) > longest) return 0;
        sought->text = (const char*) PyUnicode_1BYTE_DATA(key);
        sought->length = (uint32_t) PyUnicode_GET_LENGTH(key);
        sought->mark = (uint32_t) penstock_hash(key);
        return 1;
    }

    static inline int penstock_is(const PenstockName* name, const PenstockSought* sought) {
        return name->length == sought->length
            && memcmp(name->text, sought->text, sought->length) == 0;
    }

    #if PY_VERSION_HEX >= 0x030E0000
    #define penstock_hash_bytes Py_HashBuffer
    #else
    #define penstock_hash_bytes _Py_HashBytes
    #endif

    /* As penstock_seek_ascii finds the string of both, without making it: the hash of a string of
       one-byte characters is that of its bytes. */
    static inline int penstock_seek_joined(
        PyObject* lead, PyObject* key, Py_ssize_t longest, char* room, PenstockSought* sought
    ) {
        Py_ssize_t before = PyUnicode_GET_LENGTH(lead), after = PyUnicode_GET_LENGTH(key);
        if (!PyUnicode_IS_COMPACT_ASCII(lead) || before + after > longest) return 0;
        memcpy(room, PyUnicode_1BYTE_DATA(lead), before);
        memcpy(room + before, PyUnicode_1BYTE_DATA(key), after);
        sought->text = room;
        sought->length = (uint32_t) (before + after);
        sought->mark = (uint32_t) penstock_hash_bytes(room, before + after);
        return 1;
    }

    static inline int penstock_same(const PenstockSought* one, const PenstockSought* other) {
        return one->mark == other->mark && one->length == other->length
            && memcmp(one->text, other->text, one->length) == 0;
    }

    static inline size_t penstock_name_bytes(uint32_t length) {
        return offsetof(PenstockName, text) + length;
    }

    static inline int penstock_plain_key(PyObject* key) {
        return PyUnicode_CheckExact(key) && PyUnicode_IS_ASCII(key)
            && PyUnicode_GET_LENGTH(key) > 0 && PyUnicode_GET_LENGTH(key) <= 4096;
    }
    """
    ctypedef struct Name "PenstockName":
        uint32_t mark
        uint32_t length
        char* text
    ctypedef struct Sought "PenstockSought":
        const char* text
        uint32_t length
        uint32_t mark
    Py_hash_t hash_of "penstock_hash"(PyObject* text)
    bint seek_ascii "penstock_seek_ascii"(PyObject* key, Py_ssize_t longest, Sought* sought)
    bint is_named "penstock_is"(const Name* name, const Sought* sought)
    bint seek_joined "penstock_seek_joined"(
        PyObject* lead, PyObject* key, Py_ssize_t longest, char* room, Sought* sought
    )
    bint is_same "penstock_same"(const Sought* one, const Sought* other)
    size_t name_bytes "penstock_name_bytes"(uint32_t length)
    bint is_plain_key "penstock_plain_key"(PyObject* key)
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL


cdef object seek(str key, Py_ssize_t longest, digest_of, Sought* sought):
    """For a key that is long or not ASCII. Returns what `sought` points into."""
    cdef Py_ssize_t size
    cdef bytes digest
    if len(key) <= longest:
        sought.text = PyUnicode_AsUTF8AndSize(key, &size)
        sought.length = <uint32_t> size
        sought.mark = <uint32_t> hash_of(<PyObject*> key)
        return key
    digest = digest_of(key)
    sought.text = digest
    sought.length = <uint32_t> len(digest)
    # From its end: the first byte is the same in all of them.
    memcpy(&sought.mark, sought.text + sought.length - sizeof(uint32_t), sizeof(uint32_t))
    return digest


cdef Name* name_new(const Sought* sought) except NULL:
    cdef Name* name = <Name*> PyMem_Malloc(name_bytes(sought.length))
    if name == NULL:
        raise MemoryError()
    name.mark = sought.mark
    name.length = sought.length
    memcpy(name.text, sought.text, sought.length)
    return name


cdef inline int64_t block_bytes(size_t size) noexcept:
    """What the allocator takes for a block: sixteenths, and a header for a large one."""
    return ((size + 15) & ~<size_t> 15) + (16 if size > 512 else 0)


cdef uint32_t NIL = 0xFFFFFFFF

ctypedef struct Record:
    Name* name              # NULL: free, and `next` links the free ones
    int64_t expires
    Word a
    Word b
    uint32_t next
    uint32_t prev
    uint32_t version        # changes with every write
    uint16_t slot
    uint8_t kind
    uint8_t heat            # of a table with bounds: see order.pxi
