"""gRPC channels to a service: one for threads, and one for each event loop.

Errors of grpcio are translated here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import grpc
import grpc.aio

from .._queueing import Mutex
from .._queueing.fork import ForkAware, keep_inherited, watch_forks
from ..core._errors import (
    ConfigInvalidError,
    OverloadedError,
    PenstockError,
    StoreUnavailableError,
    UnsupportedError,
)
from ..core._loops import running_loop

__all__ = ["Channels", "call_error", "decoded"]

# A server that is back should be found soon: grpcio's own pause between two attempts to connect
# grows to two minutes.
_RECONNECT_MS = 100
_MAX_RECONNECT_MS = 2_000

# What is not an outage: mistakes of the caller, and overload.
_MISTAKES = {
    grpc.StatusCode.NOT_FOUND: ConfigInvalidError,
    grpc.StatusCode.INVALID_ARGUMENT: ConfigInvalidError,
    grpc.StatusCode.UNAUTHENTICATED: ConfigInvalidError,
    grpc.StatusCode.PERMISSION_DENIED: ConfigInvalidError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
}

S = TypeVar("S")
T = TypeVar("T")


def call_error(target: str, error: Any, doubt: str = "") -> PenstockError:
    """The error for an exception of grpcio; `doubt` is added if the server may have acted."""
    status, details = error.code(), error.details() or "no details"
    kind = _MISTAKES.get(status, StoreUnavailableError)
    doubt = doubt if issubclass(kind, StoreUnavailableError) else ""
    return kind(f"{target} answered {status.name}: {details}{doubt}")


def decoded(target: str, reply: T | None, doubt: str = "") -> T:
    """The reply of an awaited call. grpc.aio returns None if it cannot decode the message, where
    a blocking call raises."""
    if reply is None:
        raise StoreUnavailableError(f"{target} sent a message that cannot be decoded{doubt}")
    return reply


class Channels(ForkAware, Generic[S, T]):
    """Channels, opened with the first call; `stubs` and `astubs` make stubs of a channel.

    An attempt to connect may take as long as a call, `timeout_ms`: a shorter one would fail every
    call to a server that is further away.
    """

    _opened: tuple[grpc.Channel, S] | None

    def __init__(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None,
        stubs: Callable[[grpc.Channel], S],
        astubs: Callable[[grpc.aio.Channel], T],
        *,
        timeout_ms: int,
    ) -> None:
        # The second of these bounds an attempt, whatever its name says.
        self._options = [
            ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MS),
            ("grpc.min_reconnect_backoff_ms", max(_RECONNECT_MS, timeout_ms)),
            ("grpc.max_reconnect_backoff_ms", _MAX_RECONNECT_MS),
        ]
        self._target = target
        self._credentials = credentials
        self._make = stubs
        self._amake = astubs
        self._forget()
        watch_forks(self)

    def stubs(self) -> S:
        """For threads."""
        with self._mutex.hold():
            if self._opened is None:
                if self._credentials is None:
                    channel = grpc.insecure_channel(self._target, self._options)
                else:
                    channel = grpc.secure_channel(self._target, self._credentials, self._options)
                self._opened = channel, self._make(channel)
            return self._opened[1]

    def astubs(self) -> T:
        """For the running event loop."""
        loop = running_loop()
        opened = self._aopened.get(loop)
        if opened is None:
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(self._target, self._options)
            else:
                channel = grpc.aio.secure_channel(self._target, self._credentials, self._options)
            opened = self._aopened[loop] = channel, self._amake(channel)
        return opened[1]

    def close(self) -> None:
        """Close the channel of the threads."""
        with self._mutex.hold():
            opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].close()

    async def aclose(self) -> None:
        """Close that, and the channel of the running event loop."""
        self.close()
        opened = self._aopened.pop(running_loop(), None)
        if opened is not None:
            await opened[0].close(None)

    def _forget(self) -> None:
        """Have no connection."""
        self._mutex = Mutex()
        self._opened = None
        self._aopened: WeakKeyDictionary[Any, tuple[grpc.aio.Channel, T]] = WeakKeyDictionary()

    def _after_fork_in_child(self) -> None:
        """Leave the parent's channels alone."""
        keep_inherited((self._opened, list(self._aopened.values())))
        self._forget()
