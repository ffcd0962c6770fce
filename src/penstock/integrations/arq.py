"""arq: jobs behind a limit.

    @limited_job("10/second", key="{tenant}", store="redis://localhost:6379")
    async def send(ctx, tenant: str, text: str) -> None: ...

A job that has to wait goes back to its queue until its instant, with its id and its number of tries
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial as _partial
from functools import wraps as _wraps
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _limited
from ..core import _errors, _validation
from . import _tasks
from ._tasks import TaskOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["TaskOptions", "limited_job"]

_F = TypeVar("_F", bound=Callable[..., Any])

_BOOKED = "penstock:booked:"

# The entries of a context that a worker makes, and the one that is set when its job has begun: a
# limited job that this one calls with its context must wait, and not put it back.
_OF_WORKER = frozenset({"job_id", "redis"})
_BEGUN = "penstock_begun"

# A worker polls for due jobs every half second.
_EARLY_MS = 500
_MAX_WAIT_S = 43_200

# How long after its instant a booking is kept, for a job that is late.
_KEPT_MS = 86_400_000


def limited_job(limit: _limited.Target, **options: Unpack[TaskOptions]) -> Callable[[_F], _F]:
    """A decorator for a coroutine function that arq runs.

    `limit` is that of `limited`; the options are those of `TaskOptions`, where `key` and `cost` may
    use `ctx`, and `max_wait` is half a day by default. A job is put back by arq's own `Retry`, so
    leave the worker's `retry_jobs` on, as it is by default.

    A job that is called like a function waits where it is: by another limited job, or with a `ctx`
    that is not a worker's.
    """
    worker = _errors.require_module("penstock.integrations.arq", "arq.worker", "arq")
    constants = _errors.require_module("penstock.integrations.arq", "arq.constants", "arq")

    def decorate(function: _F) -> _F:
        if not _limited.is_async(function):
            _validation.reject(f"arq runs async functions, and {function!r} is none")
        settings: Any = {"max_wait": _MAX_WAIT_S, **options}
        task_limit = _tasks.TaskLimit(function, limit, early_ms=_EARLY_MS, **settings)

        @_wraps(function)
        async def run(ctx: Any, *args: Any, **named: Any) -> Any:
            queued = None
            if isinstance(ctx, dict) and ctx.keys() >= _OF_WORKER and _BEGUN not in ctx:
                ctx[_BEGUN] = True
                redis, job = ctx["redis"], ctx["job_id"]
                booked = await redis.getdel(_BOOKED + job) or b","
                starts_at, _, tries = booked.partition(b",")
                retries = constants.retry_key_prefix + job
                put_back = _partial(_put_back, worker, redis, _BOOKED + job, retries)
                queued = _tasks.QueuedTask(
                    int(starts_at) if starts_at else None, int(tries or 0), put_back
                )
            return await task_limit.arun(function, (ctx, *args), named, queued)

        decorated: Any = run
        return decorated  # type: ignore[no-any-return]

    return decorate


async def _put_back(
    worker: Any, redis: Any, name: str, retries: str, found: _tasks.PutBack
) -> Exception:
    """The exception that puts a job back. arq counts every run as a try; this one is subtracted."""
    async with redis.pipeline(transaction=True) as pipe:
        pipe.decr(retries)
        if found.starts_at is not None or found.tries:
            kept = f"{'' if found.starts_at is None else found.starts_at},{found.tries}"
            pipe.set(name, kept, px=found.delay_ms + _KEPT_MS)
        await pipe.execute()
    error: Exception = worker.Retry(defer=found.delay_ms / 1000)
    return error
