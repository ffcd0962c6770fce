"""Strategies without Lua: read, decide here, write if nobody else has, else once more.

    UNWATCH, WATCH key ..., GET key ..., TIME      one write, one round trip
    MULTI, SET key ..., EXEC                       another, unless nothing is to be written

Many keys are one such transaction, at most MAX_KEYS of them: they are decided in order, a repeated
key on what the one before it leaves, and written all or none. A cluster allows a transaction
within one slot, so there it is one per slot, one after the other; and whoever fails says so of
those before it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ...core.errors import PenstockError, StoreUnavailableError
from ...core.store import Transform
from ..failure import ConnectionFailedError
from ..sheet import Call, Sheet
from .faults import beside_others, refused, unavailable
from .requests import TIME, Command, Delay, Exchange, RedisFlow, Refusal, ms_of
from .routing import RedisRouter, names_of, refusal_in

__all__ = ["MAX_KEYS", "transact"]

MAX_KEYS = 100
"""Keys per transaction: the more there are, the likelier one of them is changed meanwhile."""

_RACES = 256
_LONGEST_PAUSE_MS = 32
# Refusals of an EXEC after which the key is looked for, and read, again.
_ELSEWHERE = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY")


def transact(
    router: RedisRouter, keys: Sequence[str], transform: Transform[Any], now: int, cost: int
) -> RedisFlow:
    """The results, in the order of the keys, all decided at one instant: `now`, or when it is 0
    the server's at the first transaction."""
    results: list[Any] = [None] * len(keys)
    written = False
    for group in router.topology.groups(keys):
        for start in range(0, len(group), MAX_KEYS):
            places = group[start : start + MAX_KEYS]
            batch = _Batch(router, [keys[place] for place in places], written)
            call, wrote = yield from batch.run(transform, now, cost)
            now, written = call.now, written or wrote
            for place, result in zip(places, call.results, strict=True):
                results[place] = result
    return results


class _Batch:
    """Keys of one transaction; `others` if keys before them have been written."""

    def __init__(self, router: RedisRouter, keys: Sequence[str], others: bool) -> None:
        self._router = router
        self._keys = keys
        self._names = names_of(keys)
        self._others = others

    def run(self, transform: Transform[Any], now: int, cost: int) -> RedisFlow:
        """The call with its results, and whether anything was written."""
        for race in range(_RACES):
            records, server_now = yield from self._look()
            call = Call(self._keys, transform, now or server_now, cost, 0)
            sheet = Sheet(records.get)
            sheet.run(call)
            self._require_answer(call)
            if not sheet.writes:
                return call, False
            # A caller ahead of the server: those who ask by the right time need it longer.
            since = min(call.now, server_now)
            if (yield from self._commit([_write(*item, since) for item in sheet.writes.items()])):
                return call, True
            try:
                yield Delay(random.uniform(0, min(2.0**race, _LONGEST_PAUSE_MS)))
            except ConnectionFailedError:
                break
        raise self._outrun()

    def _look(self) -> RedisFlow:
        """What the keys hold, and the server's time."""
        keys = list(dict.fromkeys(self._keys))
        names = [key.encode() for key in keys]
        # A WATCH that an earlier call left behind would fail this one's EXEC for no reason.
        look: list[Command] = [
            (b"UNWATCH",),
            (b"WATCH", *names),
            *((b"GET", name) for name in names),
        ]
        _, _, *raws, time = yield from self._router.ask(
            keys[0],
            [*look, TIME],
            consuming=False,
            pinned=True,
            names=self._names,
            others=self._others,
        )
        return dict(zip(keys, raws, strict=True)), ms_of(time)

    def _commit(self, writes: Sequence[Command]) -> RedisFlow:
        """True when written, False when somebody else was first."""
        try:
            replies = yield Exchange(None, ((b"MULTI",), *writes, (b"EXEC",)), pinned=True)
        except ConnectionFailedError as error:
            raise unavailable(error, consuming=True, others=self._others) from error
        _, *queued, executed = replies
        if isinstance(executed, Refusal):
            # EXECABORT: the reason is with the command that could not be queued.
            reason = refusal_in(queued) or executed
            if reason.code in _ELSEWHERE:
                return False
            raise refused(reason, self._names, consuming=True, others=self._others)
        if executed and (failed := refusal_in(executed)) is not None:
            others = self._others or len(executed) > 1
            raise refused(failed, self._names, consuming=True, others=others)
        return executed is not None

    def _require_answer(self, call: Call) -> None:
        try:
            call.answer()
        except PenstockError as error:
            raise self._marked(error) from error

    def _outrun(self) -> PenstockError:
        part = "this part of the call" if self._others else "the request"
        return self._marked(
            StoreUnavailableError(
                f"{self._names} was changed by others each time before this request could be "
                f"written; {part} was not charged; give the strategy a Lua accelerator, or raise "
                "timeout_ms"
            )
        )

    def _marked(self, error: PenstockError) -> PenstockError:
        return beside_others(error) if self._others else error


def _write(key: str, write: tuple[str | None, int], since: int) -> Command:
    record, keep_until = write
    if record is None:
        return b"DEL", key.encode()
    return b"SET", key.encode(), record.encode(), b"PX", b"%d" % (keep_until - since)
