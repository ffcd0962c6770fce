"""TLS as a filter between a connection and its bytes.

The TLS transports of the event loop keep a quarter of a megabyte per connection, perform any number
of handshakes at once, and announce a connection only when its handshake is done. With this filter a
connection is counted from its first byte, a handshake is work like any other, and only what the
connection has read is buffered.
"""

from __future__ import annotations

import contextlib
import ssl
import time

__all__ = ["FreedMemory", "TlsFilter"]


_RECORD_BYTES = 16_384


class TlsFilter:
    """The server's side of one connection. Invalid bytes of the peer raise an `ssl.SSLError`; then
    `output` has an alert for the peer."""

    __slots__ = ("_incoming", "_object", "_outgoing", "has_ended", "is_established")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_established: bool = False
        # Whether the peer has sent its close alert.
        self.has_ended: bool = False

    @property
    def protocol(self) -> str | None:
        """The protocol agreed on by ALPN, if any."""
        return self._object.selected_alpn_protocol()

    def decrypt(self, data: bytes) -> bytes:
        """The decrypted text of what has arrived; none during the handshake."""
        self._incoming.write(data)
        try:
            if not self.is_established:
                self._object.do_handshake()
                self.is_established = True
            return self._read()
        except ssl.SSLWantReadError:
            return b""

    def encrypt(self, text: bytes) -> bytes:
        """The bytes to send for a text; none if no text can be sent yet, or any more."""
        with contextlib.suppress(ssl.SSLError):
            self._object.write(text)
        return self._outgoing.read()

    def output(self) -> bytes:
        """The bytes that TLS itself has to send."""
        return self._outgoing.read()

    def close(self) -> bytes:
        """The close alert."""
        # The peer has not sent its own, and need not.
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._object.unwrap()
        return self._outgoing.read()

    def _read(self) -> bytes:
        parts = []
        try:
            while self._incoming.pending or self._object.pending():
                part = self._object.read(_RECORD_BYTES)
                if not part:
                    self.has_ended = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        return parts[0] if len(parts) == 1 else b"".join(parts)


_FREED_AT_ONCE = 256
_TRIM_INTERVAL_S = 10.0


class FreedMemory:
    """Returns the memory of closed TLS connections to the system, after many of them.

    The state of a connection consists of small blocks. The C library keeps freed blocks for later
    use, so a flood of handshakes would set the size of the process for good. `malloc_trim` takes
    some milliseconds, hence not after every connection; it exists in glibc only.
    """

    def __init__(self) -> None:
        self._freed = 0
        self._trimmed_at = 0.0

    def add(self) -> None:
        """Count a connection whose TLS state was freed."""
        self._freed += 1

    def trim(self) -> None:
        """Call it now and then."""
        if self._freed < _FREED_AT_ONCE or time.monotonic() < self._trimmed_at + _TRIM_INTERVAL_S:
            return
        self._freed, self._trimmed_at = 0, time.monotonic()
        with contextlib.suppress(ImportError, OSError, AttributeError, TypeError):
            import ctypes

            ctypes.CDLL(None).malloc_trim(0)
