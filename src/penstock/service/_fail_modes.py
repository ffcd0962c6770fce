"""What a policy answers while its store is away.

| fail mode | answer |
|---|---|
| open | allowed, with nothing remaining: service goes on, unlimited |
| closed | denied, to be asked again in a second |
| error | none: `store_unavailable` is raised, and a server says so in its own words |

`limit` is the policy's, and `reset_at` a second away, when asking again may find the store back.
The instant is the service's own, since that of the store cannot be had. Every outage is counted;
of a policy's outages, one line per ten seconds is logged, from which the keys that were asked for
are left out.

Anything that goes wrong in a store is an outage, unless the caller asked for something impossible.
A store that answers but has no room left is one of its own kind, counted apart: it mends only when
somebody makes room.

Whether a service can do its work.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from ..core._clock import Clock
from ..core._decision import Decision, Forecast
from ..core._errors import (
    ConfigInvalidError,
    StoreUnavailableError,
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
    "RETRY_MS",
    "Guard",
    "Outages",
    "Readiness",
    "ask_store",
    "readiness",
    "trouble_of",
]


RETRY_MS = 1_000
_LOG_EVERY_MS = 10_000

_log = logging.getLogger("penstock.service")


class Outages:
    """How often the store of any policy had no room."""

    __slots__ = ("full",)

    def __init__(self) -> None:
        self.full: int = 0


class Guard:
    """Resolves the outages of one policy."""

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

    def now(self) -> int:
        """The service's own instant."""
        return self._clock.now()

    def decision(self, error: Exception, keys: Iterable[str], cost: int) -> Decision:
        """The decision in place of `error`; raises it, if that is the answer."""
        self.outage(error, keys, cost)
        allowed = self._answer(error)
        again_at = self._clock.now() + RETRY_MS
        return Decision(allowed, self._limit, 0, again_at, 0 if allowed else RETRY_MS)

    def forecast(self, error: Exception, key: str, cost: int) -> Forecast:
        """The forecast in place of `error`: all of the limit, or nothing."""
        self.outage(error, (key,), cost)
        spendable = self._limit // cost if self._answer(error) else 0
        again_at = self._clock.now() + RETRY_MS
        return Forecast(spendable, again_at, again_at)

    def outage(self, error: Exception, keys: Iterable[str], cost: int) -> None:
        """Count and log an outage. Raises `error` if it is none."""
        if isinstance(error, UnsupportedError):
            raise error
        if isinstance(error, ConfigInvalidError):
            # The caller's own mistake is raised again here; what passes is a fault of the store,
            # such as a key that holds the state of another program.
            require_cost(cost)
            for key in keys:
                require_key(key)
        if outage_reason(error) == "full":
            self._tally.store_full += 1
            self._outages.full += 1
        else:
            self._tally.store_away += 1
        self._say(error, keys)

    def _answer(self, error: Exception) -> bool:
        if self._fail == "open":
            self._tally.failed_open += 1
            return True
        if self._fail == "closed":
            self._tally.failed_closed += 1
            return False
        self._tally.failed_error += 1
        if isinstance(error, StoreUnavailableError):
            raise error
        reason = outage_reason(error)
        raise StoreUnavailableError(f"the store failed: {error}", reason=reason) from error

    def _say(self, error: Exception, keys: Iterable[str]) -> None:
        now = self._clock.now()
        # A clock that went back must not silence the log until it has caught up.
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
    """The text without the keys, in whatever form a store may have quoted them."""
    forms = {form for key in keys for form in _forms(key) if form in text}
    for form in sorted(forms, key=len, reverse=True):
        # A short key is found in many words, and meant where it stands by itself or after the
        # colon of its prefix, which is %3A in a URL.
        text = re.sub(rf"(?:\b|(?<=%3A)|(?=\W)){re.escape(form)}(?!\w)", "<key>", text)
    return text


def _forms(key: str) -> tuple[str, ...]:
    quoted = quote(key, safe="", errors="replace")
    return key, repr(key)[1:-1], ascii(key)[1:-1], json.dumps(key)[1:-1], quoted


PING_KEY = "penstock:ready"
PING = peeking(unlimited())
"""What to ask a store that writes nothing and takes one round trip."""

PATIENCE_S = 2.0
"""A probe does not wait longer for a store that has no deadline, or a long one."""

# What is always admitted, so that it has to be written, and soon forgotten.
_ROOM_KEY = "penstock:room"
_ROOM = checking(fixed_window(MAX_SAFE, 1_000))


@dataclass(frozen=True, slots=True)
class Readiness:
    """`ok` means that every request gets a decision. Without its store, that is up to the fail
    modes: a policy that fails open or closed decides, one that fails with an error does not. So an
    outage takes a service out of rotation only where it could not answer, and `store_ok` is the
    strict question.

    A store that is full can be reached and deny, but not admit, which has to be written. A reload
    that failed leaves the policies before it at work: it is told in `reload_error` and does not
    make `ok` false."""

    ok: bool
    store_ok: bool
    store_reachable: bool
    store_full: bool
    store_error: str
    policies: int
    reload_error: str


async def ask_store(store: Store, now: int) -> None:
    """Ask the store something that writes nothing; raises what it failed with."""
    await store.aapply(PING_KEY, PING, now, 1)


async def trouble_of(store: Store, now: int, writes: bool) -> Exception | None:
    """What the store failed with when it was asked. A store that is full still answers questions:
    where that is to be known it has to write something."""
    asked = store.aapply(_ROOM_KEY, _ROOM, now, 1) if writes else ask_store(store, now)
    try:
        await asyncio.wait_for(asked, PATIENCE_S)
    except asyncio.TimeoutError:
        return StoreUnavailableError(f"no answer within {PATIENCE_S:g} s")
    except Exception as error:
        return error
    return None


def readiness(
    trouble: Exception | None, policies: int, needs_store: bool, reload_error: str
) -> Readiness:
    """What that means for the service. `needs_store` says that some policy answers with an error
    while it is away."""
    full = trouble is not None and outage_reason(trouble) == "full"
    return Readiness(
        ok=policies > 0 and (trouble is None or not needs_store),
        store_ok=trouble is None,
        store_reachable=trouble is None or full,
        store_full=full,
        store_error="" if trouble is None else f"{type(trouble).__name__}: {trouble}",
        policies=policies,
        reload_error=reload_error,
    )
