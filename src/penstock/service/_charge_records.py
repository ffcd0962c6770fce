"""Records of open charges, in the store or beside it.

A record exists from the reservation to the settlement, and for its life at most. The reservation
writes it in the step that charges, and the settlement removes it in the step that refunds, on the
condition that it is still there: of all settlements, on whatever nodes and at whatever instant, one
finds it. A settled charge leaves nothing behind.

A record lives for as long as a refund can matter, which is the ttl of the longest limit, but for
an hour at least, so that work that takes longer than a short limit can be settled too, and for a
day at most. It holds the instant of the charge, by the clock that decided it, and a secret: by this
secret the id of the charge is authenticated (`_charges.py`).

Clients must not fill the store with charges that they never settle. So a key has at most `MAX_OPEN`
that were made in ten minutes and are open. They are counted for each key, and the settlement takes
its charge out of the count. Where the limits are in this process, records and these counts are in a
bounded table of their own, so that they never evict the counts of limits. When the table is full,
it lets records go, and what their charges reserved stays spent.

`charge_records.lua` is the same for Redis.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ..core._charges import Part
from ..core._clock import Clock
from ..core._decision import Decision, Outcome
from ..core._lua import LuaSource, beside
from ..core._steps import Step
from ..core._store import Store
from ..core._strategy import Strategy
from ..core._transform import Transform, checking, operating, refunding, taking
from ..core._validation import MAX_SPAN_MS, MAX_STORED_MS, stored_whole
from ..stores.memory import MemoryStore
from ..strategies import fixed_window

__all__ = [
    "LONGEST_MS",
    "MAX_OPEN",
    "SHORTEST_MS",
    "RecordState",
    "closing",
    "life_of",
    "new_secret",
    "opening",
    "reading",
    "records_beside",
]

SHORTEST_MS = 60 * 60 * 1000
LONGEST_MS = 24 * 60 * 60 * 1000
"""For how long a charge can be settled, at least and at most."""

MAX_OPEN = 10_000
"""How many charges of one key may be open that were made in ten minutes."""

_OPEN = fixed_window(MAX_OPEN, 10 * 60 * 1000, "first")
_COUNT = checking(_OPEN)

MAX_RECORDS = 200_000
MAX_BYTES = 64 << 20
"""The bounds of a table in this process."""

_FORM = re.compile(r"([0-9]+) ([0-9]+) ([0-9a-f]+)")


class RecordState(NamedTuple):
    """The content of a record: the instant of the charge, its life from then on, and its secret."""

    at: int
    life_ms: int
    secret: str


def _decode(raw: Any) -> list[Any] | None:
    if raw is None:
        return None
    found = _FORM.fullmatch(raw.decode() if isinstance(raw, bytes) else raw)
    if found is None:
        raise ValueError("not a record of a charge")
    at, life_ms, secret = found.groups()
    return [int(at), int(life_ms), secret]


class _ChargeRecord(Strategy):
    """The record of one charge. `take` writes it, with its life and its secret as the argument, and
    `release` removes it; each is denied if the other would have to come first."""

    name = "charge_record"
    limit = 1
    ttl_ms = LONGEST_MS
    restricts = False
    lua_sources: tuple[LuaSource, ...] = (
        LuaSource(
            "chargeRecord",
            beside(__file__),
            argv=("now", "cost"),
            state="string: the instant of the charge, its life in ms, and a secret",
            raw="the string",
            decode=_decode,
            beyond_check=("take", "release"),
        ),
    )

    def check(self, state: RecordState | None, now: int, cost: int) -> Outcome[Decision]:
        """Whether there is no such record."""
        is_free = self.live(state, now) is None
        return Outcome(state, Decision(is_free, 1, 0, now, 0 if is_free else 1), 0, False)

    def take(self, state: RecordState | None, now: int, slot_id: str) -> Outcome[Decision]:
        if self.live(state, now) is not None:
            return Outcome(state, Decision(False, 1, 0, now, 1), 0, False)
        life, secret = slot_id.split(" ")
        life_ms = int(life)
        made = RecordState(now, life_ms, secret)
        return Outcome(made, Decision(True, 1, 0, now + life_ms, 0), life_ms, True)

    def release(self, state: RecordState | None, now: int, slot_id: str) -> Outcome[int]:
        if self.live(state, now) is None:
            return Outcome(state, 0, 0, False)
        return Outcome(None, 1, 0, True)

    def live(self, state: RecordState | None, now: int) -> RecordState | None:
        """The record, unless its life is over."""
        return state if state is not None and now < state.at + state.life_ms else None

    def restore(self, kept: Any) -> RecordState:
        at, life_ms, secret = kept
        if not isinstance(secret, str):
            raise ValueError("a record of a charge without its secret")
        return RecordState(
            stored_whole(at, MAX_STORED_MS), stored_whole(life_ms, MAX_SPAN_MS), secret
        )


_RECORD = _ChargeRecord()


def new_secret() -> str:
    return secrets.token_hex(16)


def life_of(parts: Sequence[Part]) -> int:
    """For how long a charge of these parts can be settled."""
    longest = max([part.strategy.ttl_ms for part in parts if part.cost], default=0)
    return min(max(longest, SHORTEST_MS), LONGEST_MS)


def opening(record: str, counts: Sequence[str], life_ms: int, secret: str) -> list[Step]:
    """The steps that write a record, under this key, and count it as open. One of them denies if a
    key has too many open charges."""
    counting = [Step(key, _COUNT) for key in counts]
    return [*counting, Step(record, taking(_RECORD, f"{life_ms} {secret}"))]


def closing(record: str, counts: Sequence[str], at: int) -> list[Step]:
    """The steps that remove a record, and count it no longer. The first denies if the record is not
    there: then another settlement removed it, or its life is over."""
    counting = [Step(key, refunding(_OPEN, at)) for key in counts]
    return [Step(record, operating(_RECORD, "release", admits=bool)), *counting]


def _read(state: RecordState | None, now: int, _cost: int) -> Outcome[RecordState | None]:
    return Outcome(state, _RECORD.live(state, now), 0, False)


reading: Transform[RecordState | None] = Transform(
    _RECORD, "peek", _read, lambda _now, _retry_after_ms: None
)
"""Returns the record of a key, or None, and writes nothing."""


_beside: WeakKeyDictionary[Store, Store] = WeakKeyDictionary()


def records_beside(store: Store, clock: Clock) -> Store:
    """Where the records for limits in `store` are kept: there, or in a table of their own if the
    store is in this process. All services on one store share that table."""
    if not store.answers_at_once:
        return store
    found = _beside.get(store)
    if found is None:
        found = MemoryStore(max_keys=MAX_RECORDS, max_bytes=MAX_BYTES, clock=clock)
        _beside[store] = found
    return found
