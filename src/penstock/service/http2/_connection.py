"""HTTP/2 for servers (RFC 9113), bytes in and bytes out. No I/O and no clock.

    for kind, stream, value in connection.feed(data, now_ms):
        ...                                   # answer with respond, send_head, send_data ...
    transport.write(connection.take_outgoing())

`feed` reads frames and returns what a server has to know:

| event | when |
|---|---|
| `"request"`, stream, 0 | a request is complete, or invalid: then `stream.fault` says why |
| `"partial"`, stream, 0 | the head of a request has arrived, and the rest not within this turn |
| `"head"`, stream, 0 | the head of a request whose route is streaming |
| `"data"`, stream, bytes | more of its body has arrived; `take_body` takes it |
| `"end"`, stream, 0 | its body is complete |
| `"reset"`, stream, code | a request that was reported is cancelled; its answer is dropped |
| `"pong"`, None, payload | the answer to a `ping` |
| `"goaway"`, None, code | the client will begin no more requests |
| `"closed"`, None, code | the connection is over: send what is outgoing, then close it |

Frames about the connection (settings, pings, windows) are handled inside. All output collects in
one buffer, so a turn of the event loop ends with one write.

**Streams** are kept from the field block that opens them to the last frame of either side. The
numbers of those that ended last are kept for a while: frames that were in transit when we reset a
stream are not an error of the client.

**Flow control.** The windows for input are reopened as data arrives, since bodies are collected in
full, up to the bound of their path and within `held_bytes` for the connection; beyond that, space
is reserved in the `Room` of all connections, or the request is refused. On a streaming route a
window is reopened when the server takes the data. Output beyond the client's windows waits in its
stream, up to `pending_bytes` for the connection and beyond that in the `Room`, too; if the `Room`
is full, the stream is reset. Streams that wait send in turn, a frame each.

**Work is bounded.** A call of `feed` stops after `turn_requests` events, `turn_bytes` of input or
`outgoing_bytes` of output; `pending` says that there is more to read, and `feed(b"", now_ms)`
continues. Everything that a client can make grow has a bound in `Http2Options`. Frames that make no
progress on a request (pings, settings, priorities, windows, empty ones) use an allowance, which
time and answered requests refill; streams that end by a reset, of either side, use another. If
either is used up, the connection ends with ENHANCE_YOUR_CALM. `expire` ends what takes too long.

Errors are those of the RFC: a stream is reset for its own mistakes, the connection ends for those
after which the two sides no longer agree. Where the RFC leaves the choice, the connection ends.
"""

from __future__ import annotations

from collections.abc import Callable

from ._bounds import Allowance, Http2Options
from ._frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    LAST_STREAM,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME,
    MAX_HEADER_LIST_SIZE,
    MAX_WINDOW,
    PING,
    PREFACE,
    PRIORITIZED,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    FrameWriter,
    Http2Error,
    StreamResetError,
    check_dependency,
    is_valid_setting,
    protocol_error,
    require_client_stream,
    require_size,
    unpadded,
)
from ._hpack import Decoder, HeaderBlock, HpackError
from ._streams import Fields, MalformedError, Stream, are_trailers

__all__ = ["Event", "Http2Connection"]

Event = tuple[str, "Stream | None", "int | bytes"]

_REMEMBERED = 128
# Answered requests that may still send their rest for a moment, and for how long.
_UNSTOPPED = 8
_STOPPING_MS = 1_000
_SHUTDOWN_PING = b"shutdown"


class _Block:
    """A block of fields that is still arriving."""

    __slots__ = ("data", "end_stream", "frames", "since_ms", "stream_id")

    def __init__(self, stream_id: int, end_stream: bool, data: bytes, now_ms: int) -> None:
        self.stream_id = stream_id
        self.end_stream = end_stream
        self.data = bytearray(data)
        self.frames = 1
        self.since_ms = now_ms


class Http2Connection:
    """The server's side of one connection. Times are milliseconds of any steady clock."""

    __slots__ = (
        "_at",
        "_begun",
        "_block",
        "_blocked",
        "_closed_streams",
        "_controls",
        "_credit",
        "_decoder",
        "_events",
        "_final_id",
        "_going",
        "_held",
        "_initial_window",
        "_input",
        "_last_id",
        "_now",
        "_opened_ms",
        "_options",
        "_partial",
        "_partial_ms",
        "_pending_bytes",
        "_pending_reserved",
        "_pings",
        "_prefaced",
        "_reserved",
        "_resets",
        "_settled",
        "_streams",
        "_unread",
        "_unstopped",
        "_window",
        "_writer",
        "ended",
        "event_count",
        "pending",
        "quiet_since_ms",
    )

    def __init__(self, options: Http2Options, now_ms: int) -> None:
        self._options = options
        self._now = self._opened_ms = now_ms
        self.quiet_since_ms: int = now_ms
        self._decoder = Decoder(options.header_list_bytes, options.header_fields)
        self._writer = FrameWriter()
        self._controls = Allowance(options.control_burst, options.controls_per_s, now_ms)
        self._resets = Allowance(options.reset_burst, options.resets_per_s, now_ms)
        # Input that is not read yet, from `_at`, and since when a frame of it is incomplete.
        self._input = b""
        self._at = 0
        self._partial_ms = -1
        self._prefaced = self._begun = self._settled = False
        self._block: _Block | None = None
        self._events: list[Event] = []
        self.event_count: int = 0
        # Requests that began in this turn, and may be incomplete at its end.
        self._partial: list[Stream] = []
        self._streams: dict[int, Stream] = {}
        # The last streams that ended, and whether frames for them may still be in transit.
        self._closed_streams: dict[int, bool] = {}
        # Those of them whose client will be told to stop sending, and when.
        self._unstopped: dict[int, int] = {}
        self._last_id = 0
        self._final_id = LAST_STREAM
        self._going = False
        self._pings = 0
        # The window for input, and what has arrived since it was last reopened.
        self._credit = options.connection_window
        self._unread = 0
        self._held = self._reserved = 0
        # The window for output, and the streams that wait for it.
        self._window = self._initial_window = DEFAULT_WINDOW
        self._blocked: dict[int, Stream] = {}
        self._pending_bytes = self._pending_reserved = 0
        self.pending: bool = False
        self.ended: bool = False
        self._send_settings()

    # --- What a server calls --------------------------------------------------------------------

    def feed(self, data: bytes, now_ms: int) -> list[Event]:
        """Read new input, after the rest of the last call. Returns the events."""
        self._now = now_ms
        if self._at < len(self._input):
            data = self._input[self._at :] + data
        self._input, self._at = data, 0
        return self._collect(self._read_turn)

    def expire(self, now_ms: int) -> list[Event]:
        """End what has taken too long; call it periodically. Returns events, as `feed`."""
        self._now = now_ms
        return self._collect(self._end_overdue)

    def lost(self) -> list[Event]:
        """The transport was lost. Returns a reset for each request that was reported."""
        self._end(ErrorCode.CANCEL)
        return self._take_events()

    def emit(self, kind: str, stream: Stream | None, value: int | bytes) -> None:
        """Add an event. A subclass may answer the request here instead."""
        self._events.append((kind, stream, value))

    @property
    def streams(self) -> list[Stream]:
        """The open streams."""
        return list(self._streams.values())

    @property
    def open_streams(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    @property
    def outgoing(self) -> int:
        """Bytes that are to be written."""
        return len(self._writer.out)

    @property
    def buffered(self) -> int:
        """Bytes of requests in memory: frames that are not read yet, fields, and bodies."""
        block = 0 if self._block is None else len(self._block.data)
        return len(self._input) - self._at + block + self._held

    @property
    def blocked(self) -> bool:
        """Whether answers wait for a window of the client."""
        return bool(self._blocked)

    @property
    def drained(self) -> bool:
        """Whether, after `shutdown`, everything was answered."""
        return self._final_id < LAST_STREAM and not self._streams

    def take_outgoing(self) -> bytes:
        return self._writer.take()

    def take_body(self, stream: Stream) -> bytes:
        """Take the body that has arrived, and reopen the window by as much."""
        body = stream.body
        stream.collected.clear()
        if not stream.closed:
            self._release(stream, len(body))
            stream.unread += len(body)
            self._give_back(stream)
        return body

    def send_head(
        self, stream: Stream, head: HeaderBlock, *, end: bool = False, interim: bool = False
    ) -> bool:
        """Send the head of an answer; after an `interim` one (1xx) comes another. As for everything
        that is sent on a stream, False means that it is closed and nothing was sent."""
        if stream.closed:
            return False
        self._writer.fields(stream.id, head, end)
        stream.head_sent = stream.head_sent or not interim
        if end:
            self._finish(stream)
        return True

    def send_data(self, stream: Stream, data: bytes, *, end: bool = False) -> bool:
        """Send more of the body. What exceeds the client's windows waits."""
        if stream.closed:
            return False
        # A client may send a window update for each part of a long answer.
        self._controls.earn(self._options.controls_per_request)
        stream.pending += data
        stream.pending_end = end
        self._pending_bytes += len(data)
        if stream.id not in self._blocked:
            self._send_pending(stream)
        if not self._reserve_pending():
            self._reset(stream, ErrorCode.ENHANCE_YOUR_CALM)
            return False
        return True

    def send_trailers(self, stream: Stream, trailers: HeaderBlock) -> bool:
        """End an answer with trailers."""
        if stream.closed:
            return False
        stream.pending_trailers = trailers
        if stream.id not in self._blocked:
            self._send_pending(stream)
        return True

    def respond(self, stream: Stream, head: HeaderBlock, body: bytes = b"") -> bool:
        """Send a whole answer."""
        if not body:
            return self.send_head(stream, head, end=True)
        return self.send_head(stream, head) and self.send_data(stream, body, end=True)

    def reset(self, stream: Stream, code: int) -> bool:
        """Cancel a request."""
        if stream.closed:
            return False
        self._reset(stream, code)
        return True

    def ping(self, payload: bytes) -> None:
        if len(payload) != 8:
            raise ValueError("a ping has 8 bytes")
        self._pings += 1
        self._writer.frame(PING, 0, 0, payload)

    def shutdown(self) -> None:
        """Accept no more requests. The first call announces that; the second, or the client's
        acknowledgement of the first, names the last request: those in transit are still served."""
        if self.ended or self._final_id < LAST_STREAM:
            return
        if self._going:
            self._name_last_stream()
        else:
            self._going = True
            self._writer.goaway(LAST_STREAM, ErrorCode.NO_ERROR, b"")
            self.ping(_SHUTDOWN_PING)

    def close(self, code: int = ErrorCode.NO_ERROR, text: bytes = b"") -> list[Event]:
        """End the connection at once. Returns a reset for each request that was reported."""
        if not self.ended:
            self._writer.goaway(self._last_id, code, text)
            self._end(code)
        return self._take_events()

    # --- Reading --------------------------------------------------------------------------------

    def _collect(self, step: Callable[[], None]) -> list[Event]:
        if not self.ended:
            try:
                step()
            except Http2Error as error:
                self._fail(error.code, error.text)
        return self._take_events()

    def _take_events(self) -> list[Event]:
        # Not kept: streams are large, and a connection may be idle for long.
        events, self._events = self._events, []
        return events

    def _read_turn(self) -> None:
        options = self._options
        self.event_count = 0
        if self._partial_ms < 0:
            self._partial_ms = self._now
        while True:
            if (
                self._at >= options.turn_bytes
                or self.event_count >= options.turn_requests
                or len(self._writer.out) >= options.outgoing_bytes
            ):
                self.pending = self._at < len(self._input)
                break
            if not self._read_frame():
                self.pending = False
                break
        if self._at == len(self._input):
            self._partial_ms = -1
        elif self._at:
            self._partial_ms = self._now
        partial, self._partial = self._partial, []
        for stream in partial:
            if not stream.handed_over and not stream.closed:
                self._emit("partial", stream, 0)

    def _read_frame(self) -> bool:
        """The next frame, if it is complete."""
        if not self._prefaced:
            return self._read_preface()
        data, at = self._input, self._at
        if len(data) - at < 9:
            return False
        high, low, kind, flags, stream_id = FRAME_HEAD.unpack_from(data, at)
        length, stream_id = high << 8 | low, stream_id & LAST_STREAM
        self._check_order(kind, flags, stream_id)
        if length > MAX_FRAME:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a frame above 16,384 bytes")
        end = at + 9 + length
        if end > len(data):
            return False
        self._at = end
        try:
            self._read_payload(kind, flags, stream_id, data[at + 9 : end])
        except StreamResetError as error:
            self._fail_stream(error.stream_id, error.code)
        return True

    def _read_preface(self) -> bool:
        found = self._input[self._at : self._at + len(PREFACE)]
        if not PREFACE.startswith(found):
            raise protocol_error("the connection does not begin with the preface of HTTP/2")
        self._prefaced = found == PREFACE
        self._at += len(found) if self._prefaced else 0
        return self._prefaced

    def _check_order(self, kind: int, flags: int, stream_id: int) -> None:
        if not self._begun:
            if kind != SETTINGS or flags & ACK:
                raise protocol_error("the first frame is not SETTINGS")
            self._begun = True
        if self._block is None:
            if kind == CONTINUATION:
                raise protocol_error("CONTINUATION of nothing")
        elif kind != CONTINUATION or stream_id != self._block.stream_id:
            raise protocol_error("a block of fields is interrupted by another frame")

    def _read_payload(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == DATA:
            self._read_data(flags, stream_id, payload)
        elif kind == HEADERS:
            self._read_headers(flags, stream_id, payload)
        elif kind == CONTINUATION:
            self._read_continuation(flags, payload)
        elif kind == WINDOW_UPDATE:
            self._read_window_update(stream_id, payload)
        elif kind == RST_STREAM:
            self._read_rst_stream(stream_id, payload)
        elif kind == PRIORITY:
            self._read_priority(stream_id, payload)
        elif kind == PUSH_PROMISE:
            raise protocol_error("PUSH_PROMISE from a client")
        elif kind > CONTINUATION:
            self._spend("too many frames of unknown types")
        else:
            self._read_control(kind, flags, stream_id, payload)

    def _read_control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise protocol_error("a frame of the connection has a stream")
        if kind == SETTINGS:
            self._read_settings(flags, payload)
        elif kind == PING:
            self._read_ping(flags, payload)
        else:
            self._read_goaway(payload)

    def _read_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._require_opened(stream_id)
        size, body = len(payload), unpadded(flags, payload)
        if size > self._credit:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "more data than there is room for")
        self._credit -= size
        self._unread += size
        if self._unread * 2 >= self._options.connection_window:
            self._writer.window_update(0, self._unread)
            self._credit += self._unread
            self._unread = 0
        stream = self._streams.get(stream_id)
        if stream is None:
            if self._closed_streams.get(stream_id):
                if flags & END_STREAM:
                    self._unstopped.pop(stream_id, None)
                return
            raise StreamResetError(stream_id, ErrorCode.STREAM_CLOSED)
        if stream.ended:
            raise StreamResetError(stream_id, ErrorCode.STREAM_CLOSED)
        if size > stream.credit:
            raise StreamResetError(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        stream.ended = bool(flags & END_STREAM)
        if not body and not stream.ended:
            self._spend("too many empty frames")
        stream.credit -= size
        stream.received += len(body)
        if not stream.has_declared_length():
            raise StreamResetError(stream_id, ErrorCode.PROTOCOL_ERROR)
        self._add_body(stream, body, size - len(body))
        if stream.ended:
            self._complete(stream)
        else:
            self._give_back(stream)

    def _add_body(self, stream: Stream, body: bytes, padding: int) -> None:
        if stream.fault:
            return
        if stream.streaming:
            if not self._hold(stream, len(body)):
                raise StreamResetError(stream.id, ErrorCode.ENHANCE_YOUR_CALM)
            stream.collected += body
            stream.unread += padding
            if body:
                self._emit("data", stream, len(body))
        elif len(stream.collected) + len(body) > stream.body_bytes:
            self._fault(stream, "body_too_large")
        elif not self._hold(stream, len(body)):
            self._fault(stream, "no_room")
        else:
            stream.collected += body
            stream.unread += len(body) + padding

    def _read_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        require_client_stream(stream_id)
        data = unpadded(flags, payload)
        if flags & PRIORITIZED:
            if len(data) < 5:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without its priority")
            check_dependency(stream_id, data)
            data = data[5:]
        end_stream = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._read_fields(stream_id, end_stream, data)
        else:
            self._block = _Block(stream_id, end_stream, data, self._now)

    def _read_continuation(self, flags: int, payload: bytes) -> None:
        block = self._block
        assert block is not None
        block.data += payload
        block.frames += 1
        bounds = self._options
        if block.frames > bounds.header_frames or len(block.data) > bounds.header_block_bytes:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "a block of fields is too long")
        if flags & END_HEADERS:
            self._block = None
            self._read_fields(block.stream_id, block.end_stream, bytes(block.data))

    def _read_fields(self, stream_id: int, end_stream: bool, data: bytes) -> None:
        try:
            fields = self._decoder.decode(data)
        except HpackError as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._read_trailers(stream, fields, end_stream)
        elif stream_id > self._last_id:
            self._open(stream_id, fields, end_stream)
        elif not self._closed_streams.get(stream_id):
            if stream_id in self._closed_streams:
                raise Http2Error(ErrorCode.STREAM_CLOSED, "fields for a closed stream")
            raise protocol_error("the number of a new stream is not above the last one")
        elif end_stream:
            self._unstopped.pop(stream_id, None)

    def _read_trailers(self, stream: Stream, fields: Fields, end_stream: bool) -> None:
        if stream.ended:
            raise StreamResetError(stream.id, ErrorCode.STREAM_CLOSED)
        if self._decoder.truncated:
            raise StreamResetError(stream.id, ErrorCode.ENHANCE_YOUR_CALM)
        stream.ended = end_stream
        if not end_stream or not are_trailers(fields) or not stream.has_declared_length():
            raise StreamResetError(stream.id, ErrorCode.PROTOCOL_ERROR)
        self._complete(stream)

    def _open(self, stream_id: int, fields: Fields, end_stream: bool) -> None:
        self._last_id = stream_id
        if stream_id > self._final_id:
            self._remember(stream_id, True)
            return
        options = self._options
        if len(self._streams) >= options.concurrent_streams:
            self._remember(stream_id, True)
            self._writer.rst_stream(stream_id, ErrorCode.REFUSED_STREAM)
            self._spend("too many requests at a time")
            return
        stream = self._new_stream(stream_id)
        try:
            stream.read_head(fields, options.routes)
        except MalformedError:
            if not self._decoder.truncated:
                raise StreamResetError(stream_id, ErrorCode.PROTOCOL_ERROR) from None
            stream = self._new_stream(stream_id)
        if end_stream and stream.declared > 0:
            raise StreamResetError(stream_id, ErrorCode.PROTOCOL_ERROR)
        stream.ended = end_stream
        self._streams[stream_id] = stream
        if self._decoder.truncated:
            self._fault(stream, "head_too_large")
        elif stream.streaming:
            stream.handed_over = True
            self._emit("head", stream, 0)
        elif stream.declared > stream.body_bytes:
            self._fault(stream, "body_too_large")
        elif not end_stream:
            self._partial.append(stream)
        if end_stream:
            self._complete(stream)

    def _new_stream(self, stream_id: int) -> Stream:
        return Stream(stream_id, self._now, self._options.body_bytes, self._options.stream_window)

    def _fault(self, stream: Stream, fault: str) -> None:
        """Report a request that cannot be served. The rest of its input is discarded."""
        stream.fault = fault
        self._release(stream, len(stream.collected))
        stream.collected.clear()
        stream.handed_over = True
        self._emit("request", stream, 0)

    def _complete(self, stream: Stream) -> None:
        if stream.fault or stream.closed:
            return
        if stream.streaming:
            self._emit("end", stream, 0)
        else:
            stream.handed_over = True
            self._emit("request", stream, 0)

    def _read_rst_stream(self, stream_id: int, payload: bytes) -> None:
        self._require_opened(stream_id)
        require_size(payload, 4)
        stream = self._streams.get(stream_id)
        if stream is None:
            self._unstopped.pop(stream_id, None)
            self._spend("too many resets of closed streams")
            return
        if stream.handed_over:
            self._emit("reset", stream, int.from_bytes(payload, "big"))
        self._forget(stream, False)
        self._count_reset()

    def _read_priority(self, stream_id: int, payload: bytes) -> None:
        """Checked and ignored, as section 5.3 allows."""
        if not stream_id:
            raise protocol_error("a frame of a stream has none")
        require_size(payload, 5)
        check_dependency(stream_id, payload)
        self._spend("too many priorities")

    def _read_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            require_size(payload, 0)
            if self._settled:
                self._spend("too many settings")
            self._settled = True
            return
        if len(payload) % 6:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "half a setting")
        self._spend("too many settings")
        initial_window = self._initial_window
        for number, value in SETTING.iter_unpack(payload):
            if number == INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2**31 - 1")
                initial_window = value
            elif number == HEADER_TABLE_SIZE:
                self._writer.encoder.resize(value)
            elif not is_valid_setting(number, value):
                raise protocol_error("a setting out of its range")
        self._writer.frame(SETTINGS, ACK, 0, b"")
        self._resize_windows(initial_window)

    def _resize_windows(self, initial_window: int) -> None:
        if initial_window == self._initial_window:
            return
        if any(stream.window + initial_window > MAX_WINDOW for stream in self._streams.values()):
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2**31 - 1")
        self._initial_window = initial_window
        self._send_blocked()

    def _read_ping(self, flags: int, payload: bytes) -> None:
        require_size(payload, 8)
        if not flags & ACK:
            # gRPC clients recognize this text, and then ping less often.
            self._spend("too_many_pings")
            self._writer.frame(PING, ACK, 0, payload)
        elif not self._pings:
            self._spend("too_many_pings")
        else:
            self._pings -= 1
            if payload != _SHUTDOWN_PING:
                self._emit("pong", None, payload)
            elif self._going:
                self._name_last_stream()

    def _read_goaway(self, payload: bytes) -> None:
        if len(payload) < 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY without its numbers")
        self._spend("too many farewells")
        self._emit("goaway", None, int.from_bytes(payload[4:8], "big"))

    def _read_window_update(self, stream_id: int, payload: bytes) -> None:
        if stream_id:
            self._require_opened(stream_id)
        require_size(payload, 4)
        self._spend("too many small windows")
        amount = int.from_bytes(payload, "big") & MAX_WINDOW
        if not stream_id:
            self._widen_connection(amount)
        elif stream := self._streams.get(stream_id):
            self._widen_stream(stream, amount)

    def _widen_connection(self, amount: int) -> None:
        if not amount:
            raise protocol_error("WINDOW_UPDATE by nothing")
        if self._window + amount > MAX_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2**31 - 1")
        self._window += amount
        self._send_blocked()

    def _widen_stream(self, stream: Stream, amount: int) -> None:
        if not amount:
            raise StreamResetError(stream.id, ErrorCode.PROTOCOL_ERROR)
        if self._initial_window + stream.window + amount > MAX_WINDOW:
            raise StreamResetError(stream.id, ErrorCode.FLOW_CONTROL_ERROR)
        stream.window += amount
        if stream.id in self._blocked:
            self._send_pending(stream)

    def _require_opened(self, stream_id: int) -> None:
        require_client_stream(stream_id)
        if stream_id > self._last_id:
            raise protocol_error("a frame for a stream that was not opened")

    # --- Bounds ---------------------------------------------------------------------------------

    def _spend(self, text: str) -> None:
        if not self._controls.spend(self._now):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, text)

    def _count_reset(self) -> None:
        if not self._resets.spend(self._now):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many streams were reset")

    def _hold(self, stream: Stream, amount: int) -> bool:
        """Count bytes of a body; beyond the connection's own share they need space in the
        `Room`."""
        needed = self._held + amount - self._options.held_bytes - self._reserved
        if needed > 0:
            if not self._options.room.take(needed):
                return False
            self._reserved += needed
        self._held += amount
        stream.held += amount
        return True

    def _release(self, stream: Stream, amount: int) -> None:
        self._held -= amount
        stream.held -= amount
        surplus = self._reserved - max(0, self._held - self._options.held_bytes)
        if surplus > 0:
            self._options.room.give(surplus)
            self._reserved -= surplus

    def _reserve_pending(self) -> bool:
        """Reserve space in the `Room` for waiting answers beyond the connection's own share."""
        needed = max(0, self._pending_bytes - self._options.pending_bytes)
        more = needed - self._pending_reserved
        if more > 0 and not self._options.room.take(more):
            return False
        if more < 0:
            self._options.room.give(-more)
        self._pending_reserved = needed
        return True

    def _less_pending(self, amount: int) -> None:
        self._pending_bytes -= amount
        if self._pending_reserved:
            self._reserve_pending()

    def _give_back(self, stream: Stream) -> None:
        """Reopen a window by what was taken, once that is half of it."""
        if stream.ended or stream.fault or stream.closed:
            return
        if stream.unread * 2 < self._options.stream_window:
            return
        self._writer.window_update(stream.id, stream.unread)
        stream.credit += stream.unread
        stream.unread = 0

    def _end_overdue(self) -> None:
        now, options = self._now, self._options
        if not self._settled and now - self._opened_ms > options.settings_ms:
            raise Http2Error(ErrorCode.SETTINGS_TIMEOUT, "settings were not acknowledged")
        since_ms = self._block.since_ms if self._block is not None else self._partial_ms
        if since_ms >= 0 and not self.pending and now - since_ms > options.head_ms:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "a frame did not arrive in time")
        for stream_id in [each for each, due_ms in self._unstopped.items() if due_ms <= now]:
            del self._unstopped[stream_id]
            self._writer.rst_stream(stream_id, ErrorCode.NO_ERROR)
        for stream in self.streams:
            if stream.id in self._blocked:
                if now - stream.blocked_ms > options.write_ms:
                    self._fail_stream(stream.id, ErrorCode.CANCEL)
            elif not stream.handed_over and now - stream.begun_ms > options.request_ms:
                self._fault(stream, "request_timeout")

    # --- Streams and their ends -----------------------------------------------------------------

    def _emit(self, kind: str, stream: Stream | None, value: int | bytes) -> None:
        self.event_count += 1
        self.emit(kind, stream, value)

    def _finish(self, stream: Stream) -> None:
        """Close a stream after the end of its answer."""
        if not stream.ended:
            self._stop_request(stream)
        self._forget(stream, not stream.ended)
        self._controls.earn(self._options.controls_per_request)
        self._resets.earn(1)

    def _stop_request(self, stream: Stream) -> None:
        """Stop a client from sending the rest of its request. If the body is too long, wait a
        moment before: some clients lose the answer when they get a reset."""
        if stream.fault == "body_too_large" and len(self._unstopped) < _UNSTOPPED:
            self._unstopped[stream.id] = self._now + _STOPPING_MS
        else:
            self._writer.rst_stream(stream.id, ErrorCode.NO_ERROR)

    def _reset(self, stream: Stream, code: int) -> None:
        self._writer.rst_stream(stream.id, code)
        self._forget(stream, True)

    def _fail_stream(self, stream_id: int, code: ErrorCode) -> None:
        """Handle an error of the client on one stream."""
        stream = self._streams.get(stream_id)
        if stream is None:
            self._writer.rst_stream(stream_id, code)
            self._remember(stream_id, True)
        else:
            if stream.handed_over:
                self._emit("reset", stream, code)
            self._reset(stream, code)
        self._count_reset()

    def _forget(self, stream: Stream, lenient: bool) -> None:
        stream.closed = True
        del self._streams[stream.id]
        self._blocked.pop(stream.id, None)
        self._less_pending(len(stream.pending))
        stream.pending.clear()
        self._release(stream, stream.held)
        self._remember(stream.id, lenient)
        self.quiet_since_ms = self._now

    def _remember(self, stream_id: int, lenient: bool) -> None:
        self._closed_streams[stream_id] = lenient
        if len(self._closed_streams) > _REMEMBERED:
            del self._closed_streams[next(iter(self._closed_streams))]

    def _fail(self, code: ErrorCode, text: str) -> None:
        self._writer.goaway(self._last_id, code, text.encode())
        self._end(code)
        self._emit("closed", None, code)

    def _end(self, code: int) -> None:
        for stream in self.streams:
            if stream.handed_over:
                self._emit("reset", stream, code)
            self._forget(stream, True)
        self._input, self._at = b"", 0
        self._block = None
        self._partial = []
        self.pending = False
        self.ended = True

    def _name_last_stream(self) -> None:
        self._final_id = self._last_id
        self._writer.goaway(self._last_id, ErrorCode.NO_ERROR, b"")

    # --- Sending --------------------------------------------------------------------------------

    def _send_pending(self, stream: Stream) -> None:
        """Send what waits in a stream, as far as the windows allow."""
        while self._send_frame(stream) and stream.pending:
            pass
        if not stream.pending:
            self._blocked.pop(stream.id, None)
        elif stream.id not in self._blocked:
            self._blocked[stream.id] = stream
            stream.blocked_ms = self._now

    def _send_blocked(self) -> None:
        """Send a frame of each stream that waits, as long as the window allows."""
        moved = True
        while moved and self._window > 0:
            moved = False
            for stream in list(self._blocked.values()):
                moved = self._send_frame(stream) or moved
                if not stream.pending:
                    self._blocked.pop(stream.id, None)

    def _send_frame(self, stream: Stream) -> bool:
        """Send one frame of a body, and the end after the last one. False: no window."""
        pending = stream.pending
        left = len(pending)
        # A stream's window is negative after settings have made it smaller than what was sent.
        size = max(0, min(left, MAX_FRAME, self._window, self._initial_window + stream.window))
        if left and not size:
            return False
        end = stream.pending_end and size == left
        if left or end:
            self._writer.frame(DATA, END_STREAM if end else 0, stream.id, bytes(pending[:size]))
            del pending[:size]
            stream.window -= size
            self._window -= size
            self._less_pending(size)
        if end:
            self._finish(stream)
        elif size == left and stream.pending_trailers is not None:
            self._writer.fields(stream.id, stream.pending_trailers, True)
            self._finish(stream)
        return True

    def _send_settings(self) -> None:
        options = self._options
        settings = [
            (MAX_CONCURRENT_STREAMS, options.concurrent_streams),
            (MAX_HEADER_LIST_SIZE, options.header_list_bytes),
        ]
        if options.stream_window != DEFAULT_WINDOW:
            settings.append((INITIAL_WINDOW_SIZE, options.stream_window))
        self._writer.settings(*settings)
        if options.connection_window > DEFAULT_WINDOW:
            self._writer.window_update(0, options.connection_window - DEFAULT_WINDOW)
