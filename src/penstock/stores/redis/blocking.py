"""The blocking shell: sockets, one per request at a time, kept in a stack between requests.

A deadline covers a call from its start, and every wait is cut to what is left of it. Connecting
is done on a thread of its own, because name look-up, TLS and a login cannot be given one deadline
otherwise; a connection that comes too late for its call is kept for the next.

A socket on which anything went wrong is closed: a late reply must never meet a later request. One
that the server has closed while it lay idle is noticed before anything is written to it, so that
a restart of the server does not cost a request.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from ssl import SSLWantReadError
from typing import Any

from ...core.clock import SystemClock
from .faults import cannot_connect, late_connect, late_reply, lost_reply
from .recipe import Recipe
from .requests import Address, Ask, Discard, LinkError, Pause, Request, Scatter
from .wire import ProtocolError, new_reader, pack

__all__ = ["BlockingCall", "BlockingShell", "poller"]

_CHUNK = 65_536
_MAX_CONNECTING = 16
_now_ms = SystemClock().now


class _Wire:
    """One connected socket."""

    __slots__ = ("_connection", "_poll", "_reader", "_sock", "address", "era")

    def __init__(self, connection: Any, address: Address, era: object) -> None:
        self.address: Address = address
        self.era: object = era
        self._connection = connection
        self._sock = connection._sock
        self._reader = new_reader()
        self._poll = poller(self._sock)

    def is_stale(self) -> bool:
        """True when the server has hung up, or said something unasked, since the last reply."""
        if not self._poll(0):
            return False
        self._sock.settimeout(0)
        try:
            self._sock.recv(1)
        except (BlockingIOError, SSLWantReadError):
            # TLS may have had a message of its own to read, such as a session ticket.
            return False
        except OSError:
            return True
        return True

    def send(self, payload: bytes, deadline: int) -> None:
        try:
            self._sock.settimeout(_left_s(deadline, late_connect, self.address))
            self._sock.sendall(payload)
        except TimeoutError:
            raise late_reply(self.address) from None
        except OSError as error:
            raise lost_reply(self.address, error) from error

    def receive(self, count: int, deadline: int) -> list[Any]:
        sock, reader = self._sock, self._reader
        replies: list[Any] = []
        try:
            while True:
                sock.settimeout(_left_s(deadline, late_reply, self.address))
                data = sock.recv(_CHUNK)
                if not data:
                    raise lost_reply(self.address)
                reader.feed(data)
                while (reply := reader.gets()) is not False:
                    replies.append(reply)
                if len(replies) >= count:
                    break
        except TimeoutError:
            raise late_reply(self.address) from None
        except (OSError, ProtocolError) as error:
            raise lost_reply(self.address, error) from error
        if len(replies) > count:
            raise lost_reply(self.address, "more replies than requests")
        return replies

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._connection.disconnect()


class BlockingShell:
    """All blocking connections of a store. `call()` starts a call; threads share the rest."""

    def __init__(self, recipe: Recipe, timeout_ms: int) -> None:
        self._recipe = recipe
        self._timeout_ms = timeout_ms
        self._forget()

    def _forget(self) -> None:
        # An era ends when the store is closed, or in a forked child, whose parent owns the sockets.
        self._era = object()
        self._idle: dict[Address, list[_Wire]] = {}
        self._connecting = threading.BoundedSemaphore(_MAX_CONNECTING)

    def after_fork(self) -> None:
        self._forget()

    def call(self) -> BlockingCall:
        return BlockingCall(self, _now_ms() + self._timeout_ms)

    def take(self, where: Address, deadline: int) -> _Wire:
        """A connection that nobody else uses: an idle one that is sound, or a new one."""
        idle = self._idle.get(where)
        while idle:
            try:
                wire = idle.pop()
            except IndexError:
                break
            if not wire.is_stale():
                return wire
            wire.close()
        return self._connect(where, deadline)

    def give(self, wire: _Wire) -> None:
        if wire.era is not self._era:
            wire.close()
            return
        self._idle.setdefault(wire.address, []).append(wire)

    def discard(self, where: Address) -> None:
        for wire in self._idle.pop(where, []):
            wire.close()

    def close(self) -> None:
        self._era = object()
        for where in list(self._idle):
            self.discard(where)

    def _connect(self, where: Address, deadline: int) -> _Wire:
        slots = self._connecting
        if not slots.acquire(timeout=_left_s(deadline, late_connect, where)):
            raise late_connect(where)
        hope: Future[_Wire] = Future()
        threading.Thread(
            target=self._open, args=(where, hope, slots), name="penstock-connect", daemon=True
        ).start()
        try:
            return hope.result(_left_s(deadline, late_connect, where))
        except (FutureTimeoutError, TimeoutError):
            if hope.cancel():
                raise late_connect(where) from None
            return hope.result()

    def _open(self, where: Address, hope: Future[_Wire], slots: threading.BoundedSemaphore) -> None:
        era = self._era
        try:
            connection = self._recipe.make(where, self._timeout_ms / 1000)
            connection.connect()
            wire = _Wire(connection, where, era)
        except Exception as error:
            if hope.set_running_or_notify_cancel():
                hope.set_exception(cannot_connect(where, error))
        else:
            if hope.set_running_or_notify_cancel():
                hope.set_result(wire)
            else:
                self.give(wire)
        finally:
            slots.release()


class BlockingCall:
    """One call: its deadline, and the connection pinned to it, if any."""

    __slots__ = ("_deadline", "_pinned", "_shell")

    def __init__(self, shell: BlockingShell, deadline: int) -> None:
        self._shell = shell
        self._deadline = deadline
        self._pinned: _Wire | None = None

    def serve(self, request: Request) -> Any:
        if type(request) is Ask:
            return self._ask(request)
        if isinstance(request, Scatter):
            return self._scatter(request)
        if isinstance(request, Pause):
            return self._pause(request.ms)
        assert isinstance(request, Discard)
        return self._shell.discard(request.where)

    def finish(self) -> None:
        """Give back what is pinned. Called once, at the end, on success."""
        if self._pinned is not None:
            self._shell.give(self._pinned)
            self._pinned = None

    def abandon(self) -> None:
        """After a failure nobody knows what the pinned connection is in the middle of."""
        if self._pinned is not None:
            self._pinned.close()
            self._pinned = None

    def _ask(self, ask: Ask) -> list[Any]:
        deadline = self._deadline if ask.share == 1.0 else self._part(ask.share)
        wire = self._wire_for(ask, deadline)
        try:
            wire.send(pack(ask.commands), deadline)
            replies = wire.receive(len(ask.commands), deadline)
        except BaseException:
            if ask.pinned:
                self._pinned = None
            wire.close()
            raise
        if not ask.pinned:
            self._shell.give(wire)
        return replies

    def _part(self, share: float) -> int:
        """An earlier deadline, at this share of the time that is left."""
        now = _now_ms()
        return now + int((self._deadline - now) * share)

    def _wire_for(self, ask: Ask, deadline: int) -> _Wire:
        pinned = self._pinned
        if ask.pinned and pinned is not None:
            if ask.where in (None, pinned.address):
                return pinned
            self.finish()
        assert ask.where is not None
        wire = self._shell.take(ask.where, deadline)
        if ask.pinned:
            self._pinned = wire
        return wire

    def _scatter(self, scatter: Scatter) -> list[Any]:
        """Write to all, then read from all: the servers work at the same time."""
        sent: list[_Wire | LinkError] = [self._start(ask) for ask in scatter.asks]
        return [self._end(wire, ask) for wire, ask in zip(sent, scatter.asks, strict=True)]

    def _start(self, ask: Ask) -> _Wire | LinkError:
        assert ask.where is not None
        wire = None
        try:
            wire = self._shell.take(ask.where, self._deadline)
            wire.send(pack(ask.commands), self._deadline)
        except LinkError as error:
            if wire is not None:
                wire.close()
            return error
        return wire

    def _end(self, wire: _Wire | LinkError, ask: Ask) -> list[Any] | LinkError:
        if isinstance(wire, LinkError):
            return wire
        try:
            replies = wire.receive(len(ask.commands), self._deadline)
        except LinkError as error:
            wire.close()
            return error
        self._shell.give(wire)
        return replies

    def _pause(self, ms: float) -> None:
        left_ms = self._deadline - _now_ms()
        if ms >= left_ms:
            raise LinkError("out of time", may_have_run=False)
        time.sleep(ms / 1000)


def poller(sock: Any) -> Callable[[int], Any]:
    """Asks, without waiting, whether there is something to read."""
    if hasattr(select, "poll"):
        poller = select.poll()
        poller.register(sock, select.POLLIN)
        return poller.poll
    return lambda _ms: select.select([sock], [], [], 0)[0]


def _left_s(deadline: int, late: Any, address: Address) -> float:
    left_ms = deadline - _now_ms()
    if left_ms <= 0:
        raise late(address)
    return left_ms / 1000
