"""Whether a service can do its work."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..core.errors import StoreUnavailableError, outage_reason
from ..core.store import Store, checking, peeking
from ..core.validation import MAX_SAFE
from ..strategies import fixed_window, unlimited

__all__ = ["PATIENCE_S", "PING", "PING_KEY", "Readiness", "ask_store", "readiness", "trouble_of"]

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
