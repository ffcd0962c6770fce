"""The connections of sync calls: sockets for one request at a time, and a stack of idle ones.

A deadline covers a call from its start, and every wait is bounded by what is left of it. Connecting
is done on a thread of its own, because name look-up, TLS and a login cannot have one deadline
otherwise; a connection that comes too late for its call is kept for the next.

A socket on which anything went wrong is closed: a late reply must never be taken for that of a
later request. If the server has closed an idle connection, that is noticed before anything is
written to it, so that a restart of the server does not cost a request.

A signal handler may raise between any two instructions (KeyboardInterrupt, the timeouts of job
queues), and the next caller must find everything in order. Three rules ensure that. A connection
leaves the stack before it is used, and returns to it with every reply read; dropped on the way, it
closes itself. Callers and threads share no lock, but hand over by single operations of lists and
sets: the locks of `threading.Condition` and `Semaphore` are taken in Python code, and stay locked
when that is interrupted. And threads are started by the interpreter's own function, since
`Thread.start` waits on such a lock, and so does the new thread.

hiredis packs the commands and parses the replies, in C.
"""

from __future__ import annotations

import contextlib
import select
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Sequence
from ssl import SSLWantReadError, SSLWantWriteError
from time import monotonic
from typing import Any

from ...core._flow import drive
from .._sheet import ConnectionFailedError
from ._factory import ConnectionFactory, require_module
from ._requests import (
    Address,
    CloseIdle,
    Command,
    Delay,
    Enter,
    Exchange,
    Parallel,
    Pulse,
    RedisFlow,
    RedisRequest,
    Refusal,
    cannot_connect,
    late_connect,
    late_reply,
    lost_reply,
    no_room,
)
from ._room import SyncRoom

__all__ = ["UNREADABLE", "SyncConnections", "new_reader", "pack", "poller"]


_hiredis = require_module("hiredis")
_pack_one = _hiredis.pack_command
ProtocolError: type[Exception] = _hiredis.ProtocolError

UNREADABLE: tuple[type[Exception], ...] = (
    ProtocolError,
    MemoryError,
    ValueError,
    IndexError,
)
"""What the parser raises for bytes that are no replies, or for a list too long to be one."""


def pack(commands: Sequence[Command]) -> bytes:
    """The commands as one payload."""
    if len(commands) == 1:
        payload: bytes = _pack_one(commands[0])
        return payload
    return b"".join([_pack_one(command) for command in commands])


def new_reader() -> Any:
    """A parser whose error replies are `Refusal`s, as values."""
    return _hiredis.Reader(replyError=Refusal)


_CHUNK = 65_536
_MAX_OPENING = 16
_LOOK_AGAIN_S = 0.001
_SHORTEST_S = 0.001
# How many chunks of a reply are read after the deadline, without waiting.
_LATE_CHUNKS = 64
_NOT_YET = (BlockingIOError, SSLWantReadError, SSLWantWriteError)


class _Connection:
    """One connected socket, opened by a connection of the driver's.

    It does not block: a write nearly always fits, and a read is waited for by `poll`, which takes
    the time that is left. A timeout of the socket's own would cost three more system calls.
    """

    __slots__ = ("_driver", "_poll", "_pulse", "_reader", "_sock", "address", "generation")

    def __init__(self, driver: Any, address: Address, generation: object, pulse: Pulse) -> None:
        self.address: Address = address
        self._pulse = pulse
        self.generation: object = generation
        self._driver = driver
        self._sock = driver._sock
        self._sock.settimeout(0)
        self._reader = new_reader()
        self._poll = poller(self._sock)

    def is_stale(self) -> bool:
        """True when the server has hung up, or said something unasked, since the last reply."""
        if not self._poll(0):
            return False
        try:
            self._sock.recv(1)
        except _NOT_YET:
            # The bytes may have been a message of TLS itself, such as a session ticket.
            return False
        except OSError:
            return True
        return True

    def send(self, payload: bytes, deadline: float) -> None:
        if (now := monotonic()) >= deadline:
            raise self._pulse.judge(late_connect(self.address), now)
        try:
            sent = self._sock.send(payload)
            if sent < len(payload):
                self._send_slowly(payload[sent:], deadline)
        except _NOT_YET:
            self._send_slowly(payload, deadline)
        except OSError as error:
            raise lost_reply(self.address, error) from error

    def _send_slowly(self, payload: bytes, deadline: float) -> None:
        """Send the rest, which the socket did not accept at once."""
        try:
            self._sock.settimeout(max(_SHORTEST_S, deadline - monotonic()))
            self._sock.sendall(payload)
            self._sock.settimeout(0)
        except TimeoutError:
            raise self._pulse.judge(late_reply(self.address), monotonic()) from None
        except OSError as error:
            raise lost_reply(self.address, error) from error

    def receive(self, count: int, deadline: float) -> list[Any]:
        reader = self._reader
        replies: list[Any] = []
        is_drained, late_chunks = True, 0
        try:
            while len(replies) < count:
                left_ms = (deadline - monotonic()) * 1000
                if left_ms <= 0:
                    # What has arrived is read even if the deadline passed meanwhile, because this
                    # process was not scheduled; but not without end.
                    left_ms = 0.0
                    late_chunks += 1
                if late_chunks > _LATE_CHUNKS or (is_drained and not self._poll(left_ms)):
                    raise self._pulse.judge(late_reply(self.address), monotonic())
                try:
                    data = self._sock.recv(_CHUNK)
                except _NOT_YET:
                    is_drained = True
                    continue
                if not data:
                    raise lost_reply(self.address)
                # TLS may have buffered more than its socket shows.
                is_drained = False
                reader.feed(data)
                while (reply := reader.gets()) is not False:
                    replies.append(reply)
        except OSError as error:
            raise lost_reply(self.address, error) from error
        except UNREADABLE as error:
            raise lost_reply(self.address, f"not what was asked for: {error}") from error
        if len(replies) > count:
            raise lost_reply(self.address, "more replies than requests")
        if not late_chunks:
            self._pulse.answered_at = monotonic()
        return replies

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._driver.disconnect()

    def __del__(self) -> None:
        self.close()


class _Opening:
    """A connection that is being made, for a caller that waits until `deadline`.

    Whoever takes it out of `made` has it: the caller or, once that has left, whoever comes next.
    """

    __slots__ = ("deadline", "done", "failure", "is_running", "is_wanted", "made", "where")

    def __init__(self, where: Address, deadline: float) -> None:
        self.where = where
        self.deadline = deadline
        self.is_running = False
        self.is_wanted = True
        self.made: list[_Connection] = []
        self.failure: ConnectionFailedError | None = None
        self.done = allocate_lock()
        self.done.acquire()


class SyncConnections:
    """All blocking connections of a store, shared by its threads."""

    def __init__(self, factory: ConnectionFactory, timeout_ms: int) -> None:
        self._factory = factory
        self._timeout_s = timeout_ms / 1000
        self._forget()

    def _forget(self) -> None:
        # An era ends when the store is closed, or in a forked child, whose parent owns the sockets.
        self._generation = object()
        self._idle: dict[Address, list[_Connection]] = {}
        self._openings: set[_Opening] = set()
        self._pulses: dict[Address, Pulse] = {}
        self.room: SyncRoom = SyncRoom()

    def after_fork(self) -> None:
        self._forget()

    def run(self, flow: RedisFlow) -> Any:
        """Serve a flow's requests to its end, within the time of one call."""
        call = _SyncCall(self, monotonic() + self._timeout_s)
        return drive(flow, call.serve, call.finish)

    def take(self, where: Address | None, deadline: float) -> _Connection:
        """A connection for this caller alone: an idle one that is sound, or a new one."""
        assert where is not None
        while True:
            idle = self._idle.get(where)
            while idle:
                try:
                    connection = idle.pop()
                except IndexError:
                    break
                if not connection.is_stale():
                    return connection
                connection.close()
            opening = self._begin(where, deadline)
            if opening is not None:
                return self._await(opening)
            time.sleep(min(_LOOK_AGAIN_S, self._time_to_connect_s(deadline, where)))

    def _pulse(self, where: Address) -> Pulse:
        return self._pulses.setdefault(where, Pulse(self._timeout_s))

    def _late(self, where: Address) -> ConnectionFailedError:
        return self._pulse(where).judge(late_connect(where), monotonic())

    def enter(self, weight: int, deadline: float) -> Any:
        """Wait for room for a heavy call; returns what `SyncRoom.leave` takes."""
        entry = self.room.enter(weight, deadline)
        if entry is None:
            raise Pulse.judge_all(self._pulses.values(), no_room(), monotonic())
        return entry

    def _time_to_connect_s(self, deadline: float, where: Address) -> float:
        left_s = deadline - monotonic()
        if left_s <= 0:
            raise self._late(where)
        return left_s

    def give(self, connection: _Connection) -> None:
        if connection.generation is not self._generation:
            connection.close()
            return
        self._idle.setdefault(connection.address, []).append(connection)

    def discard(self, where: Address) -> None:
        for connection in self._idle.pop(where, []):
            connection.close()

    def close(self) -> None:
        self._generation = object()
        for where in list(self._idle):
            self.discard(where)

    def _begin(self, where: Address, deadline: float) -> _Opening | None:
        """Start to connect; None while too many others do."""
        openings = self._openings
        opening = _Opening(where, deadline)
        openings.add(opening)
        if len(openings) > _MAX_OPENING:
            self._forget_unstarted()
            if len(openings) > _MAX_OPENING:
                openings.discard(opening)
                return None
        try:
            start_new_thread(self._open, (opening, openings))
        except RuntimeError as error:
            openings.discard(opening)
            raise cannot_connect(where, error) from error
        return opening

    def _forget_unstarted(self) -> None:
        """Drop the openings whose callers were interrupted before their thread was started."""
        now = monotonic()
        for opening in list(self._openings):
            if not opening.is_running and opening.deadline < now:
                self._openings.discard(opening)

    def _await(self, opening: _Opening) -> _Connection:
        where = opening.where
        try:
            left_s = self._time_to_connect_s(opening.deadline, where)
            if not opening.done.acquire(timeout=left_s):
                raise self._late(where)
            if opening.failure is not None:
                raise opening.failure
            return opening.made.pop()
        except BaseException:
            opening.is_wanted = False
            self._keep(opening)
            raise

    def _open(self, opening: _Opening, openings: set[_Opening]) -> None:
        """Runs on a thread of its own."""
        opening.is_running = True
        generation = self._generation
        try:
            driver = self._factory.make(opening.where, self._timeout_s)
            driver.connect()
            pulse = self._pulse(opening.where)
            opening.made.append(_Connection(driver, opening.where, generation, pulse))
        except Exception as error:
            opening.failure = cannot_connect(opening.where, error)
        finally:
            openings.discard(opening)
            opening.done.release()
        if not opening.is_wanted:
            self._keep(opening)

    def _keep(self, opening: _Opening) -> None:
        """Keep a connection that came too late for its caller."""
        with contextlib.suppress(IndexError):
            self.give(opening.made.pop())


class _SyncCall:
    """One call: its deadline, and the connection pinned to it, if any."""

    __slots__ = ("_connections", "_deadline", "_entry", "pinned")

    def __init__(self, connections: SyncConnections, deadline: float) -> None:
        self._connections = connections
        self._deadline = deadline
        self._entry: Any = None
        self.pinned: _Connection | None = None

    def serve(self, request: RedisRequest) -> Any:
        if type(request) is Exchange:
            return self._exchange(request)
        if isinstance(request, Parallel):
            return self._run_parallel(request)
        if isinstance(request, Delay):
            return self._pause(request.ms / 1000)
        if isinstance(request, Enter):
            self._entry = self._connections.enter(request.weight, self._deadline)
            return None
        assert isinstance(request, CloseIdle)
        return self._connections.discard(request.where)

    def finish(self, is_well: bool) -> None:
        """The end of the flow."""
        if self._entry is not None:
            self._connections.room.leave(self._entry)
        self.end(is_well)

    def end(self, is_well: bool) -> None:
        """Give back the pinned connection, with every reply read. After a failure its state is
        unknown, so it is closed."""
        pinned, self.pinned = self.pinned, None
        if pinned is None:
            return
        if is_well:
            self._connections.give(pinned)
        else:
            pinned.close()

    def _exchange(self, exchange: Exchange) -> list[Any]:
        deadline = self._deadline if exchange.share == 1.0 else self._part(exchange.share)
        if exchange.pinned:
            connection = self._pinned_for(exchange, deadline)
        else:
            connection = self._connections.take(exchange.where, deadline)
        try:
            connection.send(pack(exchange.commands), deadline)
            replies = connection.receive(len(exchange.commands), deadline)
        except BaseException:
            if exchange.pinned:
                self.pinned = None
            connection.close()
            raise
        if not exchange.pinned:
            self._connections.give(connection)
        return replies

    def _part(self, share: float) -> float:
        """An earlier deadline, at this share of the time that is left."""
        now = monotonic()
        return now + (self._deadline - now) * share

    def _pinned_for(self, exchange: Exchange, deadline: float) -> _Connection:
        pinned = self.pinned
        if pinned is not None:
            if exchange.where in (None, pinned.address):
                return pinned
            self.end(is_well=True)
        self.pinned = self._connections.take(exchange.where, deadline)
        return self.pinned

    def _run_parallel(self, parallel: Parallel) -> list[Any]:
        """Write to all, then read from all: the servers work at the same time."""
        sent: list[_Connection | ConnectionFailedError] = [
            self._start(exchange) for exchange in parallel.exchanges
        ]
        return [
            self._end(started, exchange)
            for started, exchange in zip(sent, parallel.exchanges, strict=True)
        ]

    def _start(self, exchange: Exchange) -> _Connection | ConnectionFailedError:
        connection = None
        try:
            connection = self._connections.take(exchange.where, self._deadline)
            connection.send(pack(exchange.commands), self._deadline)
        except ConnectionFailedError as error:
            if connection is not None:
                connection.close()
            return error
        return connection

    def _end(
        self, started: _Connection | ConnectionFailedError, exchange: Exchange
    ) -> list[Any] | ConnectionFailedError:
        if isinstance(started, ConnectionFailedError):
            return started
        try:
            replies = started.receive(len(exchange.commands), self._deadline)
        except ConnectionFailedError as error:
            started.close()
            return error
        self._connections.give(started)
        return replies

    def _pause(self, seconds: float) -> None:
        if seconds >= self._deadline - monotonic():
            raise ConnectionFailedError("out of time", may_have_run=False)
        time.sleep(seconds)


def poller(sock: Any) -> Callable[[float], Any]:
    """Waits for at most this many milliseconds until there is something to read."""
    if hasattr(select, "poll"):
        poller = select.poll()
        poller.register(sock, select.POLLIN)
        return poller.poll
    return lambda ms: select.select([sock], [], [], ms / 1000)[0]
