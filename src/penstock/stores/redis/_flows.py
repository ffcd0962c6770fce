"""How each operation is sent to Redis.

| operation | strategy with a Lua accelerator | any other strategy |
|---|---|---|
| check | one script | WATCH, GET, TIME / MULTI, SET, EXEC |
| peek, forecast | one read script and TIME, decided here | GET and TIME, decided here |
| lease | the check script and TIME, again if less is left | as check |
| check of many | one script per slot group | one transaction per slot group |
| refund, charge, book, pause | one script | as check |
| several steps | one script per slot | read, decided here, swapped by the script |
| clear | DEL | DEL |

`now` is sent as 0 when the server's clock decides.

Strategies without Lua read, decide here, and write if the key is unchanged, otherwise repeat:

    UNWATCH, WATCH key ..., GET key ..., TIME      one write, one round trip
    MULTI, SET key ..., EXEC                       another, unless nothing is to be written

Many keys are one such transaction, at most MAX_WATCHED_KEYS of them: they are decided in order, a
repeated key on what the one before it left, and written all or none. A cluster allows transactions
only within one slot, so there is one per slot, one after the other; if one fails, the error says
what those before it have charged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from operator import not_
from typing import Any, TypeVar

from ...core._accelerator import LuaAccelerator
from ...core._clock import FOREIGN_CLOCKS
from ...core._decision import Decision
from ...core._errors import PenstockError, StoreUnavailableError
from ...core._figures import restored
from ...core._lua import REPLY, LuaScript
from ...core._steps import Step, looked_at, timed
from ...core._strategy import Strategy
from ...core._transform import READING, Grant, Transform, bargain
from ...core._validation import MAX_SAFE, reject
from .. import record
from .._sheet import Call, ConnectionFailedError, Sheet
from ._plans import (
    OnePlan,
    Plan,
    decision_of,
    no_operation,
    plan_of,
    plan_of_one,
    require_units,
)
from ._requests import (
    TIME,
    Command,
    Delay,
    Enter,
    Exchange,
    OtherPeriodError,
    RedisFlow,
    Refusal,
    beside_others,
    malformed,
    ms_of,
    refused,
    text_or_none,
    unavailable,
    whole_numbers,
)
from ._room import HEAVY, weight_of, weight_of_all
from ._routing import CommandSet, RedisRouter, names_of, refusal_in
from ._several import apply_steps

__all__ = ["MAX_KEYS", "MAX_WATCHED_KEYS", "RedisFlows", "decision_of", "transact"]


MAX_WATCHED_KEYS = 100
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
        for start in range(0, len(group), MAX_WATCHED_KEYS):
            places = group[start : start + MAX_WATCHED_KEYS]
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
            steps = [(key, transform, cost, False) for key in self._keys]
            call = Call(steps, now or server_now, 0)
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
        """The records of the keys, and the server's time."""
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
            keys=self._keys,
            others=self._others,
        )
        return dict(zip(keys, map(text_or_none, raws), strict=True)), ms_of(time)

    def _commit(self, writes: Sequence[Command]) -> RedisFlow:
        """True if written, False if another client was first."""
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
        if executed is not None and (type(executed) is not list or len(executed) != len(writes)):
            raise self._marked(malformed(executed))
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


R = TypeVar("R")

MAX_KEYS = 512
"""Keys per script: a server does nothing else while a script runs. Valkey takes 5 to 9 us for a
key, so at most 5 ms for a script; other clients are served between two of them."""


class RedisFlows:
    """One flow per operation, over one router."""

    def __init__(self, router: RedisRouter, *, use_server_time: bool) -> None:
        self._router = router
        self._server_time = use_server_time

    def instant(self, now: int) -> int:
        """The caller's instant, as the scripts take it: 0 when the server's clock decides."""
        return 0 if self._server_time else _instant(now)

    def apply(self, key: str, transform: Transform[Any], now: int, cost: int) -> RedisFlow:
        """The flow that stands for `Store.apply`."""
        # A check is at most as heavy as its cost.
        is_light = cost <= HEAVY and transform.role == "check"
        if not is_light and (weight := weight_of(transform, cost)) > HEAVY:
            return _heavy(weight, self._apply(key, transform, now, cost))
        return self._apply(key, transform, now, cost)

    def _apply(self, key: str, transform: Transform[Any], now: int, cost: int) -> RedisFlow:
        role, lua = transform.role, transform.lua
        if role == "clear":
            return self._clear(key)
        now = self.instant(now)
        if lua is None:
            run = self._read if role in READING else self._transact
            return run(key, transform, now, cost)
        if lua.source.by_periods and not now:
            return _second_look([transform], lambda: self._by_lua(key, transform, lua, now, cost))
        return self._by_lua(key, transform, lua, now, cost)

    def _by_lua(
        self, key: str, transform: Transform[Any], lua: LuaAccelerator, now: int, cost: int
    ) -> RedisFlow:
        role = transform.role
        if role == "check":
            return self._check(key, transform, lua, now, cost)
        if role == "lease":
            return self._lease(key, transform, lua, now, cost)
        if role in READING:
            return self._read_state(key, transform, lua, now, cost)
        plan = plan_of_one(transform, lua)
        if plan is None:
            raise no_operation(role, transform.kind)
        return self._operate(key, transform, plan, now, cost)

    def apply_timed(self, key: str, transform: Transform[Any], now: int, cost: int) -> RedisFlow:
        """The flow that stands for `Store.apply_timed`."""
        if (weight := weight_of(transform, cost)) > HEAVY:
            return _heavy(weight, self._apply_timed(key, transform, now, cost))
        return self._apply_timed(key, transform, now, cost)

    def _apply_timed(self, key: str, transform: Transform[Any], now: int, cost: int) -> RedisFlow:
        lua = transform.lua
        now = self.instant(now)
        plan = None if lua is None else plan_of_one(transform, lua)
        if plan is not None and (now or not plan.by_periods):
            return self._operate(key, transform, plan, now, cost, timed=True)
        return self._apply_all(timed(key, transform, cost), now)

    def apply_many(
        self, keys: Sequence[str], transform: Transform[Any], now: int, cost: int
    ) -> RedisFlow:
        """The flow that stands for `Store.apply_many`."""
        require_units((Step("", transform, cost),), len(keys))
        flow = self._apply_many(keys, transform, now, cost)
        weight = weight_of(transform, cost, len(keys))
        return _heavy(weight, flow) if weight > HEAVY else flow

    def _apply_many(
        self, keys: Sequence[str], transform: Transform[Any], now: int, cost: int
    ) -> RedisFlow:
        role, lua = transform.role, transform.lua
        at = self.instant(now)
        if role == "check" and lua is not None:
            every = list(keys)
            if lua.source.by_periods and not at:
                return _second_look(
                    [transform], lambda: self._check_many(every, transform, lua, at, cost)
                )
            return self._check_many(every, transform, lua, at, cost)
        if role in ("check", "lease") and lua is None:
            return transact(self._router, keys, transform, at, cost)
        return self._one_by_one(keys, transform, now, cost)

    def apply_all(self, steps: Sequence[Step], now: int) -> RedisFlow:
        """The flow that stands for `Store.apply_all`."""
        if not steps:
            return _nothing_asked()
        flow = self._apply_all(steps, now)
        if len(steps) < 32 and all(cost == 1 and run.role == "check" for _, run, cost, _ in steps):
            return flow
        weight = weight_of_all(steps)
        return _heavy(weight, flow) if weight > HEAVY else flow

    def _apply_all(self, steps: Sequence[Step], now: int) -> RedisFlow:
        at = self.instant(now)
        plan = plan_of(steps)
        if plan.has_looks:
            steps = looked_at(steps)
            plan = plan_of(steps)
        if at or not plan.by_periods:
            return apply_steps(self._router, plan, steps, at)
        transforms = [transform for _, transform, _, _ in steps]
        return _second_look(transforms, lambda: apply_steps(self._router, plan, steps, at))

    def server_now(self, key: str) -> RedisFlow:
        """The clock of the server that owns the key."""
        (time,) = yield from self._router.ask(key, (TIME,), consuming=False)
        return ms_of(time)

    def _operate(
        self,
        key: str,
        transform: Transform[Any],
        plan: OnePlan,
        now: int,
        cost: int,
        *,
        timed: bool = False,
    ) -> RedisFlow:
        """The result of one operation; if `timed`, with the instant of the decision."""
        commands = (plan.command_for(key, transform, now, cost),)
        (reply,) = yield from self._router.ask(key, commands, script=plan.script, consuming=True)
        result = plan.answer(transform, cost, reply)
        return (result, reply[0]) if timed else result

    def plan_of_one_script(
        self, steps: Sequence[Step], keys: Sequence[str], now: int
    ) -> Plan | None:
        """The plan of steps that one script decides, whatever the server's clock shows; None of
        others."""
        if not steps or not self._router.topology.is_one_group(keys):
            return None
        plan = plan_of(steps)
        if plan.here or plan.has_looks or (plan.by_periods and not now):
            return None
        if plan.is_heavy and weight_of_all(steps) > HEAVY:
            return None
        return plan

    def rest_of(self, first: Any, heard: Any) -> RedisFlow:
        """The rest of a call whose first exchange got something other than an answer."""
        steps, plan, now = first.steps, first.plan, first.now
        keys = [step[0] for step in steps]
        _, transform, cost, _ = steps[0]
        reply = heard
        if isinstance(heard, (ConnectionFailedError, Refusal)):
            if plan is None:
                script = transform.lua.check
                command = _checking(keys[0], transform.lua, now, cost)
            else:
                script, command = plan.script, plan.command(steps, keys, now, {})
            command_set = CommandSet(keys[0], names_of(keys), (command,), script, consuming=True)
            (reply,) = yield from self._router.send(command_set, first.where, heard)
        return _decided(reply, transform, cost) if plan is None else plan.answers(steps, reply, {})

    def _check(
        self, key: str, transform: Transform[Any], lua: LuaAccelerator, now: int, cost: int
    ) -> RedisFlow:
        commands = (_checking(key, lua, now, cost),)
        replies = yield from self._router.ask(key, commands, script=lua.check, consuming=True)
        return _decided(replies[0], transform, cost)

    def _lease(
        self, key: str, transform: Transform[Any], lua: LuaAccelerator, now: int, want: int
    ) -> RedisFlow:
        """As many checks as the bargain takes, nearly always one."""
        deal = bargain(max(want, transform.need), transform.need)
        cost = next(deal)
        while True:
            # TIME comes after the script: what is left of the window is never overstated.
            commands = (_checking(key, lua, now, cost), TIME)
            replies = yield from self._router.ask(key, commands, script=lua.check, consuming=True)
            try:
                decision = decision_of(whole_numbers(replies[0], len(REPLY)))
                cost = deal.send(decision)
            except StopIteration as settled:
                taken, decision = settled.value
                grant = Grant(taken, decision, now or ms_of(replies[1]))
                FOREIGN_CLOCKS.look_at(grant, transform, want)
                return grant

    def _read_state(
        self, key: str, transform: Transform[Any], lua: LuaAccelerator, now: int, cost: int
    ) -> RedisFlow:
        assert transform.strategy is not None
        script = lua.read
        commands = [_calling(script, [key], ())]
        if not now:
            commands.append(TIME)
        replies = yield from self._router.ask(key, commands, script=script, consuming=False)
        state = _decode(transform.strategy, replies[0], key)
        return transform.run(state, now or ms_of(replies[1]), cost).result

    def _read(self, key: str, transform: Transform[Any], now: int, cost: int) -> RedisFlow:
        raw, time = yield from self._router.ask(
            key, ((b"GET", key.encode()), TIME), consuming=False
        )
        now = now or ms_of(time)
        state = record.restore(text_or_none(raw), key, transform, now)
        return transform.run(state, now, cost).result

    def _clear(self, key: str) -> RedisFlow:
        yield from self._router.ask(key, ((b"DEL", key.encode()),), consuming=False)

    def _one_by_one(
        self, keys: Sequence[str], transform: Transform[Any], now: int, cost: int
    ) -> RedisFlow:
        results = []
        for key in keys:
            result = yield from self._apply(key, transform, now, cost)
            results.append(result)
        return results

    def _transact(self, key: str, transform: Transform[Any], now: int, cost: int) -> RedisFlow:
        (result,) = yield from transact(self._router, (key,), transform, now, cost)
        return result

    def _check_many(
        self, keys: list[str], transform: Transform[Any], lua: LuaAccelerator, now: int, cost: int
    ) -> RedisFlow:
        """Each group of keys in order, all groups side by side, at most MAX_KEYS per script."""
        groups = self._router.topology.groups(keys)
        if len(groups) == 1 and 0 < len(keys) <= MAX_KEYS:
            (reply,) = yield from self._router.send_all([_command_set(keys, lua, now, cost)])
            return _answers(reply, len(keys), transform, cost)
        if len(groups) == 1 and keys and not now:
            # Scripts that follow each other would each ask for the time.
            (time,) = yield from self._router.ask(keys[0], (TIME,), consuming=False)
            now = ms_of(time)
        decisions: list[Any] = [None] * len(keys)
        longest = max(map(len, groups), default=0)
        for start in range(0, longest, MAX_KEYS):
            chunks = [chunk for g in groups if (chunk := g[start : start + MAX_KEYS])]
            batches = [[keys[place] for place in chunk] for chunk in chunks]
            command_sets = [
                _command_set(batch, lua, now, cost, others=start > 0) for batch in batches
            ]
            replies = yield from self._router.send_all(command_sets)
            for chunk, reply in zip(chunks, replies, strict=True):
                answers = _answers(reply, len(chunk), transform, cost)
                for place, decision in zip(chunk, answers, strict=True):
                    decisions[place] = decision
        return decisions


def _heavy(weight: int, flow: RedisFlow) -> RedisFlow:
    """The same flow, as soon as there is room for it."""
    try:
        yield Enter(weight)
    except ConnectionFailedError as error:
        raise unavailable(error, consuming=True) from error
    return (yield from flow)


def _nothing_asked() -> RedisFlow:
    """The limits of a request that were all left out."""
    yield from ()
    return []


def _second_look(transforms: Sequence[Transform[Any]], make: Callable[[], RedisFlow]) -> RedisFlow:
    """Once more, if the server's clock was in none of the periods that were sent to it."""
    try:
        return (yield from make())
    except OtherPeriodError as error:
        if not error.server_now:
            raise
        for transform in transforms:
            if transform.lua is not None:
                transform.lua.note_clock(error.server_now)
    return (yield from make())


def _checking(key: str, lua: LuaAccelerator, now: int, cost: int) -> Command:
    arguments = lua.argv(now, cost)
    return (b"EVALSHA", lua.check.sha1_bytes, b"1", key.encode(), *arguments)


def _calling(script: LuaScript, keys: Sequence[str], arguments: Sequence[bytes]) -> Command:
    names = [key.encode() for key in keys]
    return (b"EVALSHA", script.sha1_bytes, b"%d" % len(keys), *names, *arguments)


def _command_set(
    keys: list[str], lua: LuaAccelerator, now: int, cost: int, *, others: bool = False
) -> CommandSet:
    script = lua.check if len(keys) == 1 else lua.many
    command = _calling(script, keys, lua.argv(now, cost))
    several = len(keys) > 1
    names = names_of(keys)
    return CommandSet(
        keys[0], names, (command,), script, consuming=True, several=several, others=others
    )


def _answers(reply: Any, count: int, transform: Transform[Any], cost: int) -> list[Decision]:
    """The results for `count` keys from the reply of the script in `_command_set`."""
    if count == 1:
        return [_decided(reply, transform, cost)]
    if type(reply) is not list or len(reply) % 4 != 1 or len(reply) > 1 + 4 * count:
        raise malformed(reply)
    whole_numbers(reply, len(reply))
    lengths, retries = reply[1::4], reply[4::4]
    # Before they are expanded: a broken server must not say how much is allocated.
    if sum(lengths) != count or min(lengths) < 1 or not 0 <= min(reply) <= max(reply) <= MAX_SAFE:
        raise malformed(reply)
    fields = (map(not_, retries), repeat(reply[0]), reply[2::4], reply[3::4], retries)
    runs = list(map(Decision, *fields))
    for decision, length in zip(runs, lengths, strict=True):
        if not decision.allowed:
            FOREIGN_CLOCKS.look_at(decision, transform, cost, length)
    return list(chain.from_iterable(map(repeat, runs, lengths)))


def _decided(reply: Any, transform: Transform[Any], cost: int) -> Decision:
    decision = decision_of(whole_numbers(reply, len(REPLY)))
    if not decision.allowed:
        FOREIGN_CLOCKS.look_at(decision, transform, cost)
    return decision


def _instant(now: int) -> int:
    if now == 0:
        reject(
            "an instant of 0 means the server's clock to Redis: start the clock at 1 or "
            "later, or make the store with use_server_time=True"
        )
    return now


def _decode(strategy: Strategy, raw: Any, key: str) -> Any:
    if raw is not None and type(raw) not in (bytes, str, list):
        raise malformed(raw)
    assert strategy.lua is not None
    try:
        kept = strategy.lua.decode(raw)
        return None if kept is None else restored(strategy, kept)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise record.foreign_state(f"key {key!r}", error) from error
