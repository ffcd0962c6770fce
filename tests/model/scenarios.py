"""What is tried: limits, a way to ask them, a store, and a sequence of calls.

Everything is plain data whose `repr` is the Python that makes it, so that a failure can be printed,
shrunk and replayed. A call names charges by how many were made since ("the last but two"), so a
sequence stays valid when calls are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from .figures import Figures

START = 1_700_000_000_000

VERBS = (
    "check",
    "many",
    "peek",
    "forecast",
    "reserve",
    "settle",
    "cancel",
    "renew",
    "pause",
    "reset",
    "reload",
    "obey",
)


class _Short:
    """Prints only the fields that differ from their defaults."""

    def __repr__(self) -> str:
        told = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value != field.default:
                told.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(told)})"


@dataclass(frozen=True, repr=False)
class Call(_Short):
    """One call, `gap_ms` after the one before (before it, if that is negative)."""

    verb: str
    gap_ms: int = 0
    key: int = 0
    """Which caller."""
    cost: int = 1
    costs: tuple[int, ...] | None = None
    """A cost for each limit, in the place of `cost`."""
    absent: bool = False
    """Leave out the keys of optional limits."""
    wait_ms: int = 0
    """How far ahead a reservation may book."""
    charge: int = 0
    """Which charge, counted back from the last one."""
    amount: int = 0
    """The actual cost of a settlement; the length of a pause in ms."""
    plan: int = 0
    node: int = 0
    """Which of the nodes makes the call, where there are several."""
    awaits: bool = False
    """Make the call by its awaitable twin, if it has one."""


@dataclass(frozen=True, repr=False)
class Limit(_Short):
    """One limit. `plans` has its figures under each plan; those of the first are the policy's own.
    None lifts the limit."""

    name: str
    plans: tuple[Figures | None, ...]
    shadow: bool = False
    optional: bool = False
    keyless: bool = False

    def figures(self, plan: int) -> Figures | None:
        return self.plans[plan % len(self.plans)]

    def own(self, base: int) -> Figures:
        """The figures of the policy itself, while these are those of plan `base`."""
        figures = self.figures(base) or self.plans[0]
        assert figures is not None
        return figures


@dataclass(frozen=True, repr=False)
class Scenario(_Short):
    """`kind` is a kind of world (`worlds.py`), `store` the name of a store (`stores.py`)."""

    kind: str
    limits: tuple[Limit, ...]
    calls: tuple[Call, ...]
    store: str = "memory"
    start: int = START
    override: int | None = None
    """The plan whose figures the second caller has by an override, whatever plan it names."""
    nodes: int = 1
    mode: str = "strict"
    """The mode of two tiers."""
    batch: int = 1
    coupled: bool = True

    def with_calls(self, calls: Any) -> Scenario:
        return replace(self, calls=tuple(calls))

    def figures(self, limit: Limit, call: Call, base: int) -> Figures | None:
        """The figures of a limit for a call, while the policy's own are those of plan `base`."""
        if self.override is not None and call.key == 1 and not limit.keyless:
            return limit.figures(self.override)
        return limit.figures(call.plan) if call.plan else limit.own(base)

    @property
    def plans(self) -> int:
        return max(len(limit.plans) for limit in self.limits)

    def script(self) -> str:
        """The Python that replays it."""
        limits = "".join(f"        {limit!r},\n" for limit in self.limits)
        calls = "".join(f"        {call!r},\n" for call in self.calls)
        rest = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("limits", "calls") and value != field.default:
                rest.append(f"    {field.name}={value!r},\n")
        return (
            f"Scenario(\n{''.join(rest)}    limits=(\n{limits}    ),\n    calls=(\n{calls}    ),\n)"
        )
