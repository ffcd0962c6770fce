"""Slots: at most so many at once, held under leases.

A slot is held under an id of its own, that of the charge that took it, until it is given back or
its time is up: a holder renews it, and one that dies loses it after `ttl_ms` by itself. So at no
instant of the clock that decides do more than `limit` hold one, and none is lost for longer than
one ttl.

Slots are taken, renewed and given back by id, which a bare `check` does not have: they are asked
for by `reserve` and `acquire`, whose `Charge` knows its id. To take a slot that one holds already,
or to give it back twice, changes nothing: a call whose reply was lost may be repeated.

The expiry of a slot never moves back. A clock that goes back finds slots held for longer.

Slots that nobody gave back in time are counted when they are forgotten, until somebody asks:
`reclaim` tells each of them once, to one of all who share the store. So the state is kept for a
minute longer than a slot is held.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from ..core._decision import Decision, Forecast, Outcome
from ..core._errors import UnsupportedError
from ..core._lua import LuaSource, beside, signed
from ..core._strategy import Parameter, Strategy
from ..core._validation import MAX_SAFE, MAX_STORED_MS, stored_pair, stored_whole

if TYPE_CHECKING:
    from datetime import timedelta


__all__ = ["Slots", "slots"]

MAX_SLOTS = 1_000_000
COUNTED_FOR_MS = 60_000
"""How long it is known that slots were lost, for those who count them."""

R = TypeVar("R")

_LOST = "lost"
"""In the place of an id: how many were not given back, as a negative number."""

State = tuple[tuple[str, int], ...]


def _decode(raw: Any) -> State | None:
    ids = [each.decode() if isinstance(each, bytes) else each for each in raw[::2]]
    return tuple(zip(ids, map(int, map(signed, raw[1::2])), strict=True)) or None


def _place_of(slot_id: str, live: State) -> int | None:
    for place, slot in enumerate(live):
        if slot[0] == slot_id:
            return place
    return None


def _order(slot: tuple[str, int]) -> tuple[int, str]:
    return slot[1], slot[0]


_expiry = itemgetter(1)


class Slots(Strategy):
    """State: ((id, expires), ...), by expiry and then by id; before them, if there are some,
    ("lost", -count)."""

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
        ),
    )
    lua_sources: tuple[LuaSource, ...] = (
        LuaSource(
            "slots",
            beside(__file__),
            argv=("now", "limit", "ttlMs", "cost"),
            state="sorted set: member the id of a slot, score its expiry in ms; member lost, score "
            "how many were not given back, negated",
            raw="id, expiry, id, expiry, ...",
            decode=_decode,
            constants={"countedForMs": COUNTED_FOR_MS},
            beyond_check=("take", "renew", "release", "reclaim"),
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
        return f"{self.limit} at once"

    def check(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        """Whether so many slots are free. It takes none, so it is no part of a limiter's."""
        live, _ = self._parts(state, now)
        free = self.limit - len(live)
        reset_at = live[0][1] if live else now
        if free >= cost:
            decision = Decision(True, self.limit, free - cost, reset_at, 0)
        else:
            decision = self._denial(live, now)
        return Outcome(state, decision, 0, False)

    def take(self, state: State | None, now: int, slot_id: str) -> Outcome[Decision]:
        """Hold a slot, or go on holding it."""
        live, lost = self._parts(state, now)
        place = _place_of(slot_id, live)
        if len(live) >= self.limit and place is None:
            return Outcome(state, self._denial(live, now), 0, False)
        held, _ = self._holding(live, now, slot_id, place)
        decision = Decision(True, self.limit, max(0, self.limit - len(held)), held[0][1], 0)
        return self._left(held, lost, now, decision)

    def renew(self, state: State | None, now: int, slot_id: str) -> Outcome[Decision]:
        """Go on holding a slot, until the `reset_at` of the decision; denied if it is not held any
        more."""
        live, lost = self._parts(state, now)
        place = _place_of(slot_id, live)
        if place is None:
            free = max(0, self.limit - len(live))
            return Outcome(state, Decision(False, self.limit, free, now, 1), 0, False)
        held, expires = self._holding(live, now, slot_id, place)
        decision = Decision(True, self.limit, max(0, self.limit - len(held)), expires, 0)
        return self._left(held, lost, now, decision)

    def release(self, state: State | None, now: int, slot_id: str) -> Outcome[int]:
        """Give a slot back; the result is whether it was held, 1 or 0."""
        live, lost = self._parts(state, now)
        place = _place_of(slot_id, live)
        if place is None:
            return Outcome(state, 0, 0, False)
        return self._left(live[:place] + live[place + 1 :], lost, now, 1)

    def reclaim(self, state: State | None, now: int) -> Outcome[int]:
        """How many slots were not given back in time, since this was last asked."""
        live, lost = self._parts(state, now)
        if not lost:
            return Outcome(state, 0, 0, False)
        return self._left(live, 0, now, lost)

    def forecast(self, state: State | None, now: int, cost: int) -> Forecast:
        live, _ = self._parts(state, now)
        if not live:
            return Forecast(self.limit // cost, now, now)
        return Forecast((self.limit - len(live)) // cost, live[0][1], live[-1][1])

    def pause(self, _state: Any, _now: int, _until_ms: int) -> Outcome[None]:
        raise UnsupportedError("slots cannot be paused: pause a limit with a pace beside them")

    def restore(self, kept: Any) -> State:
        pairs = [stored_pair(each) for each in kept]
        if not all(isinstance(slot_id, str) for slot_id, _ in pairs):
            raise ValueError("a slot whose id is no text")
        return tuple([(slot_id, self._restored(slot_id, at)) for slot_id, at in pairs])

    def _restored(self, slot_id: str, at: Any) -> int:
        if slot_id == _LOST and type(at) is int:
            return -stored_whole(-at, MAX_SAFE)
        return stored_whole(at, MAX_STORED_MS)

    def _parts(self, state: State | None, now: int) -> tuple[State, int]:
        """The slots that are held, and how many were lost."""
        kept = state or ()
        lost = -kept[0][1] if kept and kept[0][0] == _LOST else 0
        first = 1 if lost else 0
        over = bisect_right(kept, now, first, key=_expiry)
        return kept[over:], lost + over - first

    def _holding(self, live: State, now: int, slot_id: str, place: int | None) -> tuple[State, int]:
        """The slots with this one among them, and its expiry."""
        expires = now + self.ttl_ms
        if place is not None:
            expires = max(live[place][1], expires)
            live = live[:place] + live[place + 1 :]
        slot = slot_id, expires
        place = bisect_right(live, (expires, slot_id), key=_order)
        return (*live[:place], slot, *live[place:]), expires

    def _left(self, live: State, lost: int, now: int, result: R) -> Outcome[R]:
        state = ((_LOST, -lost), *live) if lost else live
        if not state:
            return Outcome(None, result, 0, True)
        last = live[-1][1] if live else now
        return Outcome(state, result, last - now + COUNTED_FOR_MS, True)

    def _denial(self, live: State, now: int) -> Decision:
        free_at = live[0][1] if live else now
        wait = min(max(1, free_at - now), MAX_SAFE)
        return Decision(False, self.limit, max(0, self.limit - len(live)), free_at, wait)


def slots(limit: int, ttl_ms: int | timedelta = 30_000) -> Slots:
    """At most `limit` held at once, by everybody who shares the store. A slot that is not renewed
    for `ttl_ms` is free again."""
    return Slots(limit, ttl_ms)
