"""What `acheck` returns: a decision once it is awaited."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from penstock import ManualClock, fixed_window, gcra
from tests.support.helpers import NOW, both_paths, make_limiter, run


@both_paths
def test_an_awaitable_check_decides_when_it_is_awaited(path: str) -> None:
    """Once; not when it is made, and not a second time."""

    async def use() -> None:
        clock = ManualClock(NOW)
        limiter = make_limiter(path, fixed_window(1, 1_000), clock)
        pending = limiter.acheck("k")
        assert limiter.peek("k").allowed
        clock.advance(5_000)
        assert (await pending).reset_at == NOW + 6_000
        with pytest.raises(RuntimeError, match="already awaited"):
            await pending

    run(use())


@both_paths
def test_awaitable_checks_work_with_asyncio_tools(path: str) -> None:
    """gather, create_task, wait_for and shield take them like any coroutine."""

    async def use() -> None:
        limiter = make_limiter(path, fixed_window(4, 1_000), ManualClock(NOW))
        decisions = await asyncio.gather(*(limiter.acheck("k") for _ in range(3)))
        assert [d.remaining for d in decisions] == [3, 2, 1]
        task = asyncio.ensure_future(limiter.acheck("k"))
        assert (await asyncio.wait_for(task, 5)).remaining == 0
        assert not (await asyncio.wait_for(asyncio.shield(limiter.acheck("k")), 5)).allowed
        with pytest.raises(ValueError, match="cost must be"):
            await asyncio.gather(limiter.acheck("k", 0))

    run(use())


@both_paths
def test_a_check_that_is_never_awaited_says_so(path: str) -> None:
    """On both paths: it was never made, and `if limiter.acheck(...)` would always be true."""
    limiter = make_limiter(path, gcra(5, 1_000), ManualClock(NOW))
    with pytest.warns(RuntimeWarning, match="never awaited"):
        limiter.acheck("k")
    assert limiter.peek("k").remaining == 5


@both_paths
def test_a_check_that_is_closed_unawaited_is_silent(path: str) -> None:
    """As any coroutine's end."""
    limiter = make_limiter(path, gcra(5, 1_000), ManualClock(NOW))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limiter.acheck("k").close()
        gc.collect()
