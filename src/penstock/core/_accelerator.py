"""The accelerator of a strategy on Redis: its scripts, and what a call sends to them.

Parameters are put into words once. What differs from call to call is the instant, the cost and, for
a strategy by the calendar, the periods around the instant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from typing import Any, ClassVar

from . import native
from ._clock import SystemClock
from ._lua import NOW_ARGV, LuaScript, LuaSource

__all__ = ["LuaAccelerator", "PeriodAccelerator", "accelerator_of", "in_json", "in_words"]


PeriodsAt = Callable[[int], tuple[int, int, int, int]]


class LuaAccelerator:
    """A strategy's scripts with its parameters: `check` decides and writes, `many` does so for all
    of its keys, `read` returns the raw state, which `decode` turns into one that Python sees."""

    __slots__ = (
        "_after",
        "_before",
        "_command",
        "_usual",
        "decode",
        "plans",
        "source",
    )

    is_fixed: ClassVar[bool] = True
    """Whether its arguments are the same whatever the instant."""

    def __init__(
        self, source: LuaSource, before: tuple[bytes, ...], after: tuple[bytes, ...]
    ) -> None:
        self.source: LuaSource = source
        self.decode: Callable[[Any], Any] = source.decode
        self._before = before
        self._after = after
        # One unit by the server's clock: what nearly every check asks for.
        self._usual = (b"0", *before, b"1", *after)
        self._command: Any = None
        self.plans: dict[str, Any] = {}
        """How a store asks for its operations, by their roles."""

    # Put together when a server is asked: those who never do need none.

    @property
    def check(self) -> LuaScript:
        """Decides for one key and writes."""
        return self.source.check

    @property
    def many(self) -> LuaScript:
        """Decides for all of its keys, in order, at one instant."""
        return self.source.many

    @property
    def read(self) -> LuaScript:
        """Returns what a key holds, and never writes."""
        return self.source.read

    def argv(self, now: int, cost: int) -> tuple[bytes, ...]:
        """The arguments of `check` and `many`, as bytes: drivers pack those without converting,
        and an interrupt in the middle of a conversion has crashed one. A `now` of 0 asks for the
        server's clock."""
        if now == 0 and cost == 1:
            return self._usual
        return (b"%d" % now, *self._before, b"%d" % cost, *self._after)

    def command(self) -> Any:
        """What packs the command of `check` in compiled code; None where nothing is compiled, or
        the arguments are not always the same."""
        if self._command is None:
            self._command = self.command_of(self.check)
        return self._command

    def command_of(self, script: LuaScript, *, takes_argument: bool = False) -> Any:
        """The same for another script on one key, which may take one more argument."""
        if native is None or not self.is_fixed:
            return None
        return native.ScriptCommand(script.sha1_bytes, self._before, self._after, takes_argument)

    def step(self, now: int, number: int, role: str) -> str:
        """One step of the script `all`, of the kind of that number, with `%d` for its cost and `%s`
        for its argument."""
        argument = [] if role == "check" else ["%s"]
        given = [parameter.decode() for parameter in self._parameters(now)]
        return ",".join([str(number), "%d", *argument, *given])

    def _parameters(self, now: int) -> tuple[bytes, ...]:
        return (*self._before, *self._after)

    def note_clock(self, server_now: int) -> None:
        """Called with the server's time where that is in none of the `PERIODS` that were sent."""


def in_json(argument: int | str | tuple[str, ...]) -> str:
    """The argument of a step of `all`."""
    if isinstance(argument, str):
        return encode_basestring(argument)
    if isinstance(argument, tuple):
        return f"[{','.join(map(encode_basestring, argument))}]"
    return str(argument)


def in_words(argument: int | str | tuple[str, ...]) -> tuple[bytes, ...]:
    """The argument of a script for one operation."""
    if isinstance(argument, str):
        return (argument.encode(),)
    if isinstance(argument, tuple):
        return tuple([each.encode() for each in argument])
    return (b"%d" % argument,)


class PeriodAccelerator(LuaAccelerator):
    """One of a strategy by the calendar. By the server's clock it goes by the system's, which need
    only be right to a period; where it is not, by what the server was last heard to show."""

    __slots__ = ("_ahead_ms", "_clock", "_known", "_periods_at")

    is_fixed = False

    def __init__(self, source: LuaSource, before: tuple[bytes, ...], periods_at: PeriodsAt) -> None:
        super().__init__(source, before, ())
        self._periods_at = periods_at
        self._clock = SystemClock()
        self._ahead_ms = 0
        self._known: tuple[int, int, tuple[bytes, ...]] = (0, 0, ())

    def argv(self, now: int, cost: int) -> tuple[bytes, ...]:
        return (b"%d" % now, *self._parameters(now), b"%d" % cost)

    def _parameters(self, now: int) -> tuple[bytes, ...]:
        now = now or max(0, self._clock.now() + self._ahead_ms)
        start, end, parameters = self._known
        if not start <= now < end:
            periods = self._periods_at(now)
            parameters = (*self._before, *(b"%d" % instant for instant in periods))
            self._known = (periods[1], periods[2], parameters)
        return parameters

    def note_clock(self, server_now: int) -> None:
        self._ahead_ms = server_now - self._clock.now()


def accelerator_of(
    source: LuaSource, parameters: Mapping[str, Any], periods_at: PeriodsAt
) -> LuaAccelerator:
    """For a strategy with these parameters, by their names on the wire."""
    cost = source.argv.index("cost")
    if source.by_periods:
        limits = (repr(parameters[name]).encode() for name in source.argv[NOW_ARGV : cost - 4])
        return PeriodAccelerator(source, tuple(limits), periods_at)
    # repr of a float has every digit that the server needs to read the same double.
    before, after = (
        tuple(repr(parameters[name]).encode() for name in names)
        for names in (source.argv[NOW_ARGV:cost], source.argv[cost + 1 :])
    )
    return LuaAccelerator(source, before, after)
