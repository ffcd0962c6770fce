"""Celery: tasks behind a limit.

    @app.task
    @limited_task("10/second", key="{tenant}", store="redis://localhost:6379")
    def send(tenant: str, text: str) -> None: ...

A task that has to wait goes back to its queue with the time of its instant, under its own id, with
its options, and with as many retries as it had.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps as _wraps
from typing import Any, TypeVar

from .. import _limited
from ..core import _errors, _validation
from ..core._store import Store as _Store
from . import _tasks

__all__ = ["limited_task"]

_F = TypeVar("_F", bound=Callable[..., Any])

_HEADER = "penstock_booked"

# The timer of a worker is punctual; what is nearer than this is not worth the way back.
_EARLY_MS = 50


def limited_task(
    limit: _limited.Target,
    *,
    key: _limited.Key | None = None,
    cost: _limited.Cost = 1,
    max_wait: float = 1_800,
    store: _Store | str | None = None,
    prefix: str | None = None,
) -> Callable[[_F], _F]:
    """A decorator for the function of a task, right below `@app.task`.

    `limit`, `key` and `cost` are those of `limited`; without a key all runs of the task share the
    limit. `store` is one that the workers share. A task books at most `max_wait` seconds ahead;
    beyond that it asks again. Keep that below the `visibility_timeout` of the broker, which
    delivers anew what a worker has held for longer.

    A task that is called like a function, or eagerly, waits where it is.
    """
    celery = _errors.require_module("penstock.integrations.celery", "celery", "celery")

    def decorate(function: _F) -> _F:
        if isinstance(function, celery.Task):
            _validation.reject("limited_task goes below @app.task, right above the function")
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
        task_limit.require_sync()

        @_wraps(function)
        def run(*args: Any, **named: Any) -> Any:
            task = _task_of(celery, run)
            found: Any
            if task is None:
                found = task_limit.wait(args, named)
            else:
                found = task_limit.begin(args, named, _booked(task.request))
                if isinstance(found, _tasks.PutBack):
                    _put_back(task, found)
                    raise celery.exceptions.Ignore()
            try:
                return function(*args, **named)
            finally:
                task_limit.leave(found)

        # By which Celery checks the arguments of a call; it does not look behind a decorator.
        run.__signature__ = _signature(function)  # type: ignore[attr-defined]
        decorated: Any = run
        return decorated  # type: ignore[no-any-return]

    return decorate


def _signature(function: Any) -> Any:
    import inspect

    return inspect.signature(function)


def _task_of(celery: Any, run: Any) -> Any:
    """The task that this is the function of, if a worker runs it: it may also be called like a
    function, by another task, too."""
    if not celery.current_task:
        return None
    task = celery.current_task._get_current_object()
    bodies = [getattr(task, name, None) for name in ("run", "_orig_run")]
    own = any(getattr(body, "__func__", body) is run for body in bodies)
    request = task.request
    return task if own and not (request.called_directly or request.is_eager) else None


def _booked(request: Any) -> int | None:
    """The instant that this attempt has booked."""
    told = (request.headers or {}).get(_HEADER)
    if not isinstance(told, (list, tuple)) or len(told) != 2 or told[0] != request.retries:
        return None
    return int(told[1])


def _put_back(task: Any, found: _tasks.PutBack) -> None:
    request = task.request
    headers = {name: value for name, value in (request.headers or {}).items() if name != _HEADER}
    if found.starts_at is not None:
        headers[_HEADER] = [request.retries, found.starts_at]
    again = task.signature_from_request(
        request, countdown=found.delay_ms / 1000, retries=request.retries, headers=headers
    )
    again.apply_async()
