"""Clients that behave as badly as they can, in a process of their own so that they are fast."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from types import TracebackType

from tests.support.processes import forking_context


class Flood:
    """Many connections. Each sends `request` again and again: as fast as the other side takes it,
    or, with `in_turn`, when the last one is answered. One that is closed is opened again."""

    def __init__(
        self, port: int, request: bytes, connections: int, *, in_turn: bool = False
    ) -> None:
        forking = forking_context()
        self._up = forking.Event()
        args = (port, request, connections, in_turn, self._up)
        self._process = forking.Process(target=_flood, args=args, daemon=True)

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
    # What is left to send. Requests are whole, wherever a send has ended.
    rests: dict[int, bytes] = {}
    data = request if in_turn else request * (65_536 // len(request))

    def add(line: socket.socket) -> None:
        line.setblocking(False)
        lines[line.fileno()] = line
        rests[line.fileno()] = data
        poll.register(line.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def again(file: int) -> None:
        poll.unregister(file)
        lines.pop(file).close()
        del rests[file]
        time.sleep(0.01)
        line = socket.socket()
        add(line)
        # Not waited for: the other side may be stopped, or dead.
        line.connect_ex(("127.0.0.1", port))

    def go_on(file: int, event: int) -> None:
        line = lines[file]
        if event & select.EPOLLIN:
            if not line.recv(262_144):
                raise ConnectionResetError
            if in_turn:
                rests[file] = data
                event |= select.EPOLLOUT
        if event & select.EPOLLOUT:
            rests[file] = rests[file][line.send(rests[file]) :] or (b"" if in_turn else data)
            if in_turn:
                poll.modify(file, select.EPOLLIN)
        elif event & (select.EPOLLERR | select.EPOLLHUP):
            raise ConnectionResetError

    def lives_on(file: int, event: int) -> bool:
        try:
            with contextlib.suppress(BlockingIOError):
                go_on(file, event)
        except OSError:
            return False
        return True

    for _ in range(connections):
        add(socket.create_connection(("127.0.0.1", port), 30))
    up.set()  # type: ignore[attr-defined]
    while True:
        for file, event in poll.poll(1.0):
            if not lives_on(file, event):
                again(file)
