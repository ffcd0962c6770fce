"""What an algorithm is: a pure function of (state, now, cost), declared in one place.

Subclass `Strategy`, write `check`, and it works on every store and behind every server. `state` is
None for a key that is not remembered, else exactly what an earlier `Outcome` carried; treat it as
immutable. Where it should also live outside the process, make it of JSON's types: numbers,
strings, lists, dicts, None. The function may be run again for one request (a store that lost a
race repeats it), so it must not do anything but compute.

A class declares its `name` and its `parameters`, once. Whoever reads or describes strategies reads
that: policy files, inline requests, OpenAPI, the wire, leases, tables in the docs, the conformance
kit and the fuzzers. `core/_register.py` makes a class known to them by its name.

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


__all__ = ["SNAKE_CASE", "Parameter", "Strategy", "camel_case"]


_REQUIRED: Any = object()
_KINDS = ("count", "rate", "span", "choice", "zone")

SNAKE_CASE = r"[a-z][a-z0-9]*(_[a-z][a-z0-9]*)*"
"""Each part starts with a letter, so that camelCase leads back to it."""


def camel_case(name: str) -> str:
    """`window_ms` is `windowMs`, the spelling of the wire."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


class Parameter:
    """One parameter of a strategy.

    `kind` is "count", a whole number from `low` to `high`; "rate", a number above 0 that may have a
    fraction; "span", a time in ms, whose name ends in `_ms` and which policy files may say in
    words under the name without it; "choice", one of `choices`; or "zone", a time zone by its IANA
    name. One without a `default` is required. `example` stands in messages that ask for it.

    `shapes_state` says that states written under another value cannot be read under this one, so
    that a change of it begins afresh. Where nothing is said, counts and rates do not, and all other
    kinds do.
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
            reject(f"{name}: spans have names that end in _ms, which is their unit, and only they")
        if (kind == "choice") != bool(choices):
            reject(f"{name}: choices are for the kind 'choice', which needs some")
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
            self._checked(default)  # which `require` lets through unseen

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is _REQUIRED

    def require(self, value: Any) -> Any:
        """The value, or `config_invalid` with a text that says what would be right."""
        return value if value is self.default else self._checked(value)

    def _checker(self) -> Callable[[Any], Any]:
        """Picked once: policy files with plans make strategies by the hundred thousand."""
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
    """One algorithm with its parameters: the base class of all strategies. Immutable once made.

    A subclass has a `check`, and it works on every store. `peek` has a default; `forecast` is
    optional.
    """

    name: str = ""
    """Names the form of the state: two strategies that cannot read each other's state differ."""

    wire_name: str = ""
    """The name in camelCase, as policy files and the wire spell it; follows from `name`."""

    parameters: tuple[Parameter, ...] = ()
    """What it is made from, in the order of its constructor."""

    values: Mapping[str, Any] = {}
    """The parameters it was made with, by name."""

    limit: int = 0
    """The ceiling that decisions report."""

    window_ms: int | None = None
    """The window, for strategies that have one."""

    window_kind: str | None = None
    """Whether it has a window: "fixed" where all that was counted is void at its end, "sliding"
    where each unit leaves it after a window of its own."""

    ttl_ms: int = 0
    """The longest that a state written now can matter."""

    lua_sources: tuple[LuaSource, ...] = ()
    """Its accelerator for Redis; several where one argument more would change the wire."""

    kernel: str | None = None
    """Its accelerator on the compiled path: the kernel's name."""

    unit_bytes: int = 0
    """What each admitted unit adds to a state in Redis, for strategies that remember units."""

    books_ahead: bool = False
    """Whether it has a pace, so that units can be taken before they are there: see `book`."""

    is_held: bool = False
    """Whether what is taken is held, under an id, until it is given back: then it is asked for by
    `reserve` and `acquire`, and `take`, `renew` and `release` stand in the place of `check`."""

    restricts: bool = True
    """Whether a state only ever takes away from what a key may do, so that to forget it lets more
    in; a full store keeps the states that take away most. False for one that grants."""

    # What the accelerators repeat, and the `check` whose state the name stands for.
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
            # Its state may be another one than that of the class it derives from.
            cls.name = cls.__qualname__
        cls._named_check = cls.check
        if "wire_name" not in own:
            cls.wire_name = camel_case(cls.name)

    def __init__(self, **values: Any) -> None:
        """Checks the values against the declaration, and keeps them in `values`."""
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
        """A text, the same exactly for strategies that can go on with each other's states: other
        figures, such as a higher limit, leave it as it is."""
        if not self.parameters:
            return repr(self)
        shaping = [each.name for each in self.parameters if each.shapes_state]
        return f"{self.name}({', '.join(f'{name}={self.values[name]!r}' for name in shaping)})"

    @abstractmethod
    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        """Decide a request of `cost` at `now`. A denial must not persist."""

    def peek(self, state: Any, now: int) -> Decision:
        """What a request of cost 1 would get, with `remaining` as it stands.

        This default adds back the unit that `check` took off; a strategy whose `remaining` is not
        counted in such units should say better.
        """
        return Strategy.look(self, state, now, 1)

    def look(self, state: Any, now: int, cost: int) -> Decision:
        """What a request of `cost` would get, with `remaining` as it stands, where that is asked
        together with other limits. The Lua accelerator repeats this default, unless it has a
        `look` too.
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

    def forecast(self, state: Any, now: int, cost: int) -> Forecast:
        """What can be spent now and when there is more. Optional."""
        raise UnsupportedError(
            f"strategy {self.name!r} has no forecast; give it a forecast(state, now, cost) method"
        )

    def refund(self, state: Any, now: int, cost: int, charged_at: int) -> Outcome[int]:
        """Give back up to `cost` units that were charged at `charged_at`: no more than the state
        still holds of them, so that no key is ever richer than one that was never asked for. The
        result is how many came back. Optional, as are the three that follow."""
        raise self._lacks("refund", "(state, now, cost, charged_at)")

    def charge(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        """Take `cost` units whatever is left: they have been used. What is missing is paid off
        before anything is admitted again."""
        raise self._lacks("charge", "(state, now, cost)")

    def book(self, state: Any, now: int, cost: int, max_wait_ms: int) -> Outcome[Booking]:
        """Take `cost` units that may not be there yet, if they are within `max_wait_ms`."""
        raise UnsupportedError(
            f"strategy {self.name!r} has no pace, so nothing can be booked ahead; use gcra(...), "
            "or reserve without max_wait_ms"
        )

    def take(self, state: Any, now: int, slot_id: str) -> Outcome[Decision]:
        """Hold something under an id, or go on holding it. For strategies that are held, as are the
        five that follow."""
        raise self._lacks("take", "(state, now, slot_id)")

    def queue_up(self, state: Any, now: int, slot_id: str) -> Outcome[Decision]:
        """Hold something if it is one's turn; a denial keeps the caller's place in the queue."""
        raise self._lacks("queue_up", "(state, now, slot_id)")

    def keep_ticket(self, state: Any, now: int, slot_id: str) -> Outcome[int]:
        """Keep one's place in the queue and take nothing; the result is how many are before it."""
        raise self._lacks("keep_ticket", "(state, now, slot_id)")

    def renew(self, state: Any, now: int, slot_ids: Sequence[str]) -> Outcome[tuple[Decision, ...]]:
        """Go on holding all of these, each until the `reset_at` of its decision; denied is what is
        over."""
        raise self._lacks("renew", "(state, now, slot_ids)")

    def release(self, state: Any, now: int, slot_id: str) -> Outcome[int]:
        """Give it back; the result is 1 if it was held, else 0."""
        raise self._lacks("release", "(state, now, slot_id)")

    def reclaim(self, state: Any, now: int) -> Outcome[int]:
        """How many were not given back in time, since this was last asked."""
        raise self._lacks("reclaim", "(state, now)")

    def pause(self, state: Any, now: int, until_ms: int) -> Outcome[None]:
        """Admit nothing before `until_ms`."""
        raise self._lacks("pause", "(state, now, until_ms)")

    def _lacks(self, name: str, arguments: str) -> UnsupportedError:
        return UnsupportedError(
            f"strategy {self.name!r} has no {name}; give it a {name}{arguments} method"
        )

    def more_in_ms(self, decision: Decision, now: int, peeked: bool = False) -> float:
        """How long after an admission at `now` more than its `remaining` is available: as much as
        the decision tells, and never too short. By default, until its `reset_at`.

        `peeked` says that it is a decision of `peek`, whose `reset_at` is that of a request of cost
        1, while its `remaining` is what there is without one.
        """
        return decision.reset_at - now

    def longest_wait_ms(self, cost: int) -> int | None:
        """The longest `retry_after_ms` that a request of `cost` can be told as long as nobody's
        clock was ahead; None if that is not known. Optional."""
        return None

    def restore(self, kept: Any) -> Any:
        """The state, from what a store outside the process has kept. ValueError if that cannot be
        one of this strategy: another program, or another limiter, uses the same key."""
        return kept

    def read_state(self, raw: Any) -> Any:
        """The state, from what the `read` script of the Lua accelerator returned."""
        if self.lua is None:
            raise UnsupportedError(f"strategy {self.name!r} has no Lua script to read state with")
        kept = self.lua.decode(raw)
        return None if kept is None else self.restore(kept)

    @property
    def rate(self) -> tuple[int, int | None]:
        """What is granted per how many ms, or None if that is not how it is counted."""
        return self.limit, self.window_ms

    def in_words(self) -> str:
        """What it allows, as somebody would say it."""
        units, span_ms = self.rate
        if span_ms is None:
            return number_in_words(units)
        return rate_in_words(units, span_ms, sliding=self.window_kind == "sliding")

    @property
    def looks_back_ms(self) -> int | None:
        """The least number of instants in a row, in ms, such that a check is denied only if what
        was admitted within them comes, with its own cost, to more than `limit`; None if that is
        not how it decides, or not known."""
        return None

    def most_within(self, span_ms: int) -> int | None:
        """The most units of a key that checks can admit at any `span_ms` instants in a row; None if
        that is not known."""
        return None

    def is_looser_than(self, other: Strategy, *, alongside: bool, steady: bool) -> bool:
        """Whether it certainly admits whatever `other` admits, as long as no clock goes back. Each
        has a state of its own, and `other` is charged with everything that this one is.

        `alongside`: with nothing else, at the same instants. `steady`: only by checks, and by the
        same figures all the time. Where nothing can be proved the answer is no.
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
        """The form for requests that bring their limit along: `limit` per `window_ms`."""
        span = cls._span_of_per()
        if span is None:
            reject(f"{cls.name} cannot be had from a limit and a window alone; name a policy")
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
        """Whether the accelerators say the same as `check` and `look`. A subclass that replaces one
        of them, and brings no accelerator of its own, has none."""
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
        """Which of its sources; the first, unless a strategy has reason to choose."""
        return self.lua_sources[0] if self.lua_sources else None

    def periods_at(self, now: int) -> tuple[int, int, int, int]:
        """For a strategy by the calendar, whose Lua is sent them: the instants of `PERIODS`."""
        raise UnsupportedError(
            f"strategy {self.name!r} has no periods; give it a periods_at(now) method"
        )

    @cached_property
    def native(self) -> tuple[Any, ...] | None:
        """The accelerator on the compiled path: the kernel's name and its arguments."""
        if self.kernel is None or not self.is_accelerated:
            return None
        return (self.kernel, *self.kernel_arguments())

    @property
    def native_more(self) -> tuple[Any, ...] | None:
        """The same where the kernel tells `more_in_ms` too, which a subclass may replace."""
        cls = type(self)
        return self.native if cls.more_in_ms is cls._accelerated_more else None

    def kernel_arguments(self) -> tuple[Any, ...]:
        """What the kernel takes; by default the parameters, in order."""
        return tuple(self.values.values())

    def __getstate__(self) -> dict[str, Any]:
        """Without the accelerators, which are worked out again where it is used."""
        return {name: value for name, value in vars(self).items() if name not in ("lua", "native")}

    def __repr__(self) -> str:
        if not self.values:
            return f"<{self.name} limit={self.limit}>"
        values = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"{self.name}({values})"
