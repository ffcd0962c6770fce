"""arq: jobs behind a limit.

    @limited_job("10/second", key="{tenant}", store="redis://localhost:6379")
    async def send(ctx, tenant: str, text: str) -> None: ...

A job that has to wait goes back to its queue with the time of its instant, under its own id, with
as many tries as it had.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps as _wraps
from typing import Any, TypeVar

from .. import _limited
from ..core import _errors, _validation
from ..core._store import Store as _Store
from . import _tasks

__all__ = ["limited_job"]

_F = TypeVar("_F", bound=Callable[..., Any])

_BOOKED = "penstock:booked:"

# A worker looks every half second what has become due.
_EARLY_MS = 500

# How much longer than until its instant a booking is kept for a job that comes late.
_KEPT_MS = 86_400_000


def limited_job(
    limit: _limited.Target,
    *,
    key: _limited.Key | None = None,
    cost: _limited.Cost = 1,
    max_wait: float = 43_200,
    store: _Store | str | None = None,
    prefix: str | None = None,
) -> Callable[[_F], _F]:
    """A decorator for a coroutine function that arq runs.

    `limit`, `key` and `cost` are those of `limited`, and may use `ctx`; without a key all runs of
    the job share the limit. `store` is one that the workers share. A job books at most `max_wait`
    seconds ahead; beyond that it asks again. It is put back by arq's own `Retry`, so leave the
    worker's `retry_jobs` on, as it is by default.

    A job that is called like a function, with a `ctx` that is not a worker's, waits where it is.
    """
    worker = _errors.require_module("penstock.integrations.arq", "arq.worker", "arq")
    constants = _errors.require_module("penstock.integrations.arq", "arq.constants", "arq")

    def decorate(function: _F) -> _F:
        if not _limited.is_async(function):
            _validation.reject(f"arq runs async functions, and {function!r} is none")
        task_limit = _tasks.TaskLimit(
            function,
            limit,
            key=key,
            cost=cost,
            max_wait=max_wait,
            store=store,
            prefix=prefix,
            early_ms=_EARLY_MS,
        )

        @_wraps(function)
        async def run(ctx: Any, *args: Any, **named: Any) -> Any:
            whole = (ctx, *args)
            if "job_id" in ctx and "redis" in ctx:
                redis, name = ctx["redis"], _BOOKED + ctx["job_id"]
                booked = await redis.getdel(name)
                found: Any = await task_limit.abegin(whole, named, booked and int(booked))
                if isinstance(found, _tasks.PutBack):
                    retries = constants.retry_key_prefix + ctx["job_id"]
                    await _put_back(redis, name, retries, found)
                    raise worker.Retry(defer=found.delay_ms / 1000)
            else:
                found = await task_limit.await_(whole, named)
            try:
                return await function(*whole, **named)
            finally:
                await task_limit.aleave(found)

        decorated: Any = run
        return decorated  # type: ignore[no-any-return]

    return decorate


async def _put_back(redis: Any, name: str, retries: str, found: _tasks.PutBack) -> None:
    """arq counts every run as a try, so this one is taken off."""
    async with redis.pipeline(transaction=True) as pipe:
        pipe.decr(retries)
        if found.starts_at is not None:
            pipe.set(name, found.starts_at, px=found.delay_ms + _KEPT_MS)
        await pipe.execute()
