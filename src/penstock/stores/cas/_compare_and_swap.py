"""The compare-and-swap flow: read, decide, write if the record is unchanged, otherwise repeat.

A batch is everything that this process wants of one key at a moment. It is closed before the key is
read, decided in order on what was read, and written in one step. So its callers share two requests,
and only other processes can interfere. If one does, the batch is decided again on what that one
wrote, at most RACES times; from the second race on after a random pause and a fresh read. The read
is skipped if the process remembers what it last saw (`_memory.py`), at the risk of one race.

A batch over several keys, for calls that are one decision, is the same with requests that read all
of its keys at one instant and write all or none. Records that an admission depends on but does not
change are part of the condition.

**Lost replies.** A write whose reply was lost is never simply repeated: it may have happened. The
version of a record is a trail, the ids of the TRAIL latest writes, newest first, and each attempt
has an id of its own. So the next read tells:

- our id is in the trail: it was written, even if others have written since;
- the id we had expected is there and ours is not, or the trail reaches back to the key's first
  write without it: it was not written. If it is still on its way, it will find the version changed
  by our next attempt; and if it arrives first, that attempt finds our id;
- neither: TRAIL others have written since, and it cannot be known. Only then the call ends as
  `store_unavailable`, saying that the request may have been charged.

A write of several keys has one id in all of their trails, and any of them is enough.

The same read recognizes a write that a driver has repeated by itself, and that was refused the
second time. A lost delete leaves no id; but a key that is gone, or was created again, was deleted
after we read it, by us or by somebody right after us, and no reader can tell the difference.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping, Sequence
from copy import copy

from ...core._clock import SystemClock
from ...core._errors import ConfigInvalidError, PenstockError
from ...core._transform import READING
from .._sheet import Call, ConnectionFailedError, Sheet
from ._memory import RaceMemory
from ._requests import (
    CasFlow,
    Check,
    Conflict,
    Drop,
    Held,
    Read,
    ReadAll,
    RetryPause,
    Swap,
    SwapAll,
    unavailable,
)

__all__ = ["RACES", "TRAIL", "settle"]


RACES = 32
TRAIL = 8
_FAULTS = 3
_CLEARING = ("clear",)
# A race is over when one caller has won; a busy server needs more time.
_LONGEST_PAUSE_MS = 16.0
_LONGEST_FAULT_PAUSE_MS = 200.0
# On a raced key, before a read; see memory.py.
_LEFT_TO_OTHERS_MS = 4.0


class _GivenUpError(Exception):
    """The end of a batch that a backend failed."""


_FAULT = Conflict()
"""Stands for a write that the connection failed, and that may be tried again."""

_now_ms = SystemClock().now


Found = Mapping[str, Held | None]
"""The records of the keys of a batch."""


class _Attempt:
    """One decision of a batch on what its keys held: the answers, and the writes they need."""

    def __init__(self, calls: Sequence[Call], found: Found, is_remembered: bool = False) -> None:
        self.id = secrets.token_urlsafe(9)
        self.expected = found
        # Callers that write and give up from here on may have been charged; earlier ones are left
        # out.
        for call in calls:
            call.in_flight = True
        self._calls = calls = [call for call in _waiting(calls) if not call.has_left]
        sheet = Sheet(lambda key: _record(found[key]))
        for call in calls:
            sheet.run(call)
        self._answers = [(list(call.results), call.error) for call in calls]
        self._writers = [call for call in calls if call.writing]
        self._is_remembered = is_remembered
        # Counted from the earliest clock, so that it is kept long enough for all of them.
        nows = (call.now for call in calls if not call.is_all_of(_CLEARING))
        since = min([_now_ms(), *nows])
        self.writes: list[Swap | Drop] = []
        for key, (record, keep_until) in sheet.writes.items():
            held = found[key]
            if record is not None:
                version = self._version(held)
                self.writes.append(Swap(key, held, version, record, keep_until - since))
            elif held is not None:
                self.writes.append(Drop(key, held))

    def _version(self, held: Held | None) -> str:
        before = held.version.split(".")[: TRAIL - 1] if held else []
        return ".".join([self.id, *before])

    @property
    def request(self) -> Swap | Drop | SwapAll:
        """All that is to be written, as one request."""
        if len(self.expected) == 1:
            return self.writes[0]
        written = {write.key for write in self.writes}
        # A decision without a write, on a state that was just read, is valid even if the key has
        # changed since. One with a write, or on a cached state, is not.
        deciding = self._calls if self._is_remembered else self._writers
        keys = dict.fromkeys(step[0] for call in deciding for step in call.steps)
        checks = (Check(key, self.expected[key]) for key in keys if key not in written)
        return SwapAll((*self.writes, *checks))

    def held(self, stamp: str) -> dict[str, Held | None]:
        """The records of the written keys after this attempt."""
        return {
            write.key: Held(write.record, write.version, stamp) if isinstance(write, Swap) else None
            for write in self.writes
        }

    def writes_for(self, call: Call) -> bool:
        return call in self._writers

    def mark(self, charged: bool | None) -> None:
        """Take down what became of the callers for whom this attempt wrote."""
        for call in self._writers:
            call.charged = charged

    def restore(self) -> None:
        """Answer with what this attempt had found, after others were made."""
        for call, (results, error) in zip(self._calls, self._answers, strict=True):
            call.results, call.error = results, error
        self.mark(True)

    def is_in(self, found: Found) -> bool:
        """Whether its id is in a trail."""
        return any(self.id in _trail(held) for held in found.values())

    def happened(self, found: Found) -> bool | None:
        """Whether it was written, judged by a later look at the keys; None if that is unknown."""
        if self.is_in(found):
            return True
        # A deleted key has no record that could show whether the write was executed.
        swaps = [write for write in self.writes if isinstance(write, Swap)]
        verdicts = {_happened(write, found[write.key]) for write in swaps or self.writes}
        return False if False in verdicts else None if None in verdicts else True

    def may_arrive(self, found: Found) -> bool:
        """Whether all versions that it asks for are still there."""
        return all(_version(found[key]) == _version(held) for key, held in self.expected.items())


def _happened(write: Swap | Drop, found: Held | None) -> bool | None:
    """Judged by one key, whose trail does not have the id."""
    trail = _trail(found)
    if write.expected is not None and _trail(write.expected)[0] in trail:
        return False
    return isinstance(write, Drop) if len(trail) < TRAIL else None


def _trail(held: Held | None) -> list[str]:
    return held.version.split(".") if held else []


def _record(held: Held | None) -> str | None:
    return held.record if held else None


class _History:
    """The attempts of one batch, among them those that may turn out to have been written."""

    def __init__(self, names: str) -> None:
        self._names = names
        self._made: list[_Attempt] = []
        self._open: list[_Attempt] = []

    def note(self, attempt: _Attempt) -> None:
        self._made.append(attempt)

    def lose(self, attempt: _Attempt) -> None:
        self._open.append(attempt)

    def is_in_doubt(self, call: Call) -> bool:
        """Whether something may have been written for this very call."""
        return any(attempt.writes_for(call) for attempt in self._open)

    def end(self, calls: Sequence[Call]) -> None:
        """Take down what is in doubt when no more is asked."""
        for call in calls:
            if self.is_in_doubt(call):
                call.charged = None

    def mark(self, calls: Sequence[Call], attempt: _Attempt | None = None) -> None:
        """Mark as in flight what this attempt is about to write, and what an earlier one may have
        written."""
        for call in calls:
            is_written = attempt is not None and attempt.writes_for(call)
            call.in_flight = is_written or self.is_in_doubt(call)

    def written(self, found: Found) -> _Attempt | None:
        """The attempt that was written after all, judged by a later look at the keys."""
        for attempt in self._made:
            if attempt.is_in(found):
                return attempt
        for attempt in list(self._open):
            verdict = attempt.happened(found)
            if verdict is None:
                raise _GivenUpError(f"the reply for {self._names} was lost")
            if verdict:
                return attempt
            # The version of its condition is gone, so the write can no longer succeed.
            if not attempt.may_arrive(found):
                self._open.remove(attempt)
        return None


def settle(
    keys: Sequence[str], calls: Sequence[Call], max_record_bytes: int, memory: RaceMemory
) -> CasFlow:
    """Answer the calls, all of them about these keys, as one batch; or fail them."""
    history = _History(_names_of(keys))
    try:
        if len(keys) == 1 and all(call.is_all_of(_CLEARING) for call in calls):
            memory.forget(keys[0])
            yield from _clear(keys[0], calls, history)
        else:
            yield from _race(keys, calls, max_record_bytes, memory, history)
    except _GivenUpError as given_up:
        history.end(calls)
        for call in _waiting(calls):
            error = unavailable(given_up, in_doubt=history.is_in_doubt(call))
            error.__cause__ = given_up.__cause__
            call.fail(error)
    except PenstockError as fault:
        # Each caller gets its own exception object: raising one writes to it.
        history.end(calls)
        for call in _waiting(calls):
            call.fail(copy(fault))
    for call in _waiting(calls):
        call.open = ()
        call.in_flight = False


def _waiting(calls: Sequence[Call]) -> list[Call]:
    """The calls without an answer: a leader may have been passed over meanwhile."""
    return [call for call in calls if not call.done]


def _race(
    keys: Sequence[str],
    calls: Sequence[Call],
    max_record_bytes: int,
    memory: RaceMemory,
    history: _History,
) -> CasFlow:
    """Decide and write, again after each lost race."""
    found, is_remembered = yield from _begin(keys, calls, memory, history)
    for race in range(RACES):
        written = history.written(found)
        if written is not None:
            return written.restore()
        attempt = _Attempt(calls, found, is_remembered)
        if not attempt.writes:
            history.mark(calls)
            if not is_remembered:
                for key in keys:
                    memory.keep(key, found[key])
                return
            answer = Conflict()
        else:
            _require_room(attempt.writes, max_record_bytes)
            for key in keys:
                memory.forget(key)
            answer = yield from _attempt(attempt, calls, history)
            if not isinstance(answer, Conflict):
                attempt.mark(True)
                for key, held in attempt.held(answer).items():
                    if race == 0 or memory.is_raced(key):
                        memory.keep(key, held, written=True)
                return
            if answer is _FAULT:
                yield from _pause(race, history, _LONGEST_FAULT_PAUSE_MS)
            else:
                for key in keys:
                    memory.note_loss(key, was_remembered=is_remembered)
                yield from _pause(race, history)
        is_remembered = False
        if race or not answer.known:
            found = yield from _look(keys, history)
        else:
            found = {keys[0]: answer.found}
    raise _GivenUpError(
        f"{_names_of(keys)} was changed by other processes before each of {RACES} attempts to "
        "write it"
    )


def _begin(
    keys: Sequence[str], calls: Sequence[Call], memory: RaceMemory, history: _History
) -> CasFlow:
    """The records to decide on first, and whether they are only remembered."""
    only_looks = all(call.is_all_of(READING) for call in calls)
    if not only_looks and any(map(memory.is_to_be_looked_at, keys)):
        yield from _wait(_LEFT_TO_OTHERS_MS, history)
        found = yield from _look(keys, history)
        for key in keys:
            memory.note_look(key, found[key])
        return found, False
    remembered = {key: memory.recall(key) for key in keys}
    if None not in remembered.values():
        return remembered, True
    return (yield from _look(keys, history)), False


def _look(keys: Sequence[str], history: _History) -> CasFlow:
    """The records of the keys, all at one instant."""
    if len(keys) == 1:
        return {keys[0]: (yield from _insist(Read(keys[0]), history))}
    for race in range(RACES):
        answer = yield from _insist(ReadAll(tuple(keys)), history)
        if not isinstance(answer, Conflict):
            return dict(zip(keys, answer, strict=True))
        yield from _pause(race, history)
    raise _GivenUpError(
        f"{_names_of(keys)} was being changed by other processes at each of {RACES} looks"
    )


def _clear(key: str, calls: Sequence[Call], history: _History) -> CasFlow:
    """Forgetting depends on nothing, so it needs no read and may be repeated."""
    _Attempt(calls, {key: None})
    yield from _insist(Drop(key, None), history)


def _attempt(attempt: _Attempt, calls: Sequence[Call], history: _History) -> CasFlow:
    """Write; a reply that was lost counts as a conflict that has to be looked into."""
    history.note(attempt)
    history.mark(calls, attempt)
    try:
        answer = yield attempt.request
    except ConnectionFailedError as error:
        if error.may_have_run:
            history.lose(attempt)
        if not error.again:
            raise _GivenUpError(error) from error
        answer = _FAULT
    if isinstance(answer, Conflict):
        history.mark(calls)
    return answer


def _insist(request: Read | ReadAll | Drop, history: _History) -> CasFlow:
    """Ask for what may be asked twice, a few times if the connection fails."""
    for fault in range(_FAULTS):
        try:
            return (yield request)
        except ConnectionFailedError as error:
            if not error.again or fault + 1 == _FAULTS:
                raise _GivenUpError(error) from error
        yield from _pause(fault + 1, history, _LONGEST_FAULT_PAUSE_MS)
    raise AssertionError


def _pause(turn: int, history: _History, longest_ms: float = _LONGEST_PAUSE_MS) -> CasFlow:
    """None after the first race: most have one winner, and are over."""
    if turn:
        yield from _wait(min(4.0 * 2**turn, longest_ms), history)


def _wait(longest_ms: float, history: _History) -> CasFlow:
    try:
        yield RetryPause(random.uniform(0, longest_ms))
    except ConnectionFailedError as error:
        raise _GivenUpError(error) from error


def _version(held: Held | None) -> str | None:
    return None if held is None else held.version


def _names_of(keys: Sequence[str]) -> str:
    return f"key {keys[0]!r}" if len(keys) == 1 else f"one of the keys {', '.join(map(repr, keys))}"


def _require_room(writes: Sequence[Swap | Drop], max_record_bytes: int) -> None:
    for write in writes:
        if isinstance(write, Swap) and len(write.record) > max_record_bytes:
            raise ConfigInvalidError(
                f"the state of key {write.key!r} takes {len(write.record)} bytes, and this store "
                f"holds {max_record_bytes} per key: use a strategy that remembers less, or a "
                "smaller limit"
            )
