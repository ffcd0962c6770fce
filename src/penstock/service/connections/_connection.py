"""One client's connection: what it may buffer, when it is served, and how it ends.

The protocol knows what the bytes mean: its `Inbox` keeps what has arrived, and its subclass of
`ClientConnection` answers as much of it as one slice allows (`serve`). A connection that waits for
an answer is not served until the answer is there, so replies are always in order.

What is held for a connection is counted in its group at every moment: bytes that have arrived and
are not answered, and replies that the client has not read. Nothing more is read while the
unanswered bytes exceed a bound; TCP's flow control then stops the client.
"""

from __future__ import annotations

import asyncio
import ssl
from abc import abstractmethod
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from ._sharing import UNIT_BYTES
from ._tls import TlsFilter

if TYPE_CHECKING:
    from ._listener import Listener
    from ._sharing import ClientGroup


__all__ = ["ClientConnection", "Inbox"]


# States in which a connection is not served: it waits for an answer, its client does not read the
# last one, it is queued, or it is closed.
_WAITING, _STALLED, _QUEUED, _OVER = 1, 2, 4, 8
_BLOCKED = _WAITING | _STALLED | _QUEUED | _OVER
# Reading is paused; the client has sent EOF; the last reply was sent; it was served before and is
# still a stranger.
_PAUSED, _HEARD_ALL, _PARTED, _KNOWN_STRANGER = 16, 32, 64, 128
# States in which it is queued, though it sends little.
_NOT_AT_ONCE = _BLOCKED | _KNOWN_STRANGER

# A handshake takes at least as long as this many requests.
_HANDSHAKE_UNITS = 16

# The time of an answer that had to wait, with its task and its wakeups, as a multiple of the time
# to send it; from a profile of a flood of probes.
_WHOLE_PER_SENT = 4


class Inbox(Protocol):
    """The received bytes of a client until they are answered. `unread` is how many there are,
    without what was reserved; `has_more` says whether `ClientConnection.serve` could continue
    without further bytes."""

    @property
    def unread(self) -> int: ...

    @property
    def has_more(self) -> bool: ...

    def feed(self, data: bytes) -> None:
        """Keep what has arrived."""

    def rest(self) -> bytes:
        """The bytes that have arrived and were not taken."""

    def forget(self) -> None:
        """Drop everything: nothing of it will be served."""


class ClientConnection(asyncio.Protocol):
    """One client's connection. `since` is when its state last changed: it became idle, began a
    request, or had to wait. `arrived` is when the last bytes arrived, by `perf_counter`. `is_known`
    says which group it is in."""

    __slots__ = (
        "_charged",
        "_discarded",
        "_encrypted",
        "_group",
        "_inbox",
        "_listener",
        "_reserved",
        "_state",
        "_tls",
        "_transport",
        "arrived",
        "is_known",
        "since",
    )

    def __init__(self, listener: Listener, inbox: Inbox, tls: ssl.SSLContext | None) -> None:
        self._listener = listener
        self._inbox = inbox
        self._transport: asyncio.Transport
        self._tls = None if tls is None else TlsFilter(tls)
        # Bytes that have arrived and are not decrypted yet.
        self._encrypted = b""
        self._state = 0
        self._charged = self._reserved = self._discarded = 0
        self._group = listener.strangers
        self.is_known: bool = False
        self.since: float = listener.now
        self.arrived: float = 0.0

    # For a protocol to implement.

    @abstractmethod
    def serve(self, units: int) -> int:
        """Answer requests, with `send`, until so many units are used up or there is nothing left.
        Returns the units used. If an answer has to wait, calls `wait`."""

    def serve_whole(self, data: bytes) -> int:
        """Answer bytes that have arrived on an idle connection, without buffering them, if that is
        possible at once. Returns the units used, or 0 if nothing was done."""
        return 0

    @abstractmethod
    def patience_s(self, stopping: bool) -> float:
        """How long it may stay in its state, with nothing to serve."""

    @abstractmethod
    def give_up(self) -> None:
        """Close it, or answer, after `patience_s`."""

    @abstractmethod
    def overloaded(self, detail: str) -> bytes:
        """The last reply to a client when the server is overloaded."""

    # For a protocol to call.

    def send(self, reply: bytes) -> None:
        transport = self._transport
        if self._state & _PARTED or transport.is_closing():
            return
        self.since = self._listener.now
        transport.write(reply if self._tls is None else self._tls.encrypt(reply))
        if not self._state & _OVER:
            return
        if self._is_sending_on():
            self._linger()
        else:
            self.close()

    def finish(self) -> None:
        """Close the connection after the next reply."""
        self._state |= _OVER

    def wait(self) -> None:
        """Serve nothing more until the answer in progress is sent."""
        self._state |= _WAITING

    def answered(self, reply: bytes) -> None:
        """Send the answer that had to wait, and continue."""
        if self.is_known:
            self._answer(reply)
        else:
            began, group = perf_counter(), self._group
            self._answer(reply)
            group.answering_s += _WHOLE_PER_SENT * (perf_counter() - began)

    def _answer(self, reply: bytes) -> None:
        self._state &= ~_WAITING
        self._group.units -= len(reply) // UNIT_BYTES
        self.send(reply)
        self.reserve(0)
        if self._state or self._charged or self._inbox.unread:
            self._go_on()

    @property
    def is_blocked(self) -> bool:
        """Whether nothing more may be served now."""
        return self._state & _BLOCKED != 0

    def reserve(self, amount: int) -> bool:
        """Reserve memory for a long request, instead of the earlier reservation; 0 frees it.
        Returns whether there is enough."""
        more = amount - self._reserved
        if more > 0 and self._group.buffered + more > self._group.max_buffered:
            return False
        if more:
            self._reserved = amount
            self._charge(self._charged + more)
        return True

    def hand_over(self, successor: ClientConnection) -> int:
        """Continue the connection in another protocol, which starts with the bytes that this one
        has not taken. Returns the units of its first slice."""
        successor.take_over(self)
        successor._inbox.feed(self._inbox.rest())
        self._let_go()
        self._tls = None
        self._charge(0)
        self._group.connections.pop(self, None)
        self._state = _OVER
        return successor._work()

    def take_over(self, predecessor: ClientConnection) -> None:
        """Continue a connection that began in another protocol."""
        self._transport, self._tls = predecessor._transport, predecessor._tls
        self._encrypted, self.arrived = predecessor._encrypted, predecessor.arrived
        self._state = predecessor._state
        self.join(predecessor._group, predecessor.is_known)
        self._transport.set_protocol(self)

    def part(self, reply: bytes) -> None:
        """Send the last reply to a client that may still be sending."""
        if self._state & _PARTED or self._transport.is_closing():
            return
        self._state |= _OVER
        self.since = self._listener.now
        self._transport.write(reply if self._tls is None else self._tls.encrypt(reply))
        self._linger()

    def close(self) -> None:
        """Close it when all replies have been read."""
        self._state |= _OVER
        self._say_goodbye()
        self._transport.close()

    def abort(self) -> None:
        """Close it now, and drop replies that were not read."""
        self._state |= _OVER
        self._transport.abort()
        self._let_go()
        self._charge(0)

    # For the listener to call.

    def join(self, group: ClientGroup, is_known: bool) -> None:
        """Move to a group."""
        self._group.connections.pop(self, None)
        self._group.buffered -= self._charged
        self._group, self.is_known = group, is_known
        if is_known:
            self._state &= ~_KNOWN_STRANGER
        group.connections[self] = None
        group.buffered += self._charged

    def displace(self) -> None:
        """Close, in favour of another stranger."""
        if self._state & (_STALLED | _OVER):
            self.abort()
        elif self._state & (_WAITING | _QUEUED) or self._inbox.unread:
            # It must not linger: it is in no group any more, so no timeout would end that.
            self.send(self.overloaded("too many clients here have not shown who they are"))
            self.close()
        else:
            self.close()

    def serve_queued(self) -> int:
        """Serve a slice from the queue. Returns the units used, at least one."""
        self._state &= ~_QUEUED
        return 1 if self._state & _BLOCKED else self._work()

    def expire(self, now: float, stopping: bool) -> None:
        """Close it if the client is too slow, or has been idle for too long."""
        state, age_s, bounds = self._state, now - self.since, self._listener.bounds
        if state & _STALLED:
            if age_s > bounds.write_s:
                self.abort()
        elif state & (_WAITING | _QUEUED):
            return
        elif state & _OVER:
            if age_s > bounds.linger_s:
                self.abort()
        elif self._tls is not None and not self._tls.is_established:
            if age_s > bounds.handshake_s:
                self.abort()
        elif age_s > self.patience_s(stopping):
            self.give_up()

    # For the event loop to call.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        # Report everything that the client does not read at once.
        self._transport.set_write_buffer_limits(high=0)
        self._listener.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state |= _OVER
        self._let_go()
        # A connection and its transport refer to each other until a garbage collection. The state
        # of TLS, some 50 KB outside of every bound, must not wait for that.
        if self._tls is not None:
            self._tls = None
            self._listener.freed_memory.add()
        self._charge(0)
        self._group.connections.pop(self, None)

    def data_received(self, data: bytes) -> None:
        group, state = self._group, self._state
        if state & _OVER:
            self._discard(len(data))
            return
        self.arrived = perf_counter()
        at_once = group.units > 0 and len(data) <= self._listener.light_bytes
        if at_once and self.is_known and not (state or self._charged or self._tls):
            spent = self.serve_whole(data)
            if spent:
                group.units -= spent
                return
        at_once = at_once and not state & _NOT_AT_ONCE
        if self._tls is None:
            self._inbox.feed(data)
        else:
            self._encrypted += data
        if not at_once:
            self._settle()
        else:
            spent = self._work()
            # Of the group that it belongs to now.
            self._group.units -= spent

    def eof_received(self) -> bool:
        """A client that has sent EOF still gets its answers."""
        if not self._state & _BLOCKED:
            return False
        self._state |= _HEARD_ALL
        return not self._state & _OVER

    def pause_writing(self) -> None:
        self._state |= _STALLED
        self.since = self._listener.now
        self._settle()

    def resume_writing(self) -> None:
        self._state &= ~_STALLED
        self._go_on()

    # The inside.

    def _is_sending_on(self) -> bool:
        """Whether the client has sent more than was answered, and may send more."""
        if self._state & _HEARD_ALL:
            return False
        return bool(self._inbox.unread or self._encrypted or self._state & _PAUSED)

    def _linger(self) -> None:
        """Read and discard input for a moment after the last reply: closing with unread bytes could
        destroy the reply in transit."""
        self._say_goodbye()
        self._state |= _PARTED
        self._let_go()
        self._settle()
        if self._transport.is_closing():
            return
        try:
            self._transport.write_eof()
        except OSError:
            # The client has disconnected meanwhile.
            self.abort()
        else:
            self._resume()

    def _go_on(self) -> None:
        """Serve the connection, now or in its turn."""
        group, light = self._group, self._listener.light_bytes
        if group.units > 0 and self._inbox.unread <= light and not self._state & _NOT_AT_ONCE:
            spent = self._work()
            # Of the group that it belongs to now.
            self._group.units -= spent
        else:
            self._settle()

    def _work(self) -> int:
        """Serve one slice. Returns the units used, at least one."""
        spent = self._decrypt() if self._encrypted else 0
        if not self._state & _BLOCKED:
            served = self.serve(self._group.slice_units)
            spent += served
            if served and not self.is_known:
                self._state |= _KNOWN_STRANGER
        if self._state or self._charged or self._inbox.unread:
            self._settle(served=True)
        return spent or 1

    def _settle(self, served: bool = False) -> None:
        """Update the count of buffered bytes, and pause or resume reading. Call it after every
        change. `served`: it just had a slice, so others come first."""
        state, group, bounds = self._state, self._group, self._listener.bounds
        unread = self._inbox.unread + len(self._encrypted)
        unsent = self._transport.get_write_buffer_size() if state & _STALLED else 0
        grows = unread + unsent + self._reserved > self._charged
        self._charge(unread + unsent + self._reserved)
        if grows and group.is_full and unread + unsent > bounds.light_bytes:
            self._turn_away()
        elif state & _OVER:
            return
        elif state & _BLOCKED:
            if unread > bounds.unread_bytes:
                self._pause()
            elif unread <= bounds.unread_bytes // 2 and not state & _QUEUED:
                self._resume()
        elif self._encrypted or self._inbox.has_more:
            self._state |= _QUEUED
            if unread <= bounds.light_bytes and not served and not state & _KNOWN_STRANGER:
                group.enqueue(self, group.arrivals)
            else:
                self._pause()
                group.enqueue(self, group.queue)
        elif state & _HEARD_ALL:
            # The rest, if any, is a request that will never be complete.
            self.close()
        else:
            self._resume()

    def _turn_away(self) -> None:
        """Refuse the client: there is no memory for its requests or replies."""
        self._listener.shed += 1
        if self._state & (_STALLED | _OVER):
            self.abort()
        elif self._state & _WAITING:
            # The answer in progress is its last.
            self.finish()
            self._inbox.forget()
            self._encrypted = b""
            self._charge(self._reserved)
            self._pause()
        else:
            self.part(self.overloaded("too much is being sent at once"))

    def _charge(self, amount: int) -> None:
        if amount != self._charged:
            self._group.buffered += amount - self._charged
            self._charged = amount

    def _let_go(self) -> None:
        """Free everything except replies that the client has not read."""
        self._inbox.forget()
        self._encrypted = b""
        self._reserved = 0

    def _discard(self, nbytes: int) -> None:
        """Discard input after the end, up to a bound."""
        self._discarded += nbytes
        if self._discarded > self._listener.bounds.system_bytes:
            self._pause()

    def _pause(self) -> None:
        if not self._state & _PAUSED:
            self._state |= _PAUSED
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._state & _PAUSED:
            self._state &= ~_PAUSED
            self._transport.resume_reading()

    # TLS.

    def _say_goodbye(self) -> None:
        """Send the TLS close alert, so that the peer knows that nothing was cut off."""
        tls = self._tls
        if tls is None or not tls.is_established:
            return
        if not self._state & _PARTED and not self._transport.is_closing():
            self._transport.write(tls.close())

    def _decrypt(self) -> int:
        """Returns the units that it took."""
        tls, data, self._encrypted = self._tls, self._encrypted, b""
        assert tls is not None
        shaking = not tls.is_established
        try:
            text = tls.decrypt(data)
        except ssl.SSLError:
            self._state |= _OVER
            self._transport.write(tls.output())
            self._transport.close()
            return _HANDSHAKE_UNITS
        if output := tls.output():
            self._transport.write(output)
        if tls.has_ended:
            self._state |= _HEARD_ALL
        if shaking and tls.is_established:
            self.since = self._listener.now
            self._listener.admit_verified(self)
        if text:
            self._inbox.feed(text)
        return _HANDSHAKE_UNITS if shaking else len(data) // UNIT_BYTES
