"""Whether a service can do its work."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.store import Store, peeking
from ..strategies import unlimited

__all__ = ["PING", "PING_KEY", "Readiness", "ask_store", "trouble_of"]

PING_KEY = "penstock:ready"
PING = peeking(unlimited())
"""What to ask a store that writes nothing and takes one round trip."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """`ok` means that requests are decided as the policies say. A reload that failed leaves the
    policies before it at work: it is told in `reload_error` and does not make `ok` false."""

    ok: bool
    store_reachable: bool
    store_error: str
    policies: int
    reload_error: str


async def ask_store(store: Store, now: int) -> None:
    """Ask the store something that writes nothing; raises what it failed with."""
    await store.aapply(PING_KEY, PING, now, 1)


async def trouble_of(store: Store, now: int) -> str:
    """What the store failed with when it was asked, "" if it answered."""
    try:
        await ask_store(store, now)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
