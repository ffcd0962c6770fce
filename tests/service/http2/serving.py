"""A small real server over the protocol layer: what a listener does, and nothing else."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.service.grpc import _protocol as grpc
from penstock.service.http2 import HeaderBlock
from penstock.service.http2._streams import Route

UNARY, COUNT, ECHO = 1, 2, 3
ROUTES = {
    b"/test.Echo/Unary": Route(UNARY, 4 * 2**20),
    b"/test.Echo/Count": Route(COUNT),
    b"/test.Echo/Stream": Route(ECHO, streaming=True),
}


def now_ms() -> int:
    return int(time.monotonic() * 1000)


class Listener(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: Any = None
        self.http2: Any = None
        self.paused = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        if self.http2 is not None:
            self.handle(self.http2.lost())

    def data_received(self, data: bytes) -> None:
        if self.server.recorded is not None:
            self.server.recorded.setdefault(id(self), []).append(data)
        if self.http2 is None:
            self.http2 = self.server.module.Http2Connection(self.server.options, now_ms())
        self.read_http2(data)

    def read_http2(self, data: bytes) -> None:
        self.handle(self.http2.feed(data, now_ms()))
        self.flush()
        if self.http2.pending and not self.transport.is_closing():
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self.resume)

    def resume(self) -> None:
        if self.transport.is_closing() or self.paused:
            return
        self.handle(self.http2.feed(b"", now_ms()))
        self.flush()
        if self.transport.is_closing():
            return
        if self.http2.pending:
            asyncio.get_running_loop().call_soon(self.resume)
        else:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """A client that does not read is not read either."""
        self.paused = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.paused = False
        if self.http2 is not None:
            self.resume()

    def flush(self) -> None:
        if self.transport.is_closing():
            return
        if out := self.http2.take_outgoing():
            self.transport.write(out)
        if self.http2.ended or self.http2.drained:
            self.transport.close()

    def expire(self) -> None:
        if self.http2 is not None:
            self.handle(self.http2.expire(now_ms()))
            self.flush()

    def handle(self, events: list[Any]) -> None:
        for kind, stream, value in events:
            self.server.events.append((kind, value))
            if kind == "request":
                self.answer(stream)
            elif kind == "head":
                stream.context = grpc.MessageReader("identity", 2**20)
            elif kind == "data":
                for message in stream.context.feed(self.http2.take_body(stream)):
                    grpc.send_message(self.http2, stream, message)
            elif kind == "end":
                grpc.send_status(self.http2, stream, grpc.Status.OK)

    def answer(self, stream: Any) -> None:
        if grpc.is_grpc(stream):
            try:
                self.answer_call(stream)
            except grpc.GrpcError as error:
                grpc.refuse(self.http2, stream, error)
        else:
            self.answer_http(stream)

    def answer_call(self, stream: Any) -> None:
        if stream.fault:
            raise grpc.GrpcError(grpc.Status.RESOURCE_EXHAUSTED, stream.fault)
        call = grpc.read_call(stream)
        self.server.calls.append(call)
        if stream.route < 0:
            raise grpc.GrpcError(grpc.Status.UNIMPLEMENTED, f"no method {stream.path}")
        message = grpc.read_message(stream.body, call.encoding, 4 * 2**20)
        metadata = [
            (name, value) for name, value in grpc.read_metadata(stream) if name.startswith("echo-")
        ]
        if message.startswith(b"fail "):
            raise grpc.GrpcError(int(message[5:7]), message[8:].decode(), b"details")
        if stream.route == COUNT:
            for number in range(int(message)):
                grpc.send_message(self.http2, stream, b"%d" % number)
            grpc.send_status(self.http2, stream, grpc.Status.OK)
        else:
            compress = call.accepts_gzip and call.encoding == "gzip"
            grpc.reply(
                self.http2,
                stream,
                message,
                metadata=metadata,
                trailing=metadata,
                compress=compress,
            )

    def answer_http(self, stream: Any) -> None:
        """/bytes/N is N bytes; /never is not answered; anything else is echoed."""
        if stream.fault:
            self.respond(stream, b"431" if stream.fault == "head_too_large" else b"413", b"")
        elif stream.path.startswith("/bytes/"):
            self.respond(stream, b"200", b"x" * int(stream.path[7:]))
        elif stream.path != "/never":
            body = stream.body or b"hello from %s" % stream.path.encode()
            self.respond(stream, b"200", body)

    def respond(self, stream: Any, status: bytes, body: bytes) -> None:
        head = HeaderBlock(
            [(b":status", status), (b"content-type", b"text/plain")],
            [(b"content-length", b"%d" % len(body))],
        )
        self.http2.respond(stream, head, b"" if stream.method == "HEAD" else body)


class Server:
    """What its connections share, and what a test may look at."""

    def __init__(self, module: Any, **options: Any) -> None:
        self.module = module
        self.options = module.Http2Options(routes=ROUTES, **options)
        self.connections: set[Listener] = set()
        self.events: list[tuple[str, Any]] = []
        self.calls: list[Any] = []
        self.recorded: dict[int, list[bytes]] | None = None
        self.port = 0
        self.loop: asyncio.AbstractEventLoop

    def run(self, work: Callable[[], Any]) -> Any:
        """Something done in the server's thread."""

        async def task() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(task(), self.loop).result(10)


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@contextmanager
def serve(module: Any, **options: Any) -> Iterator[Server]:
    """A server in a thread of its own, on a free port of 127.0.0.1, over one implementation."""
    server = Server(module, **options)
    loop = server.loop = new_loop()
    ready = threading.Event()
    stop = asyncio.Event()

    async def main() -> None:
        listening = await loop.create_server(lambda: Listener(server), "127.0.0.1", 0)
        server.port = listening.sockets[0].getsockname()[1]
        ready.set()
        while not stop.is_set():
            for connection in list(server.connections):
                connection.expire()
            await asyncio.wait([loop.create_task(stop.wait())], timeout=0.1)
        listening.close()
        for connection in list(server.connections):
            connection.transport.abort()
        await asyncio.sleep(0)

    def run() -> None:
        loop.run_until_complete(main())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive()
