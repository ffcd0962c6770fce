"""The core of the service, without its servers: named policies, asked by name and key.

A server parses a request, calls one of these methods and formats the result. The rest is the same
for every server and is here: which policy applies, what an outage means, what is counted. A service
belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .._queueing.tasks import SharedCall
from ..admission import Admission, AxisRequest
from ..concurrency import ConcurrencyLimiter, Heartbeat
from ..concurrency._limiter import SlotRequest, beating
from ..concurrency._slots import LONGEST_ID, End, LeaseId
from ..config._model import DEFAULT_FILE, FAIL_MODES, PolicyFile
from ..core._clock import Clock, SystemClock
from ..core._decision import Decision, Forecast
from ..core._errors import TooLargeError, UnsupportedError
from ..core._flow import adrive
from ..core._limiter import Limiter
from ..core._store import Store
from ..core._validation import (
    reject,
    require_choice,
    require_int,
    require_keys,
)
from ..core._verdict import combine
from ..leasing import TwoTierLimiter
from ..stores._opening import open_on_clock, open_store
from ..stores.memory import MemoryStore
from ._charge_records import records_beside
from ._charges import Charging, Reservation
from ._deciding import Asked
from ._entries import Entry, Policy, Site
from ._fail_modes import Guard, Readiness, readiness, trouble_of
from ._fleet import CreditLease
from ._inline import DEFAULT_STRATEGY, INLINE, Inline, InlinePolicies
from ._judging import Judged, Judgement
from ._metrics import Metrics, MetricsSnapshot
from ._registry import PolicyTable, UnknownPolicyError
from ._reloading import Reloader, in_slices
from ._several import Attributes, Costs

__all__ = [
    "MAX_BATCH",
    "Admission",
    "Heartbeat",
    "Policy",
    "Readiness",
    "Reservation",
    "Service",
    "UnknownPolicyError",
    "build_service",
]


MAX_BATCH = 1_000
"""How many keys, or lease ids, one call may have."""

MAX_KEYS = 1_000_000
"""How many keys a service keeps on memory://, unless its URL says otherwise."""

MAX_BYTES = 256 << 20
"""How much memory each of its tables may take, approximately."""

_log = logging.getLogger("penstock.service")

_SWEEP_EVERY_S = 0.25


class Service(Charging):
    """Policies on one store. Made by `build_service`."""

    reload_error: str

    def __init__(
        self,
        file: PolicyFile,
        store: Store,
        *,
        fail: str = "open",
        inline: bool = True,
        clock: Clock | None = None,
        watch: str | None = None,
        accept: Callable[[PolicyFile], None] | None = None,
        grown: Callable[[], None] = lambda: None,
    ) -> None:
        if type(store).aapply is Store.aapply:
            reject(
                f"a service needs a store with async calls, and {type(store).__name__} has no "
                "aapply()"
            )
        store.require_clock(clock)
        self.fail = require_choice("fail", fail, FAIL_MODES)
        self.store = store
        self.clock: Clock = SystemClock() if clock is None else clock
        self.metrics: Metrics = Metrics()
        self.reload_error = ""
        self._full_before = 0
        # A store in this process may evict keys, which slots must not lose: they have their own.
        slots = MemoryStore(clock=self.clock) if store.answers_at_once else store
        self._site = Site(store, slots, self.clock, self.fail, self.metrics, grown=grown)
        self._table = PolicyTable(file, self._site)
        for _ in self._table.taking_over():
            pass
        self._inline = self._inline_policies(file.prefix) if inline else None
        self._watch = watch
        self._accept = accept
        self._tasks: list[asyncio.Task[None]] = []
        self._trouble = SharedCall(self._find_trouble)

    @property
    def policies(self) -> Mapping[str, Policy]:
        """The policies that are served, by name."""
        return self._table.policies

    @property
    def file(self) -> PolicyFile:
        """The policy file that is served."""
        return self._table.file

    def entry(self, policy: str) -> Entry:
        """The policy of that name, built."""
        return self._table[policy]

    def decide(self, policy: str, key: str, cost: int = 1) -> Asked:
        """As `check`, without a coroutine if the decision is available at once."""
        entry = self._table[policy]
        if entry.decide is None:
            raise entry.lacks("check")
        return entry.decide(key, cost)

    async def check(self, policy: str, key: str, cost: int = 1) -> Decision:
        asked = self.decide(policy, key, cost)
        return asked if isinstance(asked, Decision) else await asked()

    async def check_many(self, policy: str, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        """As one `check` per key, at one instant; at most MAX_BATCH keys."""
        entry = self._table[policy]
        if entry.judge is not None:
            each = [{"key": key} for key in _bounded("keys", keys)]
            return [told.verdict.decision for told in await entry.judge.judge_many(each, cost)]
        limiter = entry.rate("check_many")
        decisions = await _check_each(limiter, _bounded("keys", keys), cost, entry.guard)
        for decision in decisions:
            entry.tally.count(decision.allowed)
        return decisions

    async def peek(self, policy: str, key: str) -> Decision:
        entry = self._table[policy]
        if entry.judge is not None:
            return (await entry.judge.peek({"key": key})).verdict.decision
        limiter = entry.rate("peek")
        try:
            return await limiter.apeek(key)
        except Exception as error:
            return entry.guard.decision(error, (key,), 1)

    async def forecast(self, policy: str, key: str, cost: int = 1) -> Forecast:
        entry = self._table[policy]
        if entry.judge is not None:
            return await entry.judge.forecast({"key": key}, cost)
        limiter = entry.rate("forecast")
        try:
            return await limiter.aforecast(key, cost)
        except Exception as error:
            return entry.guard.forecast(error, key, cost)

    async def debit(self, policy: str, key: str, tokens: int = 1) -> Decision:
        """Count used tokens against a token budget."""
        entry = self._table[policy]
        budget = entry.tokens()
        require_int("tokens", tokens)
        try:
            decision = await budget.acheck(key, tokens)
        except Exception as error:
            decision = entry.guard.decision(error, (key,), tokens)
        entry.tally.count(decision.allowed)
        return decision

    async def admit(self, policy: str, key: str, cost: int = 1) -> Admission:
        """Take a slot, check that `cost` fits into the budget, and spend it on the rate."""
        entry = self._table[policy]
        flow = entry.admission().flow(key, cost)

        async def serve(ask: SlotRequest | AxisRequest) -> Any:
            try:
                return await ask.later()
            except Exception as error:
                return entry.guard.decision(error, (key,), cost)

        admission = await adrive(flow, serve)
        entry.tally.count(admission.decision.allowed)
        return admission

    async def release(self, lease_id: str, dropped: bool = False) -> None:
        """Give back the slot of an admission. Idempotent: an unknown lease is no error."""
        entry = self._entry_of(_lease_id(lease_id))
        if entry is None:
            return
        how = End.DROPPED if dropped else End.RELEASED
        try:
            await adrive(entry.admission().concurrency.giving_back(lease_id, how), _later)
        except Exception as error:
            # Counted and logged; the slot comes back when its lease expires.
            entry.guard.decision(error, (lease_id,), 1)

    async def heartbeat(self, lease_ids: Iterable[str]) -> Heartbeat:
        """Renew leases, at most MAX_BATCH. Those that are not live are returned as reclaimed."""
        wanted = [_lease_id(lease_id) for lease_id in _bounded("lease_ids", lease_ids)]
        wanted = list(dict.fromkeys(wanted))
        try:
            return await adrive(beating(wanted, self._slots_of), _later)
        except Exception as error:
            return self._unbeaten(wanted, error)

    def _unbeaten(self, lease_ids: list[str], error: Exception) -> Heartbeat:
        """The heartbeat while the store is away: the fail mode of each policy decides whether its
        leases are live."""
        live: dict[str, int] = {}
        decisions = []
        for policy in dict.fromkeys(map(_policy_of, lease_ids)):
            own = [lease_id for lease_id in lease_ids if _policy_of(lease_id) == policy]
            entry = self._entry_of(own[0])
            if entry is None:
                continue
            decisions.append(entry.guard.decision(error, own, 1))
            if decisions[-1].allowed:
                ttl_ms = entry.admission().concurrency.lease_ttl_ms
                live.update(dict.fromkeys(own, self.clock.now() + ttl_ms))
        gone = [lease_id for lease_id in lease_ids if lease_id not in live]
        mode = combine(*decisions).degraded
        return Heartbeat(list(live), gone, min(live.values(), default=0), mode)

    def _entry_of(self, lease_id: str) -> Entry | None:
        """The policy of a lease; None if there is no such policy with slots."""
        policy = _policy_of(lease_id)
        if policy is None or policy not in self._table.file.policies:
            return None
        entry = self._table[policy]
        return None if entry.control is None else entry

    def _slots_of(self, lease_id: str) -> ConcurrencyLimiter | None:
        entry = self._entry_of(lease_id)
        return None if entry is None else entry.admission().concurrency

    def judge(
        self, policy: str, attributes: Attributes, cost: int = 1, costs: Costs | None = None
    ) -> Judged:
        """The verdict of a policy of several limits, without a coroutine if it is available at
        once. `costs` are by limit; limits that it leaves out cost `cost`."""
        return self._table[policy].limits("check").judge(attributes, cost, costs)

    async def judge_many(
        self,
        policy: str,
        attributes: Iterable[Attributes],
        cost: int = 1,
        costs: Costs | None = None,
    ) -> list[Judgement]:
        """One verdict per request, in order, as one `judge` each; at most MAX_BATCH of them."""
        each = list(attributes)
        _require_batch("attributes", len(each))
        return await self._table[policy].limits("check_many").judge_many(each, cost, costs)

    async def peek_all(self, policy: str, attributes: Attributes) -> Judgement:
        """The verdict on a cost of 1, with `remaining` as it stands. Spends nothing."""
        return await self._table[policy].limits("peek").peek(attributes)

    async def forecast_all(
        self, policy: str, attributes: Attributes, cost: int = 1, costs: Costs | None = None
    ) -> Forecast:
        """The forecast for all limits of a policy together."""
        return await self._table[policy].limits("forecast").forecast(attributes, cost, costs)

    async def hand_out(
        self, policy: str, domain: str, wants: int = 1, axis: str = "rate"
    ) -> CreditLease:
        """Lease a batch of credits of a policy, to be spent by a client."""
        entry = self._table[policy]
        lease = await entry.lessor(axis).reserve(domain, wants)
        entry.tally.count(lease.capacity > 0)
        return lease

    async def check_inline(
        self,
        key: str,
        limit: int,
        window_ms: int,
        cost: int = 1,
        strategy: str = DEFAULT_STRATEGY,
    ) -> Decision:
        """Decide by a limit that the request contains."""
        asked = self.inline(limit, window_ms, strategy).decide(key, cost)
        return asked if isinstance(asked, Decision) else await asked()

    def inline(self, limit: int, window_ms: int, strategy: str = DEFAULT_STRATEGY) -> Inline:
        """The inline policy with these parameters, built."""
        if self._inline is None:
            raise UnsupportedError(
                "inline policies are turned off in this service; name a policy of its policy file"
            )
        return self._inline.get(limit, window_ms, strategy)

    async def _find_trouble(self) -> Exception | None:
        # Try a write if one has failed for lack of room since the last that succeeded.
        full = self._site.outages.full
        trouble = await trouble_of(self.store, self.clock.now(), writes=full != self._full_before)
        if trouble is None:
            self._full_before = full
        return trouble

    async def ready(self) -> Readiness:
        """Whether the process can decide requests, and the condition of the store and of each
        policy. Never raises. Concurrent calls share one request to the store."""
        trouble = await self._trouble()
        table = self._table
        return readiness(
            trouble,
            len(self.policies),
            table.decides_without_store,
            self.reload_error,
            table.fail_modes,
        )

    async def decides(self) -> bool:
        """Whether the process can decide requests: as `ready().ok`, but asks the store only if that
        depends on it."""
        if self._table.decides_without_store:
            return len(self.policies) > 0
        return (await self.ready()).ok

    def snapshot(self, policies: bool = True) -> MetricsSnapshot:
        """All metrics; without `policies`, those of single policies are left out, since there may
        be many."""
        inline = 0 if self._inline is None else len(self._inline)
        table = self._table
        stores = self._stores()
        return self.metrics.snapshot(table.slots(), inline, policies, stores, table.degraded())

    def _stores(self) -> Iterator[tuple[str, Store]]:
        """The stores of the service, by kind."""
        yield "policies", self.store
        charges = records_beside(self.store, self.clock)
        if charges is not self.store:
            yield "charges", charges
        yield from self._table.own_stores()
        if self._inline is not None and self._inline.store is not self.store:
            yield INLINE, self._inline.store

    def apply(self, file: PolicyFile) -> None:
        """Serve the policies of `file` from now on. If this raises, the previous file is still
        served; a request sees one of the two files, never a mixture."""
        for _ in self._replacing(file):
            pass

    async def take_up(self, file: PolicyFile) -> None:
        """As `apply`, in small steps between which requests are served; counted as a reload."""
        await in_slices(self._replacing(file))
        self.metrics.reloads["ok"] += 1
        self.reload_error = ""
        _log.info("serving %d policies from %s", len(file.policies), file.source)

    def reload_failed(self, problem: str) -> None:
        """Record a reload that failed. The previous policies are still served."""
        self.metrics.reloads["failed"] += 1
        self.reload_error = problem

    def _replacing(self, file: PolicyFile) -> Iterator[None]:
        """Build the new table of policies, switch to it, and clean up, in small steps."""
        before = self._table
        table = PolicyTable(file, self._site, before)
        yield from table.taking_over()
        if self._inline is not None and file.prefix != before.file.prefix:
            self._inline = self._inline_policies(file.prefix)
        self._table = table
        yield from self.metrics.keeping({*file.policies, INLINE})
        yield from before.letting_go()

    async def start(self) -> None:
        """Start the background tasks."""
        self._tasks = [asyncio.create_task(self._sweep(), name="penstock-leases")]
        if self._watch is not None:
            reloader = Reloader(self, self._watch, accept=self._accept)
            self._tasks.append(asyncio.create_task(reloader.run(), name="penstock-reload"))

    async def aclose(self) -> None:
        """Stop the background tasks and close the store."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._table.aclose()
        await self.store.aclose()

    async def _sweep(self) -> None:
        """Count expired leases when they expire, even without requests."""
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            for limiter in list(self._site.limiters):
                if limiter.is_due:
                    # The store may be away; the next sweep counts them.
                    with contextlib.suppress(Exception):
                        await limiter.asweep()

    def _inline_policies(self, prefix: str) -> InlinePolicies:
        store = self.store.another(clock=self.clock)
        tally = self.metrics.tally(INLINE)
        return InlinePolicies(store, self.clock, prefix, self.fail, tally, self._site.outages)


async def _check_each(
    limiter: Limiter, names: list[str], cost: int, guard: Guard
) -> list[Decision]:
    """A decision per key; in an outage, by the fail mode. With leases, an outage affects only keys
    without credits."""
    try:
        if not isinstance(limiter, TwoTierLimiter):
            return await limiter.acheck_many(names, cost)
        found = await limiter.acheck_each(names, cost)
    except Exception as error:
        return [guard.decision(error, names, cost, len(names))] * len(names)
    return [
        guard.decision(answer, (key,), cost) if isinstance(answer, Exception) else answer
        for key, answer in zip(names, found, strict=True)
    ]


def build_service(
    config: PolicyFile | None = None,
    store_url: str = "memory://",
    *,
    fail: str = "open",
    inline: bool = True,
    clock: Clock | None = None,
    store: Store | None = None,
    watch: str | None = None,
    accept: Callable[[PolicyFile], None] | None = None,
    grown: Callable[[], None] = lambda: None,
) -> Service:
    """A service with the policies of `config` (by default one policy, named `default`) on the store
    at `store_url`, or on `store`. Closing the service closes the store.

    `fail` is the fail mode of policies that have none: "open", "closed" or "error". `inline` allows
    requests to contain their limit. `watch` is the path of a policy file that is read again when it
    changes and on SIGHUP, once the service is started; `accept` may reject its content by raising.
    `grown` is called from time to time after many long-lived objects were made, so that a process
    can freeze them for the garbage collector.

    With a `clock`, decisions use it instead of the store's own clock: for tests and replays.
    """
    if store is None:
        store = _open(store_url, clock)
    file = DEFAULT_FILE if config is None else config
    return Service(
        file,
        store,
        fail=fail,
        inline=inline,
        clock=clock,
        watch=watch,
        accept=accept,
        grown=grown,
    )


def _open(url: str, clock: Clock | None) -> Store:
    bounds = {}
    if url.partition("://")[0].lower() == "memory":
        bounds = {"max_keys": MAX_KEYS, "max_bytes": MAX_BYTES}
    unsaid = {name: bound for name, bound in bounds.items() if f"{name}=" not in url}
    return open_store(url, **unsaid) if clock is None else open_on_clock(url, clock, **unsaid)


def _bounded(name: str, values: Iterable[str]) -> list[str]:
    listed = require_keys(values)
    _require_batch(name, len(listed))
    return listed


def _require_batch(name: str, count: int) -> None:
    if count > MAX_BATCH:
        raise TooLargeError(f"a call may have at most {MAX_BATCH} {name}, not {count}; split it")


async def _later(request: SlotRequest) -> list[Any]:
    return await request.later()


def _policy_of(lease_id: str) -> str | None:
    lease = LeaseId.of(lease_id)
    return None if lease is None else lease.name


def _lease_id(lease_id: object) -> str:
    # A denied caller has an empty id, which is as unknown as any other that has ended.
    if not isinstance(lease_id, str) or len(lease_id) > LONGEST_ID:
        reject("this is not a lease id; pass the lease_id that admit returned, unchanged")
    return lease_id
