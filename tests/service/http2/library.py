"""A client of HTTP/2 made of the h2 library."""

from __future__ import annotations

import random
from typing import Any

import h2.config
import h2.connection
import h2.events

__all__ = ["Library"]


class Library:
    """A client made of the h2 library, that speaks with a connection."""

    def __init__(self, protocol: Any, **options: Any) -> None:
        self.http2 = protocol.Http2Connection(protocol.Http2Options(**options), 0)
        config = h2.config.H2Configuration(client_side=True, header_encoding=None)
        self.client = h2.connection.H2Connection(config)
        self.client.initiate_connection()
        self.rng = random.Random("cuts")
        self.events: list[Any] = []
        self.bodies: dict[int, bytearray] = {}
        self.heads: dict[int, list[tuple[bytes, bytes]]] = {}
        self.trailers: dict[int, list[tuple[bytes, bytes]]] = {}
        self.ended: set[int] = set()

    def request(self, path: str = "/x", body: bytes | None = None, **fields: str) -> int:
        stream = self.client.get_next_available_stream_id()
        head = [
            (":method", "GET" if body is None else "POST"),
            *((":scheme", "http"), (":path", path), (":authority", "a")),
            *((name.replace("_", "-"), value) for name, value in fields.items()),
        ]
        self.client.send_headers(stream, head, end_stream=body is None)
        if body is not None:
            self.send(stream, body)
        return stream

    def send(self, stream: int, body: bytes) -> None:
        """As the server makes room."""
        while True:
            size = min(self.client.local_flow_control_window(stream), 16_384, len(body))
            self.client.send_data(stream, body[:size], end_stream=size == len(body))
            body = body[size:]
            if not body:
                return
            self.pump()

    def pump(self) -> None:
        """Carry bytes both ways, cut anywhere, until nobody has anything to say."""
        while True:
            out = self.client.data_to_send()
            while out:
                cut = self.rng.randrange(1, len(out) + 1)
                self.events += self.http2.feed(out[:cut], 0)
                out = out[cut:]
            while self.http2.pending:
                self.events += self.http2.feed(b"", 0)
            back = self.http2.take_outgoing()
            if not back:
                return
            for event in self.client.receive_data(back):
                self.hear(event)

    def hear(self, event: Any) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            self.heads[event.stream_id] = list(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            self.bodies.setdefault(event.stream_id, bytearray()).extend(event.data)
            length = event.flow_controlled_length
            self.client.acknowledge_received_data(length, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived):
            self.trailers[event.stream_id] = list(event.headers)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended.add(event.stream_id)

    def requests(self) -> list[Any]:
        """Those that are there by now."""
        self.pump()
        found = [stream for kind, stream, _ in self.events if kind == "request"]
        self.events.clear()
        return found
