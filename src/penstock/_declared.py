"""The declared limits of a `Limits`: turns a call into steps, and results into a verdict.

A call gives a key for each limit, and may give a cost for each. Both are validated here and become
the steps that the store applies; the decisions that it returns become a verdict or a forecast.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from .core._charges import Part
from .core._decision import Decision, Forecast
from .core._errors import ConfigInvalidError, UnsupportedError
from .core._reserving import pauses, require_until, require_wait
from .core._steps import Step, look_at
from .core._strategy import Strategy
from .core._transform import Transform, asking, checking, finding, forecasting
from .core._validation import (
    MAX_INSTANT_MS,
    MAX_SAFE,
    key_lead,
    plain_key,
    reject,
    require_flag,
    require_int,
    require_key,
    shown,
)
from .core._verdict import Verdict
from .strategies import strategy_of_rate

__all__ = ["Cost", "Declaration", "DeclaredLimit", "Limit", "combined", "declared"]

# No colon, because a colon separates the name from the key.
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"

Cost = int | Mapping[str, int]
"""One cost for every limit, or by name; a name left out costs 1, and 0 only looks."""


# The interpreter keeps one object for this integer, and True is another.
_ONE = 1
# A named tuple's own constructor takes twice as long.
_new_step: Callable[[tuple[Any, ...]], Step] = partial(tuple.__new__, Step)


class Limit:
    """One of several limits, with options that a bare strategy does not have.

    `strategy` may be a rate such as `"100/minute"`. A `shadow` never denies a request: it counts
    what it would have admitted, and the verdict lists it when it would have denied. An `optional`
    limit is skipped by a call that has no key for it; for other limits that is an error. A
    `keyless` limit is shared by all callers and takes no key.
    """

    __slots__ = ("keyless", "optional", "shadow", "strategy")

    def __init__(
        self,
        strategy: Strategy | str,
        *,
        shadow: bool = False,
        optional: bool = False,
        keyless: bool = False,
    ) -> None:
        chosen = strategy_of_rate(strategy) if isinstance(strategy, str) else strategy
        if not isinstance(chosen, Strategy):
            reject(
                "a limit must be a rate such as '100/minute', a strategy such as "
                f"fixed_window(100, 60_000), or a Limit(...) of either, not {shown(strategy)}"
            )
        for name, value in (("shadow", shadow), ("optional", optional), ("keyless", keyless)):
            require_flag(name, value)
        if optional and keyless:
            reject("a keyless limit is part of every call, so it cannot be optional")
        self.strategy: Strategy = chosen
        self.shadow: bool = shadow
        self.optional: bool = optional
        self.keyless: bool = keyless

    def __repr__(self) -> str:
        flags = [
            f"{name}=True" for name in ("shadow", "optional", "keyless") if getattr(self, name)
        ]
        return f"Limit({', '.join([repr(self.strategy), *flags])})"


class DeclaredLimit:
    """A limit with its name, the text that its keys begin with, and its transforms."""

    __slots__ = ("check", "forecast", "lead", "limit", "name", "shadow", "step")

    def __init__(self, name: str, limit: Limit, lead: str) -> None:
        self.name = name
        self.limit = limit
        self.shadow = limit.shadow
        self.lead = lead if limit.keyless else key_lead(lead)
        self.check: Transform[Decision] = checking(limit.strategy)
        self.forecast: Transform[Forecast] = forecasting(limit.strategy)
        # Without a key, a check of one unit is the same step in every call.
        self.step = Step(self.lead, self.check, 1, limit.shadow) if limit.keyless else None

    def key(self, key: Any) -> str:
        """The key in the store. An error about a bad key names the limit it was given for."""
        try:
            return self.lead + require_key(key)
        except ConfigInvalidError as error:
            raise ConfigInvalidError(f"the limit {self.name!r}: {error}") from None


class Declaration:
    """All limits of a `Limits`, in the order of their steps."""

    def __init__(self, parts: list[DeclaredLimit]) -> None:
        self.parts = parts
        self._by_name = {part.name: part for part in parts}
        self._names = tuple(self._by_name)
        self._keyed = sum(not part.limit.keyless for part in parts)
        self._shadows = tuple([part.limit.shadow for part in parts])
        self.holds: bool = any(part.limit.strategy.is_held for part in parts)
        """Whether one of them is a limit of slots."""

    def steps(self, keys: Mapping[str, str], cost: Cost) -> tuple[list[DeclaredLimit], list[Step]]:
        """The limits that take part in a call, and the step of each."""
        if cost is _ONE and type(keys) is dict and len(keys) == self._keyed:
            # The common case: every limit takes part, each at a cost of one.
            try:
                return self.parts, [
                    part.step
                    or _new_step(
                        (part.lead + plain_key(keys[part.name]), part.check, 1, part.shadow)
                    )
                    for part in self.parts
                ]
            except (KeyError, ConfigInvalidError):
                pass  # the general path below raises the error that names the limit
        parts = self._asked(keys)
        costs = self._costs(parts, cost)
        steps = []
        for part, units in zip(parts, costs, strict=True):
            key = part.lead if part.limit.keyless else part.key(keys[part.name])
            steps.append(
                Step(key, part.check, units, part.shadow)
                if units
                else look_at(key, part.limit.strategy, part.shadow)
            )
        return parts, steps

    def peeks(self, keys: Mapping[str, str]) -> tuple[list[DeclaredLimit], list[Step]]:
        """The limits that take part in a `peek`, and the step of each."""
        parts, steps = self.steps(keys, 0)
        pairs = zip(parts, steps, strict=True)
        return parts, [
            Step(step.key, asking(part.limit.strategy), 1, step.shadow) for part, step in pairs
        ]

    def keyed_steps(self, keys: Sequence[str | None], cost: int) -> list[Step]:
        """The steps of all limits, from a validated key for each, None for a keyless limit."""
        return [
            _new_step((part.lead + (key or ""), part.check, cost, part.shadow))
            for part, key in zip(self.parts, keys, strict=True)
        ]

    def _asked(self, keys: Mapping[str, str]) -> list[DeclaredLimit]:
        if not isinstance(keys, Mapping):
            reject(f"keys must be a mapping such as {self._example()}, not {shown(keys)}")
        for name in keys:
            self._require_keyed(name)
        parts = []
        for part in self.parts:
            if part.limit.keyless or part.name in keys:
                parts.append(part)
            elif not part.limit.optional:
                reject(
                    f"the limit {part.name!r} has no key in this call; pass one, as in "
                    f"{self._example()}, or make it Limit(..., optional=True)"
                )
        return parts

    def _require_keyed(self, name: Any, instead: str = "leave it out") -> None:
        part = self._by_name.get(name)
        if part is None:
            reject(f"there is no limit {shown(name)}; there are {', '.join(self._names)}")
        if part.limit.keyless:
            reject(f"the limit {name!r} is keyless, so it takes no key; {instead}")

    def _example(self) -> str:
        named = [f"{part.name!r}: 'alice'" for part in self.parts if not part.limit.keyless]
        return "{" + ", ".join(named) + "}"

    def _costs(self, parts: list[DeclaredLimit], cost: Cost) -> list[int]:
        if not isinstance(cost, Mapping):
            return [require_int("cost", cost, 0)] * len(parts)
        asked = {part.name for part in parts}
        for name in cost:
            if name not in asked:
                there = f"is not there; there are {', '.join(self._names)}"
                if name in self._by_name:
                    there = "has no key in this call"
                reject(f"cost names the limit {shown(name)}, which {there}")
            require_int(f"the cost of {name!r}", cost[name], 0)
        return [cost.get(part.name, 1) for part in parts]

    def verdict(self, parts: list[DeclaredLimit], results: Sequence[Decision], now: int) -> Verdict:
        """The verdict of the limits that took part in a call at `now`."""
        if len(parts) == len(self.parts):
            return Verdict(self._names, tuple(results), self._shadows, now)
        names = tuple([part.name for part in parts])
        shadows = tuple([part.limit.shadow for part in parts])
        return Verdict(names, tuple(results), shadows, now)

    def forecasts(
        self, keys: Mapping[str, str], cost: Cost
    ) -> list[tuple[str, Transform[Forecast], int]]:
        """Key, transform and cost of each limit that is not a shadow."""
        parts, steps = self.steps(keys, cost)
        costs = self._costs(parts, cost)
        if 0 in costs:
            reject("the cost of a forecast must be at least 1")
        pairs = zip(parts, steps, strict=True)
        return [(s.key, p.forecast, s.cost) for p, s in pairs if not p.limit.shadow]

    def charges(
        self, keys: Mapping[str, str], cost: Cost
    ) -> tuple[list[DeclaredLimit], list[Part]]:
        """The limits that take part in a call, and what it charges to each."""
        parts, steps = self.steps(keys, cost)
        costs = self._costs(parts, cost)
        return parts, [
            Part(part.name, step.key, part.limit.strategy, units, part.limit.shadow)
            for part, step, units in zip(parts, steps, costs, strict=True)
        ]

    def spent(
        self, keys: Mapping[str, str], cost: Cost, verdict: Verdict, asked_at: int
    ) -> list[Part]:
        """What a check of these keys and costs, which returned `verdict`, has charged."""
        if not isinstance(verdict, Verdict):
            reject(f"verdict must be the Verdict that check() returned, not {shown(verdict)}")
        require_int("asked_at", asked_at, 0, MAX_INSTANT_MS)
        parts, charged = self.charges(keys, cost)
        asked = [part.name for part in parts]
        if asked != list(verdict.limits):
            reject(
                f"the verdict is about the limits {', '.join(verdict.limits) or 'none'}, but these "
                f"keys are for the limits {', '.join(asked) or 'none'}; pass the keys of that check"
            )
        return charged

    def require_wait(self, max_wait_ms: int) -> int:
        """Validate how far ahead a call may book; an error if no limit supports booking."""
        wait = require_wait(max_wait_ms)
        if wait and not any(part.limit.strategy.books_ahead for part in self.parts):
            raise UnsupportedError(
                "none of these limits can be booked ahead; make one of them gcra(...) or "
                "token_bucket(...), or call reserve without max_wait_ms"
            )
        return wait

    def pauses(self, keys: Mapping[str, str | None], until_ms: int) -> list[Step]:
        """The steps that pause the given keys."""
        named = zip(keys, self.named(keys), strict=True)
        parts = [Part(name, key, self._by_name[name].limit.strategy, 1) for name, key in named]
        return pauses(parts, require_until(until_ms))

    def finds(self, keys: Mapping[str, str | None]) -> list[tuple[str, Transform[bool]]]:
        """The given keys, as they are in the store, and the transform that looks for a state."""
        named = zip(keys, self.named(keys), strict=True)
        return [(key, finding(self._by_name[name].limit.strategy)) for name, key in named]

    def named(self, keys: Mapping[str, str | None]) -> list[str]:
        """The given keys, as they are in the store."""
        if not isinstance(keys, Mapping) or not keys:
            reject(
                f"keys must be a mapping with at least one limit, such as {self._example()}, not "
                f"{shown(keys)}"
            )
        names = []
        for name, key in keys.items():
            part = self._by_name.get(name)
            if part is not None and part.limit.keyless and key is None:
                names.append(part.lead)
                continue
            self._require_keyed(name, f"write {{{name!r}: None}}")
            names.append(self._by_name[name].key(key))
        return names

    def admissible_queue(self, keys: Mapping[str, str], cost: Cost) -> str:
        """Reject a cost that could never be admitted. Returns the name of the queue in which
        callers with these keys wait."""
        parts, steps = self.steps(keys, cost)
        for part, step in zip(parts, steps, strict=True):
            strategy = part.limit.strategy
            if 0 < strategy.limit < step.cost and not part.limit.shadow:
                reject(
                    f"a cost of {step.cost} can never be admitted by {part.name!r}, {strategy!r}: "
                    f"ask for at most {strategy.limit} at once"
                )
        return ", ".join([step.key for step in steps])


def declared(limits: Any) -> dict[str, Limit]:
    """Validate a declaration of limits. Returns them by name."""
    if not isinstance(limits, Mapping) or not limits:
        reject(
            "limits must be a mapping of names to limits, such as {'user': '100/minute'}, not "
            f"{shown(limits)}"
        )
    for name in limits:
        if not isinstance(name, str) or not re.fullmatch(_NAME, name):
            reject(
                "the name of a limit consists of letters, digits, '_', '.' and '-', at most 64, "
                f"not {shown(name)}"
            )
    return {
        name: limit if isinstance(limit, Limit) else Limit(limit) for name, limit in limits.items()
    }


def combined(forecasts: list[Forecast], now: int) -> Forecast:
    """The forecast for all of them together: that of the tightest."""
    if not forecasts:
        return Forecast(MAX_SAFE, now, now)
    fits = min(forecast.spendable_now for forecast in forecasts)
    tightest = [forecast for forecast in forecasts if forecast.spendable_now == fits]
    return Forecast(
        fits,
        max(forecast.next_replenish_at for forecast in tightest),
        max(forecast.full_at for forecast in forecasts),
    )
