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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ...core._clock import FOREIGN_CLOCKS
from ...core._decision import Booking, Decision
from ...core._errors import PenstockError, StoreUnavailableError, UnsupportedError
from ...core._lua import (
    WITHOUT_ARGUMENT,
    LuaAccelerator,
    LuaScript,
    LuaSource,
    script_of_all,
    step_argument,
)
from ...core._register import registered
from ...core._transform import Step, Transform, checking, decide_all, trying
from .. import record
from .._sheet import ConnectionFailedError
from ._requests import TIME, Command, Delay, RedisFlow, ms_of
from ._routing import RedisRouter, names_of

__all__ = ["Plan", "apply_steps", "decision_of", "plan_of"]

_OPTIONAL = frozenset(
    {
        "refund",
        "charge",
        "book",
        "pause",
        "take",
        "queue_up",
        "keep_ticket",
        "renew",
        "release",
        "reclaim",
    }
)
_ALWAYS_THERE = frozenset({"check", "look", "try", "tell"})
# Those that do not answer with a decision.
_COUNTS = frozenset({"refund", "release", "reclaim", "keep_ticket"})
_OF_THEIR_OWN = frozenset({"pause", "renew", "book"})
_RACES = 256
_LONGEST_PAUSE_MS = 32
# Where these stand among the arguments that `LuaAccelerator.step` returns.
_COST = 1
_ARGUMENT = 2


def apply_steps(router: RedisRouter, plan: Plan, steps: Sequence[Step], now: int) -> RedisFlow:
    """The results, in the order of the steps, and the instant of the decision. A `now` of 0 asks
    for the server's clock."""
    keys = [step[0] for step in steps]
    if router.topology.is_one_group(keys):
        return _in_one_slot(router, plan, steps, keys, now)
    return _slot_by_slot(router, steps, router.topology.groups(keys), now)


def _require_operation(lua: LuaAccelerator | None, role: str, kind: str) -> None:
    if lua is None or role in _ALWAYS_THERE or role in lua.source.operations:
        return
    if role in _OPTIONAL:
        missing = f"its Lua source has no {role}; add one below '-- Give back.'"
    else:
        missing = "only check, lease, peek, forecast, refund, charge, book, pause and clear can be"
    raise UnsupportedError(
        f"RedisStore cannot run {role!r} on the state of {kind!r}, which is kept in its "
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
            answers, at = yield from _group(router, slot, now, others=bool(charged))
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
            yield from _group(router, [refund], now, others=True)


class Plan:
    """What a request of these steps takes, whatever their keys, costs, arguments and the instant. A
    step is its accelerator, the name of its strategy, its role and whether it is a shadow."""

    __slots__ = (
        "arguments",
        "by_periods",
        "here",
        "only_checks",
        "roles",
        "script",
        "sent",
        "starts",
    )

    def __init__(self, parts: Sequence[tuple[LuaAccelerator | None, str, str, bool]]) -> None:
        for lua, kind, role, _ in parts:
            _require_operation(lua, role, kind)
        accelerators = [lua for lua, _, _, _ in parts if lua is not None]
        self.script = _script(frozenset(lua.source for lua in accelerators))
        self.by_periods = any(lua.source.by_periods for lua in accelerators)
        self.roles = [role for _, _, role, _ in parts]
        # The places of the steps that are decided here.
        self.here = [place for place, part in enumerate(parts) if part[0] is None]
        self.only_checks = not self.here and set(self.roles) == {"check"}
        # Every reply begins with the instant, so that those who ask for it are not sent, unless
        # nobody asks for anything else.
        asked = [place for place, role in enumerate(self.roles) if role != "tell"]
        self.sent = asked or [0]
        # All arguments but `now`, with costs of 1, and where those of each step begin. None if they
        # depend on the instant, or on what a key held.
        self.arguments: list[bytes] | None = []
        self.starts: list[tuple[int, int, bool]] = []
        for place in self.sent:
            lua, _, role, shadow = parts[place]
            if lua is None or not lua.is_fixed or role == "renew":
                self.arguments = None
                break
            role = _sent_as(role)
            self.starts.append((place, len(self.arguments), role not in WITHOUT_ARGUMENT))
            self.arguments += lua.step(0, role, 1, shadow, 0)

    def argv(self, steps: Sequence[Step], now: int, swaps: Mapping[int, Command]) -> list[bytes]:
        """All arguments but `now`; `swaps` are those of the steps that are decided here."""
        if self.arguments is None:
            return self._argv_anew(steps, now, swaps)
        arguments = self.arguments.copy()
        for place, start, has_argument in self.starts:
            _, transform, cost, _ = steps[place]
            if cost != 1:
                arguments[start + _COST] = b"%d" % cost
            if has_argument:
                arguments[start + _ARGUMENT] = step_argument(transform.argument)
        return arguments

    def _argv_anew(
        self, steps: Sequence[Step], now: int, swaps: Mapping[int, Command]
    ) -> list[bytes]:
        arguments: list[bytes] = []
        for place in self.sent:
            _, transform, cost, shadow = steps[place]
            if transform.lua is None:
                arguments += swaps[place]
            else:
                role = _sent_as(transform.role)
                arguments += transform.lua.step(now, role, cost, shadow, transform.argument)
        return arguments

    def answers(
        self, steps: Sequence[Step], reply: list[Any], decided: Mapping[int, Any]
    ) -> list[Any]:
        """From what the script replied, and what was decided here."""
        now, *told = reply
        if self.only_checks:
            decisions = [Decision(a == 1, limit, r, at, wait) for a, limit, r, at, wait in told]
            for decision, (_, transform, cost, _) in zip(decisions, steps, strict=True):
                if not decision.allowed:
                    FOREIGN_CLOCKS.look_at(decision, transform, cost)
            return decisions
        answers = [now] * len(steps)
        for place, answer in zip(self.sent, told, strict=True):
            if place in decided:
                answers[place] = decided[place]
            elif (role := self.roles[place]) != "tell":
                answers[place] = _answer(role, answer, now)
                if role == "check" and not answer[0]:
                    _, transform, cost, _ = steps[place]
                    FOREIGN_CLOCKS.look_at(answers[place], transform, cost)
        return answers


def _sent_as(role: str) -> str:
    return "look" if role == "tell" else role


_plan_of_parts = lru_cache(maxsize=1024)(Plan)


def plan_of(steps: Sequence[Step]) -> Plan:
    """The plan of steps like these."""
    return _plan_of_parts(
        tuple([(run.lua, run.kind, run.role, shadow) for _, run, _, shadow in steps])
    )


def _group(router: RedisRouter, steps: Sequence[Step], now: int, *, others: bool) -> RedisFlow:
    """Steps whose keys one script may use; `others` if keys before them have been charged."""
    return _in_one_slot(router, plan_of(steps), steps, [step.key for step in steps], now, others)


def _in_one_slot(
    router: RedisRouter,
    plan: Plan,
    steps: Sequence[Step],
    keys: Sequence[str],
    now: int,
    others: bool = False,
) -> RedisFlow:
    if plan.here:
        return (yield from _DecidedHere(router, plan, steps, keys, others).run(now))
    command = _command(plan, steps, keys, now, {})
    (reply,) = yield from router.ask(
        keys[0], (command,), script=plan.script, consuming=True, keys=keys, others=others
    )
    return plan.answers(steps, reply, {}), reply[0]


def _command(
    plan: Plan,
    steps: Sequence[Step],
    keys: Sequence[str],
    now: int,
    swaps: Mapping[int, Command],
) -> Command:
    names = [keys[place].encode() for place in plan.sent]
    return (
        b"EVALSHA",
        plan.script.sha1_bytes,
        b"%d" % len(names),
        *names,
        b"%d" % now,
        *plan.argv(steps, now, swaps),
    )


class _DecidedHere:
    """Steps of which some have no Lua, whose keys one script may use."""

    def __init__(
        self,
        router: RedisRouter,
        plan: Plan,
        steps: Sequence[Step],
        keys: Sequence[str],
        others: bool,
    ) -> None:
        self._router = router
        self._plan = plan
        self._steps = steps
        self._keys = keys
        self._others = others

    def run(self, now: int) -> RedisFlow:
        for race in range(_RACES):
            records, server_now = yield from self._look()
            at = now or server_now
            decided, writes = self._decide(records, at)
            swaps = self._swaps(decided, records, writes, at, server_now)
            command = _command(self._plan, self._steps, self._keys, at, swaps)
            (reply,) = yield from self._router.ask(
                self._keys[0],
                (command,),
                script=self._plan.script,
                consuming=True,
                keys=self._keys,
                others=self._others,
            )
            # The instant alone says that a record has changed.
            if len(reply) > 1:
                return self._plan.answers(self._steps, reply, decided), at
            try:
                yield Delay(random.uniform(0, min(2.0**race, _LONGEST_PAUSE_MS)))
            except ConnectionFailedError:
                break
        raise StoreUnavailableError(
            f"{names_of(self._keys)} was changed by others each time before this request could be "
            "written; it was not charged; give the strategy a Lua accelerator, or raise timeout_ms"
        )

    def _look(self) -> RedisFlow:
        """What the keys that are decided here hold, and the server's time."""
        keys = list(dict.fromkeys(self._keys[place] for place in self._plan.here))
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
        steps = [self._steps[place]._replace(shadow=True) for place in self._plan.here]
        results, writes = decide_all(steps, read, lambda _key: now)
        return dict(zip(self._plan.here, results, strict=True)), writes

    def _swaps(
        self,
        decided: dict[int, Any],
        records: dict[str, Any],
        writes: dict[str, tuple[Transform[Any], Any]],
        now: int,
        server_now: int,
    ) -> dict[int, Command]:
        """The arguments of the steps that were decided here. The last one of a key writes it."""
        last = {self._keys[place]: place for place in self._plan.here}
        swaps: dict[int, Command] = {}
        for place in self._plan.here:
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
                b"swap",
                b"1" if allowed else b"0",
                keep,
                b"" if held is None else held if isinstance(held, bytes) else held.encode(),
                text,
            )
        return swaps


@lru_cache(maxsize=256)
def _script(sources: frozenset[LuaSource]) -> LuaScript:
    """The one script of all strategies that are known by name; with others, one of their own."""
    known = frozenset(source for cls in registered() for source in cls.lua_sources)
    return script_of_all(known | sources)


def _answer(role: str, reply: list[Any], now: int) -> Any:
    if role in _COUNTS:
        return reply[1]
    if role not in _OF_THEIR_OWN:
        return decision_of(reply)
    if role == "pause":
        return None
    if role == "renew":
        _, limit, free, expiries, _ = reply
        return tuple(
            [
                Decision(True, limit, free, expires, 0)
                if expires
                else Decision(False, limit, free, now, 1)
                for expires in expiries
            ]
        )
    allowed, limit, remaining, reset_at, delay_ms = reply
    retry = 0 if allowed else delay_ms
    return Booking(Decision(allowed == 1, limit, remaining, reset_at, retry), delay_ms)


def decision_of(reply: Any) -> Decision:
    """The five integers of a check."""
    allowed, limit, remaining, reset_at, retry_after_ms = reply
    return Decision(allowed == 1, limit, remaining, reset_at, retry_after_ms)
