"""Never run: the type checker reads this file, and with it what the public names promise.

A line that must be refused carries the `type: ignore` that strict checking demands for it; were
it accepted, the checker would call the comment unused.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from typing_extensions import assert_type

from penstock import (
    Charge,
    Clock,
    ConfigInvalidError,
    Decision,
    Forecast,
    Limit,
    Limiter,
    Limits,
    ManualClock,
    MemoryStore,
    Outcome,
    PenstockError,
    QueueFullError,
    RateLimitExceededError,
    SlotLimiter,
    Step,
    Store,
    StoreUnavailableError,
    Strategy,
    SystemClock,
    Transform,
    UnsupportedError,
    Verdict,
    accelerated,
    calendar_quota,
    fixed_window,
    gcra,
    limited,
    rate_limit,
    sliding_window,
    sliding_window_log,
    slots,
    token_bucket,
    unlimited,
)
from penstock.client import ServiceCharge, ServiceLimiter, open_limiter
from penstock.testkit import (
    Case,
    ConformanceError,
    arun_store_conformance,
    conformance_cases,
    run_store_conformance,
)

limiter = rate_limit("100/minute")
assert_type(limiter, Limiter)
assert_type(accelerated, bool)

decision = limiter.check("alice")
assert_type(decision, Decision)
assert_type(decision.allowed, bool)
assert_type(decision.limit, int)
assert_type(decision.remaining, int)
assert_type(decision.reset_at, int)
assert_type(decision.retry_after_ms, int)
assert_type(limiter.check("alice", cost=2), Decision)
assert_type(limiter.check_many(["alice", "bob"], 3), list[Decision])
assert_type(limiter.check_many(name for name in ("alice", "bob")), list[Decision])
assert_type(limiter.peek("alice"), Decision)
assert_type(limiter.acquire("alice", timeout=0.5), Decision)

forecast = limiter.forecast("alice", 5)
assert_type(forecast, Forecast)
assert_type(forecast.spendable_now, int)
assert_type(forecast.next_replenish_at, int)
assert_type(forecast.full_at, int)

limiter.check(7)  # type: ignore[arg-type]
limiter.check("alice", 1.5)  # type: ignore[arg-type]
limiter.check("alice", "1")  # type: ignore[arg-type]
limiter.check_many([1, 2])  # type: ignore[list-item]
rate_limit(5)  # type: ignore[call-overload]
rate_limit("5/s", store={})  # type: ignore[call-overload]
rate_limit("5/s", clock=5)  # type: ignore[call-overload]

charge = limiter.reserve("alice", 5, max_wait_ms=100)
assert_type(charge, Charge)
assert_type(charge.allowed, bool)
assert_type(charge.decision, Decision)
assert_type(charge.verdict, Verdict | None)
assert_type(charge.starts_at, int)
assert_type(charge.settle(3), bool)
assert_type(charge.cancel(), bool)
assert_type(charge.renew(), bool)
assert_type(charge.holds, bool)
with limiter.reserve("alice") as entered_charge:
    assert_type(entered_charge, Charge)
limiter.reserve("alice", max_wait_ms=1.5)  # type: ignore[arg-type]
limiter.reserve("alice", 5, 100)  # type: ignore[call-arg]
charge.settle("3")  # type: ignore[arg-type]
limiter.pause("alice", 1_700_000_000_000)

held = rate_limit(slots(3))
assert_type(held, SlotLimiter)
assert_type(rate_limit(slots(3, timedelta(seconds=5)), prefix="p"), SlotLimiter)
assert_type(held.reserve("alice"), Charge)
assert_type(held.acquire("alice", timeout=1), Charge)
slots(2.5)  # type: ignore[arg-type]

limits = Limits(
    {"user": "100/minute", "tenant": gcra(9, 1_000), "all": Limit("5/s", keyless=True)},
    store=MemoryStore(),
    clock=ManualClock(),
    prefix="p",
    require_atomic=True,
)
assert_type(limits.atomic, bool)
keys = {"user": "alice", "tenant": "acme"}
verdict = limits.check(keys)
assert_type(verdict, Verdict)
assert_type(verdict.allowed, bool)
assert_type(verdict.decision, Decision)
assert_type(verdict.binding, str)
assert_type(verdict.limits["user"], Decision)
assert_type(verdict.violated, tuple[str, ...])
assert_type(verdict.shadowed, tuple[str, ...])
assert_type(verdict.retry_after_ms, int)
assert_type(limits.check(keys, {"user": 2}), Verdict)
assert_type(limits.peek(keys), Verdict)
assert_type(limits.forecast(keys), Forecast)
assert_type(limits.acquire(keys, timeout=1), Verdict | Charge)
assert_type(limits.reserve(keys, {"user": 2}, max_wait_ms=50), Charge)
limits.reset({"user": "alice", "all": None})
limits.pause({"all": None}, 1_700_000_000_000)
limits.check("alice")  # type: ignore[arg-type]
limits.check({"user": 7})  # type: ignore[dict-item]
limits.check(keys, {"user": 1.5})  # type: ignore[dict-item]
Limits({"user": 5})  # type: ignore[dict-item]
Limit("5/s", keyless=1)  # type: ignore[arg-type]

strategies: list[Strategy] = [
    gcra(100, 60_000),
    gcra(100, 60_000, burst=10),
    gcra(100, timedelta(minutes=1)),
    token_bucket(10, 0.5),
    fixed_window(10, 1_000, anchor="first"),
    calendar_quota(10, "month", "Europe/Berlin", starts_on=31),
    sliding_window(10, 1_000, buckets=5),
    sliding_window_log(10, 1_000),
    unlimited(),
]
gcra("100", 60_000)  # type: ignore[arg-type]
gcra(100, "1m")  # type: ignore[arg-type]
fixed_window(10, 1_000, anchor="last")  # type: ignore[arg-type]

gcra("100", 60_000)  # type: ignore[arg-type]
gcra(100, 60_000, burst=1.5)  # type: ignore[arg-type]
token_bucket(1.5, 1)  # type: ignore[arg-type]
token_bucket(10, "1")  # type: ignore[arg-type]
fixed_window(10, 1_000, anchor="last")  # type: ignore[arg-type]
calendar_quota(10, "fortnight")  # type: ignore[arg-type]
sliding_window(10, 1_000, buckets=None)  # type: ignore[arg-type]
sliding_window_log(10, "1s")  # type: ignore[arg-type]
unlimited(10)  # type: ignore[call-arg]
MemoryStore(overflow="drop")  # type: ignore[arg-type]

clocks: list[Clock] = [SystemClock(), ManualClock(), ManualClock(5)]
stores: list[Store] = [MemoryStore(), MemoryStore(max_keys=10, overflow="deny", sweep_every_ms=5)]
assert_type(MemoryStore().sweep(), int)
assert_type(len(MemoryStore()), int)


class Tick:
    """A clock by its shape alone."""

    def now(self) -> int:
        return 1


class Tock:
    """Not a clock: it tells the time in words."""

    def now(self) -> str:
        return "noon"


rate_limit("5/s", clock=Tick())
rate_limit("5/s", clock=Tock())  # type: ignore[call-overload]


class Always(Strategy):
    """A strategy with the one method it needs."""

    limit = 1

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        return Outcome(state, Decision(True, 1, 1, now, 0), 0, False)


class OneMethod(Store):
    """A store with the one method it needs."""

    def apply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        return transform.run(None, now, cost).result


steps: list[Step] = []
assert_type(OneMethod().apply_all(steps, 1), list[Any])
assert_type(rate_limit(Always(), store=OneMethod(), clock=Tick(), prefix="p"), Limiter)


async def awaited() -> None:
    """The twins."""
    async with rate_limit("5/s") as entered:
        assert_type(entered, Limiter)
        assert_type(await entered.acheck("alice"), Decision)
        assert_type(await entered.acheck_many(["alice"]), list[Decision])
        assert_type(await entered.apeek("alice"), Decision)
        assert_type(await entered.aforecast("alice"), Forecast)
        assert_type(await entered.aacquire("alice", 1, None), Decision)
        await entered.areset("alice")
        await entered.apause("alice", 1)
        assert_type(await entered.areserve("alice"), Charge)
        async with await entered.areserve("alice", max_wait_ms=5) as charge:
            assert_type(charge, Charge)
            assert_type(await charge.asettle({"tokens": 3}), bool)
            assert_type(await charge.acancel(), bool)
            assert_type(await charge.arenew(), bool)
    async with Limits({"user": "5/s"}) as several:
        assert_type(several, Limits)
        assert_type(await several.acheck({"user": "alice"}), Verdict)
        assert_type(await several.apeek({"user": "alice"}), Verdict)
        assert_type(await several.areserve({"user": "alice"}, 2), Charge)
        assert_type(await several.aacquire({"user": "alice"}), Verdict | Charge)
    assert_type(await rate_limit(slots(3)).aacquire("alice"), Charge)
    await arun_store_conformance(MemoryStore)


with rate_limit("5/s") as entered:
    assert_type(entered, Limiter)
    entered.reset("alice")

asyncio.run(awaited())

try:
    limiter.acquire("alice", timeout=0)
except RateLimitExceededError as error:
    assert_type(error.decision, Decision)
    assert_type(error.code, str)
except (QueueFullError, StoreUnavailableError, UnsupportedError, ConfigInvalidError) as error:
    fault: PenstockError = error

cases = conformance_cases(atomic=False)
assert_type(cases, list[Case])
run_store_conformance(MemoryStore, cases=cases)
run_store_conformance(dict)  # type: ignore[arg-type]
assert_type(ConformanceError("case", "seen").case, str)


@limited("10/second", key="{user}")
def send(user: str) -> int:
    return len(user)


@limited(limiter, timeout=0)
async def asend(user: str) -> int:
    return len(user)


assert_type(send("alice"), int)
send(5)  # type: ignore[arg-type]


async def decorated() -> None:
    assert_type(await asend("alice"), int)
    async with limited("10/second", key="partner"):
        pass


service = ServiceLimiter("http://localhost:8080", policy="api")
assert_type(service.check("alice"), Decision)
assert_type(service.check({"user": "alice", "tokens": 700}), Verdict)
assert_type(service.acquire({"user": "alice"}, timeout=1), Verdict | ServiceCharge)
assert_type(service.take("alice"), Decision | ServiceCharge)
assert_type(service.reserve("alice"), ServiceCharge)
assert_type(open_limiter("memory://", "1/second"), Limiter | ServiceLimiter)
service.check(5)  # type: ignore[call-overload]
ServiceLimiter("http://localhost:8080", "api", fail="ajar")  # type: ignore[arg-type]


async def asked_of_a_service() -> None:
    assert_type(await service.acheck("alice"), Decision)
    async with service.admit("alice") as slot:
        assert_type(slot.is_lost, bool)
