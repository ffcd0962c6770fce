"""Slots: at most so many at once, held under leases.

A slot is held under an id of its own, that of the charge that took it, until it is given back or
its time is up: a holder renews it, and one that dies loses it after `ttl_ms` by itself. So at no
instant of the clock that decides do more than `limit` hold one, and none is lost for longer than
one ttl.

Slots are taken, renewed and given back by id, which a bare `check` does not have: they are asked
for by `reserve` and `acquire`, whose `Charge` knows its id. To take a slot that one holds already,
or to give it back twice, changes nothing: a call whose reply was lost may be repeated.

The expiry of a slot never moves back. A clock that goes back finds slots held for longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core._decision import Decision, Forecast, Outcome
from ..core._errors import UnsupportedError
from ..core._lua import LuaSource, beside, whole
from ..core._strategy import Parameter, Strategy
from ..core._validation import MAX_SAFE, MAX_STORED_MS, stored_pair, stored_whole

if TYPE_CHECKING:
    from datetime import timedelta


__all__ = ["Slots", "slots"]

MAX_SLOTS = 1_000_000

State = tuple[tuple[str, int], ...]


def _decode(raw: Any) -> State | None:
    ids = [each.decode() if isinstance(each, bytes) else each for each in raw[::2]]
    return tuple(zip(ids, map(whole, raw[1::2]), strict=True)) or None


class Slots(Strategy):
    """State: ((id, expires), ...), by expiry and then by id."""

    name = "slots"
    is_held = True
    parameters: tuple[Parameter, ...] = (
        Parameter("limit", "count", "slots that may be held at once", high=MAX_SLOTS),
        Parameter(
            "ttl_ms",
            "span",
            "after which a slot that is not renewed is free again",
            default=30_000,
            example="30s",
            shapes_state=False,
        ),
    )
    lua_sources: tuple[LuaSource, ...] = (
        LuaSource(
            "slots",
            beside(__file__),
            argv=("now", "limit", "ttlMs", "cost"),
            state="sorted set: member the id of a slot, score its expiry in ms",
            raw="id, expiry, id, expiry, ...",
            decode=_decode,
            beyond_check=("take", "renew", "release"),
        ),
    )

    def __init__(self, limit: int, ttl_ms: int | timedelta = 30_000) -> None:
        super().__init__(limit=limit, ttl_ms=ttl_ms)
        self.limit = limit
        self.ttl_ms: int = self.values["ttl_ms"]

    @property
    def rate(self) -> tuple[int, None]:
        return self.limit, None

    def in_words(self) -> str:
        return f"{self.limit:,} at once"

    def is_looser_than(self, other: Strategy, *, alongside: bool, steady: bool) -> bool:
        """What is held for no longer is not held by more."""
        if not isinstance(other, Slots):
            return False
        return self.limit >= other.limit and self.ttl_ms <= other.ttl_ms

    def check(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        """Whether so many slots are free. It takes none, so it is no part of a limiter's."""
        live = self._live(state, now)
        free = self.limit - len(live)
        reset_at = live[0][1] if live else now
        if free >= cost:
            decision = Decision(True, self.limit, free - cost, reset_at, 0)
        else:
            decision = self._denial(live, now)
        return Outcome(state, decision, 0, False)

    def take(self, state: State | None, now: int, slot_id: str) -> Outcome[Decision]:
        """Hold a slot, or go on holding it."""
        live = self._live(state, now)
        if len(live) >= self.limit and slot_id not in dict(live):
            return Outcome(state, self._denial(live, now), 0, False)
        return self._held(live, now, slot_id)

    def renew(self, state: State | None, now: int, slot_id: str) -> Outcome[Decision]:
        """Go on holding a slot; denied if it is not held any more."""
        live = self._live(state, now)
        if slot_id not in dict(live):
            return Outcome(state, self._denial(live, now), 0, False)
        return self._held(live, now, slot_id)

    def release(self, state: State | None, now: int, slot_id: str) -> Outcome[int]:
        """Give a slot back; the result is whether it was held, 1 or 0."""
        live = self._live(state, now)
        left = tuple([slot for slot in live if slot[0] != slot_id])
        if len(left) == len(live):
            return Outcome(state, 0, 0, False)
        return Outcome(left or None, 1, left[-1][1] - now if left else 0, True)

    def forecast(self, state: State | None, now: int, cost: int) -> Forecast:
        live = self._live(state, now)
        if not live:
            return Forecast(self.limit // cost, now, now)
        return Forecast((self.limit - len(live)) // cost, live[0][1], live[-1][1])

    def pause(self, _state: Any, _now: int, _until_ms: int) -> Outcome[None]:
        raise UnsupportedError("slots cannot be paused: pause a limit with a pace beside them")

    def restore(self, kept: Any) -> State:
        pairs = [stored_pair(each) for each in kept]
        if not all(isinstance(slot_id, str) for slot_id, _ in pairs):
            raise ValueError("a slot whose id is no text")
        return tuple([(slot_id, stored_whole(at, MAX_STORED_MS)) for slot_id, at in pairs])

    def _live(self, state: State | None, now: int) -> State:
        return tuple([slot for slot in state or () if slot[1] > now])

    def _held(self, live: State, now: int, slot_id: str) -> Outcome[Decision]:
        expires = max(dict(live).get(slot_id, 0), now + self.ttl_ms)
        others = [slot for slot in live if slot[0] != slot_id]
        held = sorted([*others, (slot_id, expires)], key=lambda slot: (slot[1], slot[0]))
        decision = Decision(True, self.limit, self.limit - len(held), held[0][1], 0)
        return Outcome(tuple(held), decision, held[-1][1] - now, True)

    def _denial(self, live: State, now: int) -> Decision:
        free_at = live[0][1] if live else now
        wait = min(max(1, free_at - now), MAX_SAFE)
        return Decision(False, self.limit, max(0, self.limit - len(live)), free_at, wait)


def slots(limit: int, ttl_ms: int | timedelta = 30_000) -> Slots:
    """At most `limit` held at once, by everybody who shares the store. A slot that is not renewed
    for `ttl_ms` is free again."""
    return Slots(limit, ttl_ms)
