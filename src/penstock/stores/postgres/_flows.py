"""How a batch of calls is put to PostgreSQL.

A check is decided here, on the record that this process last saw under the key (none, for a key
it does not know), and put to the server as a compare-and-set: write this if that is still there.
If it is, the check took one round trip. If not, the answer holds the present record, and the
check is decided anew on that: a second round trip. No lock outlives a statement, so a client that
stalls or dies never holds anybody up, and a commit is shared by all who waited for the last one.

A guess is never trusted: a denial, a peek or an error that rests on one is confirmed by the same
statement, or by the record that the server has just returned.

On a key that other processes keep changing, guesses keep failing: a second one that fails, on the
record that the first had brought, has met a race. What is still open is then read under the
advisory lock of its keys' hashes and the locks of their rows, where it waits in the queue of the
others like it, and cannot lose. That takes a transaction, but two round trips only: one begins,
locks and reads, the other swaps and commits. Such a key is remembered as raced, and locked at once
the next time, until it is found as this process last saw it.

With `use_server_time` a round trip in front brings the server's clock, and the records with it.

**Time.** A statement that the server refuses in time has certainly charged nothing; one that is
still under way when its caller gives up has perhaps. So the server is told to give up first: by
the settings of the connection, as long as everybody in the batch has come just now, else by a
bound that travels along with the statement. Who has more time than that bound is asked for anew.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from itertools import filterfalse
from operator import attrgetter

from .._sheet import Call, ConnectionFailedError, Sheet
from ._requests import (
    CONFLICTS,
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
        """Answer the calls. Those that it leaves open, without an error, are to be asked anew."""
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
                    if rounds > _GUESSES or self._are_raced(open_calls):
                        is_first = rounds == 1
                        stale = yield from self._locked_round(open_calls, known, is_first, bound_ms)
                    else:
                        stale = yield from self._round(open_calls, known, bound_ms)
                except RefusalError as refusal:
                    if refusal.state in CONFLICTS:
                        continue
                    if bound_ms is None or refusal.state not in TIMEOUTS:
                        raise
                    return self._refuse_the_hasty(open_calls, bound_ms, refusal)
                open_calls = _still_open(open_calls, stale)
                known.update(stale)
        finally:
            self._last_s = time.monotonic() - began

    def _bound_ms(self, calls: list[Call]) -> int | None:
        """How long the server may take, if its connection's settings would let it take longer than
        somebody here has."""
        left_s = min(map(_deadline, calls)) - time.monotonic()
        if self._bounds_late and self._last_s < self._timeout_s / 10:
            return None
        if self._is_bounded and left_s > self._timeout_s * 0.95:
            return None
        return max(1, int(left_s * SHARE * 1000))

    def _refuse_the_hasty(self, calls: list[Call], bound_ms: int, refusal: RefusalError) -> None:
        """The server was given as long as the hastiest had. Who has as much time left again is not
        answered by that."""
        now = time.monotonic()
        for call in calls:
            if (call.deadline - now) * 1000 < bound_ms:
                call.fail(unavailable(refusal, self.schema.table, was_sent=False))
            call.in_flight = False

    def _round(
        self, calls: list[Call], known: dict[str, str | None], bound_ms: int | None
    ) -> PostgresFlow:
        """Decide on what is known or guessed, and swap. Returns what was not as guessed."""
        sheet = self._decide(calls, known)
        doubtful = _doubtful(sheet, known)
        rows: list[Row] = []
        if doubtful:
            rows = yield self._swap(sheet, doubtful, bool(sheet.writes), bound_ms)
        if not rows:
            self._learn(sheet, known, {})
            return {}
        stale = _stale(rows, doubtful)
        seen = [key for key in stale if key in known]
        self._learn(sheet, known, stale)
        for key in seen:
            self.memory.note_race(key)
        return stale

    def _decide(self, calls: list[Call], known: dict[str, str | None]) -> Sheet:
        """Run the calls. Those whose callers give up from here on are in doubt, if they write; who
        has given up before is left out."""
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
        sheet: Sheet,
        asked: list[tuple[bytes, str]],
        writes: bool,
        bound_ms: int | None = None,
    ) -> Query:
        keys: list[bytes] = []
        expected: list[str | None] = []
        records: list[str | None] = []
        keeps: list[int] = []
        for raw, key in asked:
            record, keep_until = sheet.writes.get(key, (None, 0))
            keys.append(raw)
            expected.append(sheet.held[key])
            records.append(record)
            keeps.append(max(1, keep_until) if record is not None else -(key in sheet.writes))
        return Query(self.schema.swap, (keys, expected, records, keeps), writes, bound_ms)

    def _are_raced(self, calls: list[Call]) -> bool:
        """All keys of them: no row is held while another key is waited for. Who only looks cannot
        lose, and does not lock."""
        if not self.memory.has_raced:
            return False
        if all(call.transform.role in ("peek", "forecast") for call in calls):
            return False
        return all(map(self.memory.is_raced, _open_keys(calls)))

    def _locked_round(
        self,
        calls: list[Call],
        known: dict[str, str | None],
        is_first: bool,
        bound_ms: int | None,
    ) -> PostgresFlow:
        """The same, with the keys held from before they are read. What is stale even so was
        touched for the first time in between, when it had no row to be held by. As the first
        round, it tells whether a key is as this process last saw it, and no longer raced."""
        names = {encode_key(key): key for key in _open_keys(calls)}
        keys = sorted(names)
        locks = self.schema.lock([self.schema.lock_of(key) for key in keys[:_MOST_LOCKS]])
        try:
            bounds = () if bound_ms is None else (bound(bound_ms),)
            *_, rows = yield Pipeline((_BEGIN, *bounds, locks, Query(self.schema.hold, (keys,))))
            held = dict(rows)
            known.update((name, held.get(key)) for key, name in names.items())
            for name in names.values():
                if is_first and known[name] == self.memory.get(name):
                    self.memory.note_calm(name)
            sheet = self._decide(calls, known)
            asked = _doubtful(sheet, known)
            # Nothing is done before the commit, so that alone leaves a doubt.
            swap = [self._swap(sheet, asked, False)] if asked else []
            *swapped, _ = yield Pipeline((*swap, _COMMIT))
        except RefusalError:
            # A session that was ended cannot be told; what counts is why.
            with contextlib.suppress(ConnectionFailedError, RefusalError):
                yield _ROLLBACK
            raise
        stale = _stale(swapped[0], asked) if swapped else {}
        self._learn(sheet, known, stale)
        return stale

    def _read_clock(self, calls: list[Call], known: dict[str, str | None]) -> PostgresFlow:
        now = yield from self._look([key for call in calls for key in call.keys], known)
        for call in calls:
            call.now = now

    def sweep(self, now: int | None, slice_size: int) -> PostgresFlow:
        """Drop what is past keeping, slice by slice; returns how many keys that were."""
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
    return {call.keys[place] for call in calls for place in call.open}


def _doubtful(sheet: Sheet, known: dict[str, str | None]) -> list[tuple[bytes, str]]:
    """The keys to be written, or to be confirmed, in the order of the table."""
    keys = []
    for key in sheet.held:
        if key in sheet.writes or key not in known:
            keys.append((encode_key(key), key))  # noqa: PERF401 - nearly always one
    keys.sort()
    return keys


def _stale(rows: list[Row], asked: list[tuple[bytes, str]]) -> dict[str, str | None]:
    return {asked[place - 1][1]: held for place, held in rows}


def _still_open(calls: list[Call], stale: dict[str, str | None]) -> list[Call]:
    """The calls that are not done. An error stands if all that it rests on was confirmed."""
    left = []
    for call in calls:
        # What it wrote is committed, but for what was not as guessed.
        call.charged = call.charged or not stale.keys() >= set(call.writing)
        again: list[int] = []
        if stale:
            again = [place for place in call.open if call.keys[place] in stale]
        if call.error is None or not again:
            call.open = again
        # Only now: who gives up must see the one or the other.
        call.in_flight = False
        if again:
            left.append(call)
    return left
