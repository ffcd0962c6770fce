"""What HTTP/2 alone costs a server: `python -m bench.http2_libraries`.

A call of gRPC, as grpcio's client writes it, is read and answered in memory, without sockets: by
the compiled HTTP/2, by the interpreted one, by h2, and by jh2 (h2 with HPACK in Rust) where it is
installed. Processor time per call, each in turn, medians over rounds. The last line is JSON.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import hpack

from penstock.service.grpc._protocol import reply
from penstock.service.http2 import PREFACE, _connection, compiled

CALLS = 2_000
ROUNDS = 5
FIELDS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/throttlekit.v1.RateLimiter/Check"),
    (b":authority", b"localhost:50051"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"grpc-python/1.81.0 grpc-c/50.0.0 (linux; chttp2)"),
    (b"grpc-accept-encoding", b"identity, deflate, gzip"),
)
ANSWER = b"m" * 16
WIDE = struct.pack(">HI", 4, 2**30)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = struct.pack(">I", len(payload))[1:]
    return size + bytes((kind, flags)) + struct.pack(">I", stream) + payload


BEGIN = (
    PREFACE + _frame(4, 0, 0, WIDE) + _frame(4, 1, 0) + _frame(8, 0, 0, struct.pack(">I", 2**30))
)


def _calls() -> list[bytes]:
    encoder = hpack.Encoder()
    body = b"\0" + struct.pack(">I", 25) + b"m" * 25
    return [
        _frame(1, 4, stream, encoder.encode(FIELDS)) + _frame(0, 1, stream, body)
        for stream in range(1, 2 * CALLS, 2)
    ]


def ours(module: Any, answer: Callable[[Any, Any, bytes], bool]) -> float:
    """Microseconds per call."""
    calls, connection = _calls(), module.Http2Connection(module.Http2Options(), 0)
    connection.feed(BEGIN, 0)
    began = time.process_time()
    for call in calls:
        for _, stream, _ in connection.feed(call, 0):
            answer(connection, stream, ANSWER)
        connection.take_outgoing()
    return (time.process_time() - began) / CALLS * 1e6


def library(name: str) -> float:
    """The same of h2, or of what has its interface."""
    config, events, module = (
        importlib.import_module(f"{name}.{part}") for part in ("config", "events", "connection")
    )
    calls = _calls()
    connection = module.H2Connection(config.H2Configuration(client_side=False))
    connection.initiate_connection()
    connection.receive_data(BEGIN)
    began = time.process_time()
    for call in calls:
        for event in connection.receive_data(call):
            if isinstance(event, events.DataReceived):
                size = event.flow_controlled_length
                connection.acknowledge_received_data(size, event.stream_id)
            elif isinstance(event, events.StreamEnded):
                head = [(":status", "200"), ("content-type", "application/grpc")]
                connection.send_headers(event.stream_id, head)
                connection.send_data(event.stream_id, b"\0" + struct.pack(">I", 16) + ANSWER)
                connection.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)
        connection.data_to_send()
    return (time.process_time() - began) / CALLS * 1e6


def contenders() -> dict[str, Callable[[], float]]:
    found: dict[str, Callable[[], float]] = {"interpreted": lambda: ours(_connection, reply)}
    if compiled is not None:
        found["compiled"] = lambda: ours(compiled, compiled.Http2Connection.reply)
    for name in ("h2", "jh2"):
        if importlib.util.find_spec(name) is not None:
            found[name] = lambda name=name: library(name)  # type: ignore[misc]
    return found


def main() -> int:
    samples: dict[str, list[float]] = {name: [] for name in contenders()}
    for _ in range(ROUNDS):
        for name, measure in contenders().items():
            samples[name].append(measure())
    results = {name: statistics.median(each) for name, each in samples.items()}
    for name, us in results.items():
        print(f"{name:12} {us:8.1f} us")
    print(json.dumps({name: round(us, 2) for name, us in results.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
