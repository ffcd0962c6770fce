"""How a batch of calls is sent to PostgreSQL.

A check is decided in this process, on the record that it last saw under the key (none, for an
unknown key), and sent to the server as a compare-and-set: write this if that is still there. If it
is, the check took one round trip. If not, the answer contains the current record, and the check is
decided again on that: a second round trip. No lock outlives a statement, so a client that stalls or
dies never blocks others, and a commit is shared by all callers that waited for the previous one.

A guess is never trusted: a denial, a peek or an error that is based on one is confirmed by the same
statement, or by the record that the server has just returned.

On a key that other processes keep changing, guesses keep failing: a second guess that fails, on the
record that the first one returned, is a race. The calls that are still open then read under the
advisory lock of their keys' hashes and the locks of their rows, where they queue and cannot lose.
That takes a transaction, but only two round trips: one begins, locks and reads, the other swaps and
commits. Such a key is remembered as raced, and locked at once the next time, until it is found as
this process last saw it.

**Several keys, one decision.** What a call decides as a whole is written as a whole: its keys are a
group of the statement, together with those of other calls of the batch that share a key with it. If
one of them is not as guessed, none is written, and all calls on any of them are decided again.
Calls that write nothing, denials included, need no group, only that all records they are based on
were current at one instant. A transaction of more than one key locks them all, in their order, also
those without a row: so none of them can change, and there is no deadlock.

With `use_server_time`, an additional round trip reads the server's clock, together with the
records.

**Time.** A statement that the server cancels in time has certainly charged nothing; one that is
still running when its caller gives up may have. So the server is told to give up first: by the
settings of the connection as long as all callers of the batch have just come, else by a timeout
that is sent with the statement. Callers that have more time than that are sent again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Container, Iterable, Mapping
from itertools import filterfalse
from operator import attrgetter
from typing import Any

from ...core._transform import READING
from .._sheet import Call, ConnectionFailedError, Sheet, Write
from ._requests import (
    CONFLICTS,
    NO_FUNCTION,
    TIMEOUTS,
    Pipeline,
    PostgresFlow,
    Query,
    RefusalError,
    Row,
    Statement,
    unavailable,
)
from ._schema import SHARE, Schema, bound, encode_key

__all__ = ["PostgresFlows", "SeenRecords"]

_GUESSES = 2
_MOST_LOCKS = 64
_LONGEST_RECORD = 8_192
# READ COMMITTED: under an older snapshot a row could be stale despite its lock.
_BEGIN = Query(Statement("BEGIN ISOLATION LEVEL READ COMMITTED"))
_COMMIT = Query(Statement("COMMIT"), writes=True)
_ROLLBACK = Query(Statement("ROLLBACK"))

_deadline = attrgetter("deadline")
_has_left = attrgetter("has_left")
_is_open = attrgetter("open")


class SeenRecords:
    """The record last seen under each of the keys used most recently, and which of these keys
    are raced. Only ever a guess."""

    def __init__(self, most: int = 4_096) -> None:
        self._most = most
        self._records: dict[str, str] = {}
        self.get: Callable[[str], str | None] = self._records.get
        self._raced: set[str] = set()

    @property
    def has_raced(self) -> bool:
        return bool(self._raced)

    def put(self, key: str, record: str | None) -> None:
        self._records.pop(key, None)
        if record is not None and len(record) <= _LONGEST_RECORD:
            self._records[key] = record
            if len(self._records) > self._most:
                oldest = next(iter(self._records))
                del self._records[oldest]
                self._raced.discard(oldest)
        else:
            self._raced.discard(key)

    def is_raced(self, key: str) -> bool:
        return key in self._raced

    def note_race(self, key: str) -> None:
        if key in self._records:
            self._raced.add(key)

    def note_calm(self, key: str) -> None:
        self._raced.discard(key)


class PostgresFlows:
    """The flows over one table. One batch at a time uses them, and their `memory`.

    `is_bounded`: connections have settings by which the server gives up in `timeout_ms`.
    `bounds_late`: a bound for one statement is dear, so it is sent after a batch that was slow.
    """

    def __init__(
        self,
        schema: Schema,
        timeout_ms: int,
        *,
        use_server_time: bool,
        is_bounded: bool,
        bounds_late: bool = False,
    ) -> None:
        self.schema = schema
        self.memory: SeenRecords = SeenRecords()
        self._server_time = use_server_time
        self._timeout_s = timeout_ms / 1000
        self._is_bounded = is_bounded
        self._bounds_late = bounds_late
        self._last_s = 0.0

    def run(self, calls: Iterable[Call]) -> PostgresFlow:
        """Answer the calls. Those that are left open, without an error, have to be sent again."""
        began = time.monotonic()
        open_calls = list(filter(_is_open, calls))
        known: dict[str, str | None] = {}
        rounds = 0
        try:
            if self._server_time and open_calls:
                yield from self._read_clock(open_calls, known)
            while open_calls:
                rounds += 1
                bound_ms = self._bound_ms(open_calls)
                try:
                    if rounds > _GUESSES or self._are_to_be_locked(open_calls):
                        is_first = rounds == 1
                        stale = yield from self._locked_round(open_calls, known, is_first, bound_ms)
                    else:
                        stale = yield from self._round(open_calls, known, bound_ms)
                except RefusalError as refusal:
                    if refusal.state in CONFLICTS or self._lacks_swap_all(refusal, open_calls):
                        continue
                    if bound_ms is None or refusal.state not in TIMEOUTS:
                        raise
                    return self._refuse_the_hasty(open_calls, bound_ms, refusal)
                open_calls = _still_open(open_calls, stale)
                known.update(stale)
        finally:
            self._last_s = time.monotonic() - began

    def _bound_ms(self, calls: list[Call]) -> int | None:
        """A timeout for the server, if the connection's settings would allow longer than a caller
        of this batch has."""
        left_s = min(map(_deadline, calls)) - time.monotonic()
        if self._bounds_late and self._last_s < self._timeout_s / 10:
            return None
        if self._is_bounded and left_s > self._timeout_s * 0.95:
            return None
        return max(1, int(left_s * SHARE * 1000))

    def _refuse_the_hasty(self, calls: list[Call], bound_ms: int, refusal: RefusalError) -> None:
        """Fail the calls that have less time left than the server was given. The others stay
        open: its timeout was chosen for the caller with the least time."""
        now = time.monotonic()
        for call in calls:
            if (call.deadline - now) * 1000 < bound_ms:
                call.fail(unavailable(refusal, self.schema.table, was_sent=False))
            call.in_flight = False

    def _round(
        self, calls: list[Call], known: dict[str, str | None], bound_ms: int | None
    ) -> PostgresFlow:
        """Decide on known or guessed records, and swap. Returns the records that were not as
        guessed."""
        sheet = self._decide(calls, known)
        groups = _groups(calls) if any(map(_spans_keys, calls)) else None
        doubtful = _doubtful(sheet, known, groups or ())
        rows: list[Row] = []
        if doubtful:
            query = self._swap(doubtful, sheet.held, sheet.writes, groups)
            rows = yield Query(*query, bool(sheet.writes), bound_ms)
        if not rows:
            self._learn(sheet, known, {})
            return {}
        stale = _stale(rows, doubtful)
        # In a group that was not written, the guesses for some keys may have been right.
        seen = [key for key, held in stale.items() if key in known and held != sheet.held[key]]
        self._learn(sheet, known, stale)
        for key in seen:
            self.memory.note_race(key)
        if groups is not None:
            known.update(_confirmed(calls, sheet, stale))
        return stale

    def _decide(self, calls: list[Call], known: dict[str, str | None]) -> Sheet:
        """Run the calls. From here on a call that writes is in doubt if its caller gives up;
        callers that have given up before are left out."""
        for call in calls:
            call.in_flight = True
        calls[:] = filterfalse(_has_left, calls)
        guess = self.memory.get
        sheet = Sheet((lambda key: known[key] if key in known else guess(key)) if known else guess)
        for call in calls:
            sheet.run(call)
            call.in_flight = bool(call.writing)
        return sheet

    def _learn(
        self, sheet: Sheet, known: dict[str, str | None], stale: dict[str, str | None]
    ) -> None:
        for key, held in sheet.held.items():
            if key in stale:
                self.memory.put(key, stale[key])
            elif key in sheet.writes:
                self.memory.put(key, sheet.writes[key][0])
                known.pop(key, None)
            else:
                self.memory.put(key, held)

    def _swap(
        self,
        asked: list[tuple[bytes, str]],
        held: Mapping[str, str | None],
        writes: Mapping[str, Write],
        groups: Mapping[str, int] | None = None,
    ) -> tuple[Statement, tuple[list[Any], ...]]:
        keys: list[bytes] = []
        expected: list[str | None] = []
        records: list[str | None] = []
        keeps: list[int] = []
        for raw, key in asked:
            record, keep_until = writes.get(key, (None, 0))
            keys.append(raw)
            expected.append(held[key])
            records.append(record)
            keeps.append(max(1, keep_until) if record is not None else -(key in writes))
        if groups is None:
            return self.schema.swap, (keys, expected, records, keeps)
        # A step that is written by itself is a group of one; 0 is not written at all.
        numbers = [
            groups.get(key) or (-place if key in writes else 0)
            for place, (_, key) in enumerate(asked, 1)
        ]
        return self.schema.swap_all, (keys, expected, records, keeps, numbers)

    def _lacks_swap_all(self, refusal: RefusalError, calls: list[Call]) -> bool:
        """Whether this is a table of an older version, to be asked for anew in transactions."""
        if refusal.state != NO_FUNCTION or not self.schema.has_swap_all:
            return False
        self.schema.has_swap_all = not any(map(_spans_keys, calls))
        return not self.schema.has_swap_all

    def _are_to_be_locked(self, calls: list[Call]) -> bool:
        """Whether to lock at once: all calls are raced, or cannot be swapped as a whole. Calls that
        only read cannot lose a race, and do not lock."""
        if not self.schema.has_swap_all and any(map(_spans_keys, calls)):
            return True
        if not self.memory.has_raced or all(call.is_all_of(READING) for call in calls):
            return False
        return all(map(self._is_raced, calls))

    def _is_raced(self, call: Call) -> bool:
        """Whether all keys of a call are raced: no row is held while waiting for another key. For a
        call that is written as a whole, one raced key is enough."""
        raced = (self.memory.is_raced(call.steps[place][0]) for place in call.open)
        return any(raced) if call.is_whole else all(raced)

    def _locked_round(
        self,
        calls: list[Call],
        known: dict[str, str | None],
        is_first: bool,
        bound_ms: int | None,
    ) -> PostgresFlow:
        """As `_round`, with the keys locked before they are read. A single key that is stale
        nevertheless was created in between, when it had no row to lock. If it is the first round,
        it also shows whether a key is as this process last saw it, and so no longer raced."""
        names = {encode_key(key): key for key in _open_keys(calls)}
        keys = sorted(names)
        is_claimed = len(keys) > 1
        locks = self.schema.lock([self.schema.lock_of(key) for key in keys[:_MOST_LOCKS]])
        hold = (self.schema.claim, self.schema.read) if is_claimed else (self.schema.hold,)
        try:
            bounds = () if bound_ms is None else (bound(bound_ms),)
            reads = [Query(statement, (keys,)) for statement in hold]
            *_, rows = yield Pipeline((_BEGIN, *bounds, locks, *reads))
            records = dict(rows)
            known.update((name, records.get(key) or None) for key, name in names.items())
            for name in names.values():
                if is_first and known[name] == self.memory.get(name):
                    self.memory.note_calm(name)
            sheet = self._decide(calls, known)
            held, writes, asked = sheet.held, sheet.writes, _doubtful(sheet, known)
            if is_claimed:
                # Rows for absent keys are written, or deleted.
                held = {name: known[name] or "" for name in names.values()}
                writes = {**{name: (None, 0) for name in held if not held[name]}, **writes}
                asked = [(key, names[key]) for key in keys if names[key] in writes]
            # Nothing takes effect before the commit, so only a failed commit leaves a doubt.
            swap = [Query(*self._swap(asked, held, writes))] if asked else []
            *swapped, _ = yield Pipeline((*swap, _COMMIT))
        except RefusalError:
            # A terminated session cannot be rolled back; the first error is the one to report.
            with contextlib.suppress(ConnectionFailedError, RefusalError):
                yield _ROLLBACK
            raise
        stale = _stale(swapped[0], asked) if swapped else {}
        self._learn(sheet, known, stale)
        return stale

    def _read_clock(self, calls: list[Call], known: dict[str, str | None]) -> PostgresFlow:
        now = yield from self._look([step[0] for call in calls for step in call.steps], known)
        for call in calls:
            call.now = now

    def sweep(self, now: int | None, slice_size: int) -> PostgresFlow:
        """Delete what may be deleted, slice by slice. Returns how many keys."""
        if now is None:
            [[now]] = yield Query(self.schema.now)
        after, total = b"", 0
        while after is not None:
            [[after, dropped]] = yield Query(self.schema.sweep, (after, slice_size, now))
            total += dropped
        return total

    def _look(self, keys: list[str], known: dict[str, str | None]) -> PostgresFlow:
        """Read the records of the keys; returns the server's clock."""
        rows = yield Query(self.schema.look, (list(map(encode_key, keys)),))
        if len(rows) != len(keys):
            raise ConnectionFailedError("a reply was not complete", may_have_run=False)
        for place, record, _ in rows:
            known[keys[place - 1]] = record
        return max(now for _, _, now in rows)


def _open_keys(calls: list[Call]) -> set[str]:
    return {call.steps[place][0] for call in calls for place in call.open}


def _spans_keys(call: Call) -> bool:
    """Whether a call has to be written as a whole, with more than one key."""
    return call.is_whole and len(call.steps) > 1


def _groups(calls: list[Call]) -> dict[str, int]:
    """The keys of calls that write as a whole, with the numbers of their groups: two calls that
    share a key are of one group."""
    leaders: dict[str, str] = {}
    for call in calls:
        if call.writing and _spans_keys(call):
            first = _leader(leaders, call.steps[0][0])
            for step in call.steps[1:]:
                leaders[_leader(leaders, step[0])] = first
    numbers: dict[str, int] = {}
    return {
        key: numbers.setdefault(_leader(leaders, key), len(numbers) + 1) for key in list(leaders)
    }


def _leader(leaders: dict[str, str], key: str) -> str:
    """The key that stands for the group of a key. Its way there is halved for the next one."""
    while (leader := leaders.setdefault(key, key)) != key:
        leaders[key] = key = leaders[leader]
    return key


def _confirmed(
    calls: list[Call], sheet: Sheet, stale: dict[str, str | None]
) -> Iterable[tuple[str, str | None]]:
    """Records that were current at the same instant as the stale ones, for calls that depend on
    both."""
    for call in calls:
        keys = {step[0] for step in call.steps} if call.is_whole else set()
        if not keys.isdisjoint(stale):
            for key in keys - stale.keys():
                record, _ = sheet.writes.get(key) or (sheet.held[key], 0)
                yield key, record


def _doubtful(
    sheet: Sheet, known: dict[str, str | None], groups: Container[str] = ()
) -> list[tuple[bytes, str]]:
    """The keys to be written, or to be confirmed, in the order of the table."""
    keys = []
    for key in sheet.held:
        if key in sheet.writes or key not in known or key in groups:
            keys.append((encode_key(key), key))  # noqa: PERF401 - nearly always one
    keys.sort()
    return keys


def _stale(rows: list[Row], asked: list[tuple[bytes, str]]) -> dict[str, str | None]:
    return {asked[place - 1][1]: held for place, held in rows}


def _still_open(calls: list[Call], stale: dict[str, str | None]) -> list[Call]:
    """The calls that are not done. An error stands if all that it rests on was confirmed."""
    left = []
    for call in calls:
        # Its writes are committed, except those with a wrong guess.
        call.charged = call.charged or not stale.keys() >= set(call.writing)
        again: list[int] = []
        if stale:
            again = [place for place in call.open if call.steps[place][0] in stale]
            if again and call.is_whole:
                again = list(call.open)
        if call.error is None or not again:
            call.open = again
        # Only now: a caller that gives up must see one state or the other.
        call.in_flight = False
        if again:
            left.append(call)
    return left
