"""What a service answers when its own requests queue, or ask for too much at once."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from penstock import OverloadedError, StoreUnavailableError
from penstock.config import parse_policies
from penstock.core._errors import TooLargeError
from penstock.service import build_service
from penstock.service.grpc._calls import MAX_FIELDS, _parse
from penstock.service.grpc._open_calls import grpc_error
from penstock.service.grpc._protocol import Status
from penstock.service.http._answers import ProblemError, problem_of
from penstock.service.http._head import MAX_VALUES, decode
from penstock.wire.proto import rate_limiter_pb2 as pb
from tests.servers import Valkey, require
from tests.service.worlds import FragileStore, service_on

FILE = """
version: 1
limiters:
  api: {strategy: slidingWindow, limit: 3, window: 1d}
  log: {strategy: slidingWindowLog, limit: 5000, window: 1d}
"""


@pytest.mark.parametrize("batches", [8, 16, 40])
def test_an_exhausted_key_is_never_admitted_by_parallel_batches(batches: int) -> None:
    """Fail open, the default deadline, and more than the store answers within it."""
    require("valkey")
    with Valkey() as server:

        async def main() -> list[Any]:
            service = build_service(parse_policies(FILE, "f"), server.url, fail="open")
            for policy, cost in (("api", 3), ("log", 5_000)):
                assert await service.check(policy, "spent", cost)
            keys = [f"key {number}" for number in range(999)]
            calls = [service.check_many("api", ["spent", *keys]) for _ in range(batches)]
            heavy = [service.check("log", f"{number}", 5_000) for number in range(batches)]
            probes = [service.check("log", "spent") for _ in range(batches)]
            found = await asyncio.gather(*calls, *heavy, *probes, return_exceptions=True)
            assert service.metrics.tally("api").failed_open == 0
            assert service.metrics.tally("log").failed_open == 0
            await service.aclose()
            return [*found[:batches], *found[-batches:]]

        answers = asyncio.run(main())
    for answer in answers:
        if isinstance(answer, Exception):
            assert type(answer) is OverloadedError
        else:
            assert not (answer[0] if isinstance(answer, list) else answer)


@pytest.mark.parametrize("error", [OverloadedError("queued"), TooLargeError("too many")])
def test_overload_and_oversize_are_raised_in_every_fail_mode(error: Exception) -> None:
    store = FragileStore()
    service, _ = service_on(store)
    store.error = error

    async def main() -> None:
        for policy in ("api", "strict", "honest"):
            for call in (
                service.check(policy, "k"),
                service.check_many(policy, ["k"]),
                service.peek(policy, "k"),
                service.forecast(policy, "k"),
            ):
                with pytest.raises(type(error)):
                    await call
            tally = service.metrics.tally(policy)
            assert (tally.failed_open, tally.failed_closed, tally.failed_error) == (0, 0, 0)

    asyncio.run(main())


def test_decisions_of_the_fail_mode_are_counted_per_key() -> None:
    store = FragileStore()
    service, _ = service_on(store)
    store.error = StoreUnavailableError("away")

    async def main() -> None:
        await service.check_many("api", ["a", "b", "c"])
        await service.check_many("strict", ["a", "b"])
        with pytest.raises(StoreUnavailableError):
            await service.check_many("honest", ["a", "b", "c", "d"])

    asyncio.run(main())
    assert service.metrics.tally("api").failed_open == 3
    assert service.metrics.tally("strict").failed_closed == 2
    assert service.metrics.tally("honest").failed_error == 4


def test_overload_is_503_over_http_and_resource_exhausted_over_grpc() -> None:
    problem = problem_of(OverloadedError("no reply from 10.0.0.1:6379 in time"))
    assert (problem.status, problem.code) == (503, "overloaded")
    assert problem.headers == ("Retry-After: 1",)
    assert "10.0.0.1" not in json.loads(problem.body())["detail"]
    assert grpc_error(OverloadedError("queued")).status is Status.RESOURCE_EXHAUSTED


def test_a_call_that_asks_for_too_much_is_413_over_http_and_names_the_bound() -> None:
    service, _ = service_on()
    with pytest.raises(TooLargeError, match="at most 1000 keys, not 1001; split it") as caught:
        asyncio.run(service.check_many("api", ["k"] * 1_001))
    problem = problem_of(caught.value)
    assert (problem.status, problem.code) == (413, "too_much_at_once")
    assert grpc_error(caught.value).status is Status.INVALID_ARGUMENT


LONG = 5 * 2**20


@pytest.mark.parametrize("unit", [b"{},", b'{"a":1},', b"1,", b"[],", b'"",', b"[", b'{"a":'])
def test_a_body_of_many_small_values_is_rejected_before_it_is_parsed(unit: bytes) -> None:
    """To parse it would take more than a second."""
    body = b'{"policy":"api","keys":[' + unit * (LONG // len(unit))
    began = time.monotonic()
    with pytest.raises(ProblemError, match=f"more than {MAX_VALUES} commas and opening") as caught:
        decode(body)
    assert time.monotonic() - began < 0.5
    assert caught.value.problem.status == 413


def test_a_batch_of_the_longest_keys_and_attributes_is_parsed() -> None:
    keys = ["\u4e2d" * 340 for _ in range(1_000)]
    assert len(decode(json.dumps({"policy": "p", "keys": keys}).encode())["keys"]) == 1_000
    each = [{f"attribute {n}": "value" for n in range(15)} for _ in range(1_000)]
    assert (
        len(decode(json.dumps({"policy": "p", "attributes": each}).encode())["attributes"]) == 1_000
    )


@pytest.mark.parametrize(
    "unit", [b"\x12\x00", b"\x12\x01a", b"\x82\x01\x00", b"\x82\x01\x02\x0a\x00", b"\x18\x01"]
)
def test_a_message_of_many_small_fields_is_rejected_before_it_is_parsed(unit: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(TooLargeError, match=f"at most {MAX_FIELDS} fields"):
        _parse(pb.CheckManyRequest.FromString, unit * (LONG // len(unit)))
    assert time.monotonic() - began < 0.5


def test_a_message_of_a_thousand_of_the_longest_keys_is_parsed() -> None:
    request = pb.CheckManyRequest(policy="api", keys=["k" * 4_096] * 1_000)
    assert _parse(pb.CheckManyRequest.FromString, request.SerializeToString()) == request
    for _ in range(1_000):
        attributes = request.requests.add().attributes
        for number in range(15):
            attributes.add(name=f"attribute {number}", text="value")
    assert _parse(pb.CheckManyRequest.FromString, request.SerializeToString()) == request
