"""How a batch of calls is put to PostgreSQL.

A check is decided here, on the record that this process last saw under the key (none, for a key
it does not know), and put to the server as a compare-and-set: write this if that is still there.
If it is, the check took one round trip. If not, the answer holds the present record, and the
check is decided anew on that: a second round trip. No lock outlives a statement, so a client that
stalls or dies never holds anybody up, and a commit is shared by all who waited for the last one.

A guess is never trusted: a denial, a peek or an error that rests on one is confirmed by the same
statement, or by the record that the server has just returned.

On a key that other processes keep changing, guesses keep failing. After a few rounds the batch
asks for the advisory lock of its keys' hashes, in a transaction, where it waits in line with the
others like it and then cannot lose. With `use_server_time` a round trip in front brings the
server's clock, and the records with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..sheet import Call, Sheet
from .faults import CONFLICTS
from .requests import Ask, PostgresFlow, RefusalError, Statement
from .schema import Schema, encode_key

__all__ = ["Flows", "Memory"]

_GUESSES = 4
_MOST_LOCKS = 64
_LONGEST_RECORD = 8_192


class Memory:
    """The record last seen under each of the keys used most recently. Only ever a guess."""

    def __init__(self, most: int = 4_096) -> None:
        self._most = most
        self._records: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        return self._records.get(key)

    def put(self, key: str, record: str | None) -> None:
        self._records.pop(key, None)
        if record is not None and len(record) <= _LONGEST_RECORD:
            self._records[key] = record
            if len(self._records) > self._most:
                del self._records[next(iter(self._records))]


class Flows:
    """The flows over one table, for one lane: nobody else uses `memory` at the same time."""

    def __init__(self, schema: Schema, *, use_server_time: bool) -> None:
        self.schema = schema
        self.memory = Memory()
        self._server_time = use_server_time

    def run(self, calls: Iterable[Call]) -> PostgresFlow:
        """Answer all calls. What ends the flow early has left the rest of them unanswered."""
        open_calls = [call for call in calls if call.open]
        known: dict[str, str | None] = {}
        if self._server_time and open_calls:
            yield from self._read_clock(open_calls, known)
        rounds = 0
        while open_calls:
            rounds += 1
            play = self._round if rounds <= _GUESSES else self._locked_round
            try:
                stale = yield from play(open_calls, known)
            except RefusalError as refusal:
                if refusal.state not in CONFLICTS:
                    raise
                continue
            known.update(stale)
            for call in open_calls:
                call.charged = call.charged or any(key not in stale for key in call.writing)
            open_calls = [call for call in open_calls if not _answered(call, stale)]

    def _round(self, calls: list[Call], known: dict[str, str | None]) -> PostgresFlow:
        """Decide on what is known or guessed, and swap. Returns what was not as guessed."""

        def read(key: str) -> str | None:
            return known[key] if key in known else self.memory.get(key)

        sheet = Sheet(read)
        for call in calls:
            sheet.run(call)
        doubtful = sorted(
            (encode_key(key), key) for key in sheet.held if key in sheet.writes or key not in known
        )
        stale: dict[str, str | None] = {}
        if doubtful:
            stale = yield from self._swap(sheet, doubtful)
        for key, held in sheet.held.items():
            if key in stale:
                self.memory.put(key, stale[key])
            elif key in sheet.writes:
                self.memory.put(key, sheet.writes[key][0])
                known.pop(key, None)
            else:
                self.memory.put(key, held)
        return stale

    def _swap(self, sheet: Sheet, asked: list[tuple[bytes, str]]) -> PostgresFlow:
        records: list[str | None] = []
        keeps: list[int] = []
        for _, key in asked:
            record, keep_until = sheet.writes.get(key, (None, 0))
            records.append(record)
            keeps.append(max(1, keep_until) if record is not None else -(key in sheet.writes))
        keys = [raw for raw, _ in asked]
        expected = [sheet.held[key] for _, key in asked]
        values = (keys, expected, records, keeps)
        rows = yield Ask(self.schema.swap, values, writes=bool(sheet.writes))
        return {asked[place - 1][1]: held for place, held in rows}

    def _locked_round(self, calls: list[Call], known: dict[str, str | None]) -> PostgresFlow:
        """The same, with the keys held from before they are read."""
        names = {call.keys[place] for call in calls for place in call.open}
        keys = sorted(map(encode_key, names))
        yield Ask(Statement("BEGIN"))
        try:
            yield self.schema.lock([self.schema.lock_of(key) for key in keys[:_MOST_LOCKS]])
            yield Ask(self.schema.hold, (keys,))
            yield from self._look(sorted(names), known)
            stale = yield from self._round(calls, known)
            yield Ask(Statement("COMMIT"), writes=True)
        except RefusalError:
            yield Ask(Statement("ROLLBACK"))
            raise
        return stale

    def _read_clock(self, calls: list[Call], known: dict[str, str | None]) -> PostgresFlow:
        now = yield from self._look([key for call in calls for key in call.keys], known)
        for call in calls:
            call.now = now

    def sweep(self, now: int | None, slice_size: int) -> PostgresFlow:
        """Drop what is past keeping, slice by slice; returns how many keys that were."""
        if now is None:
            [[now]] = yield Ask(self.schema.now)
        after, total = b"", 0
        while after is not None:
            [[after, dropped]] = yield Ask(self.schema.sweep, (after, slice_size, now))
            total += dropped
        return total

    def _look(self, keys: list[str], known: dict[str, str | None]) -> PostgresFlow:
        """Read the records of the keys; returns the server's clock."""
        rows = yield Ask(self.schema.look, (list(map(encode_key, keys)),))
        now: Any = 0
        for place, record, now in rows:  # noqa: B007 - the clock, from the last row
            known[keys[place - 1]] = record
        return now


def _answered(call: Call, stale: dict[str, str | None]) -> bool:
    """Whether the call is done. An error stands if all that it rests on was confirmed."""
    again = [place for place in call.open if call.keys[place] in stale]
    if call.error is None or not again:
        call.open = again
    return not again
