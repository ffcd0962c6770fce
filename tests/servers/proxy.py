"""A TCP proxy that misbehaves on command, in a thread of its own.

Put it between a client and a server, then choose how the network fails. A fault holds for open and
for new connections until `restore()`. Counters tell what really crossed the wire, so a test can
prove that a client gave up, retried, or never asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, TypeVar

from .fleet import Fleet
from .process import HOST, Port, Server

T = TypeVar("T")
_CHUNK = 65_536


class Fault(Enum):
    NONE = "forward"
    CUT = "forward the request, close before the reply"
    SWALLOW = "accept, never answer"
    REFUSE = "refuse connections"


@dataclass(eq=False)
class _Relay:
    """One client's connection. `tainted`: bytes were lost on it, so it must not be used again."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    tainted: bool = False
    cut_next_reply: bool = False

    def close(self) -> None:
        self.client.close()
        self.server.close()


class FaultProxy:
    """Listens on `port`, forwards to `target_port`; every verb returns once it holds."""

    host = HOST

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.connections = 0
        self.bytes_to_server = 0
        self.bytes_to_client = 0
        self.chunks_to_server = 0
        self._port = Port()
        self._fault = Fault.NONE
        self._delay_s = 0.0
        self._match = b""
        self.cuts_left: int | None = None
        self._relays: set[_Relay] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def port(self) -> int:
        return self._port.number

    def url_of(self, server: Server | Fleet) -> str:
        """The server's URL, led through this proxy."""
        return server.url.replace(f":{server.port}", f":{self.port}")

    def delay(self, ms: int) -> None:
        """Every reply arrives this much later; bandwidth stays as it was."""
        self._call(self._set(Fault.NONE, delay_s=ms / 1000))

    def cut_after_request(self, *, match: bytes = b"", times: int | None = None) -> None:
        """The server gets the request and answers; the client's connection closes instead.

        Only requests that contain `match` are cut, so a client's handshake can pass; after
        `times` cuts the proxy forwards again.
        """
        self._call(self._set(Fault.CUT, match=match, times=times))

    def swallow(self) -> None:
        """Accept everything, pass nothing on in either direction."""
        self._call(self._set(Fault.SWALLOW))

    def refuse(self) -> None:
        """Drop every connection and refuse new ones."""
        self._call(self._set(Fault.REFUSE))

    def restore(self) -> None:
        """Forward faithfully. Connections that lost bytes are closed."""
        self._call(self._set(Fault.NONE))

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._port.release()

    def _call(self, verb: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(verb, self._loop).result(10)

    async def _set(
        self, fault: Fault, *, delay_s: float = 0.0, match: bytes = b"", times: int | None = None
    ) -> None:
        self._fault, self._delay_s = fault, delay_s
        self._match, self.cuts_left = match, times
        for relay in list(self._relays):
            relay.cut_next_reply = False
            if fault is Fault.REFUSE or (relay.tainted and fault is not Fault.SWALLOW):
                relay.close()
        if fault is Fault.REFUSE:
            self._stop_listening()
        elif self._listener is None:
            await self._listen()

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._accept, HOST, self.port)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _shut(self) -> None:
        self._stop_listening()
        for relay in list(self._relays):
            relay.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.connections += 1
        # A task of our own, not asyncio's: on the way out it has to be cancelled and awaited.
        task = self._loop.create_task(self._serve(reader, client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            from_server, server = await asyncio.open_connection(HOST, self.target_port)
        except OSError:
            client.close()
            return
        for writer in (client, server):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        relay = _Relay(client, server)
        self._relays.add(relay)
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        pumps = [
            self._loop.create_task(pump)
            for pump in (
                self._pump_requests(relay, from_client),
                self._pump_replies(relay, from_server, late),
                self._deliver(relay, late),
            )
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._relays.discard(relay)
            relay.close()
            for writer in (client, server):
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _pump_requests(self, relay: _Relay, reader: asyncio.StreamReader) -> None:
        while chunk := await reader.read(_CHUNK):
            if self._fault is Fault.SWALLOW:
                relay.tainted = True
                continue
            if self._fault is Fault.CUT and self._match in chunk and self.cuts_left != 0:
                relay.cut_next_reply = True
                if self.cuts_left is not None:
                    self.cuts_left -= 1
            self.bytes_to_server += len(chunk)
            self.chunks_to_server += 1
            relay.server.write(chunk)
            await relay.server.drain()

    async def _pump_replies(
        self,
        relay: _Relay,
        reader: asyncio.StreamReader,
        late: asyncio.Queue[tuple[float, bytes]],
    ) -> None:
        while chunk := await reader.read(_CHUNK):
            if relay.cut_next_reply:
                # The server has answered, hence acted: exactly the doubt a test wants to create.
                return
            if self._fault is Fault.SWALLOW:
                relay.tainted = True
                continue
            late.put_nowait((self._loop.time() + self._delay_s, chunk))
        await late.join()

    async def _deliver(self, relay: _Relay, late: asyncio.Queue[tuple[float, bytes]]) -> None:
        while True:
            due, chunk = await late.get()
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            relay.client.write(chunk)
            await relay.client.drain()
            self.bytes_to_client += len(chunk)
            late.task_done()
