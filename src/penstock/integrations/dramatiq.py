"""Dramatiq: actors behind a limit.

    @dramatiq.actor
    @limited_actor("10/second", key="{tenant}", store="redis://localhost:6379")
    def send(tenant: str, text: str) -> None: ...

A message that has to wait goes back to its queue with a delay until its instant, under its own id,
with as many retries as it had. That takes two middlewares of Dramatiq's own: `Retries`, which is
there by default, and `CurrentMessage`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps as _wraps
from typing import Any, TypeVar

from .. import _limited
from ..core import _errors, _validation
from ..core._store import Store as _Store
from . import _tasks

__all__ = ["limited_actor"]

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTION = "penstock_booked"

# An idle worker looks about once a second what has become due, a busy one more often.
_EARLY_MS = 500


def limited_actor(
    limit: _limited.Target,
    *,
    key: _limited.Key | None = None,
    cost: _limited.Cost = 1,
    max_wait: float = 86_400,
    store: _Store | str | None = None,
    prefix: str | None = None,
) -> Callable[[_F], _F]:
    """A decorator for the function of an actor, right below `@dramatiq.actor`. An async function
    is run by Dramatiq's `AsyncIO` middleware, as it would be without.

    `limit`, `key` and `cost` are those of `limited`; without a key all messages of the actor share
    the limit. `store` is one that the workers share. A message books at most `max_wait` seconds
    ahead, which Dramatiq allows up to seven days; beyond that it asks again.

    An actor that is called like a function waits where it is.
    """
    dramatiq = _errors.require_module("penstock.integrations.dramatiq", "dramatiq", "dramatiq")

    def decorate(function: _F) -> _F:
        if isinstance(function, dramatiq.Actor):
            _validation.reject("limited_actor goes below @dramatiq.actor, right above the function")
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
        call: Any = function
        if _limited.is_async(function):
            call = _errors.require_module(
                "penstock.integrations.dramatiq", "dramatiq.asyncio", "dramatiq"
            ).async_to_sync(function)

        @_wraps(function)
        def run(*args: Any, **named: Any) -> Any:
            message = _message_of(dramatiq, run)
            found: Any
            if message is None:
                found = task_limit.wait(args, named)
            else:
                found = task_limit.begin(args, named, message.options.pop(_OPTION, None))
                if isinstance(found, _tasks.PutBack):
                    raise _put_back(dramatiq, message, found)
            try:
                return call(*args, **named)
            finally:
                task_limit.leave(found)

        decorated: Any = run
        return decorated  # type: ignore[no-any-return]

    return decorate


def _message_of(dramatiq: Any, run: Any) -> Any:
    """The message that this is run for, if a worker runs it: an actor may also be called like a
    function, by another actor, too."""
    current = dramatiq.middleware.CurrentMessage
    message = current.get_current_message()
    if message is not None:
        actor = dramatiq.get_broker().get_actor(message.actor_name)
        return message if actor.fn is run else None
    if not any(isinstance(each, current) for each in dramatiq.get_broker().middleware):
        raise _errors.ConfigInvalidError(
            "limited_actor needs to know the message at hand: add the middleware with "
            "broker.add_middleware(dramatiq.middleware.CurrentMessage())"
        )
    return None


def _put_back(dramatiq: Any, message: Any, found: _tasks.PutBack) -> Exception:
    """What Dramatiq puts a message back for. It counts a retry, so one is taken off before."""
    message.options["retries"] = message.options.get("retries", 0) - 1
    if found.starts_at is not None:
        message.options[_OPTION] = found.starts_at
    error: Exception = dramatiq.errors.Retry(
        f"waits for its limit for {found.delay_ms} ms", delay=found.delay_ms
    )
    return error
