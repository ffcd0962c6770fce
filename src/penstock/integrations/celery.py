"""Celery: tasks behind a limit.

    @app.task
    @limited_task("10/second", key="{tenant}", store="redis://localhost:6379")
    def send(tenant: str, text: str) -> None: ...

A task that has to wait goes back to its queue until its instant, with its id, its options and its
number of retries unchanged.
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

__all__ = ["TaskOptions", "limited_task"]

_F = TypeVar("_F", bound=Callable[..., Any])

_HEADER = "penstock_booked"

# The timer of a worker is punctual; a shorter wait is not worth a trip through the queue.
_EARLY_MS = 50
_MAX_WAIT_S = 1_800


def limited_task(limit: _limited.Target, **options: Unpack[TaskOptions]) -> Callable[[_F], _F]:
    """A decorator for the function of a task, right below `@app.task`.

    `limit` is that of `limited`; the options are those of `TaskOptions`. `max_wait` is half an hour
    by default: keep it below the `visibility_timeout` of the broker, which delivers a task again
    that a worker has held for longer.

    A task that is called like a function, or eagerly, waits where it is.
    """
    celery = _errors.require_module("penstock.integrations.celery", "celery", "celery")

    def decorate(function: _F) -> _F:
        if isinstance(function, celery.Task):
            _validation.reject("limited_task goes below @app.task, right above the function")
        settings: Any = {"max_wait": _MAX_WAIT_S, **options}
        task_limit = _tasks.TaskLimit(function, limit, early_ms=_EARLY_MS, **settings)
        task_limit.require_sync()

        @_wraps(function)
        def run(*args: Any, **named: Any) -> Any:
            return task_limit.run(function, args, named, _queued(celery, run))

        # Celery checks the arguments of a call by this; it does not look behind a decorator.
        run.__signature__ = _signature(function)  # type: ignore[attr-defined]
        decorated: Any = run
        return decorated  # type: ignore[no-any-return]

    return decorate


def _signature(function: Any) -> Any:
    import inspect

    return inspect.signature(function)


def _queued(celery: Any, run: Any) -> _tasks.QueuedTask | None:
    """The task of this function, if a worker runs it. None if it is called like a function, also by
    another task."""
    if not celery.current_task:
        return None
    task = celery.current_task._get_current_object()
    bodies = [getattr(task, name, None) for name in ("run", "_orig_run")]
    own = any(getattr(body, "__func__", body) is run for body in bodies)
    request = task.request
    if not own or request.called_directly or request.is_eager:
        return None
    return _tasks.QueuedTask(*_booked(request), _partial(_put_back, celery, task))


def _booked(request: Any) -> tuple[int | None, int]:
    """The instant that this attempt has booked, and how often it has waited for a slot."""
    told = (request.headers or {}).get(_HEADER)
    if not isinstance(told, (list, tuple)) or len(told) < 2 or told[0] != request.retries:
        return None, 0
    return None if told[1] is None else int(told[1]), int(told[2]) if len(told) > 2 else 0


def _put_back(celery: Any, task: Any, found: _tasks.PutBack) -> Exception:
    request = task.request
    headers = {name: value for name, value in (request.headers or {}).items() if name != _HEADER}
    if found.starts_at is not None or found.tries:
        headers[_HEADER] = [request.retries, found.starts_at, found.tries]
    again = task.signature_from_request(
        request, countdown=found.delay_ms / 1000, retries=request.retries, headers=headers
    )
    again.apply_async()
    ignored: Exception = celery.exceptions.Ignore()
    return ignored
