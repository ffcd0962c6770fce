"""Golden vectors of the lease: grants and spends in order, and what the spender answers.

A suite is one key on one node, from cold. `expect` is the decision, or null where the credits do
not suffice and a lease is needed: a spender never denies. The answers come from running
`LeaseSpender` and are written nowhere by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.core._lua import REPLY
from penstock.core._validation import MAX_SAFE
from penstock.leasing._credits import LeaseSpender

from .convert import decision_fields
from .manifest import CONTRACT_VERSION

__all__ = ["LEASE_SUITES", "Grant", "LeaseSuite", "Spend", "lease_vectors"]

# 2023-11-14 22:13:20 UTC: 13 digits, and no multiple of a minute.
_EPOCH = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Grant:
    """`capacity` credits arrive; their window ends at `expires_at`."""

    capacity: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Spend:
    """A request at `now`."""

    now: int
    cost: int = 1


@dataclass(frozen=True, slots=True)
class LeaseSuite:
    name: str
    coupled: bool
    events: tuple[Grant | Spend, ...]
    limit: int = 10
    ttl_ms: int = 1_000


def lease_vectors() -> dict[str, Any]:
    return {
        "contractVersion": CONTRACT_VERSION,
        "decisionFields": list(REPLY),
        "suites": [_answered(suite) for suite in LEASE_SUITES],
    }


def _answered(suite: LeaseSuite) -> dict[str, Any]:
    return {
        "primitive": "lease",
        "name": suite.name,
        "options": {"limit": suite.limit, "ttlMs": suite.ttl_ms, "windowCoupled": suite.coupled},
        "events": list(_run(suite)),
    }


def _run(suite: LeaseSuite) -> Iterator[dict[str, Any]]:
    spender = LeaseSpender(suite.limit, suite.ttl_ms, suite.coupled)
    for event in suite.events:
        if isinstance(event, Grant):
            spender.apply_lease(event.capacity, event.expires_at)
            yield {"type": "grant", "capacity": event.capacity, "expiresAt": event.expires_at}
        else:
            decision = spender.spend(event.now, event.cost)
            answer = None if decision is None else decision_fields(decision)
            yield {"type": "spend", "now": event.now, "cost": event.cost, "expect": answer}


def _both(name: str, *events: Grant | Spend, **options: int) -> Iterator[LeaseSuite]:
    for coupled in (True, False):
        label = "coupled" if coupled else "carried"
        yield LeaseSuite(f"lease/{name}/{label}", coupled, events, **options)


def _suites() -> Iterator[LeaseSuite]:
    spends = tuple(Spend(at) for at in (1, 2, 3, 4))
    yield from _both("before-any-grant", Spend(0), Spend(5, 3), Grant(0, 1000), Spend(6))
    yield from _both("exhaustion", Grant(3, 1000), *spends, Spend(999))
    yield from _both(
        "refresh-inside-a-window",
        *(Grant(2, 1000), Spend(10), Spend(11), Spend(12), Grant(3, 1000), Spend(13)),
        *(Grant(1, 1000), Spend(14, 3), Spend(15)),
    )
    # The last millisecond of a window, its end, and what a grant of the next one finds.
    yield from _both(
        "boundary",
        *(Grant(5, 1000), Spend(998), Spend(999), Spend(1000), Spend(1001)),
        *(Grant(4, 2000), Spend(1002), Spend(1999, 2), Spend(2000), Spend(2001)),
    )
    yield from _both(
        "cost-above-capacity",
        *(Grant(3, 1000), Spend(1, 4), Spend(2, 3), Spend(3), Grant(3, 1000), Spend(4, MAX_SAFE)),
        *(Grant(2, 1000), Spend(5, 5), Spend(6, 1)),
    )
    # Carried over, credits outlive their window and several others.
    yield from _both(
        "many-windows-later",
        *(Grant(7, 1000), Spend(500), Spend(5_500), Spend(9_999, 2)),
        *(Grant(2, 11_000), Spend(10_000, 4), Spend(10_001)),
    )
    # A clock that goes back finds what is still held, and nothing that was dropped.
    yield from _both(
        "clock-goes-back", Grant(4, 1000), Spend(900), Spend(1000), Spend(900), Spend(0, 2)
    )
    yield from _both(
        "real-epoch",
        *(Grant(5, _EPOCH + 40_000), Spend(_EPOCH), Spend(_EPOCH + 39_999, 2)),
        *(Spend(_EPOCH + 40_000), Grant(6, _EPOCH + 100_000), Spend(_EPOCH + 40_001, 6)),
        *(Spend(_EPOCH + 40_001, 3), Spend(_EPOCH + 99_999)),
        limit=1_000,
        ttl_ms=60_000,
    )
    yield from _both(
        "largest-grant", Grant(MAX_SAFE - 1, 1000), Spend(1, MAX_SAFE - 2), Spend(2), Spend(3)
    )


LEASE_SUITES: tuple[LeaseSuite, ...] = tuple(_suites())
