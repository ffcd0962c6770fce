"""Slots: at most so many at once, held under leases.

A slot is held under an id of its own, that of the charge that took it, until it is given back or
its time is up: a holder renews it, and one that dies loses it after `ttl_ms` by itself. So at no
instant of the clock that decides do more than `limit` hold one, and none is lost for longer than
one ttl.

Slots are taken, renewed and given back by id, which a bare `check` does not have: they are asked
for by `reserve` and `acquire`, whose `Charge` knows its id. To take a slot that one holds already,
or to give it back twice, changes nothing: a call whose reply was lost may be repeated.

A process that waits for a slot has a ticket. Tickets are numbered in order of arrival: `queue_up`
takes a slot if more are free than tickets come first, and else renews the caller's ticket. Beside
other limits a denial writes nothing, not even a ticket, so that is left to `keep_ticket`. A ticket
comes first only while its owner keeps asking (`FRESH_MS`), so that an owner that died or was
stopped delays no other caller for longer than that. An owner that asks again within `TICKET_MS` has
its old place. `take` asks without a ticket, and ignores those of others.

A denial says when the next slot expires, and to ask again by then, but at most after a second: a
holder may release its slot at any moment.

The expiry of a slot never moves back. A clock that goes back finds slots held for longer.

Slots that nobody gave back in time are counted when they are forgotten, until somebody asks:
`reclaim` tells each of them once, to one of all who share the store. So the state is kept for a
minute longer than a slot is held.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..core._decision import Decision, Forecast, Outcome
from ..core._errors import UnsupportedError
from ..core._lua import LuaSource, beside, signed
from ..core._strategy import Parameter, Strategy
from ..core._validation import MAX_SAFE, MAX_STORED_MS, stored_pair, stored_whole
from ..core._waiting import MAX_SLOT_WAIT_MS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta


__all__ = ["Slots", "slots"]

MAX_SLOTS = 10_000
"""Valkey takes 0.7 to 1.2 us to read a slot for a forecast, and 0.2 us to remove an expired one: a
call that does so for all of them takes about 10 ms."""

COUNTED_FOR_MS = 60_000
"""How long it is known that slots were lost, for those who count them."""

R = TypeVar("R")

TICKET_MS = 2_000
"""How long a ticket keeps its number while its owner does not ask."""

FRESH_MS = 250
"""How long after its owner has asked a ticket comes before later ones. Waiters ask every 20 ms."""

_LOST = "lost"
"""In the place of an id: how many were not given back, as a negative number."""

_TICKETS_BELOW = -(2**51)
_TICKET_SHIFT = 2**52
"""What the expiry of a ticket is kept less of, so that tickets come before everything else."""

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


def _next_number(tickets: State) -> int:
    return max([int(name[1:17]) for name, _ in tickets], default=0) + 1


_expiry = itemgetter(1)


class _Kept(NamedTuple):
    """What a state holds: slots, how many were lost, and tickets that are good."""

    live: State
    lost: int
    tickets: State


class Slots(Strategy):
    """State: ((id, expires), ...), by expiry and then by id; before them, if there are some,
    ("lost", -count), and before that tickets: ("w", 16 digits, id; expires - 2**52)."""

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
            state=(
                "sorted set: member the id of a slot, score its expiry in ms; lost, how many were "
                "not given back, negated; w, 16 digits and an id, the expiry of a ticket less 2**52"
            ),
            raw="id, expiry, id, expiry, ...",
            decode=_decode,
            constants={"countedForMs": COUNTED_FOR_MS},
            beyond_check=("take", "queue_up", "keep_ticket", "renew", "release", "reclaim"),
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
        live = self._parts(state, now).live
        free = self.limit - len(live)
        reset_at = live[0][1] if live else now
        if free >= cost:
            decision = Decision(True, self.limit, free - cost, reset_at, 0)
        else:
            decision = self._denial(live, now)
        return Outcome(state, decision, 0, False)

    def take(self, state: State | None, now: int, slot_id: str) -> Outcome[Decision]:
        """Hold a slot, or go on holding it."""
        kept = self._parts(state, now)
        place = _place_of(slot_id, kept.live)
        if len(kept.live) >= self.limit and place is None:
            return Outcome(state, self._denial(kept.live, now), 0, False)
        return self._taken(kept, now, slot_id, place)

    def queue_up(self, state: State | None, now: int, slot_id: str) -> Outcome[Decision]:
        """Hold a slot if it is one's turn, or else wait for it: a denial that keeps a ticket."""
        kept = self._parts(state, now)
        place = _place_of(slot_id, kept.live)
        ticket, others, ahead = self._turn(kept, now, slot_id)
        if place is not None or len(kept.live) + ahead < self.limit:
            return self._taken(kept._replace(tickets=others), now, slot_id, place)
        tickets = tuple(sorted([*others, ticket], key=_order))
        return self._left(kept._replace(tickets=tickets), now, self._denial(kept.live, now))

    def keep_ticket(self, state: State | None, now: int, slot_id: str) -> Outcome[int]:
        """Keep one's place among those who wait, and take nothing; the result is how many are
        before it. Who holds a slot waits for none."""
        kept = self._parts(state, now)
        if _place_of(slot_id, kept.live) is not None:
            return Outcome(state, 0, 0, False)
        ticket, others, ahead = self._turn(kept, now, slot_id)
        tickets = tuple(sorted([*others, ticket], key=_order))
        return self._left(kept._replace(tickets=tickets), now, ahead)

    def renew(
        self, state: State | None, now: int, slot_ids: Sequence[str]
    ) -> Outcome[tuple[Decision, ...]]:
        """Go on holding slots, each until the `reset_at` of its decision; denied are those that are
        not held any more. One pass over the state, however many there are."""
        kept = self._parts(state, now)
        held = dict(kept.live)
        expires = now + self.ttl_ms
        renewed = {each: max(held[each], expires) for each in slot_ids if each in held}
        free = max(0, self.limit - len(held))
        over = Decision(False, self.limit, free, now, 1)
        answers = tuple(
            [
                Decision(True, self.limit, free, renewed[each], 0) if each in renewed else over
                for each in slot_ids
            ]
        )
        if not renewed:
            return Outcome(state, answers, 0, False)
        held.update(renewed)
        live = tuple(sorted(held.items(), key=_order))
        return self._left(kept._replace(live=live), now, answers)

    def release(self, state: State | None, now: int, slot_id: str) -> Outcome[int]:
        """Give a slot back, or stop waiting for one; the result is whether one was held, 1 or 0."""
        kept = self._parts(state, now)
        tickets = tuple([ticket for ticket in kept.tickets if ticket[0][17:] != slot_id])
        place = _place_of(slot_id, kept.live)
        if place is not None:
            live = kept.live[:place] + kept.live[place + 1 :]
            return self._left(_Kept(live, kept.lost, tickets), now, 1)
        if len(tickets) < len(kept.tickets):
            return self._left(kept._replace(tickets=tickets), now, 0)
        return Outcome(state, 0, 0, False)

    def reclaim(self, state: State | None, now: int) -> Outcome[int]:
        """How many slots were not given back in time, since this was last asked."""
        kept = self._parts(state, now)
        if not kept.lost:
            return Outcome(state, 0, 0, False)
        return self._left(kept._replace(lost=0), now, kept.lost)

    def forecast(self, state: State | None, now: int, cost: int) -> Forecast:
        live = self._parts(state, now).live
        if not live:
            return Forecast(self.limit // cost, now, now)
        # If more are held than are allowed now, some have to expire first.
        first = max(0, len(live) - self.limit)
        return Forecast(max(0, self.limit - len(live)) // cost, live[first][1], live[-1][1])

    def pause(self, _state: Any, _now: int, _until_ms: int) -> Outcome[None]:
        raise UnsupportedError("slots cannot be paused: pause a limit with a pace beside them")

    def restore(self, kept: Any) -> State:
        pairs = [stored_pair(each) for each in kept]
        if not all(isinstance(slot_id, str) for slot_id, _ in pairs):
            raise ValueError("a slot whose id is no text")
        return tuple([(slot_id, self._restored(slot_id, at)) for slot_id, at in pairs])

    def _restored(self, slot_id: str, at: Any) -> int:
        if type(at) is int and at < _TICKETS_BELOW:
            return stored_whole(at + _TICKET_SHIFT, MAX_STORED_MS) - _TICKET_SHIFT
        if slot_id == _LOST and type(at) is int:
            return -stored_whole(-at, MAX_SAFE)
        return stored_whole(at, MAX_STORED_MS)

    def _parts(self, state: State | None, now: int) -> _Kept:
        """What the state holds at an instant."""
        kept = state or ()
        first = bisect_right(kept, _TICKETS_BELOW, key=_expiry)
        due = bisect_right(kept, now - _TICKET_SHIFT, 0, first, key=_expiry)
        tickets = kept[due:first]
        lost = 0
        if first < len(kept) and kept[first][0] == _LOST:
            lost = -kept[first][1]
            first += 1
        over = bisect_right(kept, now, first, key=_expiry)
        return _Kept(kept[over:], lost + over - first, tickets)

    def _turn(self, kept: _Kept, now: int, slot_id: str) -> tuple[tuple[str, int], State, int]:
        """The ticket of a waiter, renewed; those of the others; how many come first."""
        mine = [name for name, _ in kept.tickets if name[17:] == slot_id]
        others = tuple([ticket for ticket in kept.tickets if ticket[0] not in mine])
        expires = now + TICKET_MS - _TICKET_SHIFT
        fresh = [name for name, at in others if at > expires - FRESH_MS]
        ahead = sum(not mine or name < mine[0] for name in fresh)
        name = mine[0] if mine else f"w{_next_number(others):016d}{slot_id}"
        return (name, expires), others, ahead

    def _taken(self, kept: _Kept, now: int, slot_id: str, place: int | None) -> Outcome[Decision]:
        held = self._holding(kept.live, now, slot_id, place)
        decision = Decision(True, self.limit, max(0, self.limit - len(held)), held[0][1], 0)
        return self._left(kept._replace(live=held), now, decision)

    def _holding(self, live: State, now: int, slot_id: str, place: int | None) -> State:
        """The slots with this one among them."""
        expires = now + self.ttl_ms
        if place is not None:
            expires = max(live[place][1], expires)
            live = live[:place] + live[place + 1 :]
        slot = slot_id, expires
        place = bisect_right(live, (expires, slot_id), key=_order)
        return (*live[:place], slot, *live[place:])

    def _left(self, kept: _Kept, now: int, result: R) -> Outcome[R]:
        lost = ((_LOST, -kept.lost),) if kept.lost else ()
        state = (*kept.tickets, *lost, *kept.live)
        if not state:
            return Outcome(None, result, 0, True)
        last = kept.live[-1][1] if kept.live else now
        return Outcome(state, result, last - now + COUNTED_FOR_MS, True)

    def _denial(self, live: State, now: int) -> Decision:
        free_at = live[0][1] if live else now
        wait = min(max(1, free_at - now), MAX_SLOT_WAIT_MS)
        return Decision(False, self.limit, max(0, self.limit - len(live)), free_at, wait)


def slots(limit: int, ttl_ms: int | timedelta = 30_000) -> Slots:
    """At most `limit` held at once, by everybody who shares the store. A slot that is not renewed
    for `ttl_ms` is free again."""
    return Slots(limit, ttl_ms)
