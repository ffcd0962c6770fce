"""What several steps are sent to Redis as, and how its reply is read.

A plan is made once for all requests of the same shape, whatever their keys, costs, arguments and
the instant. One operation of a strategy has a script of its own; any mixture goes to the script
`all`, with its steps as one argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ...core._accelerator import LuaAccelerator, in_json, in_words
from ...core._clock import FOREIGN_CLOCKS
from ...core._decision import Booking, Charged, Decision
from ...core._errors import TooLargeError, UnsupportedError
from ...core._lua import REPLY, LuaScript
from ...core._lua_all import StepKind, script_of_all
from ...core._steps import Step
from ...core._transform import Transform
from ...core._validation import MAX_PARTS, MAX_SAFE
from ._requests import Command, malformed, whole_numbers

__all__ = [
    "OnePlan",
    "Plan",
    "RecordSwap",
    "decision_of",
    "no_operation",
    "plan_of",
    "plan_of_one",
    "require_units",
]

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
# What a script says of each step, `allowed` first.
_FIELDS = len(REPLY)


class RecordSwap(NamedTuple):
    """A step that was decided here: whether it admits, 1 or 0; the record that it was decided on,
    the new one, and for how long that is kept: 0 if the old one stays, -1 if there is none."""

    admits: int
    keep_ms: int
    held: bytes
    text: bytes


_SWAP = StepKind(None, "swap", shadow=False)

_SEVERAL = 2
_Part = tuple[LuaAccelerator | None, str, str, bool, int]
"""A step, but for its key and argument: its accelerator, the name of its strategy, its role,
whether it is a shadow, and its cost as 0, 1 or `_SEVERAL`."""


class Plan:
    """What a request of such steps takes, whatever their keys, costs, arguments and the instant."""

    def __init__(self, parts: Sequence[_Part], sent: Sequence[int], script: LuaScript) -> None:
        accelerators = [lua for lua, _, _, _, _ in parts if lua is not None]
        self.script = script
        self.by_periods = any(lua.source.by_periods for lua in accelerators)
        # Whether there are steps of cost 0, for which the plan is that of `looked_at`.
        self.has_looks = any(not units and role != "look" for _, _, role, _, units in parts)
        # The places of the steps that are decided here. A step that only asks for the instant is
        # not sent, so it must not be taken for the last one of its key, which writes.
        self.here = [place for place in sent if parts[place][0] is None]
        # Whether each of them is answered by a decision.
        self.only_checks = False
        # Whether a step may write many units.
        self.is_heavy = any(units == _SEVERAL or role == "pause" for _, _, role, _, units in parts)
        # The place of the only operation, if compiled code reads its answer: a decision, or one
        # number if `counts`.
        self.place = -1
        self.counts = False

    def command(
        self, steps: Sequence[Step], keys: Sequence[str], now: int, swaps: Mapping[int, RecordSwap]
    ) -> Command:
        """What is sent; `swaps` are the steps that are decided here, by their places."""
        raise NotImplementedError

    def answers(
        self, steps: Sequence[Step], reply: list[Any], decided: Mapping[int, Any]
    ) -> list[Any]:
        """From what the script replied, and what was decided here."""
        raise NotImplementedError


class OnePlan(Plan):
    """That of one operation of a strategy, for which it has a script, and of steps that ask for the
    instant, with which every reply begins."""

    def __init__(self, parts: Sequence[_Part], place: int, lua: LuaAccelerator) -> None:
        _, _, self._role, shadow, _ = parts[place]
        super().__init__(parts, (place,), lua.source.alone(self._role, shadow=shadow))
        self._place = place
        self._lua = lua
        self._read = _reader_of(self._role)
        self._head = (b"EVALSHA", self.script.sha1_bytes, b"1")
        # Packs the command of an operation with one argument in compiled code; None if it cannot.
        self.packer = lua.command_of(self.script, takes_argument=True)
        self.counts = self._read is _count
        if self.counts or self._read is _decision:
            self.place = place

    def command(
        self, steps: Sequence[Step], keys: Sequence[str], now: int, swaps: Mapping[int, RecordSwap]
    ) -> Command:
        key, transform, cost, _ = steps[self._place]
        return self.command_for(key, transform, now, cost)

    def command_for(self, key: str, transform: Transform[Any], now: int, cost: int) -> Command:
        """As `command`, of the operation alone."""
        arguments = self._lua.argv(now, cost)
        return (*self._head, key.encode(), *arguments, *in_words(transform.argument))

    def answers(
        self, steps: Sequence[Step], reply: list[Any], decided: Mapping[int, Any]
    ) -> list[Any]:
        _, transform, cost, _ = steps[self._place]
        answer = self.answer(transform, cost, reply)
        answers = [reply[0]] * len(steps)
        answers[self._place] = answer
        return answers

    def answer(self, transform: Transform[Any], cost: int, reply: list[Any]) -> Any:
        """As `answers`, of the operation alone."""
        _require_numbers(reply, [self._role])
        answer = _answer_of(self._role, transform, reply[0], reply[1:])
        if self._role == "check" and not answer.allowed:
            FOREIGN_CLOCKS.look_at(answer, transform, cost)
        return answer


class _MixedPlan(Plan):
    """That of any mixture, for the script `all`."""

    def __init__(self, parts: Sequence[_Part], sent: Sequence[int]) -> None:
        self._parts = [parts[place] for place in sent]
        kinds = [_kind(*part) for part in self._parts]
        script, numbers = script_of_all(frozenset(kinds))
        super().__init__(parts, sent, script)
        self._numbers = [numbers[kind] for kind in kinds]
        self._roles = [role for _, _, role, _, _ in parts]
        self._sent_roles = [self._roles[place] for place in sent]
        self.only_checks = not self.here and set(self._roles) == {"check"}
        # The places of the steps that are sent.
        self._sent = sent
        self._head = (b"EVALSHA", self.script.sha1_bytes, b"%d" % len(sent))
        # The steps as the script takes them, but for what differs from call to call; None if that
        # is more than costs and arguments.
        is_fixed = all(part[0] is None or part[0].is_fixed for part in self._parts)
        self._template = self._steps_at(0) if is_fixed else None
        # The same for checks of one unit each, which are always the same.
        self._of_one_unit = b""
        of_one_unit = all(units == 1 for _, _, _, _, units in parts)
        if self.only_checks and of_one_unit and self._template is not None:
            self._of_one_unit = (self._template % ((1,) * len(sent))).encode()

    def command(
        self, steps: Sequence[Step], keys: Sequence[str], now: int, swaps: Mapping[int, RecordSwap]
    ) -> Command:
        if self._of_one_unit:
            return (*self._head, *map(str.encode, keys), b"%d" % now, self._of_one_unit)
        if self.is_heavy:
            require_units(steps)
        names = [keys[place].encode() for place in self._sent]
        records = [text for swap in swaps.values() for text in (swap.held, swap.text)]
        return (*self._head, *names, b"%d" % now, self._told(steps, now, swaps), *records)

    def _told(self, steps: Sequence[Step], now: int, swaps: Mapping[int, RecordSwap]) -> bytes:
        values: list[Any] = []
        for place, (lua, _, role, _, _) in zip(self._sent, self._parts, strict=True):
            _, transform, cost, _ = steps[place]
            if lua is None:
                values += swaps[place][:2]
            elif role == "check":
                values.append(cost)
            else:
                values += (cost, in_json(transform.argument))
        template = self._steps_at(now) if self._template is None else self._template
        return (template % tuple(values)).encode()

    def _steps_at(self, now: int) -> str:
        told = [
            f"{number},%d,%d" if lua is None else lua.step(now, number, role)
            for number, (lua, _, role, _, _) in zip(self._numbers, self._parts, strict=True)
        ]
        return f"[{','.join(told)}]"

    def answers(
        self, steps: Sequence[Step], reply: list[Any], decided: Mapping[int, Any]
    ) -> list[Any]:
        _require_numbers(reply, self._sent_roles)
        now = reply[0]
        if self.only_checks:
            decisions = [
                decision_of(reply[start : start + _FIELDS])
                for start in range(1, len(reply), _FIELDS)
            ]
            if not all(decisions):
                for decision, (_, transform, cost, _) in zip(decisions, steps, strict=True):
                    if not decision.allowed:
                        FOREIGN_CLOCKS.look_at(decision, transform, cost)
            return decisions
        answers = [now] * len(steps)
        start = 1
        for place in self._sent:
            answer = reply[start : start + _FIELDS]
            start += _FIELDS
            if place in decided:
                answers[place] = decided[place]
            elif (role := self._roles[place]) != "tell":
                answers[place] = _answer_of(role, steps[place][1], now, answer)
                if role == "check" and not answer[0]:
                    _, transform, cost, _ = steps[place]
                    FOREIGN_CLOCKS.look_at(answers[place], transform, cost)
        return answers


def require_units(steps: Sequence[Step], times: int = 1) -> None:
    """Reject steps that would write more units, one by one, than the server may be kept busy with.
    A step writes as many as it costs, but no more than the limit, and a check above the limit none;
    a pause writes the whole limit.
    `times` is the number of keys of a batch."""
    total, kind = 0, ""
    for _, run, cost, _ in steps:
        strategy = run.strategy
        if strategy is not None and strategy.unit_bytes:
            kind = run.kind
            if run.role == "pause":
                total += strategy.limit
            elif cost <= strategy.limit:
                total += cost
            elif run.role != "check":
                total += strategy.limit
    total *= times
    if total > MAX_PARTS:
        raise TooLargeError(
            f"this call would write {total} units of {kind}, each by itself, and at most "
            f"{MAX_PARTS} are allowed per call; ask for fewer keys or a lower cost at once, or use "
            "sliding_window"
        )


def _kind(lua: LuaAccelerator | None, _name: str, role: str, shadow: bool, _units: int) -> StepKind:
    """What the script does in such a step."""
    if lua is None:
        return _SWAP
    return StepKind(lua.source, "look" if role == "tell" else role, shadow)


@lru_cache(maxsize=1024)
def _plan_of_parts(parts: tuple[_Part, ...]) -> Plan:
    for lua, kind, role, _, units in parts:
        if units:
            _require_operation(lua, role, kind)
    # Every reply begins with the instant, so that those who ask for it are not sent, unless nobody
    # asks for anything else.
    sent = [place for place, part in enumerate(parts) if part[2] != "tell"] or [0]
    lua, _, role, _, _ = parts[sent[0]]
    if len(sent) == 1 and lua is not None and role in lua.source.operations:
        return OnePlan(parts, sent[0], lua)
    return _MixedPlan(parts, sent)


def plan_of_one(transform: Transform[Any], lua: LuaAccelerator) -> OnePlan | None:
    """The plan of one operation that is no shadow, which the accelerator remembers; None if its Lua
    has no such operation."""
    role = transform.role
    plan: OnePlan | None = lua.plans.get(role)
    if plan is None and role in lua.source.operations:
        plan = lua.plans[role] = OnePlan(((lua, transform.kind, role, False, 1),), 0, lua)
    return plan


def plan_of(steps: Sequence[Step]) -> Plan:
    """The plan of steps like these."""
    return _plan_of_parts(
        tuple(
            [
                (run.lua, run.kind, run.role, shadow, cost if cost < _SEVERAL else _SEVERAL)
                for _, run, cost, shadow in steps
            ]
        )
    )


def _require_operation(lua: LuaAccelerator | None, role: str, kind: str) -> None:
    if lua is None or role in _ALWAYS_THERE or role in lua.source.operations:
        return
    raise no_operation(role, kind)


def no_operation(role: str, kind: str) -> UnsupportedError:
    """The error of an operation that the Lua of a strategy does not have."""
    if role in _OPTIONAL:
        missing = f"its Lua source has no {role}; add one below '-- Give back.'"
    else:
        missing = "only check, lease, peek, forecast, refund, charge, book, pause and clear can be"
    return UnsupportedError(
        f"RedisStore cannot run {role!r} on the state of {kind!r}, which is kept in its "
        f"wire encoding: {missing}"
    )


def _require_numbers(reply: Any, roles: Sequence[str]) -> None:
    """Reject a reply that is not the instant and the numbers of a step for each role. Renewals have
    a list in the place of one number, which `_answer_of` validates."""
    if "renew" not in roles:
        whole_numbers(reply, 1 + _FIELDS * len(roles))
        return
    if type(reply) is not list or len(reply) != 1 + _FIELDS * len(roles):
        raise malformed(reply)
    lists = {1 + _FIELDS * place + 3 for place, role in enumerate(roles) if role == "renew"}
    flat = [0 if place in lists else number for place, number in enumerate(reply)]
    whole_numbers(flat, len(flat))


def _answer_of(role: str, transform: Transform[Any], now: int, answer: Sequence[Any]) -> Any:
    """The answer of a step from the five numbers of its reply, whose types are valid."""
    if role == "renew":
        argument = transform.argument
        whole_numbers(answer[3], len(argument) if isinstance(argument, tuple) else 1)
    return _reader_of(role)(now, *answer)


def _decision(_now: int, *fields: int) -> Decision:
    return decision_of(fields)


def _count(_now: int, _allowed: int, units: int, _left: int, _reset_at: int, _retry: int) -> int:
    if units < 0:
        raise malformed(units)
    return units


def _nothing(*_reply: int) -> None:
    return None


def _renewals(
    now: int, _allowed: int, limit: int, free: int, expiries: Sequence[int], _retry: int
) -> tuple[Decision, ...]:
    return tuple(
        [
            Decision(True, limit, free, expires, 0)
            if expires
            else Decision(False, limit, free, now, 1)
            for expires in expiries
        ]
    )


def _booking(
    _now: int, allowed: int, limit: int, remaining: int, reset_at: int, delay_ms: int
) -> Booking:
    retry = 0 if allowed else delay_ms
    return Booking(Decision(allowed == 1, limit, remaining, reset_at, retry), delay_ms)


def _charged(
    _now: int, allowed: int, limit: int, remaining: int, reset_at: int, excess: int
) -> Charged:
    return Charged(Decision(allowed == 1, limit, remaining, reset_at, 0), excess)


def decision_of(reply: Any) -> Decision:
    """The five integers of a check, if they can be those of a decision."""
    allowed, limit, remaining, reset_at, retry_after_ms = reply
    is_sound = (
        (allowed == 1 and retry_after_ms == 0) or (allowed == 0 and 0 < retry_after_ms <= MAX_SAFE)
    ) and (0 <= limit <= MAX_SAFE and 0 <= remaining <= MAX_SAFE and 0 <= reset_at <= MAX_SAFE)
    if not is_sound:
        raise malformed(reply)
    return Decision(allowed == 1, limit, remaining, reset_at, retry_after_ms)


# Those that do not answer with a decision.
_READERS: Mapping[str, Callable[..., Any]] = {
    "refund": _count,
    "release": _count,
    "reclaim": _count,
    "keep_ticket": _count,
    "pause": _nothing,
    "renew": _renewals,
    "book": _booking,
    "charge": _charged,
}


def _reader_of(role: str) -> Callable[..., Any]:
    """Makes the answer of a step from the instant and the five integers of its reply."""
    return _READERS.get(role, _decision)
