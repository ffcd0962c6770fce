"""Processes that fork while they have connections to a service."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from penstock.client import ServiceLimiter


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


def _status_of(child: int) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]
