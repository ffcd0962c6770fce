"""Places in flight behind a real service, kept by heartbeats while a block runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import ConfigInvalidError, ManualClock, RateLimitExceededError
from penstock.client import ServiceLimiter
from tests.client.serving import TOKEN, TRANSPORTS, RunningService, still
from tests.support.helpers import NOW


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    """Its clock stands still: no slot runs out because the machine is busy."""
    with still() as running:
        yield running


@pytest.fixture(params=TRANSPORTS)
def open_policy(
    request: pytest.FixtureRequest, service: RunningService
) -> Callable[..., ServiceLimiter]:
    """A limiter of a policy, by its name."""

    def make(policy: str, **options: Any) -> ServiceLimiter:
        url = service.url(request.param)
        return ServiceLimiter(url, policy, token=TOKEN, timeout_ms=10_000, **options)

    return make


def test_a_slot_is_held_in_the_block_and_given_back_after_it(
    open_policy: Callable[..., ServiceLimiter],
) -> None:
    with open_policy("flight") as limiter:
        with limiter.admit("k") as slot:
            assert slot.id
            assert slot.decision is not None
            assert slot.decision.allowed
            with pytest.raises(RateLimitExceededError, match="concurrency"), limiter.admit("k"):
                pytest.fail("there is no second slot")
        with pytest.raises(RuntimeError), limiter.admit("k"):
            raise RuntimeError("the slot comes back all the same")
        with limiter.admit("k") as slot:
            pass
        with pytest.raises(ConfigInvalidError, match="only once"), slot:
            pytest.fail("a slot is used once")


def test_a_slot_is_held_by_tasks_too(open_policy: Callable[..., ServiceLimiter]) -> None:
    async def main() -> None:
        async with open_policy("flight") as limiter:
            async with limiter.admit("k"):
                with pytest.raises(RateLimitExceededError):
                    async with limiter.admit("k"):
                        pytest.fail("there is no second slot")
            async with limiter.admit("k") as slot:
                assert slot.id

    asyncio.run(main())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_heartbeats_keep_a_slot_beyond_its_term(transport: str) -> None:
    """Two terms of two seconds by the service's clock, by a thread and by a task."""
    deadline = time.monotonic() + 60

    def is_renewed(service: RunningService, denied: RateLimitExceededError) -> bool:
        assert time.monotonic() < deadline, "the slot was not renewed"
        assert service.clock is not None
        return denied.decision.reset_at == service.clock.now() + 2_000

    def hold(service: RunningService, limiter: ServiceLimiter) -> None:
        assert service.clock is not None
        with limiter, limiter.admit("k") as slot:
            for _ in range(3):
                service.clock.advance(1_500)
                while not is_renewed(service, _denied(limiter)):
                    time.sleep(0.01)
            assert not slot.is_lost

    async def ahold(service: RunningService, limiter: ServiceLimiter) -> None:
        assert service.clock is not None
        async with limiter, limiter.admit("k") as slot:
            for _ in range(3):
                service.clock.advance(1_500)
                while not is_renewed(service, await asyncio.to_thread(_denied, limiter)):
                    await asyncio.sleep(0.01)
            assert not slot.is_lost
            limiter.close()

    with still() as service:
        options: dict[str, Any] = {"token": TOKEN, "timeout_ms": 10_000, "heartbeat_ms": 100}
        hold(service, ServiceLimiter(service.url(transport), "flight", **options))
        asyncio.run(ahold(service, ServiceLimiter(service.url(transport), "flight", **options)))


def _denied(limiter: ServiceLimiter) -> RateLimitExceededError:
    with pytest.raises(RateLimitExceededError) as caught, limiter.admit("k"):
        pytest.fail("the slot was lost")
    return caught.value


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_slot_that_was_reclaimed_is_known_as_lost(transport: str) -> None:
    """A service whose clock leapt has given it away."""
    with still() as service:
        assert service.clock is not None
        url = service.url(transport)
        options: dict[str, Any] = {"token": TOKEN, "timeout_ms": 10_000, "heartbeat_ms": 100}
        with ServiceLimiter(url, "flight", **options) as limiter, limiter.admit("k") as slot:
            service.clock.advance(60_000)
            deadline = time.monotonic() + 30
            while not slot.is_lost:
                assert time.monotonic() < deadline
                time.sleep(0.01)


def test_an_outage_is_answered_by_the_fail_mode() -> None:
    """Nothing is held then, and nothing is given back."""
    with still() as service:
        url = service.url("http")
    with ServiceLimiter(url, "flight") as limiter, limiter.admit("k") as slot:
        assert (slot.id, slot.is_lost) == ("", False)
    with (
        ServiceLimiter(url, "flight", fail="closed") as limiter,
        pytest.raises(RateLimitExceededError),
        limiter.admit("k"),
    ):
        pytest.fail("the fail mode is closed")


def test_a_service_that_is_gone_at_the_end_of_a_block_breaks_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The work is done; the slot runs out by itself."""
    with still() as service:
        slot = ServiceLimiter(service.url("http"), "flight", token=TOKEN, timeout_ms=2_000)
        held = slot.admit("k")
        held.__enter__()
    held.__exit__(None, None, None)
    slot.close()
    assert "could not be given back" in caplog.text


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_refusal_has_a_long_wait_in_days(transport: str) -> None:
    policies = """
version: 1
limiters:
  monthly:
    concurrency: {minLimit: 9, maxLimit: 9}
    strategy: fixedWindow
    limit: 1
    window: 30d
"""
    with (
        RunningService(ManualClock(NOW), policies=policies) as service,
        ServiceLimiter(service.url(transport), "monthly", token=TOKEN) as limiter,
    ):
        with limiter.admit("k"):
            pass
        with pytest.raises(RateLimitExceededError, match=r"retry after \d+ days$"):
            limiter.admit("k").__enter__()
