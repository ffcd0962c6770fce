"""Clients that behave as badly as they can, in a process of their own so that they are fast."""

from __future__ import annotations

import multiprocessing
import select
import socket
import time
from types import TracebackType


class Flood:
    """Many connections. Each sends `request` again and again: as fast as the other side takes it,
    or, with `in_turn`, when the last one is answered. One that is closed is opened again."""

    def __init__(
        self, port: int, request: bytes, connections: int, *, in_turn: bool = False
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._up = spawn.Event()
        args = (port, request, connections, in_turn, self._up)
        self._process = spawn.Process(target=_flood, args=args, daemon=True)

    def __enter__(self) -> Flood:
        self._process.start()
        assert self._up.wait(60)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.join()


def _flood(port: int, request: bytes, connections: int, in_turn: bool, up: object) -> None:
    poll = select.epoll()
    lines: dict[int, socket.socket] = {}
    data = request if in_turn else request * (65_536 // len(request))
    events = select.EPOLLIN if in_turn else select.EPOLLIN | select.EPOLLOUT

    def connect() -> None:
        line = socket.create_connection(("127.0.0.1", port), 30)
        line.setblocking(False)
        lines[line.fileno()] = line
        poll.register(line.fileno(), events)
        if in_turn:
            line.send(data)

    for _ in range(connections):
        connect()
    up.set()  # type: ignore[attr-defined]
    rests: dict[int, bytes] = {}
    while True:
        for file, event in poll.poll(1.0):
            line = lines[file]
            try:
                if event & select.EPOLLIN and not line.recv(262_144):
                    raise ConnectionResetError
                if in_turn:
                    line.send(data)
                elif event & select.EPOLLOUT:
                    # Requests are whole, wherever a send has ended.
                    rest = rests.get(file) or data
                    rests[file] = rest[line.send(rest) :]
            except BlockingIOError:
                continue
            except OSError:
                poll.unregister(file)
                lines.pop(file).close()
                rests.pop(file, None)
                time.sleep(0.01)
                connect()
