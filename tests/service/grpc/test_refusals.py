"""What a call fails with: the right status, a text that helps, and a service that goes on."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import StoreUnavailableError
from penstock.wire.proto.rate_limiter_pb2_grpc import RATE_LIMITER_METHODS
from tests.service.grpc.servers import CALL, CLIENTS, code_of, existing, run, status, visiting
from tests.service.worlds import AWAY, FragileStore

NOT_FOUND = grpc.StatusCode.NOT_FOUND
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE

# What answers a request that parses but makes no sense.
EXPECTED = {grpc.StatusCode.OK, NOT_FOUND, UNIMPLEMENTED, INVALID}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_policy_that_is_not_there_is_not_found(name: str) -> None:
    """By every call that names one, the empty name included."""

    async def scenario() -> None:
        async with visiting(name) as visit:
            for call in ("Check", "CheckMany", "Peek", "Forecast", "Debit", "Admit"):
                for policy in ("nope", ""):
                    request = getattr(visit.pb, f"{call}Request")(policy=policy)
                    code, text = await status(getattr(visit.stub, call)(request))
                    assert code is NOT_FOUND
                    assert repr(policy) in text

    run(scenario())


@pytest.mark.parametrize("name", CLIENTS)
def test_an_operation_of_another_kind_is_unimplemented(name: str) -> None:
    """The text names the operations that the policy has."""
    kinds = {
        "api": ("Debit", "Admit"),
        "llm": ("Check", "CheckMany", "Peek", "Forecast", "Admit"),
        "slots": ("Check", "CheckMany", "Peek", "Forecast", "Debit"),
    }

    async def scenario() -> None:
        async with visiting(name) as visit:
            for policy, calls in kinds.items():
                for call in calls:
                    keys = {"keys": ["a"]} if call == "CheckMany" else {"key": "a"}
                    request = getattr(visit.pb, f"{call}Request")(policy=policy, **keys)
                    code, text = await status(getattr(visit.stub, call)(request))
                    assert code is UNIMPLEMENTED, (policy, call, text)
                    assert f"policy '{policy}' does not support" in text

    run(scenario())


def bad_requests(pb: Any) -> list[tuple[str, Any]]:
    return [
        ("Check", pb.CheckRequest(policy="api", key="a", cost=-1)),
        ("Check", pb.CheckRequest(policy="api", key="a", cost=2**53)),
        ("Check", pb.CheckRequest(policy="api")),
        ("Check", pb.CheckRequest(policy="api", key="a" * 4_097)),
        ("Check", pb.CheckRequest(policy="api", key="é" * 2_049)),
        ("CheckMany", pb.CheckManyRequest(policy="api", keys=["a"] * 1_001)),
        ("CheckMany", pb.CheckManyRequest(policy="api", keys=["a", ""])),
        ("CheckMany", pb.CheckManyRequest(policy="api", keys=["a"], cost=-5)),
        ("Peek", pb.PeekRequest(policy="api")),
        ("Forecast", pb.ForecastRequest(policy="api", key="a", cost=-1)),
        ("Debit", pb.DebitRequest(policy="llm", key="a", tokens=-1)),
        ("Debit", pb.DebitRequest(policy="llm")),
        ("Admit", pb.AdmitRequest(policy="all", key="a", cost=-1)),
        ("Admit", pb.AdmitRequest(policy="slots")),
        ("Release", pb.ReleaseRequest(lease_id="x" * 5_000)),
        ("Heartbeat", pb.HeartbeatRequest(lease_ids=["x"] * 1_001)),
    ]


def test_input_that_could_never_be_right_is_an_invalid_argument() -> None:
    """And spends nothing: the whole limit is still there afterwards."""

    async def scenario() -> None:
        async with visiting("existing") as visit:
            for call, request in bad_requests(visit.pb):
                code, text = await status(getattr(visit.stub, call)(request))
                assert code is INVALID, (call, text)
                assert text
                if call == "Debit" and request.tokens:
                    assert text.startswith("tokens must be")
            assert (await visit.check()).remaining == 2
            largest = visit.pb.CheckManyRequest(policy="api", keys=["k" * 4_096] * 1_000)
            assert len((await visit.stub.CheckMany(largest)).decisions) == 1_000

    run(scenario())


def test_a_method_that_does_not_exist_is_unimplemented() -> None:
    """The library's own answer."""

    async def scenario() -> None:
        async with visiting() as visit:
            assert (await status(visit.raw("Nope")(b"")))[0] is UNIMPLEMENTED

    run(scenario())


@pytest.mark.parametrize(("fail", "answer"), [("api", True), ("strict", False), ("honest", None)])
def test_an_outage_is_answered_by_the_policys_fail_mode(fail: str, answer: bool | None) -> None:
    """Open allows, closed denies, and only error says UNAVAILABLE."""

    async def scenario() -> None:
        store = FragileStore()
        async with visiting(store=store) as visit:
            store.error = AWAY
            if answer is None:
                assert (await status(visit.check(fail)))[0] is UNAVAILABLE
            else:
                assert (await visit.check(fail)).allowed is answer
            store.error = None
            assert (await visit.check(fail)).remaining == 2

    run(scenario())


@pytest.mark.parametrize("reason", ["away", "full"])
def test_an_outage_tells_its_reason_beside_its_status(reason: Any) -> None:
    """In the trailing metadata, for programs."""

    async def scenario() -> None:
        store = FragileStore()
        async with visiting(store=store) as visit:
            store.error = StoreUnavailableError("no", reason=reason)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await visit.check("honest")
            assert failed.value.code() is UNAVAILABLE
            assert dict(failed.value.trailing_metadata() or ())["reason"] == reason

    run(scenario())


def test_a_fault_of_ours_is_internal_and_keeps_its_text_to_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The caller learns that it failed; the log learns why."""

    async def scenario() -> None:
        async with visiting() as visit:

            async def broken(policy: str, key: str) -> None:
                raise RuntimeError("secret detail")

            visit.service.peek = broken  # type: ignore[method-assign,assignment]
            request = visit.pb.PeekRequest(policy="api", key="a")
            code, text = await status(visit.stub.Peek(request))
            assert code is grpc.StatusCode.INTERNAL
            assert "secret" not in text

    with caplog.at_level(logging.ERROR, "penstock.service.grpc"):
        run(scenario())
    assert "secret detail" in caplog.text


def mangled(rng: random.Random) -> bytes:
    """Random bytes, or a good request with some of them changed, cut or repeated."""
    if rng.random() < 0.4:
        return rng.randbytes(rng.randrange(40))
    _, request = rng.choice(bad_requests(existing()[0])[:3])
    raw = bytearray(request.SerializeToString())
    for _ in range(rng.randint(1, 4)):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw[: rng.randrange(len(raw) + 1)] * rng.randint(1, 2))


def test_random_bytes_get_a_fitting_status_and_harm_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Thousands that are no messages, or strange ones: never UNKNOWN, never a traceback."""
    rng = random.Random(5)

    async def scenario() -> None:
        async with visiting() as visit:
            seen: set[grpc.StatusCode] = set()
            for call in RATE_LIMITER_METHODS:
                knocks = [code_of(visit.raw(call)(mangled(rng))) for _ in range(250)]
                seen.update(await asyncio.gather(*knocks))
            assert seen <= EXPECTED
            assert INVALID in seen
            assert (await visit.check(key="untouched")).remaining == 2

    run(scenario())
    assert caplog.records == []


@settings(max_examples=60)
@given(
    st.sampled_from(["api", "llm", "slots", "all", "", "nope"]),
    st.text(max_size=30),
    st.integers(-(2**63), 2**63 - 1),
)
def test_any_field_values_get_a_fitting_status(policy: str, key: str, number: int) -> None:
    """Whatever a message can carry, over one connection per example."""

    async def scenario() -> None:
        async with visiting() as visit:
            pb = visit.pb
            requests = [
                ("Check", pb.CheckRequest(policy=policy, key=key, cost=number)),
                ("CheckMany", pb.CheckManyRequest(policy=policy, keys=[key, "b"], cost=number)),
                ("Forecast", pb.ForecastRequest(policy=policy, key=key, cost=number)),
                ("Debit", pb.DebitRequest(policy=policy, key=key, tokens=number)),
                ("Admit", pb.AdmitRequest(policy=policy, key=key, cost=number, hold=number)),
                ("Heartbeat", pb.HeartbeatRequest(lease_ids=[key])),
            ]
            for call, request in requests:
                assert await code_of(getattr(visit.stub, call)(request)) in EXPECTED, call

    run(scenario())


def test_half_a_call_does_not_stay() -> None:
    """One without a message is refused at once, one whose message never comes after a while."""

    async def scenario() -> None:
        async with visiting(server={"arrival_s": 0.2}) as visit:
            stream = visit.channel.stream_unary(CALL + "Check")
            code, text = await status(stream(iter([])))
            assert code is INVALID
            assert "without a message" in text
            open_ended = stream()
            code, text = await status(asyncio.wait_for(open_ended, 5))
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "no message within" in text
            assert (await visit.check()).allowed

    run(scenario())
