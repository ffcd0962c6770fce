"""The service without its doors: named policies, asked by name and key.

A door parses a request, calls one of these methods and renders the answer. Everything a door must
not decide is decided here: which policy, what an outage means, what is counted. A service belongs
to one event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..config.model import DEFAULT_FILE, FAIL_MODES, PolicyFile
from ..core.clock import Clock, SystemClock
from ..core.decision import Decision, Forecast
from ..core.errors import UnsupportedError
from ..core.store import Store, peeking
from ..core.validation import reject, require_choice, require_keys
from ..stores.memory import MemoryStore
from ..stores.opening import open_store
from ..strategies import unlimited
from .inline import INLINE, Inline, InlinePolicies
from .metrics import Metrics, MetricsSnapshot
from .registry import Checker, Policy, Table, UnknownPolicyError

__all__ = [
    "MAX_BATCH",
    "Admission",
    "Heartbeat",
    "Policy",
    "Readiness",
    "Service",
    "UnknownPolicyError",
    "build_service",
]

MAX_BATCH = 1_000
"""How many keys, or leases, one call may name."""

MAX_KEYS = 1_000_000
"""How many keys a service on memory:// remembers, unless its URL says otherwise."""

_PING = peeking(unlimited())


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to `admit`. `lease_id` is "" and `lease_expires_at` 0 when denied; `binding_axis`
    is the axis that denied, "" when allowed; `policy_denied` tells a caller who has used up what
    the policy grants (rate, cost) from one who came when the service was busy (concurrency)."""

    decision: Decision
    lease_id: str = ""
    lease_expires_at: int = 0
    binding_axis: str = ""
    policy_denied: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Which leases are held on, which are gone, and the instant by which the next heartbeat has
    to arrive; 0 if no lease is live."""

    live_ids: list[str]
    reclaimed_ids: list[str]
    next_deadline: int


@dataclass(frozen=True, slots=True)
class Readiness:
    """`ok` means that requests are decided as the policies say. A reload that failed leaves the
    policies before it at work: it is told in `reload_error` and does not make `ok` false."""

    ok: bool
    store_reachable: bool
    store_error: str
    policies: int
    reload_error: str


class Service:
    """Policies on one store. Made by `build_service`."""

    def __init__(
        self,
        file: PolicyFile,
        store: Store,
        *,
        fail: str = "open",
        inline: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.fail = require_choice("fail", fail, FAIL_MODES)
        self.store = store
        self.clock: Clock = SystemClock() if clock is None else clock
        self.metrics = Metrics()
        self.reload_error = ""
        self._table = self._build(file)
        self._inline = self._inline_policies(file.prefix) if inline else None

    @property
    def policies(self) -> Mapping[str, Policy]:
        """The policies that are served, by name."""
        return self._table.policies

    async def check(self, policy: str, key: str, cost: int = 1) -> Decision:
        entry = self._table[policy]
        limiter = entry.rate("check")
        try:
            decision = await limiter.acheck(key, cost)
        except Exception as error:
            decision = entry.guard.decision(error, (key,), cost)
        entry.tally.count(decision.allowed)
        return decision

    async def check_many(self, policy: str, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        """One decision per key, at one instant, as one `check` per key; at most MAX_BATCH keys."""
        entry = self._table[policy]
        limiter = entry.rate("check_many")
        names = _bounded("keys", keys)
        try:
            decisions = await limiter.acheck_many(names, cost)
        except Exception as error:
            decisions = [entry.guard.decision(error, names, cost)] * len(names)
        for decision in decisions:
            entry.tally.count(decision.allowed)
        return decisions

    async def peek(self, policy: str, key: str) -> Decision:
        entry = self._table[policy]
        limiter = entry.rate("peek")
        try:
            return await limiter.apeek(key)
        except Exception as error:
            return entry.guard.decision(error, (key,), 1)

    async def forecast(self, policy: str, key: str, cost: int = 1) -> Forecast:
        entry = self._table[policy]
        limiter = entry.rate("forecast")
        try:
            return await limiter.aforecast(key, cost)
        except Exception as error:
            return entry.guard.forecast(error, key, cost)

    async def debit(self, policy: str, key: str, tokens: int = 1) -> Decision:
        """Count tokens that were used against a budget."""
        entry = self._table[policy]
        budget = entry.tokens()
        try:
            decision = await budget.acheck(key, tokens)
        except Exception as error:
            decision = entry.guard.decision(error, (key,), tokens)
        entry.tally.count(decision.allowed)
        return decision

    async def admit(
        self, policy: str, key: str, cost: int = 1, hold: int = 1, value: int = 0
    ) -> Admission:
        raise self._table[policy].lacks("admit")

    async def release(self, lease_id: str, dropped: bool = False) -> None:
        """Give back what an admission holds. Idempotent: an unknown lease is no error."""

    async def heartbeat(self, lease_ids: Iterable[str]) -> Heartbeat:
        """Renew leases; at most MAX_BATCH."""
        return Heartbeat([], _bounded("lease_ids", lease_ids), 0)

    async def check_inline(
        self,
        key: str,
        limit: int,
        window_ms: int,
        cost: int = 1,
        strategy: str = "fixed_window",
    ) -> Decision:
        """Decide by a limit that the request brings along."""
        inline = self._made_inline(limit, window_ms, strategy)
        try:
            decision = await inline.limiter.acheck(key, cost)
        except Exception as error:
            decision = inline.guard.decision(error, (key,), cost)
        self.metrics.tally(INLINE).count(decision.allowed)
        return decision

    def checker(self, policy: str) -> Checker | None:
        """The policy's `check` as a plain call that never waits, or None where the store is not in
        this process. Cheap: ask for it per request, since a reload may change it."""
        entry = self._table[policy]
        entry.rate("check")
        return entry.checker

    def inline_checker(
        self, limit: int, window_ms: int, strategy: str = "fixed_window"
    ) -> Checker | None:
        """The same for an inline policy."""
        return self._made_inline(limit, window_ms, strategy).checker

    async def ready(self) -> Readiness:
        """Whether the store answers and policies are loaded. Never raises."""
        try:
            now = self.clock.now()
            await self.store.aapply("penstock:ready", _PING, now, 1)
            trouble = ""
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        count = len(self.policies)
        reachable = not trouble
        return Readiness(reachable and count > 0, reachable, trouble, count, self.reload_error)

    def snapshot(self) -> MetricsSnapshot:
        """Everything that was counted so far."""
        return self.metrics.snapshot(
            inline_policies=0 if self._inline is None else len(self._inline)
        )

    async def start(self) -> None:
        """Begin what runs in the background."""

    async def aclose(self) -> None:
        """End what runs in the background and close the store."""
        await self.store.aclose()

    def _build(self, file: PolicyFile) -> Table:
        return Table(file, self.store, self.clock, self.fail, self.metrics)

    def _inline_policies(self, prefix: str) -> InlinePolicies:
        store = self.store
        if isinstance(store, MemoryStore):
            store = MemoryStore(store.max_keys, store.overflow, clock=self.clock)
        return InlinePolicies(store, self.clock, prefix, self.fail, self.metrics.tally(INLINE))

    def _made_inline(self, limit: int, window_ms: int, strategy: str) -> Inline:
        if self._inline is None:
            raise UnsupportedError(
                "inline policies are turned off here; name a policy of the policy file instead"
            )
        return self._inline.get(limit, window_ms, strategy)


def build_service(
    config: PolicyFile | None = None,
    store_url: str = "memory://",
    *,
    fail: str = "open",
    inline: bool = True,
    clock: Clock | None = None,
    store: Store | None = None,
) -> Service:
    """A service for the policies of `config` (by default, one named `default`) on the store behind
    `store_url`, or on `store` if one is given. It closes the store when it is closed.

    With a `clock` decisions are made by it and not by the store's: for tests and replays.
    """
    if store is None:
        store = _open(store_url, clock)
    return Service(
        DEFAULT_FILE if config is None else config, store, fail=fail, inline=inline, clock=clock
    )


def _open(url: str, clock: Clock | None) -> Store:
    if url.partition("://")[0].lower() == "memory":
        options = {} if "max_keys=" in url else {"max_keys": MAX_KEYS}
        return open_store(url, clock=clock, **options)
    return open_store(url) if clock is None else open_store(url, use_server_time=False)


def _bounded(name: str, values: Iterable[str]) -> list[str]:
    listed = require_keys(values)
    if len(listed) > MAX_BATCH:
        reject(f"{name} must be at most {MAX_BATCH} per call, not {len(listed)}: split the call")
    return listed
