"""A serving process: opens the servers, waits for a signal, and closes the servers in order."""

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
    """A service with its servers. One of several workers has a `pool`, and gets its policies from
    the supervisor; a single process follows the policy file itself."""

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
        """Open the servers. If one of them fails, everything is closed again."""
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
        """Connect to the store, so that the first request does not have to wait for it."""
        try:
            await ask_store(self.service.store, self.service.clock.now())
        except ConfigInvalidError:
            # Waiting does not help: a table or a folder is missing, for example.
            raise
        except Exception as error:
            _log.warning("the store does not answer yet: %s: %s", type(error).__name__, error)

    async def close(self) -> None:
        """Answer open requests, within the deadline, and close the store."""
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
        """Read the TLS files again, for clients that connect from then on."""
        task = asyncio.ensure_future(self._read_certificates())
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read_certificates(self) -> None:
        if self._certificates is None:
            return
        # On a thread, since a file system may be stuck. Of two at once, the older could win.
        async with self._one_at_a_time:
            try:
                await on_thread(self._certificates.reload)
            except (ConfigInvalidError, OSError) as error:
                _log.error("reload failed, the previous certificates are still used: %s", error)
            else:
                _log.info("using the certificates of %s", self._options.tls_cert)

    def counts(self) -> str:
        """The metrics of this process without those of policies, as on `/metrics`; empty without
        an HTTP server."""
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
    """The host names that requests may use."""
    certified = [] if options.tls is None else names_in(options.tls)
    return [options.host, *options.allowed_hosts, *certified]


def _leave_alone() -> None:
    """Exclude the objects that exist now from garbage collection: they are long-lived, and with
    twenty thousand policies a collection would stop the process for half a second."""
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
    """Ignore SIGHUP, which by default would end the process, until files are followed."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _end_at_once() -> None:
    raise SystemExit(130)


async def until_told(stop: asyncio.Event, again: Callable[[], None] = _end_at_once) -> None:
    """Wait for SIGTERM or SIGINT. A second signal calls `again`, by default to end the process."""
    loop = asyncio.get_running_loop()

    def tell() -> None:
        if stop.is_set():
            again()
            return
        stop.set()
        _log.info("stopping: answering open requests")

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
