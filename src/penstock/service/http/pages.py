"""The paths that tell about the service itself: alive, ready, measured, described."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ..core import Service
from .answers import Answer, Answers
from .exposition import TEXT, exposition
from .openapi import openapi_json
from .page import HTML, page
from .pool import Pool

__all__ = ["Pages"]

Page: TypeAlias = "Callable[[bool, bytes], Answer]"


class Pages:
    """`probes` are the paths that need no token."""

    probes = frozenset({"/health", "/ready"})

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
        self._pages: dict[str, Page] = {
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/openapi.json": self._openapi,
            "/docs": self._docs,
        }

    def get(self, path: str) -> Page | None:
        return self._pages.get(path)

    def publish(self) -> None:
        """Let the other workers know what was counted here."""
        if self._pool is not None:
            self._pool.publish(self._counts())

    def _counts(self) -> str:
        return exposition(self._service.snapshot(), self._answers.statuses, self._gauges())

    def _health(self, _trusted: bool, _body: bytes) -> Answer:
        return self._answers.document(200, {"status": "alive"})

    async def _readiness(self, trusted: bool) -> bytes:
        ready = await self._service.ready()
        ok = ready.ok and not self._stopping()
        fields: dict[str, Any] = {
            "ready": ok,
            "stopping": self._stopping(),
            "store_reachable": ready.store_reachable,
            "policies": ready.policies,
            "reloaded": not ready.reload_error,
        }
        if trusted:
            fields["store_error"] = ready.store_error
            fields["reload_error"] = ready.reload_error
        return self._answers.document(200 if ok else 503, fields)

    def _ready(self, trusted: bool, _body: bytes) -> Answer:
        return self._readiness(trusted)

    def _metrics(self, _trusted: bool, _body: bytes) -> Answer:
        text = self._counts()
        if self._pool is not None:
            text = self._pool.total(text)
        return self._answers.plain(200, text.encode(), TEXT)

    def _openapi(self, _trusted: bool, _body: bytes) -> Answer:
        return self._answers.plain(200, openapi_json())

    def _docs(self, _trusted: bool, _body: bytes) -> Answer:
        return self._answers.plain(200, page(), HTML, _POLICY)


_POLICY = ("Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'",)
