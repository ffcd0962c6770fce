"""One serving process: it opens the servers, waits for a signal, and closes them in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ..core._errors import ConfigInvalidError
from ..core._validation import reject
from ._access import Certificates, names_in
from ._core import Service, build_service
from ._fail_modes import ask_store
from ._options import ServeOptions
from ._ports import connections, require_free_ports
from ._reloading import heard, on_thread
from .http import Bounds, HttpServer, Pool

if TYPE_CHECKING:
    from ..config import PolicyFile
    from .grpc import GrpcServer

__all__ = ["Running", "fill_standard_streams", "ignore_hangup", "run_loop", "until_told"]

_log = logging.getLogger("penstock.serve")


class Running:
    """A service with its servers open. One of several workers is given a `pool`, and its policies
    by the supervisor; one alone follows the policy file itself."""

    def __init__(self, options: ServeOptions, file: PolicyFile, pool: Pool | None = None) -> None:
        self._options = options
        self._pool = pool
        self.service: Service = build_service(
            file,
            options.store,
            fail=options.fail,
            inline=options.inline,
            watch=options.config if pool is None else None,
            accept=options.check_policies,
            grown=_leave_alone,
        )
        self._connections = connections(http=options.http_port > 0, grpc=options.grpc_port > 0)
        self._certificates = None if options.tls is None else Certificates(options.tls)
        self._hangups = contextlib.ExitStack()
        self._reading: set[asyncio.Future[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        self._http: HttpServer | None = None
        self._grpc: GrpcServer | None = None

    async def open(self) -> None:
        """Open the servers. What was opened is closed again if one of them fails."""
        try:
            if self._options.workers == 1:
                require_free_ports(self._options)
            await self.service.start()
            await self._warm_up()
            if self._options.grpc_port:
                await self._open_grpc()
            if self._options.http_port:
                await self._open_http()
            if self._certificates is not None and self._pool is None:
                self._hangups.enter_context(heard(self.read_certificates))
        except BaseException:
            await self.close()
            raise
        gc.collect()
        gc.freeze()

    async def _warm_up(self) -> None:
        """Connect to the store before the first caller has to wait for that."""
        try:
            await ask_store(self.service.store, self.service.clock.now())
        except ConfigInvalidError:
            # No waiting will mend it: a table that was never made, a folder that is not there.
            raise
        except Exception as error:
            _log.warning("the store does not answer yet: %s: %s", type(error).__name__, error)

    async def close(self) -> None:
        """Answer what is being asked, within the deadline, and let go of the store."""
        self._hangups.close()
        for task in self._reading:
            task.cancel()
        servers: list[Coroutine[Any, Any, None]] = []
        if self._http is not None:
            servers.append(self._http.stop())
        if self._grpc is not None:
            servers.append(self._grpc.drain(self._options.drain_s))
        await asyncio.gather(*servers)
        await self.service.aclose()

    def read_certificates(self) -> None:
        """Have the files of TLS read again, for clients that connect from then on."""
        task = asyncio.ensure_future(self._read_certificates())
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read_certificates(self) -> None:
        if self._certificates is None:
            return
        # On a thread, since a file system may be stuck; one at a time, or the older could win.
        async with self._one_at_a_time:
            try:
                await on_thread(self._certificates.reload)
            except (ConfigInvalidError, OSError) as error:
                _log.error("the certificates before are shown on: %s", error)
            else:
                _log.info("showing the certificates of %s", self._options.tls_cert)

    def counts(self) -> str:
        """What was counted here, but for policies, as `/metrics` shows it; without that page
        nobody will ask."""
        return "" if self._http is None else self._http.counts()

    async def _open_http(self) -> None:
        options = self._options
        server = HttpServer(
            self.service,
            bounds=Bounds(drain_s=options.drain_s).within(self._connections[0]),
            token=options.token(),
            hosts=_hosts(options) if options.must_know_host() else None,
            legacy_headers=options.legacy_headers,
            pool=self._pool,
            grpc=None if self._grpc is None else self._grpc.calls,
        )
        tls = None if self._certificates is None else self._certificates.context
        try:
            await server.start(options.host, options.http_port, tls=tls, shared=options.workers > 1)
        except OSError as error:
            place = f"{options.host}:{options.http_port}"
            reject(f"cannot serve HTTP on {place}: {error.strerror}; choose another --http-port")
        self._http = server

    async def _open_grpc(self) -> None:
        from .grpc import open_grpc

        options = self._options
        self._grpc = await open_grpc(
            self.service,
            host=options.host,
            port=options.grpc_port,
            tls=self._certificates,
            token=options.token(),
            fleet_secret=options.fleet_secret(),
            max_connections=self._connections[1],
            reuse_port=options.workers > 1,
        )


def _hosts(options: ServeOptions) -> list[str]:
    """The names under which the service may be asked."""
    certified = [] if options.tls is None else names_in(options.tls)
    return [options.host, *options.allowed_hosts, *certified]


def _leave_alone() -> None:
    """What is there now stays. The garbage collector need not look at it again and again, with
    every request waiting: at twenty thousand policies, for half a second."""
    gc.collect(1)
    gc.freeze()


def fill_standard_streams() -> None:
    """Have standard streams that are closed lead nowhere, in workers too. A socket would get their
    numbers else, and uvloop ends the process when one of those is closed."""
    # Each time the lowest number that is free.
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)


def ignore_hangup() -> None:
    """A hangup means: read the files again. Without any, or before they are followed, there is
    nothing to do; the system would end the process."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _end_at_once() -> None:
    raise SystemExit(130)


async def until_told(stop: asyncio.Event, again: Callable[[], None] = _end_at_once) -> None:
    """Wait for SIGTERM or SIGINT. What the second one does is `again`: to end the process."""
    loop = asyncio.get_running_loop()

    def tell() -> None:
        if stop.is_set():
            again()
            return
        stop.set()
        _log.info("stopping: answering what is being asked")

    for number in (signal.SIGTERM, signal.SIGINT):
        _listen_for(number, loop, tell)
    await stop.wait()


def _listen_for(number: int, loop: asyncio.AbstractEventLoop, tell: Callable[[], None]) -> None:
    try:
        loop.add_signal_handler(number, tell)
    except NotImplementedError:  # on Windows, where the loop has to be woken for it
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(tell))


def run_loop(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run to the end, on uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    return uvloop.run(main())
