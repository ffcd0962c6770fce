"""Following a policy file: read again when it changes, and on SIGHUP.

The content is compared, and not the file's dates: a symlink that points elsewhere now, a file that
was replaced or written in place are all seen, and one that was only touched is not. A change counts
once two looks in a row agree on it, so that a file caught half-written is not taken for the whole.
SIGHUP is obeyed at once.

A file is parsed and validated before anything changes. One that is bad is reported, by the log, by
`Service.ready` and by the count of reloads, and what was served before is served on.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import PolicyFile, load_policy_file
from ..core.errors import PenstockError
from .hangups import heard

if TYPE_CHECKING:
    from .core import Service

__all__ = ["Reloader"]

_log = logging.getLogger("penstock.service")


class Reloader:
    """Keeps a service in step with one file. `accept` raises what is wrong with policies that are
    good by themselves, and cannot be served here; `told` hears of those that are served now."""

    def __init__(
        self,
        service: Service,
        path: str,
        every_s: float = 0.5,
        accept: Callable[[PolicyFile], None] | None = None,
        told: Callable[[PolicyFile], None] | None = None,
    ) -> None:
        self._service = service
        self._accept = accept
        self._told = told
        self._path = path
        self._every_s = every_s
        self._settled = service.file.digest
        self._seen = self._settled
        self._asked = asyncio.Event()
        # Two at once could end with the older text.
        self._one_at_a_time = asyncio.Lock()

    async def run(self) -> None:
        """Look, until cancelled. Nothing else ends it."""
        with heard(self._asked.set):
            while True:
                await self._wait()
                try:
                    await self._turn()
                except Exception as error:
                    self._report(error)

    async def _turn(self) -> None:
        if self._asked.is_set():
            self._asked.clear()
            await self.reload()
        else:
            await self.look()

    async def look(self) -> bool:
        """See whether the file has changed, and reload it if so. True if it was reloaded."""
        digest = await asyncio.to_thread(_digest, self._path)
        agreed, self._seen = digest == self._seen, digest
        if not agreed or digest == self._settled:
            return False
        await self.reload()
        return True

    async def reload(self) -> bool:
        """Read the file and serve it if it is good. True if it is served."""
        async with self._one_at_a_time:
            return await self._reload()

    async def _reload(self) -> bool:
        service = self._service
        self._settled = await asyncio.to_thread(_digest, self._path)
        try:
            file = await asyncio.to_thread(load_policy_file, self._path)
            if self._accept is not None:
                self._accept(file)
            service.apply(file)
        except Exception as error:
            self._report(error)
            return False
        self._settled = file.digest
        service.metrics.reloads["ok"] += 1
        service.reload_error = ""
        _log.info("serving %d policies from %s", len(file.policies), file.source)
        if self._told is not None:
            self._told(file)
        return True

    def _report(self, error: Exception) -> None:
        """Whatever went wrong, a fault of ours included: what nobody is told of, nobody mends."""
        service = self._service
        known = isinstance(error, PenstockError)
        told = str(error) if known else f"{self._path}: {type(error).__name__}: {error}"
        service.metrics.reloads["failed"] += 1
        service.reload_error = told
        _log.error("the policies before it are served on: %s", told)

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._asked.wait(), self._every_s)
        except asyncio.TimeoutError:
            return


def _digest(path: str) -> str:
    """What the file says, in short; why it cannot be read, if so."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        return f"{type(error).__name__} {error.errno}"
