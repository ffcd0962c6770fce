"""What policies answer while their store is away."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock import ConfigInvalidError, Decision, Forecast, StoreUnavailableError
from penstock.config import parse_policies
from penstock.core._decision import DegradedDecision, DegradedForecast
from tests.service.worlds import AWAY, NOW, FragileStore, service_on

OPEN = DegradedDecision.of("open", Decision(True, 3, 0, NOW + 1_000, 0))
CLOSED = DegradedDecision.of("closed", Decision(False, 3, 0, NOW + 1_000, 1_000))


def forecast(mode: str, spendable: int) -> Forecast:
    return DegradedForecast(mode, Forecast(spendable, NOW + 1_000, NOW + 1_000))


@pytest.mark.parametrize(
    "error", [AWAY, OSError("wires cut"), ConfigInvalidError("key holds the state of a stranger")]
)
def test_open_lets_in_closed_keeps_out_and_error_says_so(error: Exception) -> None:
    """Whatever it is that went wrong in the store."""
    store = FragileStore()
    service, _ = service_on(store)
    store.error = error

    async def main() -> None:
        assert await service.check("api", "k") == OPEN
        assert await service.check("strict", "k") == CLOSED
        with pytest.raises(StoreUnavailableError):
            await service.check("honest", "k")
        assert await service.check_many("strict", ["k", "l"]) == [CLOSED, CLOSED]
        assert await service.peek("api", "k") == OPEN
        assert await service.forecast("api", "k", 2) == forecast("open", 1)
        assert await service.forecast("strict", "k") == forecast("closed", 0)
        debit = DegradedDecision.of("open", Decision(True, 100, 0, NOW + 1_000, 0))
        assert await service.debit("llm", "k", 5) == debit
        assert await service.check_inline("k", 3, 60_000) == OPEN

    asyncio.run(main())


def test_the_flag_holds_where_a_policy_says_nothing() -> None:
    """A policy's own word overrides it."""
    store = FragileStore()
    store.error = AWAY
    service, _ = service_on(store, fail="closed")
    assert asyncio.run(service.check("api", "k")) == CLOSED
    assert asyncio.run(service.check_inline("k", 3, 60_000)) == CLOSED
    assert service.policies["api"].fail == "closed"
    assert service.policies["honest"].fail == "error"


def test_an_unknown_fail_mode_is_refused() -> None:
    """When the service is made."""
    with pytest.raises(ConfigInvalidError, match="fail must be 'open' or 'closed' or 'error'"):
        service_on(fail="ajar")


def test_a_recovered_store_decides_again() -> None:
    """By itself, and what it had counted before still counts."""
    store = FragileStore()
    service, _ = service_on(store)

    async def main() -> None:
        await service.check("api", "k", 2)
        store.error = AWAY
        assert await service.check("api", "k") == OPEN
        store.error = None
        assert (await service.check("api", "k")).remaining == 0

    asyncio.run(main())


@pytest.mark.parametrize(("policy", "axis"), [("all", ""), ("all-strict", "concurrency")])
def test_an_admission_resolves_an_outage(policy: str, axis: str) -> None:
    """The slots are in the store too: open admits, and tells by which id to give back what may
    have been taken; closed denies."""
    store = FragileStore()
    service, _ = service_on(store)

    async def main() -> None:
        store.error = AWAY
        admission = await service.admit(policy, "k")
        assert admission.binding_axis == axis
        assert bool(admission) == bool(admission.lease_id) == (axis == "")
        assert service.snapshot().slots[policy]["in_flight"] == 0
        store.error = None
        await service.release(admission.lease_id)
        assert len([await service.admit(policy, "k") for _ in range(2)]) == 2

    asyncio.run(main())


def test_credits_on_the_node_that_are_spent_give_the_slot_back() -> None:
    """What is not decided together with the slot is asked after it."""
    store = FragileStore()
    near = "strategy: fixedWindow, limit: 9, window: 1m, twoTier: {mode: leased, batch: 1}"
    slots = "concurrency: {minLimit: 1, maxLimit: 1}"
    file = f"version: 1\nlimiters: {{near: {{{near}, {slots}}}}}"
    service, _ = service_on(store, config=parse_policies(file))

    async def main() -> None:
        for _ in range(9):
            admission = await service.admit("near", "k")
            assert admission
            await service.release(admission.lease_id)
        assert (await service.admit("near", "k")).binding_axis == "rate"
        assert (await service.admit("near", "other")).decision

    asyncio.run(main())


@pytest.mark.parametrize(("policy", "lives"), [("all", True), ("all-strict", False)])
def test_a_heartbeat_resolves_an_outage_as_any_call(policy: str, lives: bool) -> None:
    """Open goes on, closed does not count on what it cannot know; the slot is still there when the
    store is back in time."""
    store = FragileStore()
    service, clock = service_on(store)

    async def main() -> None:
        held = (await service.admit(policy, "k")).lease_id
        store.error = AWAY
        beat = await service.heartbeat([held, "unknown"])
        assert (beat.live_ids == [held]) is lives
        assert beat.reclaimed_ids == (["unknown"] if lives else [held, "unknown"])
        assert beat.next_deadline == (clock.now() + 2_000 if lives else 0)
        await service.release(held)
        store.error = None
        assert (await service.heartbeat([held])).live_ids == [held]
        counts = service.snapshot().policies[policy]
        assert counts["failed_open" if lives else "failed_closed"] == 2

    asyncio.run(main())


def test_an_admission_that_fails_with_an_error_holds_nothing() -> None:
    """Nor does any other call of such a policy answer."""
    store = FragileStore()
    service, _ = service_on(store)

    async def main() -> None:
        held = (await service.admit("all-honest", "k")).lease_id
        store.error = AWAY
        for call in (
            service.admit("all-honest", "k"),
            service.release(held),
            service.heartbeat([held]),
        ):
            with pytest.raises(StoreUnavailableError):
                await call
        store.error = None
        assert service.snapshot().slots["all-honest"]["in_flight"] == 1
        await service.release(held)
        assert service.snapshot().slots["all-honest"]["in_flight"] == 0

    asyncio.run(main())


def test_outages_and_their_answers_are_counted() -> None:
    """Each by policy, beside the outcome that the caller saw."""
    store = FragileStore()
    store.error = AWAY
    service, _ = service_on(store)

    async def main() -> None:
        for policy in ("api", "api", "strict"):
            await service.check(policy, "k")
        with pytest.raises(StoreUnavailableError):
            await service.check("honest", "k")

    asyncio.run(main())
    counts = service.snapshot().policies
    assert counts["api"]["store_away"] == counts["api"]["failed_open"] == 2
    assert counts["api"]["allowed"] == 2
    assert counts["strict"]["failed_closed"] == counts["strict"]["denied"] == 1
    assert counts["honest"]["failed_error"] == 1
    assert counts["honest"]["allowed"] == counts["honest"]["denied"] == 0


def test_an_outage_is_a_line_in_the_log_every_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line, no stack trace, and how many were not told."""
    store = FragileStore()
    store.error = StoreUnavailableError("gone\nINFO forged line")
    service, clock = service_on(store)

    async def main() -> None:
        for _ in range(50):
            await service.check("api", "k")
        clock.advance(10_000)
        await service.check("api", "k")

    with caplog.at_level(logging.WARNING, "penstock.service"):
        asyncio.run(main())
    first, second = caplog.messages
    assert "policy api" in first
    assert "fail-open" in first
    assert "\n" not in first
    assert "49 more" in second
    assert all(record.exc_info is None for record in caplog.records)


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("alice", "'penstock:api:1f:alice'"),
        ("al\nice", repr("penstock:api:1f:al\nice")),
        ("ålice", ascii("penstock:api:1f:ålice")),
        ("a/b c", "GET /penstock%3Aapi%3A1f%3Aa%2Fb%20c"),
        ("a", "'penstock:api:1f:a'"),
    ],
)
def test_a_key_does_not_reach_the_log(
    key: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Stores name it, for whoever calls them; the log of a service is read by others."""
    store = FragileStore()
    store.error = ConfigInvalidError(f"WRONGTYPE: {shown} has a stranger's state")
    service, _ = service_on(store)
    with caplog.at_level(logging.WARNING, "penstock.service"):
        asyncio.run(service.check("api", key))
        asyncio.run(service.check_many("strict", ["other", key]))
    for message in caplog.messages:
        assert "WRONGTYPE" in message
        assert "<key>" in message
        assert shown not in message


def test_a_clock_that_goes_back_does_not_silence_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next line may come early, never years late."""
    store = FragileStore()
    store.error = AWAY
    service, clock = service_on(store)
    with caplog.at_level(logging.WARNING, "penstock.service"):
        asyncio.run(service.check("api", "k"))
        clock.set(NOW - 3_600_000)
        asyncio.run(service.check("api", "k"))
    assert len(caplog.messages) == 2
