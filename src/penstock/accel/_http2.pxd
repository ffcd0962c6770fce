# What a compiled server may use of the protocol layer: the classes with their fields, and the calls
# that make no Python objects. It cimports this, derives from Http2Connection, and answers requests
# in `emit`, inside the callback that received their bytes. All else is in the sources, as functions
# over these classes.

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef struct Span:
    # Text that somebody else keeps.
    const char* at
    Py_ssize_t size


cdef struct Buffer:
    # Bytes from `at` to `end`; what is before `at` was taken.
    char* data
    Py_ssize_t at
    Py_ssize_t end
    Py_ssize_t capacity


cdef struct FieldRef:
    # A field within the text of its list. `known` is the number of its name, and 0 for others.
    uint32_t name_at
    uint32_t name_size
    uint32_t value_at
    uint32_t value_size
    uint8_t known
    uint8_t flags


cdef struct RouteEntry:
    const char* path
    Py_ssize_t size
    int32_t number
    Py_ssize_t body_bytes
    bint streaming


cdef struct TableEntry:
    # A field in the table of a decoder, with its text, the name first, right behind it.
    uint32_t name_size
    uint32_t value_size
    uint8_t known
    uint8_t flags


cdef enum EventKind:
    EVENT_REQUEST
    EVENT_HEAD
    EVENT_DATA
    EVENT_END
    EVENT_RESET
    EVENT_PONG
    EVENT_GOAWAY
    EVENT_CLOSED
    EVENT_PARTIAL


cdef enum KnownName:
    NAME_OTHER
    NAME_TE
    NAME_HOST
    NAME_PATH
    NAME_EXPECT
    NAME_COOKIE
    NAME_METHOD
    NAME_SCHEME
    NAME_UPGRADE
    NAME_CONNECTION
    NAME_KEEP_ALIVE
    NAME_USER_AGENT
    NAME_AUTHORITY
    NAME_TRACEPARENT
    NAME_CONTENT_TYPE
    NAME_GRPC_TIMEOUT
    NAME_AUTHORIZATION
    NAME_GRPC_ENCODING
    NAME_CONTENT_LENGTH
    NAME_PROXY_CONNECTION
    NAME_TRANSFER_ENCODING
    NAME_GRPC_ACCEPT_ENCODING
    NAME_COUNT


cdef class Room:
    cdef readonly int64_t limit
    cdef readonly int64_t taken
    cdef bint reserve(self, int64_t amount) noexcept
    cdef void release(self, int64_t amount) noexcept


cdef class RouteTable:
    cdef RouteEntry* entries
    cdef Py_ssize_t count
    cdef list paths
    cdef const RouteEntry* find(self, const char* path, Py_ssize_t size) noexcept


cdef struct FieldList:
    # The fields of a request, in one piece of memory: their places, then their text. The first
    # `pseudo` of them are pseudo-fields. `find_field` looks for a name that has a number.
    FieldRef* refs
    char* text
    int count
    int pseudo


cdef bint find_field(const FieldList* fields, int known, Span* value) noexcept


cdef class PreparedField:
    cdef readonly bytes name
    cdef readonly bytes value
    cdef bytes index
    cdef bytes adding
    cdef bytes plain
    cdef bint repeated
    cdef uint32_t size
    cdef Py_hash_t key


cdef class HeaderBlock:
    cdef readonly tuple repeated
    cdef readonly tuple others
    cdef list fields
    # The most that the block can take, encoded.
    cdef Py_ssize_t bound


cdef class Decoder:
    cdef TableEntry** ring
    cdef uint32_t capacity
    cdef uint32_t newest
    cdef uint32_t held
    cdef int64_t size
    cdef int64_t limit
    cdef int64_t table_bytes
    cdef int64_t max_list_bytes
    cdef int64_t max_fields
    cdef readonly bint truncated
    cdef const char* error


cdef class Encoder:
    cdef list table
    cdef int64_t size
    cdef int64_t table_bytes
    cdef int64_t told
    cdef int64_t smallest


cdef class Stream:
    cdef FieldList list
    cdef object joined_fields
    cdef readonly uint32_t id
    cdef readonly int64_t begun_ms
    cdef readonly int route
    cdef readonly bint streaming
    cdef readonly bint ended
    cdef readonly bint closed
    cdef readonly bint head_sent
    cdef readonly str fault
    cdef bint fault_set
    cdef public object context
    cdef Span method_text
    cdef Span scheme_text
    cdef Span path_text
    cdef Span query_text
    cdef Span authority_text
    # What is there of the body, from body_data.at to body_data.end.
    cdef Buffer body_data
    cdef Py_ssize_t body_bytes
    cdef int64_t received
    cdef int64_t declared
    cdef int64_t held
    cdef int64_t unread
    cdef int64_t credit
    cdef bint handed_over
    cdef int64_t window
    cdef Buffer waiting
    cdef bint waiting_end
    cdef HeaderBlock waiting_trailers
    cdef int64_t blocked_ms
    # Neighbours among the streams that wait for room.
    cdef PyObject* next_blocked
    cdef PyObject* previous_blocked
    cdef bint is_blocked
    # Whether this is a call of gRPC whose one message is there, whole and plain, with no more than
    # `max_bytes`; its text, and milliseconds until its deadline, -1 for none. Calls for which the
    # answer is no may be right, too: the interpreted module reads those.
    cdef bint plain_call(self, Py_ssize_t max_bytes, Span* message, int64_t* timeout_ms) noexcept


cdef class Http2Options:
    cdef readonly object routes
    cdef RouteTable known
    cdef readonly Room room
    cdef readonly int64_t concurrent_streams
    cdef readonly int64_t header_list_bytes
    cdef readonly int64_t header_fields
    cdef readonly int64_t header_block_bytes
    cdef readonly int64_t header_frames
    cdef readonly int64_t stream_window
    cdef readonly int64_t connection_window
    cdef readonly int64_t body_bytes
    cdef readonly int64_t held_bytes
    cdef readonly int64_t pending_bytes
    cdef readonly int64_t outgoing_bytes
    cdef readonly int64_t turn_requests
    cdef readonly int64_t turn_bytes
    cdef readonly int64_t control_burst
    cdef readonly int64_t controls_per_s
    cdef readonly int64_t controls_per_request
    cdef readonly int64_t reset_burst
    cdef readonly int64_t resets_per_s
    cdef readonly int64_t settings_ms
    cdef readonly int64_t head_ms
    cdef readonly int64_t request_ms
    cdef readonly int64_t write_ms


cdef struct Allowance:
    int64_t burst
    int64_t level
    int64_t per_s
    int64_t since_ms


cdef class Http2Connection:
    cdef Http2Options options
    cdef Decoder decoder
    cdef Encoder encoder
    cdef int64_t now
    cdef int64_t opened_ms
    cdef readonly int64_t quiet_since_ms
    cdef Allowance controls
    cdef Allowance resets
    cdef Buffer input
    cdef int64_t partial_ms
    cdef bint prefaced
    cdef bint begun
    cdef bint settled
    # The block of fields that is still arriving; its stream is 0 if there is none.
    cdef Buffer block
    cdef uint32_t block_stream
    cdef bint block_end_stream
    cdef int64_t block_frames
    cdef int64_t block_since_ms
    cdef list events
    # Requests that were begun in this turn, and may not be complete at its end.
    cdef list partial
    # Streams that ended, whose client is to be told to stop sending, and when; None if there are none.
    cdef dict unstopped
    # How many events there were in the last turn.
    cdef readonly int64_t event_count
    # Open streams by number: a power of two of places, collisions in the next free one.
    cdef PyObject** places
    cdef uint32_t place_mask
    cdef uint32_t open_count
    # The last streams that ended: the number, shifted, and whether frames may be under way.
    cdef uint32_t* closed_ring
    cdef uint32_t closed_count
    cdef uint32_t closed_next
    cdef uint32_t last_id
    cdef uint32_t final_id
    cdef bint going
    cdef int64_t pings
    cdef int64_t credit
    cdef int64_t unread
    cdef int64_t held
    cdef int64_t reserved
    cdef int64_t window
    cdef int64_t initial_window
    cdef PyObject* first_blocked
    cdef PyObject* last_blocked
    cdef int64_t waiting_bytes
    cdef int64_t waiting_reserved
    cdef Buffer out
    cdef readonly bint pending
    cdef readonly bint ended
    cdef uint32_t error_stream
    cdef uint32_t error_code
    cdef const char* error_text

    # What a compiled server replaces. Answers may be sent from within.
    cdef int emit(self, int kind, Stream stream, object value) except -1

    # What it calls.
    cdef int receive(self, const char* data, Py_ssize_t size, int64_t now_ms) except -1
    cdef int settle_reading(self, int result) except -1
    cdef bytes collect(self)
    cdef bint put_head(self, Stream stream, HeaderBlock head, bint end, bint interim) except -1
    cdef bint put_data(self, Stream stream, Span first, Span second, bint end) except -1
    cdef bint put_trailers(self, Stream stream, HeaderBlock trailers) except -1
    cdef bint put_reply(self, Stream stream, const char* message, Py_ssize_t size) except -1
    cdef bint put_reset(self, Stream stream, uint32_t code) except -1
