"""The paths about the service itself: /health, /ready and /metrics.

Metrics are in the text format of Prometheus: totals only, never a key or a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Protocol, TypeAlias

from ..._queueing.tasks import SharedCall
from ...core._store import COUNTED, STATS
from .._core import Service
from .._fail_modes import Readiness
from .._metrics import HistogramSnapshot, MetricsSnapshot, Tally
from .._registry import SHOWN
from .._reloading import in_slices
from ._answers import Answer, Answers, json_bytes
from ._openapi import openapi_json
from ._reading_page import reading_page

__all__ = ["HTML", "TEXT", "Pages", "Pool", "exposition", "policy_lines"]


HTML = "text/html; charset=utf-8"

TEXT = "text/plain; version=0.0.4; charset=utf-8"


def exposition(
    counted: MetricsSnapshot, statuses: Mapping[int, int], gauges: Mapping[str, int]
) -> str:
    """Everything that `/metrics` shows."""
    policies = {
        name: tuple(counts[field] for field in Tally.__slots__)
        for name, counts in counted.policies.items()
    }
    lines = [*policy_lines(policies), *_slots(counted.slots), *_stores(counted.stores)]
    lines += _family(
        "penstock_policy_degraded",
        "gauge",
        "Whether the store failed calls of a policy within the last ten seconds.",
        (
            (f'policy="{_escaped(policy)}",mode="{mode}"', int(is_now))
            for policy, (mode, is_now) in counted.degraded.items()
        ),
    )
    lines += _latency(counted.latency)
    lines += _family(
        "penstock_reloads_total",
        "counter",
        "Reloads of the policy file.",
        ((f'result="{result}"', count) for result, count in counted.reloads.items()),
    )
    lines += _family(
        "penstock_inline_policies",
        "gauge",
        "Inline policies in use.",
        [("", counted.inline_policies)],
    )
    lines += _family(
        "penstock_http_responses_total",
        "counter",
        "Replies of the HTTP server.",
        ((f'status="{status}"', count) for status, count in sorted(statuses.items())),
    )
    lines += _family(
        "penstock_grpc_responses_total",
        "counter",
        "Replies of the gRPC server.",
        ((f'code="{code}"', count) for code, count in sorted(counted.grpc_codes.items())),
    )
    lines += _family(
        "penstock_grpc_shed_total",
        "counter",
        "gRPC calls refused because there were too many.",
        [("", counted.grpc_shed)],
    )
    lines += _family(
        "penstock_foreign_clocks_total",
        "counter",
        "Requests denied because of a state that was written by a clock ahead of this one.",
        [("", counted.foreign_clocks)],
    )
    for name, value in gauges.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += _family(f"penstock_http_{name}", kind, _GAUGES[name], [("", value)])
    return "\n".join(lines) + "\n"


_GAUGES = {
    "connections": "Open connections of the HTTP server.",
    "strangers": "Connections of clients that are not authenticated, or only probe.",
    "buffered_bytes": "Requests that are not answered, and replies that are not read, in bytes.",
    "in_flight": "HTTP requests that are waiting for the store.",
    "shed_total": "HTTP requests and connections refused because there were too many.",
}


def policy_lines(counted: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """The counts of each policy, as from `Tally.counts`: by far the longest part if there are
    many."""
    labels = {name: f'policy="{_escaped(name)}"' for name in counted if "/" not in name}
    for name, text, each in _PER_POLICY:
        samples = (
            (labels[policy] + more, counted[policy][at]) for policy in labels for more, at in each
        )
        yield from _family(name, "counter", text, samples)
    samples = (
        (f'{_limit_labels(name)},outcome="{outcome}"', counts[_at(outcome)])
        for name, counts in counted.items()
        if "/" in name
        for outcome in ("allowed", "denied")
    )
    text = "Decisions of each of several limits; a shadow denies nobody."
    yield from _family("penstock_limit_decisions_total", "counter", text, samples)


def _limit_labels(name: str) -> str:
    """The labels of one of several limits, by its `tally_name`."""
    policy, limit, *rest = name.split("/")
    shadow = "true" if rest else "false"
    return f'policy="{_escaped(policy)}",limit="{_escaped(limit)}",shadow="{shadow}"'


def _at(field: str) -> int:
    return Tally.__slots__.index(field)


_PER_POLICY = (
    (
        "penstock_decisions_total",
        "Decisions.",
        [(f',outcome="{outcome}"', _at(outcome)) for outcome in ("allowed", "denied")],
    ),
    (
        "penstock_store_errors_total",
        "Calls that the store failed.",
        [(f',reason="{reason}"', _at(f"store_{reason}")) for reason in ("away", "full")],
    ),
    (
        "penstock_failed_total",
        "Answers given in place of the store's.",
        [(f',mode="{mode}"', _at(f"failed_{mode}")) for mode in ("open", "closed", "error")],
    ),
)


SHARED_GAUGES = ("penstock_slots_limit", "penstock_slots_in_flight", "penstock_policy_degraded")
"""Gauges of what all workers share, a pool or a store, which each reports as of its last look."""

_RECLAIMED = "Slots taken back from holders that fell silent."


def _slots(slots: Mapping[str, Mapping[str, int]]) -> Iterable[str]:
    for field, name, kind, text in (
        ("limit", "penstock_slots_limit", "gauge", "The ceiling of requests in flight."),
        ("in_flight", "penstock_slots_in_flight", "gauge", "Slots that are held."),
        ("reclaimed", "penstock_slots_reclaimed_total", "counter", _RECLAIMED),
    ):
        samples = [(f'policy="{_escaped(policy)}"', held[field]) for policy, held in slots.items()]
        yield from _family(name, kind, text, samples)


def _stores(stores: Mapping[str, Mapping[str, int]]) -> Iterable[str]:
    for field, text in STATS.items():
        kind = "counter" if field in COUNTED else "gauge"
        name = f"penstock_store_{field}" + "_total" * (kind == "counter")
        samples = [
            (f'store="{_escaped(store)}"', told[field])
            for store, told in stores.items()
            if field in told
        ]
        yield from _family(name, kind, text, samples)


def _latency(latency: Mapping[str, HistogramSnapshot]) -> Iterable[str]:
    if not latency:
        return
    name = "penstock_request_seconds"
    yield f"# HELP {name} From the last byte of a request to its reply."
    yield f"# TYPE {name} histogram"
    for server, histogram in latency.items():
        total = 0
        bounds = [*map(repr, histogram.bounds_s), "+Inf"]
        for bound, count in zip(bounds, histogram.counts, strict=True):
            total += count
            yield f'{name}_bucket{{server="{server}",le="{bound}"}} {total}'
        yield f'{name}_sum{{server="{server}"}} {histogram.sum_s!r}'
        yield f'{name}_count{{server="{server}"}} {total}'


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[str, int]]) -> Iterable[str]:
    described = False
    for labels, value in samples:
        if not described:
            described = True
            yield f"# HELP {name} {text}"
            yield f"# TYPE {name} {kind}"
        yield f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


Page: TypeAlias = "Callable[[bool, bytes], Answer]"


class Pool(Protocol):
    """Has the metrics of all workers, since a scrape may reach any of them."""

    async def total(self) -> bytes:
        """The counts of all workers for `/metrics`; those of this one are current."""


Told: TypeAlias = tuple[int, bytes, bytes, bytes]
"""The status, and the bodies for strangers, for others, and for others with `verbose=1`."""


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
        self.scheme = "http"
        self.asks_token = False
        self._look = SharedCall(self._looked)
        self._scrape = SharedCall(self._counted_here if pool is None else pool.total)
        self._pages: dict[str, Page] = {
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/openapi.json": self._openapi,
        }

    def get(self, path: str) -> Page | None:
        return self._pages.get(path)

    def counts(self) -> str:
        """All counts of this process, except those of policies, of which there may be many."""
        counted = self._service.snapshot(policies=False)
        return exposition(counted, self._answers.statuses, self._gauges())

    def _health(self, _trusted: bool, _body: bytes) -> Answer:
        return self._answers.document(200, {"status": "alive"})

    async def _readiness(self, trusted: bool, strict: bool, verbose: bool) -> bytes:
        looked = await self._look()
        status, *bodies = looked[strict]
        return self._answers.plain(status, bodies[trusted + verbose if trusted else 0])

    async def _looked(self) -> tuple[Told, Told]:
        """The answers of /ready and /ready?store=1."""
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
        shown = {**fields, **reasons}
        verbose = json_bytes({**shown, "states": ready.states})
        return 200 if ok else 503, json_bytes(fields), json_bytes(shown), verbose

    def _ready(self, trusted: bool, _body: bytes) -> Answer:
        return self.ready("", trusted, _body)

    def ready(self, query: str, trusted: bool, _body: bytes) -> Answer:
        """`/ready`, with `store=1`: whether the store answers, too; with `verbose=1`: the state of
        each policy, for clients with the token."""
        asked = query.split("&")
        return partial(
            self._readiness, trusted, strict="store=1" in asked, verbose="verbose=1" in asked
        )

    def _metrics(self, _trusted: bool, _body: bytes) -> Answer:
        if self._pool is not None or self._service.metrics.policy_count > SHOWN:
            return self._scraped
        # At once, before waiting requests: a scrape matters most under overload.
        text = "\n".join([*policy_lines(self._service.metrics.counted()), self.counts()])
        return self._answers.plain(200, text.encode(), TEXT)

    async def _scraped(self) -> bytes:
        return self._answers.plain(200, await self._scrape(), TEXT)

    async def _counted_here(self) -> bytes:
        chunks = _chunks(policy_lines(self._service.metrics.counted()))
        return b"".join([*await in_slices(chunks), self.counts().encode()])

    def _openapi(self, _trusted: bool, _body: bytes) -> Answer:
        return self._answers.plain(200, openapi_json())

    def docs(self, host: str, _body: bytes) -> Answer:
        """The documentation page, with examples for the address `host`."""
        base = f"{self.scheme}://{host}"
        page = reading_page(self._service.policies, base, asks_token=self.asks_token)
        return self._answers.plain(200, page, HTML, _POLICY)

    def to_docs(self, _body: bytes) -> Answer:
        """The redirect from / to /docs, for browsers."""
        return self._answers.plain(303, b"", TEXT, ("Location: /docs",))


_POLICY = ("Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'",)


def _chunks(lines: Iterator[str]) -> Iterator[bytes]:
    """Some lines at a time."""
    while chunk := "".join(f"{line}\n" for line in islice(lines, 250)):
        yield chunk.encode()
