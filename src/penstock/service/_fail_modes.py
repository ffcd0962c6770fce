"""Fail modes, which decide while the store is away; and the readiness of a service.

| fail mode | answer |
|---|---|
| open | allowed, with nothing remaining: requests are not limited |
| closed | denied, with a retry after one second |
| error | none: `store_unavailable` is raised, and the server reports an error |

The decision has the `limit` of the policy, and a `reset_at` one second away by the service's clock.
It says by which mode it was made (`Decision.degraded`), on every interface. Every outage is
counted. Per policy, one line per ten seconds is logged, without the keys.

Every failure of a store is an outage, unless the caller's arguments were invalid or asked for too
much at once, or the call only waited behind other calls of this process (`overloaded`): these are
raised in every mode, so that a client cannot bring about its own admission. A store that answers
but is full is counted separately: it recovers only when room is made.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from ..core._clock import Clock
from ..core._decision import RETRY_MS, Decision, DegradedDecision, DegradedForecast, Forecast
from ..core._errors import (
    ConfigInvalidError,
    OverloadedError,
    StoreUnavailableError,
    TooLargeError,
    UnsupportedError,
    outage_reason,
)
from ..core._store import Store
from ..core._transform import checking, peeking
from ..core._validation import MAX_SAFE, require_cost, require_key
from ..strategies import fixed_window, unlimited
from ._metrics import Tally

__all__ = [
    "PATIENCE_S",
    "PING",
    "PING_KEY",
    "Guard",
    "Outages",
    "Readiness",
    "ask_store",
    "readiness",
    "trouble_of",
]


_LOG_EVERY_MS = 10_000
_DEGRADED_MS = 10_000
"""How long after its last outage a policy counts as degraded."""

_log = logging.getLogger("penstock.service")


class Outages:
    """How often the store of any policy was full."""

    __slots__ = ("full",)

    def __init__(self) -> None:
        self.full: int = 0


class Guard:
    """Applies the fail mode of one policy."""

    def __init__(
        self,
        policy: str,
        limit: int,
        fail: str,
        clock: Clock,
        tally: Tally,
        outages: Outages,
    ) -> None:
        self._policy = policy
        self._limit = limit
        self._fail = fail
        self._clock = clock
        self._tally = tally
        self._outages = outages
        self._quiet_until = 0
        self._unsaid = 0
        # The instant of the last outage.
        self._failed_at: int | None = None

    @property
    def was_degraded(self) -> bool:
        """Whether the store has ever failed a call of the policy."""
        return self._failed_at is not None

    @property
    def is_degraded(self) -> bool:
        """Whether the store has failed a call of the policy within the last ten seconds."""
        now = self._clock.now()
        return self._failed_at is not None and abs(now - self._failed_at) < _DEGRADED_MS

    def now(self) -> int:
        """The current instant of the service's clock."""
        return self._clock.now()

    def decision(
        self, error: Exception, keys: Iterable[str], cost: int, count: int = 1
    ) -> Decision:
        """The decision of the fail mode; raises `error` if the mode is "error". It is counted as
        `count` decisions, those of a batch."""
        self.outage(error, keys, cost)
        self._answer(error, count)
        return DegradedDecision.by(self._fail, self._limit, self._clock.now())

    def forecast(self, error: Exception, key: str, cost: int) -> Forecast:
        """The forecast of the fail mode: all of the limit, or nothing."""
        self.outage(error, (key,), cost)
        spendable = self._limit // cost if self._answer(error) else 0
        again_at = self._clock.now() + RETRY_MS
        return DegradedForecast(self._fail, Forecast(spendable, again_at, again_at))

    def outage(self, error: Exception, keys: Iterable[str], cost: int) -> None:
        """Count and log an outage. Raises `error` if it is not an outage."""
        if isinstance(error, (UnsupportedError, TooLargeError, OverloadedError)):
            raise error
        if isinstance(error, ConfigInvalidError):
            # Raise a mistake of the caller. Anything else is a fault in the store, such as a key
            # that holds the state of another program.
            require_cost(cost)
            for key in keys:
                require_key(key)
        if outage_reason(error) == "full":
            self._tally.store_full += 1
            self._outages.full += 1
        else:
            self._tally.store_away += 1
        self._failed_at = self._clock.now()
        self._say(error, keys)

    def _answer(self, error: Exception, count: int = 1) -> bool:
        if self._fail == "open":
            self._tally.failed_open += count
            return True
        if self._fail == "closed":
            self._tally.failed_closed += count
            return False
        self._tally.failed_error += count
        if isinstance(error, StoreUnavailableError):
            raise error
        reason = outage_reason(error)
        raise StoreUnavailableError(f"the store failed: {error}", reason=reason) from error

    def _say(self, error: Exception, keys: Iterable[str]) -> None:
        now = self._clock.now()
        # The second bound is for a clock that went back: it must not silence the log.
        if now < self._quiet_until <= now + _LOG_EVERY_MS:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more since the last line)" if self._unsaid else ""
        _log.warning(
            "policy %s: its store %s, answering fail-%s: %s: %r%s",
            self._policy,
            "is full" if outage_reason(error) == "full" else "failed",
            self._fail,
            type(error).__name__,
            _without(keys, str(error)),
            more,
        )
        self._unsaid = 0
        self._quiet_until = now + _LOG_EVERY_MS


def _without(keys: Iterable[str], text: str) -> str:
    """The text without the keys, in any form in which a store may have quoted them."""
    forms = {form for key in keys for form in _forms(key) if form in text}
    for form in sorted(forms, key=len, reverse=True):
        # A short key may be part of other words, so it is only replaced if it stands by itself or
        # follows the colon of its prefix, which is %3A in a URL.
        text = re.sub(rf"(?:\b|(?<=%3A)|(?=\W)){re.escape(form)}(?!\w)", "<key>", text)
    return text


def _forms(key: str) -> tuple[str, ...]:
    quoted = quote(key, safe="", errors="replace")
    return key, repr(key)[1:-1], ascii(key)[1:-1], json.dumps(key)[1:-1], quoted


PING_KEY = "penstock:ready"
PING = peeking(unlimited())
"""A request to a store that takes one round trip and writes nothing."""

PATIENCE_S = 2.0
"""How long a probe waits for the store, whatever the store's own deadline."""

# Always admitted, so that it has to be written; expires soon.
_ROOM_KEY = "penstock:room"
_ROOM = checking(fixed_window(MAX_SAFE, 1_000))


@dataclass(frozen=True, slots=True)
class Readiness:
    """The readiness of a service. `ok` means that the process can decide requests: while the store
    is away, policies that fail open or closed still decide, those with the fail mode "error" do
    not. So an outage takes a service out of rotation only if no policy decides. `store_ok` is about
    the store alone, and `states` about each policy: "ok" if its limits decide, otherwise its fail
    mode.

    A full store is reachable and can deny, but not admit, since that takes a write. After a failed
    reload the previous policies are served: `reload_error` says so, and `ok` stays true."""

    ok: bool
    store_ok: bool
    store_reachable: bool
    store_full: bool
    store_error: str
    policies: int
    reload_error: str
    states: Mapping[str, str]


async def ask_store(store: Store, now: int) -> None:
    """Ping the store without writing. Raises its error."""
    await store.aapply(PING_KEY, PING, now, 1)


async def trouble_of(store: Store, now: int, writes: bool) -> Exception | None:
    """The error of the store when it is asked, None if it answers. With `writes` it is asked to
    write, since a full store still answers reads."""
    asked = store.aapply(_ROOM_KEY, _ROOM, now, 1) if writes else ask_store(store, now)
    try:
        await asyncio.wait_for(asked, PATIENCE_S)
    except asyncio.TimeoutError:
        return StoreUnavailableError(f"no answer within {PATIENCE_S:g} s")
    except Exception as error:
        return error
    return None


def readiness(
    trouble: Exception | None,
    policies: int,
    decides_without_store: bool,
    reload_error: str,
    modes: Mapping[str, str],
) -> Readiness:
    """The readiness of the service, given the error of its store. `modes` are the fail modes of
    policies, and `decides_without_store` says that some policy has another one than "error"."""
    full = trouble is not None and outage_reason(trouble) == "full"
    return Readiness(
        ok=policies > 0 and (trouble is None or decides_without_store),
        store_ok=trouble is None,
        store_reachable=trouble is None or full,
        store_full=full,
        store_error="" if trouble is None else f"{type(trouble).__name__}: {trouble}",
        policies=policies,
        reload_error=reload_error,
        states=dict.fromkeys(modes, "ok") if trouble is None else modes,
    )
