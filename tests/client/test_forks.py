"""Processes that fork while they have connections to a service."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import pytest

from penstock import RateLimitExceededError, UnsupportedError
from penstock.client import ServiceLimiter
from tests.client.serving import TOKEN, still


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_of_a_process_that_awaits_calls_over_grpc_goes_on() -> None:
    """It has the channel of its parent, but not the thread that serves it."""

    async def ask_and_fork() -> int:
        limiter = ServiceLimiter("grpc://127.0.0.1:1", "api", fail="open", timeout_ms=200)
        assert await limiter.acheck("k")
        child = os.fork()
        if child == 0:
            os._exit(7)
        status = _status_of(child)
        await limiter.aclose()
        return status

    assert os.waitstatus_to_exitcode(asyncio.run(ask_and_fork())) == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_cannot_use_the_charge_and_the_slot_of_its_parent_at_a_service() -> None:
    """Over HTTP: a child of gRPC's library must not call it."""
    with still() as service:
        url = service.url("http")
        options: dict[str, Any] = {"token": TOKEN, "timeout_ms": 10_000}
        with (
            ServiceLimiter(url, "paired", **options) as limiter,
            ServiceLimiter(url, "flight", **options) as flight,
        ):
            charge = limiter.reserve({"key": "k"}, 4)
            with flight.admit("k") as slot:
                child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        for use in (charge.cancel, lambda: charge.settle(1), charge.renew):
                            with pytest.raises(UnsupportedError, match="that forked this one"):
                                use()
                        slot.__exit__(None, None, None)
                        code = 0
                    finally:
                        os._exit(code)
                assert os.waitstatus_to_exitcode(_status_of(child)) == 0
                with pytest.raises(RateLimitExceededError), flight.admit("k"):
                    pytest.fail("the slot of the parent is still held")
            assert limiter.peek({"key": "k"}).remaining == 6
            assert charge.cancel()
            assert limiter.peek({"key": "k"}).remaining == 10


def _status_of(child: int) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]
