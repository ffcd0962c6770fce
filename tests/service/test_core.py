"""The service without its servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    Forecast,
    ManualClock,
    MemoryStore,
    Store,
    UnsupportedError,
)
from penstock.config import PolicyFile, has_fail_mode
from penstock.service import Service, build_service
from penstock.service._core import MAX_BATCH, UnknownPolicyError
from tests.service.worlds import AWAY, NOW, FragileStore, policies, service_on

MINUTE = 60_000


def test_without_a_config_there_is_one_policy_of_ten_per_minute() -> None:
    """Per key, in a window that opens with the first request."""
    service = build_service(clock=ManualClock(NOW + 7))
    policy = service.policies["default"]
    assert (policy.kind, policy.limit, policy.window_ms) == ("limiter", 10, MINUTE)
    decisions = [asyncio.run(service.check("default", "alice")) for _ in range(11)]
    assert [decision.allowed for decision in decisions] == [True] * 10 + [False]
    assert decisions[-1].reset_at == NOW + 7 + MINUTE


def test_a_limiter_answers_its_four_questions() -> None:
    """Check, check of many, peek and forecast."""
    service, _ = service_on()

    async def main() -> None:
        assert await service.check("api", "a", 2) == Decision(True, 3, 1, NOW + MINUTE, 0)
        assert await service.peek("api", "a") == Decision(True, 3, 1, NOW + MINUTE, 0)
        assert await service.forecast("api", "a") == Forecast(1, NOW + MINUTE, NOW + MINUTE)
        many = await service.check_many("api", ["a", "b", "a"])
        assert [decision.remaining for decision in many] == [0, 2, 0]
        assert [decision.allowed for decision in many] == [True, True, False]

    asyncio.run(main())


def test_a_budget_answers_debits() -> None:
    """And nothing else."""
    service, _ = service_on()
    assert asyncio.run(service.debit("llm", "a", 120)) == Decision(True, 100, 0, NOW + MINUTE, 0)
    assert not asyncio.run(service.debit("llm", "a"))


def test_an_admission_lives_from_admit_to_release() -> None:
    """Idempotent at its end."""
    service, _ = service_on()

    async def main() -> None:
        first = await service.admit("slots", "a")
        await service.admit("slots", "b")
        busy = await service.admit("slots", "c")
        assert (busy.binding_axis, busy.lease_id) == ("concurrency", "")
        for _ in range(3):
            await service.release(first.lease_id)
        await service.release("")
        assert service.snapshot().slots["slots"]["in_flight"] == 1
        assert (await service.admit("slots", "c")).lease_expires_at == NOW + 2_000

    asyncio.run(main())


def test_a_unified_policy_asks_all_axes_and_takes_debits() -> None:
    """A slot, the rate by cost, the budget afterwards."""
    service, _ = service_on()

    async def main() -> None:
        first = await service.admit("all", "a", cost=2)
        assert first.decision == Decision(True, 2, 1, NOW + MINUTE, 0)
        await service.release(first.lease_id)
        assert (await service.admit("all", "a", cost=2)).binding_axis == "rate"
        assert await service.debit("all", "a", 120)
        assert (await service.admit("all", "a")).binding_axis == "cost"
        assert service.snapshot().slots["all"]["in_flight"] == 0

    asyncio.run(main())


def test_a_dead_holders_slot_is_reclaimed_on_time_and_counted() -> None:
    """A heartbeat tells the living from the dead, across policies."""
    service, clock = service_on()

    async def main() -> None:
        alive = (await service.admit("slots", "a")).lease_id
        dead = (await service.admit("all", "b")).lease_id
        clock.advance(1_900)
        assert (await service.heartbeat([alive])).next_deadline == NOW + 3_900
        clock.advance(100)
        beat = await service.heartbeat([alive, dead, "never"])
        assert (beat.live_ids, beat.reclaimed_ids) == ([alive], [dead, "never"])
        assert service.snapshot().slots["all"] == {"limit": 2, "in_flight": 0, "reclaimed": 1}

    asyncio.run(main())


def test_the_sweeper_reclaims_while_nobody_asks() -> None:
    """In the background, once started."""
    service, clock = service_on()

    async def main() -> None:
        await service.start()
        await service.admit("slots", "a")
        clock.advance(2_000)
        for _ in range(100):
            await asyncio.sleep(0.02)
            if service.snapshot().slots["slots"]["reclaimed"]:
                break
        assert service.snapshot().slots["slots"]["in_flight"] == 0
        await service.aclose()

    asyncio.run(main())


CALLS: dict[str, Callable[[Service, str], Awaitable[Any]]] = {
    "check": lambda service, policy: service.check(policy, "k"),
    "check_many": lambda service, policy: service.check_many(policy, ["k"]),
    "peek": lambda service, policy: service.peek(policy, "k"),
    "forecast": lambda service, policy: service.forecast(policy, "k"),
    "debit": lambda service, policy: service.debit(policy, "k"),
    "admit": lambda service, policy: service.admit(policy, "k"),
}
HAS = {
    "api": {"check", "check_many", "peek", "forecast"},
    "llm": {"debit"},
    "slots": {"admit"},
    "all": {"admit", "debit"},
    "all-strict": {"admit"},
}


@pytest.mark.parametrize("policy", HAS)
@pytest.mark.parametrize("call", CALLS)
def test_a_policy_has_the_operations_of_its_kind_and_no_others(policy: str, call: str) -> None:
    """Others are not implemented, which is not the same as unknown."""
    service, _ = service_on()

    async def main() -> None:
        await CALLS[call](service, policy)

    if call in HAS[policy]:
        asyncio.run(main())
    else:
        with pytest.raises(UnsupportedError, match=f"policy '{policy}' does not support {call}"):
            asyncio.run(main())


@pytest.mark.parametrize("call", CALLS)
def test_an_unknown_policy_is_told_apart(call: str) -> None:
    """With the name that was probably meant."""
    service, _ = service_on()

    async def main() -> None:
        await CALLS[call](service, "apy")

    with pytest.raises(UnknownPolicyError, match="did you mean 'api'"):
        asyncio.run(main())


@pytest.mark.parametrize(
    "call",
    [
        lambda service: service.check("api", ""),
        lambda service: service.check("api", "k", 0),
        lambda service: service.check("api", "k" * 5_000),
        lambda service: service.check("api", 3),
        lambda service: service.check_many("api", ["k"] * (MAX_BATCH + 1)),
        lambda service: service.check_many("api", "keys"),
        lambda service: service.peek("api", ""),
        lambda service: service.forecast("api", "k", -1),
        lambda service: service.debit("llm", "k", 0),
        lambda service: service.admit("slots", "k", cost=0),
        lambda service: service.release(3),
        lambda service: service.release("x" * 321),
        lambda service: service.heartbeat(["x"] * (MAX_BATCH + 1)),
        lambda service: service.heartbeat([None]),
        lambda service: service.check(["api"], "k"),
    ],
)
def test_bad_input_is_the_callers_mistake_even_on_a_broken_store(call: Any) -> None:
    """It is refused as such and not taken for an outage."""
    broken = FragileStore()
    broken.error = AWAY
    for store in (None, broken):
        service, _ = service_on(store)
        with pytest.raises(ConfigInvalidError):
            asyncio.run(call(service))
        assert sum(tally["store_away"] for tally in service.snapshot().policies.values()) == 0


def test_deciding_is_the_same_check_without_a_task() -> None:
    """For stores that answer at once; for others there is something to await."""
    service, _ = service_on()
    assert service.decide("api", "a", 2) == Decision(True, 3, 1, NOW + MINUTE, 0)
    assert asyncio.run(service.check("api", "a", 2)) == service.decide("api", "a", 2)
    assert service.snapshot().policies["api"]["denied"] == 2
    asked = service_on(FragileStore())[0].decide("api", "a", 2)
    assert not isinstance(asked, Decision)
    assert asyncio.run(asked()).remaining == 1
    with pytest.raises(UnsupportedError):
        service.decide("llm", "a")
    with pytest.raises(UnknownPolicyError):
        service.decide("nope", "a")


def test_the_snapshot_counts_outcomes_and_names_no_key() -> None:
    """Aggregates only."""
    service, _ = service_on()

    async def main() -> None:
        for _ in range(5):
            await service.check("api", "secret-key")
        await service.check_many("api", ["secret-key", "other"])
        await service.peek("api", "secret-key")

    asyncio.run(main())
    service.metrics.latency("http").observe(0.0007)
    snapshot = service.snapshot()
    assert snapshot.policies["api"]["allowed"] == 4
    assert snapshot.policies["api"]["denied"] == 3
    assert snapshot.latency["http"].count == 1
    assert snapshot.latency["http"].counts[3] == 1
    assert "secret" not in repr(snapshot)


def test_a_memory_service_is_bounded_unless_told() -> None:
    """A service is open to strangers, who choose the keys."""
    store = build_service().store
    assert isinstance(store, MemoryStore)
    assert (store.max_keys, store.max_bytes) == (1_000_000, 256 << 20)
    chosen = build_service(store_url="memory://?max_keys=7").store
    assert isinstance(chosen, MemoryStore)
    assert (chosen.max_keys, chosen.max_bytes) == (7, 256 << 20)
    chosen = build_service(store_url="memory://?max_bytes=70000").store
    assert isinstance(chosen, MemoryStore)
    assert (chosen.max_keys, chosen.max_bytes) == (1_000_000, 70_000)


def test_what_the_tables_in_memory_hold_and_let_go_of_is_told() -> None:
    """Each by its name; a store that tells nothing of itself is left out."""
    text = (
        "version: 1\nlimiters:\n  api: {strategy: fixedWindow, limit: 3, window: 1m}\n"
        "  near: {strategy: fixedWindow, limit: 3, window: 1m, twoTier: {mode: leased}}\n"
        "  llm: {tokenBudget: {budget: 1, window: 1m, maxKeys: 2}}\n"
    )
    service, _ = service_on(MemoryStore(10, max_bytes=100_000), config=policies(text))

    async def main() -> None:
        for number in range(25):
            await service.check("api", f"{number}")
            await service.check_inline(f"{number}", 3, 60_000)
        for key in "abcde":
            await service.debit("llm", key)
        await service.check("near", "k")

    asyncio.run(main())
    told = service.snapshot().stores
    assert told.keys() == {"policies", "charges", "inline", "budgets", "credits"}
    assert (told["policies"]["keys"], told["policies"]["evictions"]) == (10, 16)
    assert (told["inline"]["keys"], told["inline"]["evictions"]) == (10, 15)
    assert (told["budgets"]["keys"], told["budgets"]["evictions"]) == (2, 3)
    assert told["credits"]["keys"] == 1
    assert told["charges"]["keys"] == 0
    own = [table for kind, table in told.items() if kind != "charges"]
    assert all(0 < table["bytes"] <= 100_000 for table in own)
    assert service_on(FragileStore())[0].snapshot().stores == {}
    only = "version: 1\ndefaults: {prefix: other}\nlimiters:\n"
    service.apply(policies(f"{only}  api: {{strategy: fixedWindow, limit: 3, window: 1m}}\n"))
    after = service.snapshot().stores
    assert {kind: table["evictions"] for kind, table in after.items()} == {
        kind: table["evictions"] for kind, table in told.items()
    }
    assert after["inline"]["keys"] == after["budgets"]["keys"] == 0


def test_refusals_for_want_of_room_are_told() -> None:
    """A store that denies newcomers is full in its own way."""
    service, _ = service_on(MemoryStore(2, "deny"))

    async def main() -> list[bool]:
        return [bool(await service.check("api", f"{number}")) for number in range(5)]

    assert asyncio.run(main()) == [True, True, False, False, False]
    told = service.snapshot().stores["policies"]
    assert (told["keys"], told["refusals"], told["evictions"]) == (2, 3, 0)


@pytest.mark.parametrize("limit", [1, 10])
def test_a_flood_of_made_up_clients_frees_no_client_that_is_blocked(limit: int) -> None:
    """By default, in a service on memory:// that remembers too little."""
    text = f"version: 1\nlimiters:\n  api: {{strategy: gcra, limit: {limit}, period: 1m}}\n"
    service = build_service(
        policies(text), "memory://?max_keys=500", clock=ManualClock(1_700_000_000_000)
    )

    async def main() -> None:
        first = [bool(await service.check("api", "blocked")) for _ in range(limit + 1)]
        assert first == [True] * limit + [False]
        for number in range(5_000):
            await service.check("api", f"made up {number}")
        assert not await service.check("api", "blocked")

    asyncio.run(main())
    assert service.snapshot().stores["policies"]["evictions"] > 4_000


def test_a_budget_with_max_keys_has_a_table_of_its_own() -> None:
    """Flooding it forgets nothing of the other policies."""
    text = (
        "version: 1\nlimiters:\n  api: {strategy: gcra, limit: 3, period: 1m}\n"
        "  llm: {tokenBudget: {budget: 1, window: 1m, maxKeys: 2}}\n"
    )
    service, _ = service_on(config=policies(text))

    async def main() -> None:
        await service.check("api", "a")
        for key in "abcdef":
            await service.debit("llm", key)
        assert isinstance(service.store, MemoryStore)
        assert len(service.store) == 1

    asyncio.run(main())


def test_ready_asks_the_store_and_never_raises() -> None:
    """A broken store is told, not thrown."""
    store = FragileStore()
    service, _ = service_on(store)
    ready = asyncio.run(service.ready())
    assert (ready.ok, ready.store_reachable, ready.policies) == (True, True, 8)
    store.error = RuntimeError("wires cut")
    ready = asyncio.run(service.ready())
    assert (ready.ok, ready.store_reachable) == (True, False)
    assert "wires cut" in ready.store_error
    assert len(store.inner) == 0


def test_a_probe_does_not_wait_for_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was written without a deadline, say."""
    monkeypatch.setattr("penstock.service._fail_modes.PATIENCE_S", 0.05)

    class Hanging(FragileStore):
        async def aapply(self, *_: Any) -> Any:
            await asyncio.sleep(3_600)

    service, _ = service_on(Hanging())
    ready = asyncio.run(service.ready())
    assert (ready.ok, ready.store_ok) == (True, False)
    assert "no answer within" in ready.store_error


def test_a_service_that_has_nothing_to_serve_is_not_ready() -> None:
    """Though its store answers."""
    service, _ = service_on(config=PolicyFile({}))
    ready = asyncio.run(service.ready())
    assert (ready.ok, ready.store_ok, ready.policies) == (False, True, 0)


@pytest.mark.parametrize(
    ("text", "default", "needs"),
    [
        ("a: {strategy: gcra, limit: 1, period: 1s}", "open", False),
        ("a: {strategy: gcra, limit: 1, period: 1s}", "error", True),
        ("a: {strategy: gcra, limit: 1, period: 1s, fail: closed}", "error", False),
        ("a: {tokenBudget: {budget: 1, window: 1m}, fail: error}", "closed", True),
        ("error: {strategy: gcra, limit: 1, period: 1s}", "open", False),
        ("a: {concurrency: {minLimit: 1, maxLimit: 1}, fail: error}", "open", True),
    ],
)
def test_it_is_known_whether_some_policy_cannot_do_without_its_store(
    text: str, default: str, needs: bool
) -> None:
    """From the text of a file as from policies that are built."""
    file = policies(f"version: 1\nlimiters:\n  {text}\n")
    assert has_fail_mode(file.policies, "error", default) is needs
    assert has_fail_mode(dict(file.policies), "error", default) is needs


def test_a_store_without_async_calls_is_refused() -> None:
    """When the service is made, and not at its first request."""
    with pytest.raises(ConfigInvalidError, match="has no aapply"):
        build_service(store=Store())


def test_closing_closes_the_store() -> None:
    """Once, started or not."""
    store = FragileStore()
    service, _ = service_on(store)

    async def main() -> None:
        await service.start()
        await service.aclose()

    asyncio.run(main())
    assert store.closed == 1
