"""The paths that tell about the service itself: alive, ready, measured, described."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Protocol, TypeAlias

from ..core import Service
from ..health import Readiness
from ..registry import SHOWN
from ..shared_call import SharedCall
from ..slices import in_slices
from .answers import Answer, Answers, json_bytes
from .exposition import TEXT, exposition, policy_lines
from .openapi import openapi_json
from .page import HTML, page

__all__ = ["Pages", "Pool"]

Page: TypeAlias = "Callable[[bool, bytes], Answer]"


class Pool(Protocol):
    """Who knows what the other workers have counted: a scrape reaches any of them."""

    async def total(self) -> bytes:
        """The counts of all workers, of this one as of now, as `/metrics` shows them."""


Told: TypeAlias = tuple[int, bytes, bytes]
"""The status, and what strangers and others are told."""


class Pages:
    """`probes` are the paths that need no token."""

    probes: ClassVar[frozenset[str]] = frozenset({"/health", "/ready"})

    def __init__(
        self,
        service: Service,
        answers: Answers,
        gauges: Callable[[], dict[str, int]],
        stopping: Callable[[], bool],
        pool: Pool | None,
    ) -> None:
        self._service = service
        self._answers = answers
        self._gauges = gauges
        self._stopping = stopping
        self._pool = pool
        self._look = SharedCall(self._looked)
        self._scrape = SharedCall(self._counted_here if pool is None else pool.total)
        self._pages: dict[str, Page] = {
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/openapi.json": self._openapi,
            "/docs": self._docs,
        }

    def get(self, path: str) -> Page | None:
        return self._pages.get(path)

    def counts(self) -> str:
        """Everything that was counted here, but for policies, of which there may be many."""
        counted = self._service.snapshot(policies=False)
        return exposition(counted, self._answers.statuses, self._gauges())

    def _health(self, _trusted: bool, _body: bytes) -> Answer:
        return self._answers.document(200, {"status": "alive"})

    async def _readiness(self, trusted: bool, strict: bool) -> bytes:
        looked = await self._look()
        status, *bodies = looked[strict]
        return self._answers.plain(status, bodies[trusted])

    async def _looked(self) -> tuple[Told, Told]:
        """What those are told who ask whether requests are decided, and who ask for the store."""
        ready = await self._service.ready()
        ok = ready.ok and not self._stopping()
        return self._told(ready, ok), self._told(ready, ok and ready.store_ok)

    def _told(self, ready: Readiness, ok: bool) -> Told:
        fields: dict[str, Any] = {
            "ready": ok,
            "stopping": self._stopping(),
            "store_reachable": ready.store_reachable,
            "store_full": ready.store_full,
            "policies": ready.policies,
            "reloaded": not ready.reload_error,
        }
        reasons = {"store_error": ready.store_error, "reload_error": ready.reload_error}
        return 200 if ok else 503, json_bytes(fields), json_bytes({**fields, **reasons})

    def _ready(self, trusted: bool, _body: bytes) -> Answer:
        return partial(self._readiness, trusted, strict=False)

    def ready_with_store(self, trusted: bool, _body: bytes) -> Answer:
        """The strict question, `/ready?store=1`: does the store answer, too?"""
        return partial(self._readiness, trusted, strict=True)

    def _metrics(self, _trusted: bool, _body: bytes) -> Answer:
        if self._pool is not None or self._service.metrics.policy_count > SHOWN:
            return self._scraped
        # At once, whatever else waits: a scrape matters most when nothing else is answered.
        text = "\n".join([*policy_lines(self._service.metrics.counted()), self.counts()])
        return self._answers.plain(200, text.encode(), TEXT)

    async def _scraped(self) -> bytes:
        return self._answers.plain(200, await self._scrape(), TEXT)

    async def _counted_here(self) -> bytes:
        chunks = _chunks(policy_lines(self._service.metrics.counted()))
        return b"".join([*await in_slices(chunks), self.counts().encode()])

    def _openapi(self, _trusted: bool, _body: bytes) -> Answer:
        return self._answers.plain(200, openapi_json())

    def _docs(self, _trusted: bool, _body: bytes) -> Answer:
        return self._answers.plain(200, page(), HTML, _POLICY)


_POLICY = ("Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'",)


def _chunks(lines: Iterator[str]) -> Iterator[bytes]:
    """Some lines at a time."""
    while chunk := "".join(f"{line}\n" for line in islice(lines, 250)):
        yield chunk.encode()
