"""Several limits, charges, pauses and resets over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from penstock import ManualClock
from penstock.config import parse_policies
from penstock.service import build_service
from penstock.service.grpc import open_grpc
from penstock.wire.proto import rate_limiter_pb2 as pb
from penstock.wire.proto.rate_limiter_pb2_grpc import ChargesAsyncStub, RateLimiterAsyncStub
from tests.service.several import FILE
from tests.support.helpers import NOW

TOKEN = "a-token-of-operators"
BEARER = (("authorization", f"Bearer {TOKEN}"),)


class Stubs:
    """Both services, asked with the token."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.limiter: Any = RateLimiterAsyncStub(channel)
        self.charges: Any = ChargesAsyncStub(channel)

    async def check(self, policy: str = "api", cost: int = 0, **told: Any) -> pb.CheckResponse:
        request = pb.CheckRequest(policy=policy, cost=cost, attributes=attributes(**told))
        answer: pb.CheckResponse = await self.limiter.Check(request, metadata=BEARER)
        return answer

    async def call(self, name: str, request: Any) -> Any:
        return await getattr(self.charges, name)(request, metadata=BEARER)


def attributes(**told: Any) -> list[pb.Attribute]:
    return [
        pb.Attribute(name=name, text=value)
        if isinstance(value, str)
        else pb.Attribute(name=name, number=value)
        for name, value in told.items()
    ]


@asynccontextmanager
async def serving(token: str | None = TOKEN) -> AsyncIterator[Stubs]:
    service = build_service(parse_policies(FILE, "test"), clock=ManualClock(NOW))
    await service.start()
    server = await open_grpc(service, port=0, token=token)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield Stubs(channel)
    await server.drain(5)
    await service.aclose()


def run(scenario: Callable[[Stubs], Awaitable[None]], token: str | None = TOKEN) -> None:
    async def main() -> None:
        async with serving(token) as stubs:
            await scenario(stubs)

    asyncio.run(main())


def test_a_check_by_attributes_carries_the_verdict() -> None:
    """In fields that older clients do not look at."""

    async def scenario(stubs: Stubs) -> None:
        for _ in range(3):
            answer = await stubs.check(user="bob", tenant="acme")
        assert answer.decision.allowed
        assert answer.binding == "user"
        told = {each.name: (each.decision.remaining, each.shadow) for each in answer.limits}
        assert told == {"user": (0, False), "tenant": (2, False), "all": (97, True)}
        denied = await stubs.check(user="bob", tenant="acme")
        assert not denied.decision.allowed
        assert list(denied.violated) == ["user"]
        assert (await stubs.check(user="bob", plan="pro")).decision.remaining == 6

    run(scenario)


def test_many_requests_are_one_call() -> None:
    """One verdict each, in order, and no decisions beside them; a request that is wrong charges
    none of them."""

    async def scenario(stubs: Stubs) -> None:
        async def many(*each: dict[str, Any], **more: Any) -> Any:
            told = [pb.RequestAttributes(attributes=attributes(**one)) for one in each]
            request = pb.CheckManyRequest(policy="api", requests=told, **more)
            return await stubs.limiter.CheckMany(request, metadata=BEARER)

        bob = {"user": "bob"}
        answer = await many(bob, {**bob, "tokens": 7}, bob, bob)
        assert [each.decision.allowed for each in answer.verdicts] == [True, True, True, False]
        assert {each.name: each.decision.remaining for each in answer.verdicts[1].limits} == {
            "user": 1,
            "tokens": 993,
            "all": 98,
        }
        assert list(answer.verdicts[3].violated) == ["user"]
        assert list(answer.decisions) == []
        ann = {"user": "ann"}
        for wrong in (many(ann, {}), many(ann, keys=["k"]), many(*[ann] * 1_001)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await wrong
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        costs = [pb.LimitUnits(limit="user", units=2)]
        answer = await many(ann, ann, costs=costs)
        assert [each.decision.allowed for each in answer.verdicts] == [True, False]

    run(scenario)


def test_costs_are_told_by_limit() -> None:
    """In fields of their own; what is wrong with them charges nothing."""

    async def scenario(stubs: Stubs) -> None:
        told = attributes(user="u")

        def by_limit(**units: int) -> list[pb.LimitUnits]:
            return [pb.LimitUnits(limit=name, units=each) for name, each in units.items()]

        for wrong in (by_limit(colour=1), by_limit(tenant=1), by_limit(user=-1)):
            for request in (
                stubs.limiter.Check(pb.CheckRequest(policy="api", attributes=told, costs=wrong)),
                stubs.charges.Reserve(pb.ChargeRequest(policy="api", attributes=told, costs=wrong)),
                stubs.limiter.Check(pb.CheckRequest(policy="one", key="k", costs=wrong)),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await request
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        asked = pb.CheckRequest(policy="api", attributes=told, costs=by_limit(tokens=300))
        answer = await stubs.limiter.Check(asked)
        assert {each.name: each.decision.remaining for each in answer.limits} == {
            "user": 2,
            "tokens": 700,
            "all": 99,
        }

    run(scenario, token=None)


def test_peek_and_forecast_take_attributes() -> None:
    async def scenario(stubs: Stubs) -> None:
        await stubs.check(user="u")
        told = attributes(user="u")
        peek = pb.PeekRequest(policy="api", attributes=told)
        answer = await stubs.limiter.Peek(peek, metadata=BEARER)
        assert answer.decision.remaining == 2
        forecast = pb.ForecastRequest(policy="api", attributes=told)
        answer = await stubs.limiter.Forecast(forecast, metadata=BEARER)
        assert answer.forecast.spendable_now == 2

    run(scenario)


def test_what_was_reserved_is_settled_once() -> None:
    """By limit; slots are renewed and given back."""

    async def scenario(stubs: Stubs) -> None:
        told = attributes(user="u", tokens=900)
        charge = await stubs.call("Reserve", pb.ChargeRequest(policy="api", attributes=told))
        assert charge.starts_at == NOW
        used = [pb.LimitUnits(limit="tokens", units=100)]
        settle = pb.SettleRequest(charge_id=charge.charge_id, by_limit=used)
        assert (await stubs.call("Settle", settle)).settled
        assert not (await stubs.call("Settle", settle)).settled
        left = await stubs.check(user="u", tokens=0)
        assert {each.name: each.decision.remaining for each in left.limits}["tokens"] == 900
        slot = await stubs.call("Reserve", pb.ChargeRequest(policy="key", key="k"))
        assert (await stubs.call("Renew", pb.RenewRequest(charge_id=slot.charge_id))).held
        denied = await stubs.call("Reserve", pb.ChargeRequest(policy="key", key="k"))
        assert list(denied.violated) == ["flight"]
        assert (await stubs.call("Cancel", pb.CancelRequest(charge_id=slot.charge_id))).cancelled
        one = await stubs.call("Reserve", pb.ChargeRequest(policy="one", key="k", cost=2))
        settle = pb.SettleRequest(charge_id=one.charge_id, actual=1)
        assert (await stubs.call("Settle", settle)).settled

    run(scenario)


def test_pause_and_reset_are_obeyed() -> None:
    async def scenario(stubs: Stubs) -> None:
        told = attributes(user="u")
        until = pb.PauseRequest(policy="api", attributes=told, until_ms=NOW + 30_000)
        await stubs.call("Pause", until)
        assert list((await stubs.check(user="u")).violated) == ["user"]
        await stubs.call("Reset", pb.ResetRequest(policy="api", attributes=told))
        assert (await stubs.check(user="u")).decision.allowed

    run(scenario)


@pytest.mark.parametrize("call", ["Pause", "Reset"])
def test_operators_need_a_token(call: str) -> None:
    """Also where everything else may be asked without one."""
    request = {"Pause": pb.PauseRequest, "Reset": pb.ResetRequest}[call](policy="one", key="k")

    async def scenario(stubs: Stubs) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stubs.call(call, request)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "--token-file" in str(caught.value.details())
        assert (await stubs.check(user="u")).decision.allowed

    run(scenario, token=None)


def test_limits_for_everybody_are_asked_with_nothing() -> None:
    """By each of the calls: there is no attribute to send."""

    async def scenario(stubs: Stubs) -> None:
        assert (await stubs.check("everybody")).binding == "all"
        peek = pb.PeekRequest(policy="everybody")
        assert (await stubs.limiter.Peek(peek, metadata=BEARER)).decision.remaining == 4
        forecast = pb.ForecastRequest(policy="everybody")
        told = await stubs.limiter.Forecast(forecast, metadata=BEARER)
        assert told.forecast.spendable_now == 4
        assert (await stubs.call("Reserve", pb.ChargeRequest(policy="everybody"))).charge_id
        for wrong in (pb.CheckRequest(policy="everybody", key="k"), pb.CheckRequest(policy="api")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stubs.limiter.Check(wrong, metadata=BEARER)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            told = str(caught.value.details())
            assert "asked without a key" in told or "'user' is missing" in told

    run(scenario)


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({}, "the attribute 'user' is missing"),
        ({"user": ""}, "the attribute 'user' is empty"),
        ({"user": 5}, "the attribute 'user': key must be a string, not 5"),
        ({"user": "x" * 4_097}, "the attribute 'user': key must be at most 4096 bytes"),
        ({"user": "u", "colour": "red"}, "policy 'api' has no attribute 'colour'; it has"),
        ({"user": "u", "plan": "gold"}, "has no plan 'gold' for the attribute 'plan'; it has pro"),
        ({"user": "u", "plan": ""}, "has no plan of an empty name, or 0, for the attribute"),
        ({"user": "u", "tokens": "many"}, "the attribute 'tokens' must be an integer"),
        ({"user": "u", "tokens": -1}, "the attribute 'tokens' must be an integer"),
    ],
)
def test_an_attribute_that_is_wrong_is_named_and_charges_nothing(
    told: dict[str, Any], problem: str
) -> None:
    """Whichever call it comes with."""

    async def scenario(stubs: Stubs) -> None:
        wrong = attributes(**told)
        for call in (
            stubs.check(**told),
            stubs.limiter.Peek(pb.PeekRequest(policy="api", attributes=wrong), metadata=BEARER),
            stubs.call("Reserve", pb.ChargeRequest(policy="api", attributes=wrong)),
            stubs.limiter.CheckMany(
                pb.CheckManyRequest(
                    policy="api",
                    requests=[
                        pb.RequestAttributes(attributes=attributes(user="u")),
                        pb.RequestAttributes(attributes=wrong),
                    ],
                ),
                metadata=BEARER,
            ),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert problem in str(caught.value.details())
        left = await stubs.check(user="u")
        assert {each.name: each.decision.remaining for each in left.limits} == {
            "user": 2,
            "all": 99,
        }

    run(scenario)


def test_what_is_wrong_is_an_invalid_argument() -> None:
    async def scenario(stubs: Stubs) -> None:
        for call in (
            stubs.check(tenant="t"),
            stubs.check(user="u", plan="gold"),
            stubs.check("one", user="u"),
            stubs.call("Cancel", pb.CancelRequest(charge_id="x")),
            stubs.call("Settle", pb.SettleRequest(charge_id="", actual=-1)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(scenario)
