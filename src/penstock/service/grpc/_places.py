"""How many calls may be at work, and how long one may keep its place.

The library could count them too, but would turn away health probes with the rest, just when they
matter, and some of its versions stop taking calls altogether once the bound is reached.

A caller may open a call and never send its message, or send it and never take the reply. A call
keeps its place until the library is done with it, the reply being on its way; those that wait for
either are looked through now and then, the oldest first, which costs a call less than a timer of
its own would. The first kind is cancelled. For the second, whose reply lies in the library's
memory, there is no way but to end the connection.

Ending a connection that the library would keep.

A client may ask and never take the replies: it grants no room for them, and answers every ping. The
library keeps such replies for as long as the connection lasts, and has no call that ends one. But a
connection is a file of this process like any other, and can be shut by its number, upon which the
library finds it ended and lets go of all that it kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Collection
from time import monotonic
from typing import Any
from urllib.parse import unquote

import grpc

from ...core._errors import ConfigInvalidError
from ._errors import DeadlineError

__all__ = ["ARRIVAL_S", "MAX_CONCURRENT", "MAX_STREAMS", "TAKING_S", "Places", "cut"]


MAX_CONCURRENT = 4_096
"""Calls at work at once, over all connections; one more is answered RESOURCE_EXHAUSTED."""

MAX_STREAMS = 256
"""Of the calls that stay open for as long as the client likes, so many of each kind."""

ARRIVAL_S = 10.0
"""How long the message of a call may take to arrive; a quarter more before it is noticed."""

TAKING_S = 10.0
"""How long a client may take to read a reply, likewise."""

_log = logging.getLogger("penstock.service.grpc")

Context = grpc.aio.ServicerContext[Any, Any]
Task = asyncio.Task[Any]


class Places:
    """`taken` is how many calls are at work, and `waiting` whose message has not come, each since
    when. A task that has waited for too long is taken off the list and then cancelled; one that is
    cancelled and still on it was left by its caller. `answering` are those whose reply is made and
    not yet sent; `cut` ends the connections of the peers that it is given."""

    def __init__(
        self,
        limit: int = MAX_CONCURRENT,
        arrival_s: float = ARRIVAL_S,
        taking_s: float = TAKING_S,
    ) -> None:
        self.limit = limit
        self.arrival_s = arrival_s
        self.taking_s = taking_s
        self.taken: int = 0
        self.waiting: dict[Task | None, float] = {}
        self.answering: dict[Task | None, tuple[float, Context]] = {}
        self.cut: Callable[[set[str]], object] = _keep
        self._timer: asyncio.TimerHandle | None = None

    def leave(self, task: Task) -> None:
        """Give back the place of a call that is done."""
        self.taken -= 1
        self.answering.pop(task, None)

    async def first_message(self, context: Context) -> bytes:
        """Take a place, and what the call begins with."""
        task = asyncio.current_task()
        assert task is not None
        self.taken += 1
        task.add_done_callback(self.leave)
        self.waiting[task] = monotonic()
        try:
            raw = await context.read()
        except asyncio.CancelledError:
            if task in self.waiting:
                raise
            raise self.too_late() from None
        finally:
            self.waiting.pop(task, None)
        return required(raw)

    def too_late(self) -> DeadlineError:
        return DeadlineError(f"no message within {self.arrival_s:g} s")

    def start(self) -> None:
        """Look through those that wait, from now on."""
        every_s = min(self.arrival_s, self.taking_s) / 4
        self._timer = asyncio.get_running_loop().call_later(every_s, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = monotonic()
        for task in self._silent(now - self.arrival_s):
            del self.waiting[task]
            if task is not None:
                task.cancel()
        if peers := self._deaf(now - self.taking_s):
            _log.warning("ending %d connections whose clients take no replies", len(peers))
            asyncio.get_running_loop().run_in_executor(None, self.cut, peers)
        self.start()

    def _silent(self, latest: float) -> list[Task | None]:
        late = []
        for task, since in self.waiting.items():
            if since > latest:
                break
            late.append(task)
        return late

    def _deaf(self, latest: float) -> set[str]:
        peers = set()
        for since, context in self.answering.values():
            if since > latest:
                break
            peers.add(context.peer())
        return peers


def required(raw: object) -> bytes:
    """What was read, if it is a message."""
    if not isinstance(raw, bytes):
        raise ConfigInvalidError("the call came without a message")
    return raw


def _keep(peers: set[str]) -> None:
    """Until the server listens there are no connections to end."""


_FILES = "/dev/fd"


def cut(port: int, peers: Collection[str]) -> int:
    """Shut the connections of our `port` to `peers`, named as the library names them. Returns how
    many; none on systems that do not list the files of a process."""
    wanted = {unquote(peer) for peer in peers}
    done = 0
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(_FILES):
            # A file may be gone, or be no socket, by the time that it is looked at.
            with contextlib.suppress(OSError, ValueError):
                done += _cut(int(name), port, wanted)
    return done


def _cut(number: int, port: int, wanted: set[str]) -> bool:
    twin = os.dup(number)
    try:
        line = socket.socket(fileno=twin)
    except OSError:
        os.close(twin)
        return False
    with line:
        if line.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if line.getsockname()[1] != port or peer_name(line.getpeername()) not in wanted:
            return False
        line.shutdown(socket.SHUT_RDWR)
        return True


def peer_name(address: tuple[str, int]) -> str:
    """An address as the library writes it, apart from its percent signs."""
    host = ipaddress.ip_address(address[0].partition("%")[0])
    host = getattr(host, "ipv4_mapped", None) or host
    if host.version == 4:
        return f"ipv4:{host}:{address[1]}"
    return f"ipv6:[{host}]:{address[1]}"
