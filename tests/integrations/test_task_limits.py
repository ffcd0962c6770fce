"""Limits of tasks without workers: waits, bookings and outages, and mistakes in declarations."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    ManualClock,
    StoreUnavailableError,
    fixed_window,
    rate_limit,
)
from penstock.client import ServiceLimiter
from penstock.integrations._tasks import TaskLimit
from tests.client.serving import TOKEN, RunningService
from tests.support.helpers import NOW, run


def test_a_task_called_like_a_function_waits_where_it_is() -> None:
    """There is no queue to put it back into."""
    pytest.importorskip("celery")
    from celery import Celery

    from penstock.integrations.celery import limited_task

    app = Celery("here")
    limiter = rate_limit("50/second")

    @app.task
    @limited_task(limiter, key="{name}", cost=50)
    def work(name: str) -> str:
        return name

    began = time.monotonic()
    assert [work("a"), work("a"), work.apply(("a",)).get()] == ["a"] * 3
    assert time.monotonic() - began >= 1.9
    with pytest.raises(TypeError):
        work.apply_async(("a", "b", "c"))


def body(ctx: Any, tenant: str) -> None: ...


async def abody(ctx: Any, tenant: str) -> None: ...


async def key_of(ctx: Any, tenant: str) -> str:
    return tenant


def test_what_is_too_far_ahead_is_not_booked() -> None:
    """It is asked again by then, and others are not kept waiting for it."""
    clock = ManualClock(NOW)
    limiter = rate_limit("1/minute", clock=clock)
    limit = TaskLimit(
        body,
        limiter,
        key="{tenant}",
        cost=1,
        max_wait=90,
        store=None,
        prefix=None,
        early_ms=0,
    )
    assert limit.enter((None, "a"), {}, None) is None
    booked: Any = limit.enter((None, "a"), {}, None)
    assert booked.delay_ms == 60_000
    assert booked.starts_at is not None
    assert limit.enter((None, "a"), {}, None) == (90_000, None, 0)
    assert limiter.reserve("a", max_wait_ms=200_000).starts_at == NOW + 120_000


def test_a_task_is_put_back_while_the_store_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """It is neither lost nor run, and asks again; called like a function, it fails."""
    limit = TaskLimit(
        abody,
        "1/minute",
        key="{tenant}",
        cost=1,
        max_wait=90,
        store="redis://127.0.0.1:1?timeout_ms=1000",
        prefix="away",
        early_ms=0,
    )
    asked = (None, "a"), {}, None
    assert limit.begin(*asked) == run(limit.abegin(*asked)) == (5_000, None, 0)
    assert caplog.text.count("a task waits until its limit can be looked up") == 2
    with pytest.raises(StoreUnavailableError):
        limit.wait(*asked[:2])


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_policy_is_found_out_to_have_no_pace_or_to_have_slots(way: str) -> None:
    """Windows are asked again when there is more. Slots are held while a task runs, and not while
    it is in a queue, whatever has a pace beside them. Who is let in by a service that is away runs,
    and one that must not is put back."""
    policies = """\
version: 1
limiters:
  window: {strategy: fixedWindow, limit: 1, window: 1m}
  both:
    limits:
      flight: {by: key, strategy: slots, limit: 1, ttl: 10s}
      pace: {by: key, strategy: gcra, limit: 1, period: 1s}
"""

    def limit_of(policy: str, **options: Any) -> TaskLimit:
        limiter = ServiceLimiter(url, policy, token=TOKEN, timeout_ms=10_000, **options)
        closing.callback(limiter.close)
        settings: Any = {"key": "{tenant}", "cost": 1, "max_wait": 90, "early_ms": 0}
        return TaskLimit(abody, limiter, store=None, prefix=None, **settings)

    async def begun(limit: TaskLimit) -> Any:
        asked = (None, "a"), {}, None
        return limit.begin(*asked) if way == "sync" else await limit.abegin(*asked)

    async def left(limit: TaskLimit, charge: Any) -> None:
        await limit.aleave(charge) if way == "async" else limit.leave(charge)

    async def main(running: RunningService) -> None:
        assert running.clock is not None
        window, both, other = limit_of("window"), limit_of("both"), limit_of("both")
        assert await begun(window) is None
        denied = await begun(window)
        assert (0 < denied.delay_ms <= 60_000, denied.starts_at) == (True, None)
        held = await begun(both)
        assert held.is_open
        assert (await begun(both)).starts_at is None
        await left(both, held)
        # The pace could be booked, and is not: the slot would be taken, by nobody.
        waits = await begun(other)
        assert (0 < waits.delay_ms <= 1_000, waits.starts_at) == (True, None)
        running.clock.advance(1_000)
        again = await begun(both)
        assert again.is_open
        await left(both, again)
        for limit in (window, both, other):
            await limit._limiter.aclose()

    with ExitStack() as closing:
        with RunningService(ManualClock(NOW), policies=policies) as running:
            url = running.url("http")
            run(main(running))
        assert run(begun(limit_of("window"))) is None
        assert run(begun(limit_of("window", fail="error"))) == (5_000, None, 0)


def make_celery(**options: Any) -> Any:
    from penstock.integrations.celery import limited_task

    return limited_task("1/second", **options)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: make_celery()(body), "share a limit only through a store"),
        (lambda: make_celery(store="memory://", max_wait=0)(body), "max_wait"),
        (lambda: make_celery(store="memory://", key="{user}")(body), "its parameters: ctx, tenant"),
        (lambda: make_celery(store="memory://", key=key_of)(body), "cannot be async functions"),
        (lambda: make_celery(store="memory://")(7), "decorates functions"),
    ],
)
def test_bad_input_is_said_when_a_task_is_declared(make: Any, said: str) -> None:
    with pytest.raises(ConfigInvalidError, match=said):
        make()


def test_decorators_in_the_wrong_order_are_told_apart() -> None:
    import dramatiq
    from celery import Celery
    from dramatiq.brokers.stub import StubBroker

    from penstock.integrations.celery import limited_task
    from penstock.integrations.dramatiq import limited_actor

    task = Celery("here").task(body)
    with pytest.raises(ConfigInvalidError, match=r"below @app\.task"):
        limited_task("1/second", store="memory://")(task)
    broker = StubBroker()
    actor = dramatiq.actor(abody, broker=broker)
    with pytest.raises(ConfigInvalidError, match=r"below @dramatiq\.actor"):
        limited_actor("1/second", store="memory://")(actor)
    broker.close()


def test_a_queue_that_is_not_installed_is_named_with_its_extra() -> None:
    """arq is not among the packages of the tests."""
    from penstock.integrations.arq import limited_job

    with pytest.raises(ConfigInvalidError, match="which the extra 'arq' brings"):
        limited_job(fixed_window(1, 1_000), store="memory://")
