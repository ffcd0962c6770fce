"""The eight calls, as two kinds of client see them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.grpc.servers import CLIENTS, run, visiting
from tests.service.worlds import NOW

pytestmark = pytest.mark.parametrize("name", CLIENTS)

LEASE_TTL_MS = 2_000


def fields(decision: Any) -> tuple[Any, ...]:
    return (
        decision.allowed,
        decision.limit,
        decision.remaining,
        decision.reset_at,
        decision.retry_after_ms,
    )


def test_a_cold_burst_is_admitted_up_to_the_limit(name: str) -> None:
    """A cost that is left out is 1; a denial is an answer, not an error."""

    async def scenario() -> None:
        async with visiting(name) as visit:
            answers = [await visit.check() for _ in range(4)]
            assert [answer.allowed for answer in answers] == [True, True, True, False]
            assert fields(answers[0]) == (True, 3, 2, NOW + 60_000, 0)
            assert fields(answers[3]) == (False, 3, 0, NOW + 60_000, 60_000)
            visit.clock.advance(60_000)
            assert fields(await visit.check(cost=2)) == (True, 3, 1, NOW + 120_000, 0)

    run(scenario())


def test_a_batch_is_one_check_per_key(name: str) -> None:
    """In order, a key that comes twice included."""

    async def scenario() -> None:
        async with visiting(name) as visit:
            request = visit.pb.CheckManyRequest(policy="api", keys=["a", "b", "a"], cost=2)
            decisions = (await visit.stub.CheckMany(request)).decisions
            assert [(d.allowed, d.remaining) for d in decisions] == [
                (True, 1),
                (True, 1),
                (False, 1),
            ]
            empty = await visit.stub.CheckMany(visit.pb.CheckManyRequest(policy="api"))
            assert list(empty.decisions) == []

    run(scenario())


def test_peek_and_forecast_spend_nothing(name: str) -> None:
    """However often they are asked."""

    async def scenario() -> None:
        async with visiting(name) as visit:
            await visit.check()
            for _ in range(5):
                peeked = await visit.stub.Peek(visit.pb.PeekRequest(policy="api", key="a"))
                assert fields(peeked.decision) == (True, 3, 2, NOW + 60_000, 0)
                request = visit.pb.ForecastRequest(policy="api", key="a", cost=2)
                forecast = (await visit.stub.Forecast(request)).forecast
                assert forecast.spendable_now == 1
                assert forecast.next_replenish_at == forecast.full_at == NOW + 60_000
            assert (await visit.check()).remaining == 1

    run(scenario())


def test_a_debit_is_counted_in_full_until_the_budget_is_spent(name: str) -> None:
    """The one that crosses the budget is let through; the next is not."""

    async def scenario() -> None:
        async with visiting(name) as visit:

            async def debit(tokens: int) -> Any:
                request = visit.pb.DebitRequest(policy="llm", key="a", tokens=tokens)
                return (await visit.stub.Debit(request)).decision

            assert fields(await debit(0)) == (True, 100, 99, NOW + 60_000, 0)
            assert (await debit(98)).remaining == 1
            assert fields(await debit(500)) == (True, 100, 0, NOW + 60_000, 0)
            assert fields(await debit(1)) == (False, 100, 0, NOW + 60_000, 60_000)

    run(scenario())


def test_a_slot_is_held_until_it_is_released(name: str) -> None:
    """The third caller of two slots is told which axis was in the way; releasing twice is fine."""

    async def scenario() -> None:
        async with visiting(name) as visit:

            async def admit() -> Any:
                return await visit.stub.Admit(visit.pb.AdmitRequest(policy="slots", key="a"))

            first, second, third = [await admit() for _ in range(3)]
            assert first.decision.allowed
            assert second.decision.allowed
            assert first.lease_id != second.lease_id
            assert first.lease_expires_at == NOW + LEASE_TTL_MS
            assert first.binding_axis == ""
            assert (third.decision.allowed, third.lease_id) == (False, "")
            assert (third.binding_axis, third.policy_denied) == ("concurrency", False)
            for _ in range(2):
                await visit.stub.Release(visit.pb.ReleaseRequest(lease_id=first.lease_id))
            assert (await admit()).decision.allowed
            assert not (await admit()).decision.allowed

    run(scenario())


def test_unified_admission_names_the_axis_that_denied(name: str) -> None:
    """Rate and cost give back the slot that was taken before them."""

    async def scenario() -> None:
        async with visiting(name) as visit:

            async def admit(key: str, **fields: int) -> Any:
                reply = await visit.stub.Admit(
                    visit.pb.AdmitRequest(policy="all", key=key, **fields)
                )
                if reply.lease_id:
                    await visit.stub.Release(visit.pb.ReleaseRequest(lease_id=reply.lease_id))
                return reply

            assert (await admit("a", cost=3)).decision.allowed
            by_rate = await admit("a")
            assert (by_rate.binding_axis, by_rate.policy_denied) == ("rate", False)
            await visit.stub.Debit(visit.pb.DebitRequest(policy="all", key="b", tokens=100))
            by_cost = await admit("b")
            assert (by_cost.binding_axis, by_cost.policy_denied) == ("cost", False)

    run(scenario())


def test_the_terms_of_a_bid_have_no_effect(name: str) -> None:
    """A client that sends hold and value is served as if it had not: whatever they are, one
    admission takes one slot and no tokens."""

    async def scenario() -> None:
        async with visiting(name) as visit:

            async def admit(policy: str, **fields: int) -> Any:
                return await visit.stub.Admit(
                    visit.pb.AdmitRequest(policy=policy, key="a", **fields)
                )

            for terms in ({"hold": 1_000, "value": 2**62}, {"hold": -1, "value": -1}):
                assert (await admit("slots", **terms)).decision.allowed
            assert (await admit("slots", hold=0)).binding_axis == "concurrency"
            assert (await admit("all", value=2**53)).decision.allowed
            debit = visit.pb.DebitRequest(policy="all", key="a", tokens=1)
            assert (await visit.stub.Debit(debit)).decision.remaining == 99

    run(scenario())


def test_a_holder_that_died_loses_its_slot_and_one_that_lives_keeps_it(name: str) -> None:
    """Heartbeat renews, tells what is gone, and says when to come again."""

    async def scenario() -> None:
        async with visiting(name) as visit:
            alive, dead = [
                (await visit.stub.Admit(visit.pb.AdmitRequest(policy="slots", key="a"))).lease_id
                for _ in range(2)
            ]

            async def beat(*ids: str) -> Any:
                return await visit.stub.Heartbeat(visit.pb.HeartbeatRequest(lease_ids=ids))

            visit.clock.advance(LEASE_TTL_MS - 500)
            beaten = await beat(alive)
            assert list(beaten.live_ids) == [alive]
            assert beaten.next_deadline == NOW + 2 * LEASE_TTL_MS - 500
            visit.clock.advance(600)
            both = await beat(alive, dead)
            assert (list(both.live_ids), list(both.reclaimed_ids)) == ([alive], [dead])
            again = await visit.stub.Admit(visit.pb.AdmitRequest(policy="slots", key="a"))
            assert again.decision.allowed
            assert (await beat("never-granted")).next_deadline == 0

    run(scenario())
