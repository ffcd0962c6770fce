"""Several steps as one decision, on Redis.

Steps whose keys are in one slot are one script and one round trip, whatever the mixture of their
strategies. A strategy without Lua is decided here first, on the record that its key held, and its
write goes into the same script, which does nothing at all if the record has changed since; that
takes a second round trip, and another one for each time that somebody was faster.

Keys in several slots of a cluster are one script per slot. They run one after the other; when one
denies, or fails, what those before it charged is given back.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ...core._clock import FOREIGN_CLOCKS
from ...core._decision import Booking, Decision
from ...core._errors import PenstockError, StoreUnavailableError, UnsupportedError
from ...core._lua import LuaScript, LuaSource, script_of_all
from ...core._strategy import registered
from ...core._transform import Step, Transform, checking, decide_all, trying
from .. import record
from .._sheet import ConnectionFailedError
from ._requests import TIME, Command, Delay, RedisFlow, ms_of
from ._routing import RedisRouter, names_of

__all__ = ["apply_steps", "decision_of"]

_OPTIONAL = frozenset(
    {"refund", "charge", "book", "pause", "take", "queue_up", "renew", "release", "reclaim"}
)
_ALWAYS_THERE = frozenset({"check", "look", "try", "tell"})
_RACES = 256
_LONGEST_PAUSE_MS = 32
_FIELDS = 5


def apply_steps(router: RedisRouter, steps: Sequence[Step], now: int) -> RedisFlow:
    """The results, in the order of the steps, and the instant of the decision. A `now` of 0 asks
    for the server's clock."""
    for step in steps:
        _require_operation(step.transform)
    groups = router.topology.groups([step.key for step in steps])
    if len(groups) == 1:
        return (yield from _Slot(router, steps).run(now))
    return (yield from _slot_by_slot(router, steps, groups, now))


def _require_operation(transform: Transform[Any]) -> None:
    lua, role = transform.lua, transform.role
    if lua is None or role in _ALWAYS_THERE or role in lua.source.operations:
        return
    if role in _OPTIONAL:
        missing = f"its Lua source has no {role}; add one below '-- Give back.'"
    else:
        missing = "only check, lease, peek, forecast, refund, charge, book, pause and clear can be"
    raise UnsupportedError(
        f"RedisStore cannot run {role!r} on the state of {transform.kind!r}, which is kept in its "
        f"wire encoding: {missing}"
    )


def _slot_by_slot(
    router: RedisRouter, steps: Sequence[Step], groups: Sequence[Sequence[int]], now: int
) -> RedisFlow:
    results: list[Any] = [None] * len(steps)
    charged: list[tuple[Step, int]] = []
    admitted = True
    try:
        for group in groups:
            slot = [steps[place] if admitted else _tried(steps[place]) for place in group]
            answers, at = yield from _Slot(router, slot, others=bool(charged)).run(now)
            for place, answer in zip(group, answers, strict=True):
                results[place] = answer
            if not admitted:
                continue
            passed = [
                step
                for step, answer in zip(slot, answers, strict=True)
                if step.transform.admits(answer)
            ]
            if all(step.shadow or step in passed for step in slot):
                charged += [(step, at) for step in passed]
            else:
                admitted = False
                yield from _give_back(router, charged, now)
    except Exception:
        with suppress(PenstockError):
            yield from _give_back(router, charged, now)
        raise
    return results, at


def _tried(step: Step) -> Step:
    """The same, with nothing written. What the script tries is a check."""
    transform = step.transform
    if transform.reverse is None or transform.strategy is None:
        return step
    is_check = transform.lua is None or transform.role == "check"
    return step._replace(transform=trying(transform if is_check else checking(transform.strategy)))


def _give_back(router: RedisRouter, charged: list[tuple[Step, int]], now: int) -> RedisFlow:
    while charged:
        step, at = charged.pop()
        if step.transform.reverse is not None:
            refund = Step(step.key, step.transform.reverse(at), step.cost)
            yield from _Slot(router, [refund], others=True).run(now)


class _Plan:
    """What a request of these steps takes, whatever their keys and the instant."""

    __slots__ = ("arguments", "here", "roles", "script")

    def __init__(self, parts: Sequence[tuple[Transform[Any], int, bool]]) -> None:
        accelerators = [transform.lua for transform, _, _ in parts]
        self.script = _script(frozenset(lua.source for lua in accelerators if lua is not None))
        # The places of the steps that are decided here.
        self.here = [place for place, lua in enumerate(accelerators) if lua is None]
        self.roles = [transform.role for transform, _, _ in parts]
        # Empty where they depend on the instant, or on what the key held.
        self.arguments = [
            lua.step(0, transform.role, cost, shadow, transform.argument)
            if lua is not None and lua.is_fixed
            else ()
            for lua, (transform, cost, shadow) in zip(accelerators, parts, strict=True)
        ]


_plan_of_checks = lru_cache(maxsize=1024)(_Plan)


def _plan(steps: Sequence[Step]) -> _Plan:
    parts = tuple([step[1:] for step in steps])
    # What gives back or holds has an instant or an id in it, and is not asked again.
    if all(transform.role == "check" for transform, _, _ in parts):
        return _plan_of_checks(parts)
    return _Plan(parts)


class _Slot:
    """Steps whose keys one script may use; `others` if keys before them have been charged."""

    def __init__(self, router: RedisRouter, steps: Sequence[Step], others: bool = False) -> None:
        self._router = router
        self._steps = steps
        self._others = others
        self._keys = [step.key for step in steps]
        self._plan = _plan(steps)
        self._here = self._plan.here

    @property
    def _names(self) -> str:
        return names_of(self._keys)

    def run(self, now: int) -> RedisFlow:
        if not self._here:
            reply = yield from self._send(now, {})
            return self._answers(reply, {}), reply[0]
        for race in range(_RACES):
            records, server_now = yield from self._look()
            at = now or server_now
            decided, writes = self._decide(records, at)
            swaps = self._swaps(decided, records, writes, at, server_now)
            reply = yield from self._send(at, swaps)
            if len(reply) > 1 or not self._steps:
                return self._answers(reply, decided), at
            try:
                yield Delay(random.uniform(0, min(2.0**race, _LONGEST_PAUSE_MS)))
            except ConnectionFailedError:
                break
        raise StoreUnavailableError(
            f"{self._names} was changed by others each time before this request could be written; "
            "it was not charged; give the strategy a Lua accelerator, or raise timeout_ms"
        )

    def _look(self) -> RedisFlow:
        """What the keys that are decided here hold, and the server's time."""
        keys = list(dict.fromkeys(self._keys[place] for place in self._here))
        commands: list[Command] = [(b"GET", key.encode()) for key in keys]
        *raws, time = yield from self._router.ask(
            keys[0], [*commands, TIME], consuming=False, keys=self._keys, others=self._others
        )
        return dict(zip(keys, raws, strict=True)), ms_of(time)

    def _decide(
        self, records: dict[str, Any], now: int
    ) -> tuple[dict[int, Any], dict[str, tuple[Transform[Any], Any]]]:
        """The results by place, and what would be written."""

        def read(key: str, transform: Transform[Any]) -> Any:
            return record.restore(records[key], key, transform, now)

        # As shadows: whether anything is written is for the script to say.
        steps = [self._steps[place]._replace(shadow=True) for place in self._here]
        results, writes = decide_all(steps, read, lambda _key: now)
        return dict(zip(self._here, results, strict=True)), writes

    def _swaps(
        self,
        decided: dict[int, Any],
        records: dict[str, Any],
        writes: dict[str, tuple[Transform[Any], Any]],
        now: int,
        server_now: int,
    ) -> dict[int, tuple[bytes, ...]]:
        """The arguments of the steps that were decided here. The last one of a key writes it."""
        last = {self._keys[place]: place for place in self._here}
        swaps: dict[int, tuple[bytes, ...]] = {}
        for place in self._here:
            step, key = self._steps[place], self._keys[place]
            keep, text = b"0", b""
            if last[key] == place and key in writes:
                transform, outcome = writes[key]
                keep = b"-1"
                if outcome.state is not None:
                    ttl_ms = outcome.ttl_ms
                    text = record.pack(transform.kind, outcome.state, now + ttl_ms).encode()
                    # A caller ahead of the server: those who ask by the right time need it longer.
                    keep = b"%d" % (max(0, now - server_now) + record.keep_ms(ttl_ms))
            allowed = step.shadow or step.transform.admits(decided[place])
            held = records[key]
            swaps[place] = (
                b"record",
                b"swap",
                b"1" if allowed else b"0",
                b"0",
                keep,
                b"" if held is None else held if isinstance(held, bytes) else held.encode(),
                text,
            )
        return swaps

    def _send(self, now: int, swaps: dict[int, tuple[bytes, ...]]) -> RedisFlow:
        plan = self._plan
        arguments: list[bytes] = [b"%d" % now]
        for place, fixed in enumerate(plan.arguments):
            arguments += fixed or self._arguments(place, now, swaps)
        names = [key.encode() for key in self._keys]
        script = plan.script
        command = (b"EVALSHA", script.sha1_bytes, b"%d" % len(names), *names, *arguments)
        (reply,) = yield from self._router.ask(
            self._keys[0],
            (command,),
            script=script,
            consuming=True,
            keys=self._keys,
            others=self._others,
        )
        return reply

    def _arguments(
        self, place: int, now: int, swaps: dict[int, tuple[bytes, ...]]
    ) -> tuple[bytes, ...]:
        _, transform, cost, shadow = self._steps[place]
        if transform.lua is None:
            return swaps[place]
        return transform.lua.step(now, transform.role, cost, shadow, transform.argument)

    def _answers(self, reply: list[int], decided: dict[int, Any]) -> list[Any]:
        answers: list[Any] = []
        start = 1
        for place, role in enumerate(self._plan.roles):
            if place in decided:
                answers.append(decided[place])
            else:
                answer = _answer(role, reply[start : start + _FIELDS])
                if role == "check" and not answer.allowed:
                    step = self._steps[place]
                    FOREIGN_CLOCKS.look_at(answer, step.transform, step.cost)
                answers.append(answer)
            start += _FIELDS
        return answers


@lru_cache(maxsize=256)
def _script(sources: frozenset[LuaSource]) -> LuaScript:
    """The one script of all strategies that are known by name; with others, one of their own."""
    known = frozenset(source for cls in registered() for source in cls.lua_sources)
    return script_of_all(known | sources)


def _answer(role: str, reply: list[int]) -> Any:
    if role == "check":
        return decision_of(reply)
    if role in ("refund", "release", "reclaim", "tell"):
        return reply[1]
    if role == "pause":
        return None
    if role != "book":
        return decision_of(reply)
    allowed, limit, remaining, reset_at, delay_ms = reply
    retry = 0 if allowed else delay_ms
    return Booking(Decision(allowed == 1, limit, remaining, reset_at, retry), delay_ms)


def decision_of(reply: Any) -> Decision:
    """The five integers of a check."""
    allowed, limit, remaining, reset_at, retry_after_ms = reply
    return Decision(allowed == 1, limit, remaining, reset_at, retry_after_ms)
