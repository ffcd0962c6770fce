"""The base class of strategies: a pure function of (state, now, cost), declared in one place.

Subclass `Strategy`, write `check`, and it works on every store and behind every server. `state` is
None for a new key, else exactly what an earlier `Outcome` contained; treat it as immutable. For
stores outside the process, make it of JSON's types: numbers, strings, lists, dicts, None. The
function must have no side effects: a store that lost a race runs it again.

A class declares its `name` and its `parameters` once. Policy files, inline requests, OpenAPI, the
wire, leases, tables in the docs, the conformance kit and the fuzzers use that declaration, and find
the class by its name in the register (`core/_register.py`).

An accelerator is the same transition in another language, for stores that can run it in one step.
It is optional and never changes a decision: `lua_sources` for Redis, `kernel` for the compiled
path.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from ._accelerator import LuaAccelerator, accelerator_of
from ._decision import Booking, Decision, Forecast, Outcome
from ._durations import number_in_words, rate_in_words
from ._errors import UnsupportedError
from ._validation import (
    MAX_SAFE,
    reject,
    require_choice,
    require_int,
    require_rate,
    require_span_ms,
    shown,
    zone_of,
)

if TYPE_CHECKING:
    from ._lua import LuaSource


__all__ = ["SNAKE_CASE", "WITH_FIGURES", "Parameter", "Strategy", "camel_case"]


_REQUIRED: Any = object()
_KINDS = ("count", "rate", "span", "choice", "zone")

SNAKE_CASE = r"[a-z][a-z0-9]*(_[a-z][a-z0-9]*)*"
"""Each part starts with a letter, so that camelCase can be converted back."""


WITH_FIGURES = " with figures"
"""The end of a `state_form` whose states hold figures: see `Strategy.keeping_figures`."""


def camel_case(name: str) -> str:
    """`window_ms` is `windowMs`, the spelling of the wire."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


class Parameter:
    """One parameter of a strategy.

    `kind` is "count", a whole number from `low` to `high`; "rate", a number above 0 that may have a
    fraction; "span", a time in ms, whose name ends in `_ms`; "choice", one of `choices`; or "zone",
    a time zone by its IANA name. Policy files may also give a span as text, such as "1m", under its
    name without `_ms`. A parameter without a `default` is required. `example` is used in error
    messages.

    `shapes_state` says that states written with one value cannot be used with another, so that
    changing it starts the counts afresh. The default is False for counts and rates, and True for
    all other kinds.
    """

    __slots__ = (
        "_checked",
        "choices",
        "default",
        "doc",
        "example",
        "high",
        "kind",
        "low",
        "name",
        "shapes_state",
        "wire_name",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        doc: str = "",
        *,
        default: Any = _REQUIRED,
        low: int = 1,
        high: int = MAX_SAFE,
        choices: tuple[str, ...] = (),
        example: Any = None,
        shapes_state: bool | None = None,
    ) -> None:
        if not isinstance(name, str) or not re.fullmatch(SNAKE_CASE, name):
            reject(f"the name of a parameter must be in snake_case, not {shown(name)}")
        require_choice(f"the kind of {name}", kind, _KINDS)
        if (kind == "span") != name.endswith("_ms"):
            reject(f"{name}: the name of a span, and of nothing else, must end in _ms, its unit")
        if (kind == "choice") != bool(choices):
            reject(f"{name}: the kind 'choice', and no other, needs choices")
        self.name: str = name
        self.wire_name: str = camel_case(name)
        self.kind: str = kind
        self.doc: str = doc
        self.default: Any = default
        self.low: int = low
        self.high: int = high
        self.choices: tuple[str, ...] = choices
        self.example: Any = _EXAMPLES.get(kind) if example is None else example
        is_figure = kind in ("count", "rate")
        self.shapes_state: bool = not is_figure if shapes_state is None else shapes_state
        self._checked: Callable[[Any], Any] = self._checker()
        if default is not _REQUIRED and default is not None:
            self._checked(default)  # `require` does not check a default

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is _REQUIRED

    def require(self, value: Any) -> Any:
        """Validate a value: returns it, or raises `config_invalid`."""
        return value if value is self.default else self._checked(value)

    def _checker(self) -> Callable[[Any], Any]:
        """Chosen once, since policy files with plans make hundreds of thousands of strategies."""
        name, kind = self.name, self.kind
        if kind == "count":
            low, high = self.low, self.high
            return lambda value: require_int(name, value, low, high)
        if kind == "span":
            return partial(require_span_ms, name)
        if kind == "rate":
            return partial(require_rate, name)
        if kind == "zone":
            return partial(_require_zone, name)
        return lambda value: require_choice(name, value, self.choices)

    def __repr__(self) -> str:
        return f"Parameter({self.name!r}, {self.kind!r})"


def _require_zone(name: str, value: Any) -> Any:
    zone_of(name, value)
    return value


_EXAMPLES = {"count": 100, "rate": 10.0, "span": "1m", "zone": "Europe/Berlin"}


class Strategy(ABC):
    """An algorithm with its parameters: the base class of all strategies. Immutable.

    A subclass implements `check`, and works on every store. `peek` has a default; the other
    operations are optional.
    """

    name: str = ""
    """Also names the form of the state: strategies with different states have different names."""

    wire_name: str = ""
    """The name in camelCase, as policy files and the wire spell it; follows from `name`."""

    parameters: tuple[Parameter, ...] = ()
    """The declared parameters, in the order of the constructor."""

    values: Mapping[str, Any] = {}
    """The values of the parameters, by name."""

    limit: int = 0
    """The ceiling that decisions report."""

    window_ms: int | None = None
    """The length of the window, if it has one."""

    window_kind: str | None = None
    """None without a window; "fixed" if all counts are void at its end; "sliding" if each unit
    expires one window after it was admitted."""

    ttl_ms: int = 0
    """The longest that a state can affect decisions after it was written."""

    lua_sources: tuple[LuaSource, ...] = ()
    """Its accelerator for Redis. Several if variants take different arguments on the wire."""

    kernel: str | None = None
    """Its accelerator on the compiled path: the kernel's name."""

    unit_bytes: int = 0
    """How much each admitted unit adds to a state in Redis, if units are kept one by one."""

    most_parts: int = 0
    """How many parts a state in Redis may have that each check reads."""

    books_ahead: bool = False
    """Whether units can be taken before they are available: see `book`."""

    may_change: bool = True
    """Whether a state may be read under other figures than it was written with. False if its key
    contains the figures, as with inline limits of a service: then the compiled table keeps no
    number of the figures, of which a process has a bounded count."""

    is_held: bool = False
    """Whether units are held under an id until they are given back, as slots are. Then callers use
    `reserve` and `acquire`, and `take`, `renew` and `release` replace `check`."""

    is_gate: bool = False
    """Whether a step of cost 0 asks for one unit, so that a pause denies it: for a limit that is
    paused and never charged. Other limits show at cost 0 what is left, and never deny."""

    restricts: bool = True
    """Whether a state only restricts what its key may do, so that evicting it would admit more. A
    full store evicts the least restrictive states first. False if a state grants something."""

    figures: tuple[float, ...] | None = None
    """The figures that its states depend on; None if a state means the same under any figures. See
    `adopt`."""

    keeps_figures: bool = False
    """Whether its states in Redis hold these figures: see `keeping_figures`."""

    lua_with_figures: LuaSource | None = None
    """Its accelerator for Redis if its states hold figures."""

    # The methods that the accelerators implement, and the `check` that `name` was given for.
    _accelerated_check: Any = None
    _accelerated_look: Any = None
    _accelerated_more: Any = None
    _named_check: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        if "lua_sources" in own or "kernel" in own:
            cls._accelerated_check = cls.check
            cls._accelerated_look = cls.look
            cls._accelerated_more = cls.more_in_ms
        if "name" not in own and cls.check is not cls._named_check:
            # Its state may have another form than that of its base class.
            cls.name = cls.__qualname__
        cls._named_check = cls.check
        if "wire_name" not in own:
            cls.wire_name = camel_case(cls.name)

    def __init__(self, **values: Any) -> None:
        """Validates the values against the declaration, and keeps them in `values`."""
        taken = {}
        for parameter in self.parameters:
            name, default = parameter.name, parameter.default
            value = values.get(name, default)
            if value is _REQUIRED:
                reject(f"{self.name} needs {name}, such as {name}={parameter.example!r}")
            taken[name] = value if value is default else parameter._checked(value)
        if not values.keys() <= taken.keys():
            unknown, names = values.keys() - taken.keys(), ", ".join(taken) or "none"
            reject(f"{self.name} has no parameter {', '.join(sorted(unknown))}; it has {names}")
        self.values = taken

    @property
    def state_form(self) -> str:
        """A text that is equal exactly for strategies that can use each other's states. It does not
        change with parameters such as the limit."""
        if not self.parameters:
            return repr(self)
        shaping = [each.name for each in self.parameters if each.shapes_state]
        form = f"{self.name}({', '.join(f'{name}={self.values[name]!r}' for name in shaping)})"
        return form + WITH_FIGURES if self.keeps_figures else form

    @property
    def figure_values(self) -> tuple[Any, ...]:
        """The values of the parameters that may change while there is state, in order."""
        return tuple([self.values[each.name] for each in self.parameters if not each.shapes_state])

    def with_figure_values(self, values: Sequence[Any]) -> Strategy:
        """The same strategy with other `figure_values`."""
        if tuple(values) == self.figure_values:
            return self
        names = [each.name for each in self.parameters if not each.shapes_state]
        figures = dict(zip(names, values, strict=True))
        made = type(self)(**{**self.values, **figures})
        return made.keeping_figures() if self.keeps_figures else made

    @abstractmethod
    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        """Decide a request of `cost` at `now`. A denial must not persist. A cost of 0 is for the
        figures of the decision alone (see `standing`): its outcome is never written."""

    def peek(self, state: Any, now: int) -> Decision:
        """The decision on a request of cost 1, with `remaining` as it stands before it.

        This default adds the unit that `check` subtracted; a strategy whose `remaining` does not
        count such units should override it.
        """
        return Strategy.look(self, state, now, 1)

    def look(self, state: Any, now: int, cost: int) -> Decision:
        """The decision on a request of `cost`, with `remaining` as it stands before it: for steps
        of `Store.apply_all` that ask whether a cost would be admitted, and do not spend it. A Lua
        accelerator implements this default, unless it has a `look` of its own.
        """
        decision = self.check(state, now, cost).result
        remaining = decision.remaining + cost if decision.allowed else decision.remaining
        return Decision(
            decision.allowed,
            decision.limit,
            remaining,
            decision.reset_at,
            decision.retry_after_ms,
        )

    def standing(self, state: Any, now: int) -> Decision:
        """The figures as they stand, nothing charged: those of a `check` of cost 0, which never
        denies. A step of cost 0 returns this, and so does each limit that would have admitted a
        request that another limit denied."""
        told = self.check(state, now, 0).result
        if told.allowed:
            return told
        return Decision(True, told.limit, told.remaining, told.reset_at, 0)

    def forecast(self, state: Any, now: int, cost: int) -> Forecast:
        """How many requests of `cost` fit now, and when there is more. Optional."""
        raise UnsupportedError(
            f"strategy {self.name!r} has no forecast; give it a forecast(state, now, cost) method"
        )

    def refund(self, state: Any, now: int, cost: int, charged_at: int) -> Outcome[int]:
        """Give back up to `cost` units that were charged at `charged_at`, but no more than the
        state still counts, so that a key never has more than a new one. The result is how many
        units came back. Optional, as are `charge`, `book` and `pause`."""
        raise self._lacks("refund", "(state, now, cost, charged_at)")

    def counted_at(self, decision: Decision, charged_at: int) -> int:
        """The instant by which to refund units that were charged at `charged_at` by this decision:
        the `charged_at` of `refund`. For a window, one of the window in which they were counted,
        which is a later one if the clock of the caller was behind. Where units are replenished at a
        pace, one that tells when all of them are, which is the `reset_at` of the decision.
        Optional."""
        return charged_at

    def charge(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        """Charge `cost` units that have been used, even if fewer are left. The debt is paid off
        before anything is admitted again. It is at most one whole limit: `excess` units of the cost
        are not charged."""
        raise self._lacks("charge", "(state, now, cost)")

    def excess(self, state: Any, now: int, cost: int) -> int:
        """How many of `cost` units `charge` leaves out, because the key would owe more than one
        whole limit. Without such a bound, one wrong number would lock a key forever. Optional."""
        return 0

    def book(self, state: Any, now: int, cost: int, max_wait_ms: int) -> Outcome[Booking]:
        """Take `cost` units that become available within `max_wait_ms`."""
        raise UnsupportedError(
            f"strategy {self.name!r} cannot be booked ahead; use gcra(...) or token_bucket(...), "
            "or call reserve without max_wait_ms"
        )

    def take(self, state: Any, now: int, slot_id: str) -> Outcome[Decision]:
        """Take a slot under an id, or renew it. Only for strategies that `is_held`, as are
        `queue_up`, `keep_ticket`, `renew`, `release` and `reclaim`."""
        raise self._lacks("take", "(state, now, slot_id)")

    def queue_up(self, state: Any, now: int, slot_id: str) -> Outcome[Decision]:
        """Take a slot if it is this waiter's turn; a denial keeps its place in the queue."""
        raise self._lacks("queue_up", "(state, now, slot_id)")

    def keep_ticket(self, state: Any, now: int, slot_id: str) -> Outcome[int]:
        """Keep a place in the queue without taking a slot. The result is how many are ahead."""
        raise self._lacks("keep_ticket", "(state, now, slot_id)")

    def renew(self, state: Any, now: int, slot_ids: Sequence[str]) -> Outcome[tuple[Decision, ...]]:
        """Renew slots, each until the `reset_at` of its decision; one that has expired is
        denied."""
        raise self._lacks("renew", "(state, now, slot_ids)")

    def release(self, state: Any, now: int, slot_id: str) -> Outcome[int]:
        """Give a slot back. The result is 1 if it was held, else 0."""
        raise self._lacks("release", "(state, now, slot_id)")

    def reclaim(self, state: Any, now: int) -> Outcome[int]:
        """Count the slots that have expired since the last call of this."""
        raise self._lacks("reclaim", "(state, now)")

    def pause(self, state: Any, now: int, until_ms: int) -> Outcome[None]:
        """Admit nothing before `until_ms`."""
        raise self._lacks("pause", "(state, now, until_ms)")

    def _lacks(self, name: str, arguments: str) -> UnsupportedError:
        return UnsupportedError(
            f"strategy {self.name!r} has no {name}; give it a {name}{arguments} method"
        )

    def adopt(self, state: Any, now: int, figures: tuple[float, ...], at: int) -> Any:
        """The state of this strategy that stands for one that was written at `at` under other
        `figures`. `core/_figures.py` says which laws hold. It must not depend on `now`, except that
        a state that is fully replenished under its own figures by then is that of a new key. A
        pause keeps its instant. Only for strategies that have `figures`."""
        raise self._lacks("adopt", "(state, now, figures, at)")

    def keeping_figures(self) -> Strategy:
        """The same strategy, whose states hold the figures that they were written with in Redis,
        too. In all other stores they always do. Raw states in Redis do not, since other clients
        share them: use this where figures change while a limit has state, in all programs that
        share it."""
        if self.figures is None or self.lua_with_figures is None or self.keeps_figures:
            return self
        made = object.__new__(type(self))
        vars(made).update(self.__getstate__(), keeps_figures=True)
        return made

    def more_in_ms(self, decision: Decision, now: int, peeked: bool = False) -> float:
        """How long after a decision at `now` more than its `remaining` becomes available, as far as
        the decision tells, and never too short. By default, until its `reset_at`.

        `peeked` says that the decision is one of `peek`: its `reset_at` is that of a request of
        cost 1, its `remaining` that before such a request.
        """
        return decision.reset_at - now

    def longest_wait_ms(self, cost: int) -> int | None:
        """The longest `retry_after_ms` of a request of `cost` if no clock was ahead; None if not
        known. Optional."""
        return None

    def restore(self, kept: Any) -> Any:
        """The state, from what a store outside the process has kept. Raises ValueError if it is not
        a state of this strategy: then another program or limiter uses the same key."""
        return kept

    def read_state(self, raw: Any) -> Any:
        """The state, from what the `read` script of the Lua accelerator returned."""
        if self.lua is None:
            raise UnsupportedError(f"strategy {self.name!r} has no Lua script to read state with")
        kept = self.lua.decode(raw)
        return None if kept is None else self.restore(kept)

    @property
    def rate(self) -> tuple[int, int | None]:
        """The units granted, and the ms in which they are; None for the ms if they have no
        period."""
        return self.limit, self.window_ms

    def in_words(self) -> str:
        """What it allows, in English, such as "100 a minute"."""
        units, span_ms = self.rate
        if span_ms is None:
            return number_in_words(units)
        return rate_in_words(units, span_ms, sliding=self.window_kind == "sliding")

    @property
    def looks_back_ms(self) -> int | None:
        """The shortest span, in ms, such that a check is denied only if its cost and what was
        admitted within that span exceed `limit`; None if it does not decide like that, or the span
        is not known."""
        return None

    def most_within(self, span_ms: int) -> int | None:
        """The most units that checks of one key can admit within any `span_ms`; None if not
        known."""
        return None

    def is_looser_than(self, other: Strategy, *, alongside: bool, steady: bool) -> bool:
        """Whether it provably admits whatever `other` admits, as long as no clock goes back. Each
        has its own state, and everything charged to this one is charged to `other` too.

        `alongside`: both are charged with exactly the same, at the same instants. `steady`: they
        are charged by checks only, and their parameters never change. False if nothing is proved.
        """
        alike = type(self) is type(other) and self.values == other.values
        if alongside and alike and self.parameters:
            return True
        if not steady or self.looks_back_ms is None:
            return False
        most = other.most_within(self.looks_back_ms)
        return most is not None and most <= self.limit

    @classmethod
    def per(cls, limit: int, window_ms: int) -> Strategy:
        """Make one from `limit` and `window_ms` alone, as inline requests give them."""
        span = cls._span_of_per()
        if span is None:
            reject(f"{cls.name} needs more than a limit and a window; use a policy")
        return cls(limit=limit, **{span: window_ms})

    @classmethod
    def has_per(cls) -> bool:
        """Whether a limit and a window are enough to make one."""
        return cls.per.__func__ is not Strategy.per.__func__ or cls._span_of_per() is not None  # type: ignore[attr-defined]

    @classmethod
    def _span_of_per(cls) -> str | None:
        required = {each.name: each.kind for each in cls.parameters if each.is_required}
        if required.pop("limit", None) != "count" or list(required.values()) != ["span"]:
            return None
        return next(iter(required))

    @property
    def is_accelerated(self) -> bool:
        """Whether the accelerators implement its `check` and `look`: not in a subclass that
        overrides one of them without an accelerator of its own."""
        cls = type(self)
        repeated = cls.check is cls._accelerated_check and cls.look is cls._accelerated_look
        return repeated and vars(self).keys().isdisjoint(("check", "look"))

    @cached_property
    def lua(self) -> LuaAccelerator | None:
        """The accelerator for Redis."""
        source = self.lua_source() if self.is_accelerated else None
        if source is None:
            return None
        named = {each.wire_name: self.values[each.name] for each in self.parameters}
        return accelerator_of(source, named, self.periods_at)

    def lua_source(self) -> LuaSource | None:
        """Which of its Lua sources to use; by default the first."""
        if self.keeps_figures:
            return self.lua_with_figures
        return self.lua_sources[0] if self.lua_sources else None

    def periods_at(self, now: int) -> tuple[int, int, int, int]:
        """The instants of `PERIODS` around `now`, for a calendar strategy with Lua."""
        raise UnsupportedError(
            f"strategy {self.name!r} has no periods; give it a periods_at(now) method"
        )

    @cached_property
    def native(self) -> tuple[Any, ...] | None:
        """The accelerator for the compiled path: the kernel's name and its arguments."""
        if self.kernel is None or not self.is_accelerated:
            return None
        return (self.kernel, *self.kernel_arguments())

    @property
    def native_more(self) -> tuple[Any, ...] | None:
        """As `native`, but None if a subclass overrides `more_in_ms`, which the kernel computes
        too."""
        cls = type(self)
        return self.native if cls.more_in_ms is cls._accelerated_more else None

    def kernel_arguments(self) -> tuple[Any, ...]:
        """The arguments of the kernel; by default the parameters, in order."""
        return tuple(self.values.values())

    def __getstate__(self) -> dict[str, Any]:
        """Without the accelerators, which are derived again when needed."""
        return {name: value for name, value in vars(self).items() if name not in ("lua", "native")}

    def __repr__(self) -> str:
        if not self.values:
            return f"<{self.name} limit={self.limit}>"
        values = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"{self.name}({values})"
