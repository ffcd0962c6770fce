"""Dramatiq: actors behind a limit.

    @dramatiq.actor
    @limited_actor("10/second", key="{tenant}", store="redis://localhost:6379")
    def send(tenant: str, text: str) -> None: ...

A message that has to wait goes back to its queue until its instant, with its id and its number of
retries unchanged. That needs two middlewares of Dramatiq: `Retries`, which is there by default, and
`CurrentMessage`.
"""

from __future__ import annotations

import sys as _sys
from collections.abc import Callable
from contextvars import ContextVar as _ContextVar
from functools import partial as _partial
from functools import wraps as _wraps
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _limited
from ..core import _durations, _errors, _validation
from . import _tasks
from ._tasks import TaskOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["TaskOptions", "limited_actor"]

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTION = "penstock_booked"
_TRIES = "penstock_tries"

# An idle worker polls for due messages about once a second, a busy one more often.
_EARLY_MS = 500
_MAX_WAIT_S = 86_400

# The message whose actor has begun: an actor that calls itself like a function is not put back.
_begun: _ContextVar[Any] = _ContextVar("begun", default=None)


def limited_actor(limit: _limited.Target, **options: Unpack[TaskOptions]) -> Callable[[_F], _F]:
    """A decorator for the function of an actor, right below `@dramatiq.actor`. An async function
    is run by Dramatiq's `AsyncIO` middleware, as it would be without.

    `limit` is that of `limited`; the options are those of `TaskOptions`. `max_wait` is a day by
    default; Dramatiq allows up to seven.

    An actor that is called like a function waits where it is.
    """
    dramatiq = _errors.require_module("penstock.integrations.dramatiq", "dramatiq", "dramatiq")

    def decorate(function: _F) -> _F:
        if isinstance(function, dramatiq.Actor):
            _validation.reject("limited_actor goes below @dramatiq.actor, right above the function")
        settings: Any = {"max_wait": _MAX_WAIT_S, **options}
        task_limit = _tasks.TaskLimit(function, limit, early_ms=_EARLY_MS, **settings)
        task_limit.require_sync()
        call: Any = function
        if _limited.is_async(function):
            call = _errors.require_module(
                "penstock.integrations.dramatiq", "dramatiq.asyncio", "dramatiq"
            ).async_to_sync(function)

        @_wraps(function)
        def run(*args: Any, **named: Any) -> Any:
            caller = _sys._getframe(1).f_locals.get("self")
            return task_limit.run(call, args, named, _queued(dramatiq, caller, run))

        decorated: Any = run
        return decorated  # type: ignore[no-any-return]

    return decorate


def _queued(dramatiq: Any, caller: Any, run: Any) -> _tasks.QueuedTask | None:
    """The message of this run, if a worker runs it. None if the actor is called like a function,
    also by another actor. A message has only the name of its actor, which another broker may use as
    well, so the actor is identified as the caller of its function."""
    if not isinstance(caller, dramatiq.Actor) or caller.fn is not run:
        return None
    current = dramatiq.middleware.CurrentMessage
    message = current.get_current_message()
    if message is not None:
        if message.actor_name != caller.actor_name or _begun.get() is message:
            return None
        _begun.set(message)
        put_back = _partial(_put_back, dramatiq, message)
        options = message.options
        return _tasks.QueuedTask(options.pop(_OPTION, None), options.pop(_TRIES, 0), put_back)
    if not any(isinstance(each, current) for each in caller.broker.middleware):
        raise _errors.ConfigInvalidError(
            "limited_actor needs to know the message at hand: add the middleware with "
            "broker.add_middleware(dramatiq.middleware.CurrentMessage())"
        )
    return None


def _put_back(dramatiq: Any, message: Any, found: _tasks.PutBack) -> Exception:
    """The exception that puts a message back. Dramatiq counts a retry; one is subtracted before."""
    message.options["retries"] = message.options.get("retries", 0) - 1
    if found.starts_at is not None:
        message.options[_OPTION] = found.starts_at
    if found.tries:
        message.options[_TRIES] = found.tries
    error: Exception = dramatiq.errors.Retry(
        f"waits for its limit for {_durations.wait_in_words(found.delay_ms, exact=True)}",
        delay=found.delay_ms,
    )
    return error
