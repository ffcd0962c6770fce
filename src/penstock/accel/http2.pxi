# HTTP/2 for servers, as in service/http2/_connection.py and _streams.py, function for function.
#
# Functions that read return DONE or, after an error of the client, STREAM_FAILED or
# CONNECTION_FAILED, with the details in `error_stream`, `error_code` and
# `error_text` of the connection. -1 is a Python exception, such as a lack of memory.
#
# A subclass may answer from within `emit`, and the stream may be closed when that returns.

cdef enum:
    DONE = 0
    STREAM_FAILED = 1
    CONNECTION_FAILED = 2
    INCOMPLETE = 3

cdef enum:
    MAX_FRAME = 16384
    DEFAULT_WINDOW = 65535
    REMEMBERED = 128
    UNSTOPPED = 8
    STOPPING_MS = 1000
    PREFACE_SIZE = 24
    # What an idle connection keeps of its buffers.
    KEPT_BYTES = 512

cdef enum:
    FRAME_DATA = 0
    FRAME_HEADERS = 1
    FRAME_PRIORITY = 2
    FRAME_RST_STREAM = 3
    FRAME_SETTINGS = 4
    FRAME_PUSH_PROMISE = 5
    FRAME_PING = 6
    FRAME_GOAWAY = 7
    FRAME_WINDOW_UPDATE = 8
    FRAME_CONTINUATION = 9

cdef enum:
    FLAG_ACK = 0x01
    FLAG_END_STREAM = 0x01
    FLAG_END_HEADERS = 0x04
    FLAG_PADDED = 0x08
    FLAG_PRIORITIZED = 0x20

cdef enum:
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11

cdef enum:
    SETTING_HEADER_TABLE_SIZE = 1
    SETTING_ENABLE_PUSH = 2
    SETTING_MAX_CONCURRENT_STREAMS = 3
    SETTING_INITIAL_WINDOW_SIZE = 4
    SETTING_MAX_FRAME_SIZE = 5
    SETTING_MAX_HEADER_LIST_SIZE = 6

cdef int64_t MAX_WINDOW = 2147483647
cdef uint32_t LAST_STREAM = 2147483647
cdef const char* PREFACE_TEXT = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
cdef const char* SHUTDOWN_PING = b"shutdown"
cdef tuple EVENT_NAMES = ("request", "head", "data", "end", "reset", "pong", "goaway", "closed", "partial")

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


# --- Streams ------------------------------------------------------------------------------------

@cython.final
@cython.freelist(256)
cdef class Stream:
    """A request, and what is known of its answer."""

    def __cinit__(self):
        self.route = -1
        self.declared = -1
        self.fault = ""

    def __dealloc__(self):
        PyMem_Free(self.list.refs)
        PyMem_Free(self.body_data.data)
        PyMem_Free(self.waiting.data)

    def __repr__(self):
        return f"<Stream {self.id} {self.method} {self.path}>"

    @property
    def fields(self):
        return pairs_of(&self.list)

    @property
    def headers(self):
        """The fields by name; those of one name are joined."""
        if self.joined_fields is None:
            self.joined_fields = joined(&self.list)
        return self.joined_fields

    def get(self, str name):
        return self.headers.get(name)

    @property
    def method(self):
        return text_of(self.method_text)

    @property
    def scheme(self):
        return text_of(self.scheme_text)

    @property
    def path(self):
        return text_of(self.path_text)

    @property
    def query(self):
        return text_of(self.query_text)

    @property
    def authority(self):
        return text_of(self.authority_text)

    @property
    def body(self):
        """The part of the body that has arrived."""
        return PyBytes_FromStringAndSize(
            self.body_data.data + self.body_data.at, self.body_data.end - self.body_data.at
        )

    cdef bint plain_call(self, Py_ssize_t max_bytes, Span* message, int64_t* timeout_ms) noexcept:
        cdef const uint8_t* prefix = <const uint8_t*> self.body_data.data + self.body_data.at
        cdef Py_ssize_t size = self.body_data.end - self.body_data.at
        if self.fault_set or not self.ended or not equals(self.method_text, "POST", 4):
            return False
        if size < 5 or size - 5 > max_bytes:
            return False
        if prefix[0] != 0 or big_endian(prefix + 1) != <uint64_t> (size - 5):
            return False
        if not read_call(&self.list, timeout_ms):
            return False
        message[0] = span_of(<const char*> prefix + 5, size - 5)
        return True


cdef bint read_call(const FieldList* fields, int64_t* timeout_ms) noexcept:
    """Whether the fields of a call are there, each of them once, and plain."""
    cdef uint32_t seen = 0, bit
    cdef Span value
    cdef uint8_t known
    cdef int i
    timeout_ms[0] = -1
    for i in range(fields.pseudo, fields.count):
        known = fields.refs[i].known
        if (
            known != NAME_TE and known != NAME_CONTENT_TYPE and known != NAME_GRPC_TIMEOUT
            and known != NAME_GRPC_ENCODING
        ):
            continue
        bit = <uint32_t> 1 << known
        if seen & bit:
            return False
        seen |= bit
        value = value_of(fields, i)
        if known == NAME_CONTENT_TYPE:
            if not equals(value, "application/grpc", 16):
                if not equals(value, "application/grpc+proto", 22):
                    return False
        elif known == NAME_GRPC_TIMEOUT:
            if not parse_timeout(value, timeout_ms):
                return False
        elif known == NAME_GRPC_ENCODING and not equals(value, "identity", 8):
            return False
    # Another value of `te` would have been malformed.
    return seen & (<uint32_t> 1 << NAME_TE) != 0 and seen & (<uint32_t> 1 << NAME_CONTENT_TYPE) != 0


cdef bint parse_timeout(Span text, int64_t* timeout_ms) noexcept:
    """Milliseconds, rounded up."""
    cdef int64_t number
    cdef char unit
    if not 2 <= text.size <= 9:
        return False
    number = parse_length(span_of(text.at, text.size - 1))
    if number < 0:
        return False
    unit = text.at[text.size - 1]
    if unit == c"m":
        timeout_ms[0] = number
    elif unit == c"S":
        timeout_ms[0] = number * 1000
    elif unit == c"u":
        timeout_ms[0] = (number + 999) // 1000
    elif unit == c"n":
        timeout_ms[0] = (number + 999999) // 1000000
    elif unit == c"M":
        timeout_ms[0] = number * 60000
    elif unit == c"H":
        timeout_ms[0] = number * 3600000
    else:
        return False
    return True


cdef bint are_fields(FieldRef* refs, int first, int count) noexcept:
    """Whether a request, or its trailers, may have these fields."""
    cdef uint32_t seen = 0, bit
    cdef int i
    for i in range(first, count):
        if refs[i].flags:
            return False
        bit = single_bit(refs[i].known)
        if seen & bit:
            return False
        seen |= bit
    return True


cdef bint read_head(Stream self, RouteTable routes) noexcept:
    """What the fields say. False if they are malformed."""
    cdef uint32_t seen = 0
    cdef FieldRef* ref
    cdef Span target, value
    cdef Py_ssize_t path_size = 0
    cdef const RouteEntry* route
    cdef int i = 0
    while i < self.list.count and self.list.refs[i].flags & FIELD_PSEUDO:
        ref = &self.list.refs[i]
        if ref.flags & FIELD_MALFORMED or seen & (<uint32_t> 1 << ref.known):
            return False
        seen |= <uint32_t> 1 << ref.known
        if ref.known == NAME_METHOD:
            self.method_text = value_of(&self.list, i)
        elif ref.known == NAME_SCHEME:
            self.scheme_text = value_of(&self.list, i)
        elif ref.known == NAME_PATH:
            target = value_of(&self.list, i)
        else:
            self.authority_text = value_of(&self.list, i)
        i += 1
    self.list.pseudo = i
    if not are_fields(self.list.refs, i, self.list.count) or not seen & (<uint32_t> 1 << NAME_METHOD):
        return False
    if equals(self.method_text, "CONNECT", 7):
        if seen & ((<uint32_t> 1 << NAME_SCHEME) | (<uint32_t> 1 << NAME_PATH)):
            return False
        if not self.authority_text.size:
            return False
    else:
        if not seen & (<uint32_t> 1 << NAME_SCHEME) or not seen & (<uint32_t> 1 << NAME_PATH):
            return False
        is_target(target.at, target.size, &path_size)
        if target.at[0] == c"*" and not equals(self.method_text, "OPTIONS", 7):
            return False
        self.path_text = span_of(target.at, path_size)
        if path_size < target.size:
            self.query_text = span_of(target.at + path_size + 1, target.size - path_size - 1)
        route = routes.find(self.path_text.at, path_size)
        if route != NULL:
            self.route = route.number
            self.body_bytes = route.body_bytes
            self.streaming = route.streaming
    if find_field(&self.list, NAME_HOST, &value):
        if not seen & (<uint32_t> 1 << NAME_AUTHORITY):
            if not is_authority(value.at, value.size):
                return False
            self.authority_text = value
        elif not equals(value, self.authority_text.at, self.authority_text.size):
            return False
    if find_field(&self.list, NAME_CONTENT_LENGTH, &value):
        self.declared = parse_length(value)
        if self.declared < 0:
            return False
    return True


cdef inline bint has_declared_length(Stream self) noexcept:
    if self.declared < 0:
        return True
    return self.received == self.declared if self.ended else self.received <= self.declared


# --- Options ------------------------------------------------------------------------------------

@cython.final
cdef class Http2Options:
    """What all connections of a server have in common: the known paths, and the bounds."""

    def __init__(
        self,
        *,
        routes=None,
        Room room=None,
        concurrent_streams=256,
        header_list_bytes=16384,
        header_fields=128,
        header_block_bytes=32768,
        header_frames=16,
        stream_window=65535,
        connection_window=2**20,
        body_bytes=32768,
        held_bytes=65536,
        pending_bytes=2**20,
        outgoing_bytes=2**18,
        turn_requests=64,
        turn_bytes=16384,
        control_burst=1000,
        controls_per_s=100,
        controls_per_request=8,
        reset_burst=500,
        resets_per_s=50,
        settings_ms=10000,
        head_ms=10000,
        request_ms=30000,
        write_ms=10000,
    ):
        if not DEFAULT_WINDOW <= stream_window <= MAX_WINDOW:
            raise ValueError("stream_window is from 65,535, which clients begin with, to 2**31 - 1")
        if not DEFAULT_WINDOW <= connection_window <= MAX_WINDOW:
            raise ValueError("connection_window is from 65,535 to 2**31 - 1")
        self.routes = {} if routes is None else routes
        self.known = RouteTable(self.routes)
        self.room = Room(64 * 2**20) if room is None else room
        self.concurrent_streams = concurrent_streams
        self.header_list_bytes = header_list_bytes
        self.header_fields = header_fields
        self.header_block_bytes = header_block_bytes
        self.header_frames = header_frames
        self.stream_window = stream_window
        self.connection_window = connection_window
        self.body_bytes = body_bytes
        self.held_bytes = held_bytes
        self.pending_bytes = pending_bytes
        self.outgoing_bytes = outgoing_bytes
        self.turn_requests = turn_requests
        self.turn_bytes = turn_bytes
        self.control_burst = control_burst
        self.controls_per_s = controls_per_s
        self.controls_per_request = controls_per_request
        self.reset_burst = reset_burst
        self.resets_per_s = resets_per_s
        self.settings_ms = settings_ms
        self.head_ms = head_ms
        self.request_ms = request_ms
        self.write_ms = write_ms


cdef inline void fill_allowance(Allowance* self, int64_t burst, int64_t per_s, int64_t now_ms) noexcept:
    self.burst = self.level = burst * 1000
    self.per_s = per_s
    self.since_ms = now_ms


cdef inline bint spend_allowance(Allowance* self, int64_t now_ms) noexcept:
    cdef int64_t elapsed_ms = now_ms - self.since_ms
    if elapsed_ms > 0:
        elapsed_ms = min(elapsed_ms, self.burst)
        self.level = min(self.burst, self.level + elapsed_ms * self.per_s)
        self.since_ms = now_ms
    self.level -= 1000
    return self.level >= 0


cdef inline void earn_allowance(Allowance* self, int64_t amount) noexcept:
    self.level = min(self.burst, self.level + amount * 1000)


# --- The connection -----------------------------------------------------------------------------

cdef class Http2Connection:
    """The server's side of one connection. Times are milliseconds of any steady clock."""

    def __init__(self, Http2Options options not None, int64_t now_ms):
        self.options = options
        self.now = self.opened_ms = self.quiet_since_ms = now_ms
        self.decoder = Decoder(options.header_list_bytes, options.header_fields)
        self.encoder = Encoder.__new__(Encoder)
        fill_allowance(&self.controls, options.control_burst, options.controls_per_s, now_ms)
        fill_allowance(&self.resets, options.reset_burst, options.resets_per_s, now_ms)
        self.partial_ms = -1
        self.final_id = LAST_STREAM
        self.credit = options.connection_window
        self.window = self.initial_window = DEFAULT_WINDOW
        send_settings(self)

    def __dealloc__(self):
        cdef uint32_t i
        if self.places != NULL:
            for i in range(self.place_mask + 1):
                Py_XDECREF(self.places[i])
        PyMem_Free(self.places)
        PyMem_Free(self.closed_ring)
        PyMem_Free(self.input.data)
        PyMem_Free(self.block.data)
        PyMem_Free(self.out.data)

    # --- What a server calls --------------------------------------------------------------------

    cdef int emit(self, int kind, Stream stream, object value) except -1:
        if self.events is None:
            self.events = []
        self.events.append((EVENT_NAMES[kind], stream, value))
        return 0

    cdef int receive(self, const char* data, Py_ssize_t size, int64_t now_ms) except -1:
        """Read new input, after the rest of the last call."""
        cdef Py_ssize_t taken = 0
        self.now = now_ms
        if self.ended:
            return 0
        if self.input.end > self.input.at:
            append(&self.input, data, size)
            self.settle_reading(read_turn(
                self, self.input.data + self.input.at, self.input.end - self.input.at, &taken
            ))
            self.input.at += taken
            if self.input.at >= self.input.end or self.ended:
                empty(&self.input, KEPT_BYTES)
        else:
            self.settle_reading(read_turn(self, data, size, &taken))
            if taken < size and not self.ended:
                append(&self.input, data + taken, size - taken)
        return 0

    cdef int settle_reading(self, int result) except -1:
        if result == CONNECTION_FAILED:
            fail(self)
        return 0

    cdef bytes collect(self):
        cdef bytes out = PyBytes_FromStringAndSize(self.out.data, self.out.end)
        empty(&self.out, KEPT_BYTES)
        return out

    cdef bint put_head(self, Stream stream, HeaderBlock head, bint end, bint interim) except -1:
        if stream.closed:
            return False
        write_fields(self, stream.id, head, end)
        if not interim:
            stream.head_sent = True
        if end:
            finish(self, stream)
        return True

    cdef bint put_data(self, Stream stream, Span first, Span second, bint end) except -1:
        cdef Py_ssize_t size = first.size + second.size
        if stream.closed:
            return False
        earn_allowance(&self.controls, self.options.controls_per_request)
        append(&stream.waiting, first.at, first.size)
        append(&stream.waiting, second.at, second.size)
        stream.waiting_end = end
        self.waiting_bytes += size
        if not stream.is_blocked:
            send_pending(self, stream)
        if not reserve_waiting(self):
            reset_stream(self, stream, ENHANCE_YOUR_CALM)
            return False
        return True

    cdef bint put_trailers(self, Stream stream, HeaderBlock trailers) except -1:
        if stream.closed:
            return False
        stream.waiting_trailers = trailers
        if not stream.is_blocked:
            send_pending(self, stream)
        return True

    cdef bint put_reply(self, Stream stream, const char* message, Py_ssize_t size) except -1:
        """The whole answer to a unary call of gRPC."""
        cdef char prefix[5]
        cdef Py_ssize_t framed = size + 5
        if stream.closed:
            return False
        prefix[0] = 0
        put_big_endian(<uint8_t*> prefix + 1, <uint32_t> size)
        write_fields(self, stream.id, REPLY_HEAD, False)
        stream.head_sent = True
        if (
            framed <= MAX_FRAME
            and framed <= self.window
            and framed <= self.initial_window + stream.window
            and not stream.is_blocked
        ):
            reserve_bytes(&self.out, framed + 9)
            put_frame_head(self.out.data + self.out.end, framed, FRAME_DATA, 0, stream.id)
            memcpy(self.out.data + self.out.end + 9, prefix, 5)
            memcpy(self.out.data + self.out.end + 14, message, size)
            self.out.end += framed + 9
            self.window -= framed
            earn_allowance(&self.controls, self.options.controls_per_request)
            write_fields(self, stream.id, REPLY_STATUS, True)
            finish(self, stream)
            return True
        if not self.put_data(stream, span_of(prefix, 5), span_of(message, size), False):
            return False
        return self.put_trailers(stream, REPLY_STATUS)

    cdef bint put_reset(self, Stream stream, uint32_t code) except -1:
        if stream.closed:
            return False
        reset_stream(self, stream, code)
        return True

    def feed(self, bytes data not None, int64_t now_ms):
        """Read new input, after the rest of the last call. Returns the events."""
        self.receive(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), now_ms)
        return take_events(self)

    def expire(self, int64_t now_ms):
        """End what has taken too long; to be called now and then. Returns events, as `feed`."""
        self.now = now_ms
        if not self.ended and end_overdue(self) == CONNECTION_FAILED:
            fail(self)
        return take_events(self)

    def lost(self):
        """The transport was lost. Returns a reset for each request that was reported."""
        end_connection(self, CANCEL)
        return take_events(self)

    def close(self, uint32_t code=NO_ERROR, bytes text not None=b""):
        """End the connection at once. Returns a reset for each request that was reported."""
        if not self.ended:
            write_goaway(self, self.last_id, code, text, len(text))
            end_connection(self, code)
        return take_events(self)

    @property
    def streams(self):
        return sorted_streams(self)

    @property
    def open_streams(self):
        return self.open_count

    @property
    def outgoing(self):
        return self.out.end

    @property
    def buffered(self):
        """Bytes that are held of requests: frames that are not read yet, fields, and bodies."""
        if self.ended:
            return 0
        return (
            self.input.end - self.input.at + self.held
            + (self.block.end - self.block.at if self.block_stream else 0)
        )

    @property
    def blocked(self):
        return self.first_blocked != NULL

    @property
    def drained(self):
        return self.final_id < LAST_STREAM and self.open_count == 0

    def take_outgoing(self):
        return self.collect()

    def take_body(self, Stream stream not None):
        """Take the body that has arrived, and reopen the window by as much."""
        cdef bytes body = stream.body
        empty(&stream.body_data, KEPT_BYTES)
        if not stream.closed:
            release(self, stream, len(body))
            stream.unread += len(body)
            give_back(self, stream)
        return body

    def send_head(self, Stream stream not None, head, *, bint end=False, bint interim=False):
        return bool(self.put_head(stream, compiled_block(head), end, interim))

    def send_data(self, Stream stream not None, bytes data not None, *, bint end=False):
        return bool(self.put_data(stream, span_of(data, len(data)), span_of(b"", 0), end))

    def send_trailers(self, Stream stream not None, trailers):
        return bool(self.put_trailers(stream, compiled_block(trailers)))

    def respond(self, Stream stream not None, head, bytes body not None=b""):
        """A whole answer."""
        cdef HeaderBlock block = compiled_block(head)
        if not body:
            return bool(self.put_head(stream, block, True, False))
        if not self.put_head(stream, block, False, False):
            return False
        return bool(self.put_data(stream, span_of(body, len(body)), span_of(b"", 0), True))

    def reply(self, Stream stream not None, bytes message not None):
        """The whole answer to a unary call of gRPC."""
        return bool(self.put_reply(stream, message, len(message)))

    def reset(self, Stream stream not None, uint32_t code):
        return bool(self.put_reset(stream, code))

    def ping(self, bytes payload not None):
        if len(payload) != 8:
            raise ValueError("a ping has 8 bytes")
        self.pings += 1
        write_frame(self, FRAME_PING, 0, 0, payload, 8)

    def shutdown(self):
        """Take no more requests, in two steps."""
        if self.ended or self.final_id < LAST_STREAM:
            return
        if self.going:
            name_last_stream(self)
        else:
            self.going = True
            write_goaway(self, LAST_STREAM, NO_ERROR, b"", 0)
            self.pings += 1
            write_frame(self, FRAME_PING, 0, 0, SHUTDOWN_PING, 8)


cdef list take_events(Http2Connection self):
    """Not kept: streams are large, and a connection may be idle for long."""
    cdef list events = self.events
    self.events = None
    return [] if events is None else events


def plain_call(Stream stream not None, Py_ssize_t max_bytes):
    """The deadline and the message of a plain unary call, or None for others."""
    cdef Span message
    cdef int64_t timeout_ms
    if not stream.plain_call(max_bytes, &message, &timeout_ms):
        return None
    return (None if timeout_ms < 0 else timeout_ms), bytes_of(message)


# --- Reading ------------------------------------------------------------------------------------

cdef inline int fail_connection(Http2Connection self, uint32_t code, const char* text) noexcept:
    self.error_code = code
    self.error_text = text
    return CONNECTION_FAILED


cdef inline int fail_stream(Http2Connection self, uint32_t stream_id, uint32_t code) noexcept:
    self.error_stream = stream_id
    self.error_code = code
    return STREAM_FAILED


cdef inline int protocol_error(Http2Connection self, const char* text) noexcept:
    return fail_connection(self, PROTOCOL_ERROR, text)


cdef inline uint32_t big_endian(const uint8_t* at) noexcept:
    return <uint32_t> at[0] << 24 | <uint32_t> at[1] << 16 | <uint32_t> at[2] << 8 | at[3]


cdef inline void put_big_endian(uint8_t* at, uint32_t number) noexcept:
    at[0] = <uint8_t> (number >> 24)
    at[1] = <uint8_t> (number >> 16)
    at[2] = <uint8_t> (number >> 8)
    at[3] = <uint8_t> number


cdef int emit(Http2Connection self, int kind, Stream stream, object value) except -1:
    self.event_count += 1
    return self.emit(kind, stream, value)


cdef int read_turn(
    Http2Connection self, const char* data, Py_ssize_t size, Py_ssize_t* taken
) except -1:
    cdef Http2Options options = self.options
    cdef Py_ssize_t at = 0
    cdef int result = DONE
    self.event_count = 0
    if self.partial_ms < 0:
        self.partial_ms = self.now
    while True:
        if (
            at >= options.turn_bytes
            or self.event_count >= options.turn_requests
            or self.out.end >= options.outgoing_bytes
        ):
            self.pending = at < size
            break
        result = read_frame(self, <const uint8_t*> data + at, size - at, &at)
        if result == CONNECTION_FAILED or self.ended:
            break
        if result == INCOMPLETE:
            self.pending = False
            break
    taken[0] = at
    if at == size:
        self.partial_ms = -1
    elif at > 0:
        self.partial_ms = self.now
    if self.partial is not None and result != CONNECTION_FAILED:
        announce_partial(self)
    return result


cdef int announce_partial(Http2Connection self) except -1:
    cdef Stream stream
    partial, self.partial = self.partial, None
    for stream in partial:
        if not stream.handed_over and not stream.closed:
            emit(self, EVENT_PARTIAL, stream, 0)
    return 0


cdef int read_frame(
    Http2Connection self, const uint8_t* data, Py_ssize_t size, Py_ssize_t* at
) except -1:
    """The next frame, if it is complete."""
    cdef Py_ssize_t length
    cdef uint32_t stream_id
    cdef int kind, flags, result
    if not self.prefaced:
        return read_preface(self, data, size, at)
    if size < 9:
        return INCOMPLETE
    length = <Py_ssize_t> data[0] << 16 | <Py_ssize_t> data[1] << 8 | data[2]
    kind = data[3]
    flags = data[4]
    stream_id = big_endian(data + 5) & LAST_STREAM
    if not self.begun:
        if kind != FRAME_SETTINGS or flags & FLAG_ACK:
            return protocol_error(self, "the first frame is not SETTINGS")
        self.begun = True
    if self.block_stream == 0:
        if kind == FRAME_CONTINUATION:
            return protocol_error(self, "CONTINUATION of nothing")
    elif kind != FRAME_CONTINUATION or stream_id != self.block_stream:
        return protocol_error(self, "a block of fields is interrupted by another frame")
    if length > MAX_FRAME:
        return fail_connection(self, FRAME_SIZE_ERROR, "a frame above 16,384 bytes")
    if length + 9 > size:
        return INCOMPLETE
    at[0] += length + 9
    result = read_payload(self, kind, flags, stream_id, data + 9, length)
    if result == STREAM_FAILED:
        return drop_failed(self, self.error_stream, self.error_code)
    return result


cdef int read_preface(
    Http2Connection self, const uint8_t* data, Py_ssize_t size, Py_ssize_t* at
) except -1:
    cdef Py_ssize_t found = min(size, <Py_ssize_t> PREFACE_SIZE)
    if memcmp(data, PREFACE_TEXT, found) != 0:
        return protocol_error(self, "the connection does not begin with the preface of HTTP/2")
    if found < PREFACE_SIZE:
        return INCOMPLETE
    self.prefaced = True
    at[0] += PREFACE_SIZE
    return DONE


cdef int read_payload(
    Http2Connection self,
    int kind,
    int flags,
    uint32_t stream_id,
    const uint8_t* payload,
    Py_ssize_t size,
) except -1:
    if kind == FRAME_DATA:
        return read_data(self, flags, stream_id, payload, size)
    if kind == FRAME_HEADERS:
        return read_headers(self, flags, stream_id, payload, size)
    if kind == FRAME_CONTINUATION:
        return read_continuation(self, flags, payload, size)
    if kind == FRAME_WINDOW_UPDATE:
        return read_window_update(self, stream_id, payload, size)
    if kind == FRAME_RST_STREAM:
        return read_rst_stream(self, stream_id, payload, size)
    if kind == FRAME_PRIORITY:
        return read_priority(self, stream_id, payload, size)
    if kind == FRAME_PUSH_PROMISE:
        return protocol_error(self, "PUSH_PROMISE from a client")
    if kind > FRAME_CONTINUATION:
        return spend(self, "too many frames of unknown types")
    if stream_id:
        return protocol_error(self, "a frame of the connection has a stream")
    if kind == FRAME_SETTINGS:
        return read_settings(self, flags, payload, size)
    if kind == FRAME_PING:
        return read_ping(self, flags, payload, size)
    return read_goaway(self, payload, size)


cdef inline int require_client_stream(Http2Connection self, uint32_t stream_id) noexcept:
    if not stream_id & 1:
        return protocol_error(self, "a frame of a stream has one that no client opens")
    return DONE


cdef inline int require_opened(Http2Connection self, uint32_t stream_id) noexcept:
    if not stream_id & 1:
        return protocol_error(self, "a frame of a stream has one that no client opens")
    if stream_id > self.last_id:
        return protocol_error(self, "a frame for a stream that was not opened")
    return DONE


cdef inline int require_size(Http2Connection self, Py_ssize_t size, Py_ssize_t wanted) noexcept:
    if size != wanted:
        return fail_connection(self, FRAME_SIZE_ERROR, "a frame is not of the size of its type")
    return DONE


cdef inline int without_padding(
    Http2Connection self, int flags, const uint8_t* payload, Py_ssize_t size, Span* body
) noexcept:
    body[0] = span_of(<const char*> payload, size)
    if flags & FLAG_PADDED:
        if size == 0 or payload[0] >= size:
            return protocol_error(self, "the padding is longer than its frame")
        body[0] = span_of(<const char*> payload + 1, size - 1 - payload[0])
    return DONE


cdef inline int check_dependency(
    Http2Connection self, uint32_t stream_id, const uint8_t* priority
) noexcept:
    if big_endian(priority) & LAST_STREAM == stream_id:
        return protocol_error(self, "a stream that depends on itself")
    return DONE


cdef int read_data(
    Http2Connection self, int flags, uint32_t stream_id, const uint8_t* payload, Py_ssize_t size
) except -1:
    cdef Span body
    cdef Stream stream
    cdef int result = require_opened(self, stream_id)
    if not result:
        result = without_padding(self, flags, payload, size, &body)
    if result:
        return result
    if size > self.credit:
        return fail_connection(self, FLOW_CONTROL_ERROR, "more data than there is room for")
    self.credit -= size
    self.unread += size
    if self.unread * 2 >= self.options.connection_window:
        write_number(self, FRAME_WINDOW_UPDATE, 0, <uint32_t> self.unread)
        self.credit += self.unread
        self.unread = 0
    stream = find_stream(self, stream_id)
    if stream is None:
        if was_closed(self, stream_id) == LENIENT:
            if flags & FLAG_END_STREAM:
                has_stopped(self, stream_id)
            return DONE
        return fail_stream(self, stream_id, STREAM_CLOSED)
    if stream.ended:
        return fail_stream(self, stream_id, STREAM_CLOSED)
    if size > stream.credit:
        return fail_stream(self, stream_id, FLOW_CONTROL_ERROR)
    stream.ended = flags & FLAG_END_STREAM
    if not body.size and not stream.ended:
        result = spend(self, "too many empty frames")
        if result:
            return result
    stream.credit -= size
    stream.received += body.size
    if not has_declared_length(stream):
        return fail_stream(self, stream_id, PROTOCOL_ERROR)
    result = add_body(self, stream, body, size - body.size)
    if result:
        return result
    if stream.ended:
        return complete(self, stream)
    return give_back(self, stream)


cdef int add_body(Http2Connection self, Stream stream, Span body, Py_ssize_t padding) except -1:
    if stream.fault_set:
        return DONE
    if stream.streaming:
        if not hold(self, stream, body.size):
            return fail_stream(self, stream.id, ENHANCE_YOUR_CALM)
        append(&stream.body_data, body.at, body.size)
        stream.unread += padding
        if body.size:
            return emit(self, EVENT_DATA, stream, body.size)
    elif stream.body_data.end + body.size > stream.body_bytes:
        return put_fault(self, stream, "body_too_large")
    elif not hold(self, stream, body.size):
        return put_fault(self, stream, "no_room")
    else:
        append(&stream.body_data, body.at, body.size)
        stream.unread += body.size + padding
    return DONE


cdef int read_headers(
    Http2Connection self, int flags, uint32_t stream_id, const uint8_t* payload, Py_ssize_t size
) except -1:
    cdef Span data
    cdef bint end_stream = flags & FLAG_END_STREAM
    cdef int result = require_client_stream(self, stream_id)
    if not result:
        result = without_padding(self, flags, payload, size, &data)
    if result:
        return result
    if flags & FLAG_PRIORITIZED:
        if data.size < 5:
            return fail_connection(self, FRAME_SIZE_ERROR, "HEADERS without its priority")
        result = check_dependency(self, stream_id, <const uint8_t*> data.at)
        if result:
            return result
        data = span_of(data.at + 5, data.size - 5)
    if flags & FLAG_END_HEADERS:
        return read_fields(self, stream_id, end_stream, <const uint8_t*> data.at, data.size)
    append(&self.block, data.at, data.size)
    self.block_stream = stream_id
    self.block_end_stream = end_stream
    self.block_frames = 1
    self.block_since_ms = self.now
    return DONE


cdef int read_continuation(
    Http2Connection self, int flags, const uint8_t* payload, Py_ssize_t size
) except -1:
    cdef uint32_t stream_id = self.block_stream
    cdef int result
    append(&self.block, <const char*> payload, size)
    self.block_frames += 1
    if (
        self.block_frames > self.options.header_frames
        or self.block.end > self.options.header_block_bytes
    ):
        return fail_connection(self, ENHANCE_YOUR_CALM, "a block of fields is too long")
    if not flags & FLAG_END_HEADERS:
        return DONE
    self.block_stream = 0
    try:
        return read_fields(
            self, stream_id, self.block_end_stream, <const uint8_t*> self.block.data, self.block.end
        )
    finally:
        empty(&self.block, 0)


cdef int read_fields(
    Http2Connection self, uint32_t stream_id, bint end_stream, const uint8_t* data, Py_ssize_t size
) except -1:
    cdef Stream stream = None
    cdef int closed
    # Before the fields are read: to make an object may run the garbage collector, and with it other
    # threads, which read their fields into the same list.
    if stream_id > self.last_id:
        stream = new_stream(self, stream_id)
    if not read_block(self.decoder, data, size):
        return fail_connection(self, COMPRESSION_ERROR, self.decoder.error)
    if stream is not None:
        return open_stream(self, stream, end_stream)
    stream = find_stream(self, stream_id)
    if stream is not None:
        return read_trailers(self, stream, end_stream)
    closed = was_closed(self, stream_id)
    if closed == LENIENT:
        if end_stream:
            has_stopped(self, stream_id)
        return DONE
    if closed == STRICT:
        return fail_connection(self, STREAM_CLOSED, "fields for a closed stream")
    return protocol_error(self, "the number of a new stream is not above the last one")


cdef int read_trailers(Http2Connection self, Stream stream, bint end_stream) except -1:
    if stream.ended:
        return fail_stream(self, stream.id, STREAM_CLOSED)
    if self.decoder.truncated:
        return fail_stream(self, stream.id, ENHANCE_YOUR_CALM)
    stream.ended = end_stream
    if not end_stream or not are_fields(list_refs, 0, list_count) or not has_declared_length(stream):
        return fail_stream(self, stream.id, PROTOCOL_ERROR)
    return complete(self, stream)


cdef Stream new_stream(Http2Connection self, uint32_t stream_id):
    cdef Stream stream = Stream.__new__(Stream)
    stream.id = stream_id
    stream.begun_ms = self.now
    stream.body_bytes = self.options.body_bytes
    stream.credit = self.options.stream_window
    return stream


cdef int open_stream(Http2Connection self, Stream stream, bint end_stream) except -1:
    cdef uint32_t stream_id = stream.id
    cdef int result
    self.last_id = stream_id
    if stream_id > self.final_id:
        return remember(self, stream_id, True)
    if self.open_count >= self.options.concurrent_streams:
        remember(self, stream_id, True)
        write_number(self, FRAME_RST_STREAM, stream_id, REFUSED_STREAM)
        return spend(self, "too many requests at a time")
    take_list(&stream.list, list_text.data, list_text.end)
    if not read_head(stream, self.options.known):
        if not self.decoder.truncated:
            return fail_stream(self, stream_id, PROTOCOL_ERROR)
        stream = new_stream(self, stream_id)
    if end_stream and stream.declared > 0:
        return fail_stream(self, stream_id, PROTOCOL_ERROR)
    stream.ended = end_stream
    add_stream(self, stream)
    result = DONE
    if self.decoder.truncated:
        result = put_fault(self, stream, "head_too_large")
    elif stream.streaming:
        stream.handed_over = True
        result = emit(self, EVENT_HEAD, stream, 0)
    elif stream.declared > stream.body_bytes:
        result = put_fault(self, stream, "body_too_large")
    elif not end_stream:
        if self.partial is None:
            self.partial = []
        self.partial.append(stream)
    if end_stream and not result:
        return complete(self, stream)
    return result


cdef int put_fault(Http2Connection self, Stream stream, str fault) except -1:
    """Hand over a request that cannot be served. What still comes of it is thrown away."""
    stream.fault = fault
    stream.fault_set = True
    release(self, stream, stream.body_data.end - stream.body_data.at)
    discard(&stream.body_data)
    stream.handed_over = True
    return emit(self, EVENT_REQUEST, stream, 0)


cdef int complete(Http2Connection self, Stream stream) except -1:
    if stream.fault_set or stream.closed:
        return DONE
    if stream.streaming:
        return emit(self, EVENT_END, stream, 0)
    stream.handed_over = True
    return emit(self, EVENT_REQUEST, stream, 0)


cdef int read_rst_stream(
    Http2Connection self, uint32_t stream_id, const uint8_t* payload, Py_ssize_t size
) except -1:
    cdef Stream stream
    cdef int result = require_opened(self, stream_id)
    if not result:
        result = require_size(self, size, 4)
    if result:
        return result
    stream = find_stream(self, stream_id)
    if stream is None:
        has_stopped(self, stream_id)
        return spend(self, "too many resets of closed streams")
    if stream.handed_over:
        emit(self, EVENT_RESET, stream, big_endian(payload))
    forget(self, stream, False)
    return count_reset(self)


cdef int read_priority(
    Http2Connection self, uint32_t stream_id, const uint8_t* payload, Py_ssize_t size
) except -1:
    cdef int result
    if not stream_id:
        return protocol_error(self, "a frame of a stream has none")
    result = require_size(self, size, 5)
    if not result:
        result = check_dependency(self, stream_id, payload)
    if not result:
        result = spend(self, "too many priorities")
    return result


cdef int read_settings(
    Http2Connection self, int flags, const uint8_t* payload, Py_ssize_t size
) except -1:
    cdef int64_t initial_window = self.initial_window
    cdef const uint8_t* end = payload + size
    cdef uint32_t number, value
    cdef int result
    if flags & FLAG_ACK:
        result = require_size(self, size, 0)
        if not result and self.settled:
            result = spend(self, "too many settings")
        if not result:
            self.settled = True
        return result
    if size % 6:
        return fail_connection(self, FRAME_SIZE_ERROR, "half a setting")
    result = spend(self, "too many settings")
    if result:
        return result
    while payload < end:
        number = <uint32_t> payload[0] << 8 | payload[1]
        value = big_endian(payload + 2)
        payload += 6
        if number == SETTING_INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW:
                return fail_connection(self, FLOW_CONTROL_ERROR, "a window above 2**31 - 1")
            initial_window = value
        elif number == SETTING_HEADER_TABLE_SIZE:
            resize_encoder(self.encoder, value)
        elif number == SETTING_ENABLE_PUSH and value > 1:
            return protocol_error(self, "a setting out of its range")
        elif number == SETTING_MAX_FRAME_SIZE and not MAX_FRAME <= value < 16777216:
            return protocol_error(self, "a setting out of its range")
    write_frame(self, FRAME_SETTINGS, FLAG_ACK, 0, b"", 0)
    return resize_windows(self, initial_window)


cdef int resize_windows(Http2Connection self, int64_t initial_window) except -1:
    cdef uint32_t i
    if initial_window == self.initial_window:
        return DONE
    if self.places != NULL:
        for i in range(self.place_mask + 1):
            if self.places[i] != NULL:
                if (<Stream> self.places[i]).window + initial_window > MAX_WINDOW:
                    return fail_connection(self, FLOW_CONTROL_ERROR, "a window above 2**31 - 1")
    self.initial_window = initial_window
    return send_blocked(self)


cdef int read_ping(
    Http2Connection self, int flags, const uint8_t* payload, Py_ssize_t size
) except -1:
    cdef int result = require_size(self, size, 8)
    if result:
        return result
    if not flags & FLAG_ACK:
        result = spend(self, "too_many_pings")
        if result:
            return result
        return write_frame(self, FRAME_PING, FLAG_ACK, 0, <const char*> payload, 8)
    if not self.pings:
        return spend(self, "too_many_pings")
    self.pings -= 1
    if memcmp(payload, SHUTDOWN_PING, 8) != 0:
        return emit(self, EVENT_PONG, None, PyBytes_FromStringAndSize(<const char*> payload, 8))
    if self.going:
        return name_last_stream(self)
    return DONE


cdef int read_goaway(Http2Connection self, const uint8_t* payload, Py_ssize_t size) except -1:
    cdef int result
    if size < 8:
        return fail_connection(self, FRAME_SIZE_ERROR, "GOAWAY without its numbers")
    result = spend(self, "too many farewells")
    if result:
        return result
    return emit(self, EVENT_GOAWAY, None, big_endian(payload + 4))


cdef int read_window_update(
    Http2Connection self, uint32_t stream_id, const uint8_t* payload, Py_ssize_t size
) except -1:
    cdef Stream stream
    cdef int64_t amount
    cdef int result = require_opened(self, stream_id) if stream_id else DONE
    if not result:
        result = require_size(self, size, 4)
    if not result:
        result = spend(self, "too many small windows")
    if result:
        return result
    amount = big_endian(payload) & LAST_STREAM
    if not stream_id:
        if not amount:
            return protocol_error(self, "WINDOW_UPDATE by nothing")
        if self.window + amount > MAX_WINDOW:
            return fail_connection(self, FLOW_CONTROL_ERROR, "a window above 2**31 - 1")
        self.window += amount
        return send_blocked(self)
    stream = find_stream(self, stream_id)
    if stream is None:
        return DONE
    if not amount:
        return fail_stream(self, stream_id, PROTOCOL_ERROR)
    if self.initial_window + stream.window + amount > MAX_WINDOW:
        return fail_stream(self, stream_id, FLOW_CONTROL_ERROR)
    stream.window += amount
    if stream.is_blocked:
        return send_pending(self, stream)
    return DONE


# --- Bounds -------------------------------------------------------------------------------------

cdef inline int spend(Http2Connection self, const char* text) noexcept:
    if spend_allowance(&self.controls, self.now):
        return DONE
    return fail_connection(self, ENHANCE_YOUR_CALM, text)


cdef inline int count_reset(Http2Connection self) noexcept:
    if spend_allowance(&self.resets, self.now):
        return DONE
    return fail_connection(self, ENHANCE_YOUR_CALM, "too many streams were reset")


cdef bint hold(Http2Connection self, Stream stream, int64_t amount) noexcept:
    cdef int64_t needed = self.held + amount - self.options.held_bytes - self.reserved
    if needed > 0:
        if not self.options.room.reserve(needed):
            return False
        self.reserved += needed
    self.held += amount
    stream.held += amount
    return True


cdef void release(Http2Connection self, Stream stream, int64_t amount) noexcept:
    cdef int64_t surplus
    self.held -= amount
    stream.held -= amount
    if not self.reserved:
        return
    surplus = self.reserved - max(<int64_t> 0, self.held - self.options.held_bytes)
    if surplus > 0:
        self.options.room.release(surplus)
        self.reserved -= surplus


cdef bint reserve_waiting(Http2Connection self) noexcept:
    """Reserve space in the `Room` for waiting answers beyond the connection's own share."""
    cdef int64_t needed = max(<int64_t> 0, self.waiting_bytes - self.options.pending_bytes)
    cdef int64_t more = needed - self.waiting_reserved
    if more > 0 and not self.options.room.reserve(more):
        return False
    if more < 0:
        self.options.room.release(-more)
    self.waiting_reserved = needed
    return True


cdef inline void less_waiting(Http2Connection self, int64_t amount) noexcept:
    self.waiting_bytes -= amount
    if self.waiting_reserved:
        reserve_waiting(self)


cdef int give_back(Http2Connection self, Stream stream) except -1:
    if stream.ended or stream.fault_set or stream.closed:
        return DONE
    if stream.unread * 2 < self.options.stream_window:
        return DONE
    write_number(self, FRAME_WINDOW_UPDATE, stream.id, <uint32_t> stream.unread)
    stream.credit += stream.unread
    stream.unread = 0
    return DONE


cdef int end_overdue(Http2Connection self) except -1:
    cdef Http2Options options = self.options
    cdef int64_t now = self.now
    cdef int64_t since_ms = self.block_since_ms if self.block_stream else self.partial_ms
    cdef Stream stream
    cdef int result
    if not self.settled and now - self.opened_ms > options.settings_ms:
        return fail_connection(self, SETTINGS_TIMEOUT, "settings were not acknowledged")
    if since_ms >= 0 and not self.pending and now - since_ms > options.head_ms:
        return fail_connection(self, ENHANCE_YOUR_CALM, "a frame did not arrive in time")
    if self.unstopped is not None:
        stop_overdue(self)
    if self.open_count == 0:
        return DONE
    for item in sorted_streams(self):
        stream = item
        result = DONE
        if stream.is_blocked:
            if now - stream.blocked_ms > options.write_ms:
                result = drop_failed(self, stream.id, CANCEL)
        elif not stream.handed_over and now - stream.begun_ms > options.request_ms:
            result = put_fault(self, stream, "request_timeout")
        if result:
            return result
    return DONE


# --- Streams and their ends ---------------------------------------------------------------------

cdef enum:
    UNKNOWN = 0
    STRICT = 1
    LENIENT = 2


cdef inline Stream find_stream(Http2Connection self, uint32_t stream_id):
    cdef uint32_t place
    if self.places == NULL:
        return None
    place = (stream_id >> 1) & self.place_mask
    while self.places[place] != NULL:
        if (<Stream> self.places[place]).id == stream_id:
            return <Stream> self.places[place]
        place = (place + 1) & self.place_mask
    return None


cdef int widen_places(Http2Connection self, uint32_t count) except -1:
    cdef PyObject** old = self.places
    cdef PyObject** places = <PyObject**> PyMem_Malloc(count * sizeof(PyObject*))
    cdef uint32_t i, place, old_count = self.place_mask + 1 if old != NULL else 0
    if places == NULL:
        raise MemoryError
    memset(places, 0, count * sizeof(PyObject*))
    for i in range(old_count):
        if old[i] != NULL:
            place = ((<Stream> old[i]).id >> 1) & (count - 1)
            while places[place] != NULL:
                place = (place + 1) & (count - 1)
            places[place] = old[i]
    PyMem_Free(old)
    self.places = places
    self.place_mask = count - 1
    return 0


cdef int add_stream(Http2Connection self, Stream stream) except -1:
    cdef uint32_t place
    if self.places == NULL:
        widen_places(self, 8)
    elif self.open_count * 2 > self.place_mask:
        widen_places(self, (self.place_mask + 1) * 2)
    place = (stream.id >> 1) & self.place_mask
    while self.places[place] != NULL:
        place = (place + 1) & self.place_mask
    Py_INCREF(stream)
    self.places[place] = <PyObject*> stream
    self.open_count += 1
    return 0


cdef void drop_stream(Http2Connection self, Stream stream) noexcept:
    """Take it out, and move those that had to give way to it."""
    cdef uint32_t mask = self.place_mask
    cdef uint32_t place = (stream.id >> 1) & mask
    cdef uint32_t after, home
    while self.places[place] != <PyObject*> stream:
        place = (place + 1) & mask
    after = place
    while True:
        after = (after + 1) & mask
        if self.places[after] == NULL:
            break
        home = ((<Stream> self.places[after]).id >> 1) & mask
        if ((after - home) & mask) >= ((after - place) & mask):
            self.places[place] = self.places[after]
            place = after
    self.places[place] = NULL
    self.open_count -= 1
    Py_DECREF(stream)


cdef list sorted_streams(Http2Connection self):
    """In the order in which they were opened."""
    cdef dict found = {}
    cdef uint32_t i
    if self.places != NULL:
        for i in range(self.place_mask + 1):
            if self.places[i] != NULL:
                found[(<Stream> self.places[i]).id] = <Stream> self.places[i]
    return [found[number] for number in sorted(found)]


cdef int was_closed(Http2Connection self, uint32_t stream_id) noexcept:
    """Whether it is one of the last that ended, and how."""
    cdef uint32_t i
    for i in range(self.closed_count):
        if self.closed_ring[i] >> 1 == stream_id:
            return LENIENT if self.closed_ring[i] & 1 else STRICT
    return UNKNOWN


cdef int remember(Http2Connection self, uint32_t stream_id, bint lenient) except -1:
    """Called once for a stream."""
    if self.closed_ring == NULL:
        self.closed_ring = <uint32_t*> PyMem_Malloc(REMEMBERED * sizeof(uint32_t))
        if self.closed_ring == NULL:
            raise MemoryError
    self.closed_ring[self.closed_next] = stream_id << 1 | lenient
    self.closed_next = (self.closed_next + 1) % REMEMBERED
    if self.closed_count < REMEMBERED:
        self.closed_count += 1
    return 0


cdef int finish(Http2Connection self, Stream stream) except -1:
    """Close a stream after the end of its answer."""
    if not stream.ended:
        stop_request(self, stream)
    forget(self, stream, not stream.ended)
    earn_allowance(&self.controls, self.options.controls_per_request)
    earn_allowance(&self.resets, 1)
    return 0


cdef int stop_request(Http2Connection self, Stream stream) except -1:
    if stream.fault != "body_too_large":
        return write_number(self, FRAME_RST_STREAM, stream.id, NO_ERROR)
    if self.unstopped is None:
        self.unstopped = {}
    if len(self.unstopped) >= UNSTOPPED:
        return write_number(self, FRAME_RST_STREAM, stream.id, NO_ERROR)
    self.unstopped[stream.id] = self.now + STOPPING_MS
    return 0


cdef int stop_overdue(Http2Connection self) except -1:
    for stream_id in [each for each, due_ms in self.unstopped.items() if due_ms <= self.now]:
        del self.unstopped[stream_id]
        write_number(self, FRAME_RST_STREAM, stream_id, NO_ERROR)
    return 0


cdef inline int has_stopped(Http2Connection self, uint32_t stream_id) except -1:
    if self.unstopped is not None:
        self.unstopped.pop(stream_id, None)
    return 0


cdef int reset_stream(Http2Connection self, Stream stream, uint32_t code) except -1:
    write_number(self, FRAME_RST_STREAM, stream.id, code)
    return forget(self, stream, True)


cdef int drop_failed(Http2Connection self, uint32_t stream_id, uint32_t code) except -1:
    """Handle an error of the client on one stream."""
    cdef Stream stream = find_stream(self, stream_id)
    cdef uint32_t i
    if stream is None:
        write_number(self, FRAME_RST_STREAM, stream_id, code)
        for i in range(self.closed_count):
            if self.closed_ring[i] >> 1 == stream_id:
                self.closed_ring[i] |= 1
                break
        else:
            remember(self, stream_id, True)
    else:
        if stream.handed_over:
            emit(self, EVENT_RESET, stream, code)
        if not stream.closed:
            reset_stream(self, stream, code)
    return count_reset(self)


cdef int forget(Http2Connection self, Stream stream, bint lenient) except -1:
    stream.closed = True
    unblock(self, stream)
    less_waiting(self, stream.waiting.end - stream.waiting.at)
    discard(&stream.waiting)
    stream.waiting_trailers = None
    release(self, stream, stream.held)
    remember(self, stream.id, lenient)
    self.quiet_since_ms = self.now
    drop_stream(self, stream)
    return 0


cdef int fail(Http2Connection self) except -1:
    write_goaway(
        self, self.last_id, self.error_code, self.error_text, strlen(self.error_text)
    )
    cdef uint32_t code = self.error_code
    end_connection(self, code)
    return emit(self, EVENT_CLOSED, None, code)


cdef int end_connection(Http2Connection self, uint32_t code) except -1:
    for stream in sorted_streams(self):
        if (<Stream> stream).handed_over:
            emit(self, EVENT_RESET, <Stream> stream, code)
        if not (<Stream> stream).closed:
            forget(self, <Stream> stream, True)
    self.block_stream = 0
    discard(&self.block)
    self.partial = None
    self.pending = False
    self.ended = True
    return 0


cdef int name_last_stream(Http2Connection self) except -1:
    self.final_id = self.last_id
    return write_goaway(self, self.last_id, NO_ERROR, b"", 0)


# --- Sending ------------------------------------------------------------------------------------

cdef void unblock(Http2Connection self, Stream stream) noexcept:
    if not stream.is_blocked:
        return
    stream.is_blocked = False
    if stream.previous_blocked != NULL:
        (<Stream> stream.previous_blocked).next_blocked = stream.next_blocked
    else:
        self.first_blocked = stream.next_blocked
    if stream.next_blocked != NULL:
        (<Stream> stream.next_blocked).previous_blocked = stream.previous_blocked
    else:
        self.last_blocked = stream.previous_blocked
    stream.next_blocked = stream.previous_blocked = NULL


cdef void block(Http2Connection self, Stream stream) noexcept:
    stream.is_blocked = True
    stream.blocked_ms = self.now
    stream.previous_blocked = self.last_blocked
    if self.last_blocked != NULL:
        (<Stream> self.last_blocked).next_blocked = <PyObject*> stream
    else:
        self.first_blocked = <PyObject*> stream
    self.last_blocked = <PyObject*> stream


cdef inline Py_ssize_t waiting_size(Stream stream) noexcept:
    return stream.waiting.end - stream.waiting.at


cdef int send_pending(Http2Connection self, Stream stream) except -1:
    """Send what waits in a stream, as far as the windows allow."""
    while send_frame(self, stream) and waiting_size(stream):
        pass
    if not waiting_size(stream):
        unblock(self, stream)
    elif not stream.is_blocked:
        block(self, stream)
    return DONE


cdef int send_blocked(Http2Connection self) except -1:
    """A frame for each stream that waits, as long as there is room."""
    cdef bint moved = True
    cdef PyObject* following
    cdef Stream stream
    while moved and self.window > 0:
        moved = False
        following = self.first_blocked
        while following != NULL:
            stream = <Stream> following
            following = stream.next_blocked
            if send_frame(self, stream):
                moved = True
            if not waiting_size(stream):
                unblock(self, stream)
    return DONE


cdef bint send_frame(Http2Connection self, Stream stream) except -1:
    """Send one frame of a body, and the end after the last one. False: no window."""
    cdef int64_t left = waiting_size(stream)
    cdef int64_t size = min(
        min(left, <int64_t> MAX_FRAME), min(self.window, self.initial_window + stream.window)
    )
    cdef bint end
    size = max(size, <int64_t> 0)
    if left and not size:
        return False
    end = stream.waiting_end and size == left
    if left or end:
        write_frame(
            self,
            FRAME_DATA,
            FLAG_END_STREAM if end else 0,
            stream.id,
            stream.waiting.data + stream.waiting.at,
            size,
        )
        stream.waiting.at += size
        stream.window -= size
        self.window -= size
        less_waiting(self, size)
    if end:
        finish(self, stream)
    elif size == left:
        empty(&stream.waiting, KEPT_BYTES)
        if stream.waiting_trailers is not None:
            write_fields(self, stream.id, stream.waiting_trailers, True)
            finish(self, stream)
    return True


cdef inline void put_frame_head(
    char* out, Py_ssize_t size, int kind, int flags, uint32_t stream_id
) noexcept:
    out[0] = <char> (size >> 16)
    out[1] = <char> (size >> 8)
    out[2] = <char> size
    out[3] = <char> kind
    out[4] = <char> flags
    put_big_endian(<uint8_t*> out + 5, stream_id)


cdef int write_frame(
    Http2Connection self,
    int kind,
    int flags,
    uint32_t stream_id,
    const char* payload,
    Py_ssize_t size,
) except -1:
    reserve_bytes(&self.out, size + 9)
    put_frame_head(self.out.data + self.out.end, size, kind, flags, stream_id)
    if size:
        memcpy(self.out.data + self.out.end + 9, payload, size)
    self.out.end += size + 9
    return DONE


cdef int write_number(Http2Connection self, int kind, uint32_t stream_id, uint32_t number) except -1:
    cdef uint8_t payload[4]
    put_big_endian(payload, number)
    return write_frame(self, kind, 0, stream_id, <const char*> payload, 4)


cdef int write_goaway(
    Http2Connection self, uint32_t last_id, uint32_t code, const char* text, Py_ssize_t size
) except -1:
    reserve_bytes(&self.out, size + 17)
    cdef char* out = self.out.data + self.out.end
    put_frame_head(out, size + 8, FRAME_GOAWAY, 0, 0)
    put_big_endian(<uint8_t*> out + 9, last_id)
    put_big_endian(<uint8_t*> out + 13, code)
    memcpy(out + 17, text, size)
    self.out.end += size + 17
    return DONE


cdef int write_fields(Http2Connection self, uint32_t stream_id, HeaderBlock fields, bint end) except -1:
    """A block, in as many frames as it takes."""
    cdef int flags = FLAG_END_STREAM if end else 0
    cdef Py_ssize_t size
    cdef uint8_t* start
    cdef bytes whole
    reserve_bytes(&self.out, fields.bound + 9)
    start = <uint8_t*> self.out.data + self.out.end
    size = put_block(self.encoder, start + 9, fields) - (start + 9)
    if size <= MAX_FRAME:
        put_frame_head(<char*> start, size, FRAME_HEADERS, flags | FLAG_END_HEADERS, stream_id)
        self.out.end += size + 9
        return DONE
    whole = PyBytes_FromStringAndSize(<char*> start + 9, size)
    write_frame(self, FRAME_HEADERS, flags, stream_id, whole, MAX_FRAME)
    cdef Py_ssize_t at = MAX_FRAME
    while size - at > MAX_FRAME:
        write_frame(self, FRAME_CONTINUATION, 0, stream_id, PyBytes_AS_STRING(whole) + at, MAX_FRAME)
        at += MAX_FRAME
    return write_frame(
        self,
        FRAME_CONTINUATION,
        FLAG_END_HEADERS,
        stream_id,
        PyBytes_AS_STRING(whole) + at,
        size - at,
    )


cdef int send_settings(Http2Connection self) except -1:
    cdef Http2Options options = self.options
    cdef uint8_t settings[18]
    cdef Py_ssize_t size = 0
    for number, value in (
        (SETTING_MAX_CONCURRENT_STREAMS, options.concurrent_streams),
        (SETTING_MAX_HEADER_LIST_SIZE, options.header_list_bytes),
        (SETTING_INITIAL_WINDOW_SIZE, options.stream_window),
    ):
        if number == SETTING_INITIAL_WINDOW_SIZE and value == DEFAULT_WINDOW:
            continue
        settings[size] = 0
        settings[size + 1] = number
        put_big_endian(settings + size + 2, value)
        size += 6
    write_frame(self, FRAME_SETTINGS, 0, 0, <const char*> settings, size)
    if options.connection_window > DEFAULT_WINDOW:
        write_number(self, FRAME_WINDOW_UPDATE, 0, options.connection_window - DEFAULT_WINDOW)
    return DONE


cdef HeaderBlock REPLY_HEAD = HeaderBlock((
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity,gzip"),
))
cdef HeaderBlock REPLY_STATUS = HeaderBlock(((b"grpc-status", b"0"),))
