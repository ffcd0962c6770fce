"""The result of several limits for one request: a `Verdict`, or one combined `Decision`.

A request is admitted if every limit that is not a shadow admits it. The verdict keeps the decision
of each limit, and computes the rest on demand: most callers only want to know whether they may
proceed. If no limit is enforced, because there are shadows only or no limits at all, the decision
is that of `unlimited()`.

`combine` makes one decision of several: allowed if all are, with the lowest limit and remaining,
and the latest reset and retry. Each field is a meet or a join of its own, so the operation is
associative, commutative and idempotent, and `NEUTRAL` is its identity. A combined decision, too,
has a `retry_after_ms` of 0 exactly when it is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import native
from ._decision import NEUTRAL, Decision, DegradedDecision
from ._validation import MAX_SAFE

__all__ = ["DecisionFields", "Verdict", "combine"]


class DecisionFields:
    """The base of results of several limits: `bool()` is `allowed`, and the other fields are those
    of `decision`, the decision of the binding limit."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def allowed(self) -> bool: ...

        @property
        def decision(self) -> Decision: ...

    @property
    def limit(self) -> int:
        """The ceiling of the binding limit."""
        return self.decision.limit

    @property
    def remaining(self) -> int:
        """What is left of the binding limit."""
        return self.decision.remaining

    @property
    def reset_at(self) -> int:
        """The instant (epoch ms) from which nothing counts against the binding limit any more."""
        return self.decision.reset_at

    @property
    def retry_after_ms(self) -> int:
        """How long to wait before the same request can be admitted; 0 exactly when allowed."""
        return 0 if self.allowed else self.decision.retry_after_ms

    @property
    def degraded(self) -> str | None:
        """The fail mode that decided while the store was away, such as "open" or "closed"; None if
        the limit was asked."""
        return self.decision.degraded

    def __bool__(self) -> bool:
        return self.allowed


class _Fields:
    """The fields of a verdict; the compiled path has a faster class."""

    __slots__ = ("_at", "_decisions", "_names", "_shadows", "allowed")

    _names: tuple[str, ...]
    _decisions: tuple[Decision, ...]
    _shadows: tuple[bool, ...]
    _at: int
    allowed: bool

    def __init__(
        self,
        names: tuple[str, ...],
        decisions: tuple[Decision, ...],
        shadows: tuple[bool, ...],
        at: int = 0,
    ) -> None:
        fill = object.__setattr__
        fill(self, "_names", names)
        fill(self, "_decisions", decisions)
        fill(self, "_shadows", shadows)
        # Only the decision of `unlimited()` depends on it.
        fill(self, "_at", 0 if False in shadows else at)
        told = zip(decisions, shadows, strict=True)
        fill(self, "allowed", all(decision.allowed or shadow for decision, shadow in told))


if native is not None and not TYPE_CHECKING:
    _Fields = native.VerdictFields


class Verdict(_Fields, DecisionFields):
    """The result of several limits for one request. `bool(verdict)` is `verdict.allowed`.

    `binding` names the limit to tell the client about, and `decision` is its decision: of the
    limits that denied, the one with the longest wait; if none denied, the one with the least
    remaining; among equals, the first. A shadow is never binding: if all limits are shadows,
    `binding` is empty, and `decision` is that of `unlimited()` at the instant `at` of the request.
    """

    __slots__ = ()

    @property
    def decision(self) -> Decision:
        """The decision of the binding limit; that of `unlimited()` if no limit is enforced."""
        place = self.binding_place
        if place is None:
            return Decision(True, MAX_SAFE, MAX_SAFE, self._at, 0)
        return self._decisions[place]

    @property
    def degraded(self) -> str | None:
        """The fail mode that decided for some of the limits while their store was away; None if all
        were asked. A limit that failed closed is named before others."""
        return _mode_of(self._decisions)

    @property
    def binding(self) -> str:
        """The name of the binding limit; empty if no limit is enforced."""
        place = self.binding_place
        return "" if place is None else self._names[place]

    @property
    def limits(self) -> Mapping[str, Decision]:
        """The decision of each limit, by its name, in order."""
        return dict(zip(self._names, self._decisions, strict=True))

    @property
    def enforced(self) -> Mapping[str, Decision]:
        """The decisions of the limits that are not shadows, by name."""
        told = zip(self._names, self._decisions, self._shadows, strict=True)
        return {name: decision for name, decision, shadow in told if not shadow}

    @property
    def has_shadows(self) -> bool:
        """Whether some of the limits are shadows."""
        return True in self._shadows

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decision of each limit, in order."""
        return self._decisions

    @property
    def violated(self) -> tuple[str, ...]:
        """The limits that denied the request."""
        return self._denying(shadow=False)

    @property
    def shadowed(self) -> tuple[str, ...]:
        """The shadows that would have denied the request, if it was admitted: what each of them
        would newly deny if it were enforced. Empty for a request that was denied anyway."""
        return self._denying(shadow=True) if self.allowed else ()

    def _denying(self, *, shadow: bool) -> tuple[str, ...]:
        told = zip(self._names, self._decisions, self._shadows, strict=True)
        return tuple([name for name, said, is_shadow in told if not said and is_shadow is shadow])

    @property
    def binding_place(self) -> int | None:
        """The index of the binding limit in `decisions`; None if no limit is enforced."""
        found = None
        allowed, decisions, shadows = self.allowed, self._decisions, self._shadows
        least = longest = -1
        for place, decision in enumerate(decisions):
            if shadows[place]:
                continue
            if allowed:
                if found is None or decision.remaining < least:
                    found, least = place, decision.remaining
            elif not decision.allowed and decision.retry_after_ms > longest:
                found, longest = place, decision.retry_after_ms
        return found

    def showing(self, left: Mapping[str, Decision]) -> Verdict:
        """The same verdict with other decisions for some limits: what they have left by now."""
        decisions = [left.get(name, told) for name, told in self.limits.items()]
        return Verdict(self._names, tuple(decisions), self._shadows, self._at)

    def beside(self, other: Verdict) -> Verdict:
        """The verdict of the limits of both."""
        return Verdict(
            self._names + other._names,
            self._decisions + other._decisions,
            self._shadows + other._shadows,
            self._at,
        )

    def __eq__(self, other: object) -> bool:
        if type(other) is not Verdict:
            return NotImplemented
        return self._tuple() == other._tuple()

    def __hash__(self) -> int:
        return hash(self._tuple())

    def _tuple(self) -> tuple[Any, ...]:
        return self._names, self._decisions, self._shadows, self._at

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Verdict is frozen: cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Verdict is frozen: cannot delete {name!r}")

    def __repr__(self) -> str:
        return (
            f"Verdict(allowed={self.allowed}, binding={self.binding!r}, limits={self.limits!r}, "
            f"violated={self.violated!r}, shadowed={self.shadowed!r})"
        )

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _rebuild, self._tuple()


def _rebuild(*fields: Any) -> Verdict:
    """Unpickles a Verdict, in a process that may have the other class."""
    return Verdict(*fields)


def combine(*decisions: Decision) -> Decision:
    """One decision for all of them; `NEUTRAL` for none."""
    if len(decisions) == 1:
        return decisions[0]
    if not decisions:
        return NEUTRAL
    combined = Decision(
        all(decision.allowed for decision in decisions),
        min(decision.limit for decision in decisions),
        min(decision.remaining for decision in decisions),
        max(decision.reset_at for decision in decisions),
        max(decision.retry_after_ms for decision in decisions),
    )
    mode = _mode_of(decisions)
    return combined if mode is None else DegradedDecision.of(mode, combined)


def _mode_of(decisions: Iterable[Decision]) -> str | None:
    """The fail mode of these decisions, None if they have none; "closed", which denies, if some
    have that."""
    modes = [each.degraded for each in decisions if type(each) is not Decision]
    return "closed" if "closed" in modes else modes[0] if modes else None
