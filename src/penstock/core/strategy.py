"""What an algorithm is: a pure function of (state, now, cost).

Subclass `Strategy`, write `check`, and it works on every store and behind every door. `state` is
None for a key that is not remembered, else exactly what an earlier `Outcome` carried; treat it as
immutable. Where it should also live outside the process, make it of JSON's types: numbers,
strings, lists, dicts, None. The function may be run again for one request (a store that lost a
race repeats it), so it must not do anything but compute.

A rider is the same transition in another language, for stores that can run it in one step. It is
optional and never changes a decision: `lua` for Redis, `native` for the compiled path.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .decision import Decision, Forecast, Outcome, Step
from .errors import UnsupportedError

__all__ = ["LuaRider", "LuaScript", "Stepping", "Strategy"]


@dataclass(frozen=True, slots=True)
class LuaScript:
    """One script as Redis runs it, known on the wire by its name and its sha1."""

    name: str
    source: str
    sha1: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha1", digest)


@dataclass(frozen=True, slots=True)
class LuaRider:
    """A strategy in Lua: `check` decides and writes, `read` returns the raw state, unchanged.

    `argv(now, cost)` gives the arguments of `check`; a `now` of 0 asks for the server's clock.
    `read` takes none. `decode` turns what `read` returned into the state that Python sees.

    `many`, if there is one, is `check` for all of its KEYS in order, at one instant. It replies
    with the limit, then a count, remaining, reset_at and retry_after_ms for each run of keys that
    get the same answer.
    """

    check: LuaScript
    read: LuaScript
    argv: Callable[[int, int], tuple[Any, ...]]
    decode: Callable[[Any], Any]
    many: LuaScript | None = None


def _decides_by(cls: type[Strategy]) -> tuple[Any, Any]:
    return cls.check, getattr(cls, "step", None)


def _is_whole(cls: type[Strategy]) -> bool:
    """Whether a class can decide, or leaves that to those that derive from it."""
    return not any(getattr(part, "__isabstractmethod__", False) for part in _decides_by(cls))


def _whole_bases(cls: type[Strategy]) -> list[type[Strategy]]:
    """The strategies that can decide and that a class derives from, the nearest first."""
    return [base for base in cls.__mro__[1:] if issubclass(base, Strategy) and _is_whole(base)]


class Strategy(ABC):
    """One algorithm with its parameters: the base class of all strategies. Immutable once made.

    A subclass has a `check`, and it works on every store. `peek` has a default; `forecast` is
    optional.
    """

    name: str = ""
    """Names the form of the state: two strategies that cannot read each other's state differ."""

    limit: int = 0
    """The ceiling that decisions report."""

    window_ms: int | None = None
    """The window, for strategies that have one."""

    ttl_ms: int = 0
    """The longest that a state written now can matter."""

    native: tuple[Any, ...] | None = None
    """The accelerator of the compiled path: the kernel's name and its parameters."""

    lua: LuaRider | None = None
    """The accelerator of Redis."""

    rides: bool = True
    """Whether the accelerators say the same as `check`. A subclass that replaces the `check` of a
    strategy with accelerators, and brings none of its own, has none."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not _is_whole(cls):
            return
        own = vars(cls)
        # By what is called, not by what is written here: a mixin replaces `check` as well.
        replaces = any(_decides_by(cls) != _decides_by(base) for base in _whole_bases(cls)[:1])
        if replaces and not own.keys() & {"lua", "native", "rides"}:
            cls.rides = False
        if not cls.name or (replaces and "name" not in own):
            cls.name = cls.__qualname__

    @abstractmethod
    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        """Decide a request of `cost` at `now`. A denial must not persist."""

    def peek(self, state: Any, now: int) -> Decision:
        """What a request of cost 1 would get, with `remaining` as it stands.

        This default adds back the unit that `check` took off; a strategy whose `remaining` is not
        counted in such units should say better.
        """
        decision = self.check(state, now, 1).result
        remaining = decision.remaining + 1 if decision.allowed else decision.remaining
        return Decision(
            decision.allowed,
            decision.limit,
            remaining,
            decision.reset_at,
            decision.retry_after_ms,
        )

    def read_state(self, raw: Any) -> Any:
        """The state, from what the `read` script of the Lua accelerator returned."""
        if self.lua is None:
            raise UnsupportedError(f"strategy {self.name!r} has no Lua rider to read state from")
        return self.lua.decode(raw)

    def forecast(self, state: Any, now: int, cost: int) -> Forecast:
        """What can be spent now and when there is more. Optional."""
        raise UnsupportedError(
            f"strategy {self.name!r} has no forecast; give it a forecast(state, now, cost) method"
        )


class Stepping(Strategy):
    """A strategy written as a `step`: its `check` as the bare tuple (state, decision, ttl_ms,
    persist). All of ours are. The interpreted store takes the tuple as it is: a tenth of an
    in-process check would go into an Outcome that is made only to be taken apart."""

    @abstractmethod
    def step(self, state: Any, now: int, cost: int) -> Step[Decision]:
        """Decide a request of `cost` at `now`. A denial must not persist."""

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        return Outcome(*self.step(state, now, cost))
