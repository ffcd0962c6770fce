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

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any

from .decision import Decision, Forecast, Outcome, Step
from .errors import UnsupportedError

__all__ = ["LuaRider", "LuaScript", "Stepping", "Strategy"]


class LuaScript:
    """One script as Redis runs it, known on the wire by its name and its sha1."""

    __slots__ = ("_sha1", "name", "source")

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source
        self._sha1 = b""

    @property
    def sha1(self) -> str:
        return self.sha1_bytes.decode()

    @property
    def sha1_bytes(self) -> bytes:
        """Worked out when a server is asked: those who never do need not load OpenSSL."""
        if not self._sha1:
            from hashlib import sha1

            digest = sha1(self.source.encode(), usedforsecurity=False)
            self._sha1 = digest.hexdigest().encode()
        return self._sha1

    def __repr__(self) -> str:
        return f"<LuaScript {self.name}>"


class LuaRider:
    """A strategy in Lua: `check` decides and writes, `read` returns the raw state, unchanged.

    `argv(now, cost)` gives the arguments of `check`, as text, bytes or numbers; a `now` of 0 asks
    for the server's clock. `read` takes none. `decode` turns what `read` returned into the state
    that Python sees.

    `many`, if there is one, is `check` for all of its KEYS in order, at one instant. It replies
    with the limit, then a count, remaining, reset_at and retry_after_ms for each run of keys that
    get the same answer.
    """

    __slots__ = ("argv", "check", "decode", "many", "read")

    def __init__(
        self,
        check: LuaScript,
        read: LuaScript,
        argv: Callable[[int, int], tuple[Any, ...]],
        decode: Callable[[Any], Any],
        many: LuaScript | None = None,
    ) -> None:
        self.check = check
        self.read = read
        self.argv = argv
        self.decode = decode
        self.many = many


def _decides_by(cls: type[Strategy]) -> tuple[Any, Any]:
    return cls.check, getattr(cls, "step", None)


def _is_whole(cls: type[Strategy]) -> bool:
    """Whether a class can decide, or leaves that to those that derive from it."""
    return not any(getattr(part, "__isabstractmethod__", False) for part in _decides_by(cls))


def _whole_bases(cls: type[Strategy]) -> list[type[Strategy]]:
    """The strategies that can decide and that a class derives from, the nearest first."""
    return [base for base in cls.__mro__[1:] if issubclass(base, Strategy) and _is_whole(base)]


class Strategy(ABC):
    """One algorithm with its parameters. Immutable once made."""

    name: str = ""
    """Names the form of the state: two strategies that cannot read each other's state differ."""

    limit: int = 0
    """The ceiling that decisions report."""

    window_ms: int | None = None
    """The window, for strategies that have one."""

    ttl_ms: int = 0
    """The longest that a state written now can matter."""

    native: tuple[Any, ...] | None = None
    """The rider of the compiled path: the kernel's name and its parameters."""

    lua: LuaRider | None = None
    """The rider of Redis."""

    restricts: bool = True
    """Whether a state only ever takes away from what a key may do, so that to forget it lets more
    in; a full store keeps the states that take away most. False for one that grants."""

    rides: bool = True
    """Whether the riders say the same as `check`. A subclass that replaces the `check` of a
    strategy with riders, and brings none of its own, has none."""

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

    def quota_and_window_ms(self) -> tuple[int, int | None]:
        """What is granted over time, and in how many ms; None where there is no such span."""
        return self.limit, self.window_ms

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
        """The state, from what the `read` script of the Lua rider returned."""
        if self.lua is None:
            raise UnsupportedError(f"strategy {self.name!r} has no Lua rider to read state from")
        kept = self.lua.decode(raw)
        return None if kept is None else self.restore(kept)

    def forecast(self, state: Any, now: int, cost: int) -> Forecast:
        """What can be spent now and when there is more. Optional."""
        raise UnsupportedError(
            f"strategy {self.name!r} has no forecast; give it a forecast(state, now, cost) method"
        )


class Stepping(Strategy):
    """A strategy written as a `step`: its `check` as the bare tuple (state, decision, ttl_ms,
    persist). All of ours are. The interpreted store takes the tuple as it is: a tenth of an
    in-process check would go into an Outcome that is made only to be taken apart.

    Their `lua` is worked out from their parameters when it is asked for: who uses no Redis does not
    load it, and no pickle carries it."""

    @abstractmethod
    def step(self, state: Any, now: int, cost: int) -> Step[Decision]:
        """Decide a request of `cost` at `now`. A denial must not persist."""

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        return Outcome(*self.step(state, now, cost))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if isinstance(type(self).lua, cached_property):
            state.pop("lua", None)
        return state
