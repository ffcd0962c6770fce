"""Decides the rules of a request as one decision.

A `RuleSet` is made once for each combination of rules that occurs. First it collects keys and
costs by name (`asked`), for which functions of the app may have to be awaited. Then it decides
(`answer`): all rules of the app are one `Limits`, so that a request that any of them denies is
charged to none.
Ready-made limiters of the app are asked after that; if one denies, earlier charges are given back.
They may be on other stores: with `fail="open"`, an outage leaves out the limits on that store, and
all others decide.

Nothing here knows a framework. An integration brings a `RequestReader`, calls `decide` or
`adecide`, and turns a refusal into a response of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .._limits import Limit, Limits
from ..adapters._headers import VerdictHeaders
from ..core._decision import Decision, DegradedDecision
from ..core._errors import OverloadedError, StoreUnavailableError, UnsupportedError
from ..core._flow import Flow, adrive, drive
from ..core._limiter import clock_reader
from ..core._renewing import ahold, hold
from ..core._strategy import Strategy
from ..core._validation import reject
from ..core._verdict import Verdict
from ._rules import AppLimits, Rule, is_plain, optional, value_of
from ._ruling import OpenCharge, Ruling, Telling, acall, call, lost
from ._who import AddressKey, HeaderKey, Key, reading

__all__ = ["RuleSet"]

Asked = tuple[dict[str, Any], Any]
"""Keys and costs by the names of limits; a single cost of 1 is that of every limit."""


class _RulePart:
    """A rule, or one limit of a ready-made `Limits`, with its options resolved."""

    __slots__ = ("charge_name", "cost", "is_policy", "key", "name", "rule")

    def __init__(self, name: str, rule: Rule, key: Callable[[Any], Any] | None) -> None:
        self.name = name
        self.charge_name = name
        self.is_policy = rule.attributes is not None
        self.rule = rule
        self.key = key
        self.cost = rule.cost


class _OneLimit:
    """A limiter with one limit, asked like one with several."""

    def __init__(self, name: str, limiter: Any) -> None:
        self._name = name
        self._limiter = limiter
        self.clock = limiter.clock
        self.limits = {name: _Declared(getattr(limiter, "strategy", None), False)}
        self.answers_at_once: bool = getattr(limiter, "answers_at_once", False)

    def check(self, keys: Mapping[str, Any], cost: Any) -> Verdict:
        key, units = self._terms(keys, cost)
        return self._verdict(self._limiter.check(key, units)) if units else self.look(keys)

    async def acheck(self, keys: Mapping[str, Any], cost: Any) -> Verdict:
        key, units = self._terms(keys, cost)
        if not units:
            return await self.alook(keys)
        return self._verdict(await self._limiter.acheck(key, units))

    def look(self, keys: Mapping[str, Any]) -> Verdict:
        """What is left, for a request of cost 0, which is never denied."""
        return self._looked(self._limiter.peek(keys[self._name]))

    async def alook(self, keys: Mapping[str, Any]) -> Verdict:
        """The awaitable twin of `look`."""
        return self._looked(await self._limiter.apeek(keys[self._name]))

    def _looked(self, answer: Decision | Verdict) -> Verdict:
        verdict = self._verdict(answer)
        return verdict.showing(
            {
                name: Decision(True, told.limit, told.remaining, told.reset_at, 0)
                for name, told in verdict.limits.items()
                # A fail mode may refuse what cannot be looked at.
                if told.degraded is None
            }
        )

    def reserve(self, keys: Mapping[str, Any], cost: Any) -> Any:
        return self._limiter.reserve(*self._terms(keys, cost))

    async def areserve(self, keys: Mapping[str, Any], cost: Any) -> Any:
        return await self._limiter.areserve(*self._terms(keys, cost))

    def _terms(self, keys: Mapping[str, Any], cost: Any) -> tuple[Any, int]:
        return keys[self._name], cost if cost == 1 else cost[self._name]

    def _verdict(self, answer: Decision | Verdict) -> Verdict:
        if isinstance(answer, Decision):
            return Verdict((self._name,), (answer,), (False,))
        return answer


class _Policy(_OneLimit):
    """A policy of a service with several limits, which only the service knows."""

    def __init__(self, name: str, limiter: Any) -> None:
        super().__init__(name, limiter)
        self.limits = {}


class _Declared(NamedTuple):
    strategy: Strategy | None
    shadow: bool


class _Source(NamedTuple):
    """A limiter and the parts that are asked of it."""

    limits: Any
    parts: list[_RulePart]


class RuleSet:
    """The rules that a request is subject to, asked as one decision."""

    def __init__(self, app: AppLimits, rules: Mapping[str, Rule]) -> None:
        self.app = app
        self.rules = rules
        self._sources = list(self._limiters(rules))
        self._parts = [part for source in self._sources for part in source.parts]
        limits = {name: it for source in self._sources for name, it in source.limits.limits.items()}
        self._declared: Mapping[str, Any] = limits
        self._now = clock_reader(self._sources[0].limits.clock)
        self._telling = Telling(
            VerdictHeaders(limits),
            self._now,
            headers=app.headers,
            legacy=app.legacy_headers,
            is_closed=app.fail == "closed",
        )
        only = self._sources[0].limits if len(self._sources) == 1 else None
        self.holds: bool = any(
            part.rule.charge_when is not None
            or getattr(getattr(limits.get(part.name), "strategy", None), "is_held", False)
            for part in self._parts
        )
        """Whether a charge is kept open until the response is known."""
        # The common case: no charge may have to be given back, so a check is enough.
        self._limits: Any = None if self.holds else only
        answers_at_once = only is not None and getattr(only, "answers_at_once", False)
        self._at_once = self._limits is not None and answers_at_once
        self._plain = self._only_part()
        self.calls_functions: bool = _calls_functions(app, rules.values())
        """Whether functions of the app give keys, costs or exemptions."""
        self.answers_at_once: bool = self._at_once and not self.calls_functions
        """Whether `decide` never blocks, so that it may be called on an event loop."""

    def _only_part(self) -> tuple[str, Callable[[Any], Any]] | None:
        """The common case, one limit without conditions: its name and key. None in any other."""
        if len(self._parts) != 1 or self._limits is None or self.app.exempt is not None:
            return None
        (part,) = self._parts
        rule = part.rule
        if rule.methods or rule.paths or rule.exempt or rule.per_route:
            return None
        return None if part.key is None or part.cost != 1 else (part.name, part.key)

    def decide(self, request: Any) -> Ruling | None:
        """The ruling on a request; None if no limit applies to it."""
        asked = self.asked(request)
        return None if asked is None else self.answer(asked)

    async def adecide(self, request: Any) -> Ruling | None:
        """The awaitable twin of `decide`."""
        plain = self._plain
        if plain is None:
            asked = await adrive(self._asking(request), _await)
        else:
            name, read = plain
            key = read(request)
            if type(key) is not str and not is_plain(key):
                key = await key
            asked = None if key is None else ({name: key}, 1)
        return None if asked is None else await self.aanswer(asked)

    def asked(self, request: Any) -> Asked | None:
        """The keys and costs of a request; None if no limit applies to it. Awaitables of functions
        of the app are passed to `AppLimits.resolve`."""
        plain = self._plain
        if plain is None:
            return drive(self._asking(request), self.app.resolve)
        name, read = plain
        key = read(request)
        if type(key) is not str and not is_plain(key):
            key = self.app.resolve(key)
        return None if key is None else ({name: key}, 1)

    def answer(self, asked: Asked) -> Ruling:
        """Decide, and keep charges that may have to be given back."""
        keys, costs = asked
        limits = self._limits
        try:
            if limits is None:
                return drive(self._reserve(keys, costs, hold), call)
            asked_at = self._now()
            verdict = limits.check(keys, costs)
            return Ruling(self._telling, verdict, (limits, keys, costs, asked_at))
        except StoreUnavailableError as error:
            return self._failed(error, costs)
        except UnsupportedError as error:
            self._has_slots(error)
        return self.answer(asked)

    async def aanswer(self, asked: Asked) -> Ruling:
        """The awaitable twin of `answer`."""
        if self._at_once:
            return self.answer(asked)
        keys, costs = asked
        limits = self._limits
        try:
            if limits is None:
                return await adrive(self._reserve(keys, costs, ahold), acall)
            asked_at = self._now()
            verdict = await limits.acheck(keys, costs)
            return Ruling(self._telling, verdict, (limits, keys, costs, asked_at))
        except StoreUnavailableError as error:
            return self._failed(error, costs)
        except UnsupportedError as error:
            self._has_slots(error)
        return await self.aanswer(asked)

    def _has_slots(self, error: UnsupportedError) -> None:
        """If a service refuses to check a policy, the policy has slots, which only the service
        knows: from now on its requests hold a charge."""
        if self._limits is None or not isinstance(self._limits, _OneLimit):
            raise error
        self._limits = None

    def _asking(self, request: Any) -> Flow[Any, Asked | None]:
        """Keys and costs by name; yields values that may be awaitables."""
        app = self.app
        if app.exempt is not None and (yield from app.exempt(app.reader, request)):
            return None
        keys: dict[str, Any] = {}
        costs: dict[str, int] = {}
        applicable: dict[int, bool] = {}
        asked = False
        for part in self._parts:
            rule = part.rule
            if id(rule) not in applicable:
                applicable[id(rule)] = yield from self._applies(rule, request)
            if not applicable[id(rule)]:
                continue
            if part.key is not None:
                key = yield from value_of(part.key(request))
                if key is None:
                    continue
                keys[part.name] = f"{app.reader.route(request)} {key}" if rule.per_route else key
            asked = True
            cost = part.cost
            costs[part.name] = (yield from value_of(cost(request))) if callable(cost) else cost
        return (keys, costs) if asked else None

    def _applies(self, rule: Rule, request: Any) -> Flow[Any, bool]:
        reader = self.app.reader
        if rule.methods is not None and reader.method(request) not in rule.methods:
            return False
        if rule.paths is not None and not rule.paths(reader.path(request)):
            return False
        return rule.exempt is None or not (yield from rule.exempt(reader, request))

    def _reserve(self, keys: dict[str, Any], costs: Any, keep: Any) -> Flow[Any, Ruling]:
        """Reserve, source by source; a denial gives back the earlier charges."""
        held: list[OpenCharge] = []
        told: dict[str, tuple[Decision, bool]] = {}
        away: list[_RulePart] = []
        for limits, parts in self._sources:
            asked = [part for part in parts if costs == 1 or part.name in costs]
            if not asked:
                continue
            mine = {part.name: keys[part.name] for part in asked if part.key is not None}
            cost = {part.name: 1 if costs == 1 else costs[part.name] for part in asked}
            try:
                charge = yield limits, "reserve", (mine, cost)
            except Exception as error:
                if self._leaves_out(error):
                    away += asked
                    continue
                yield from _cancel(held)
                raise
            told.update(_told(charge, asked[0].name))
            if not charge.allowed:
                left = yield from _cancel(held)
                told.update({name: (each, told[name][1]) for name, each in left.items()})
                held = []
                break
            conditions = {
                name: part.rule.charge_when
                for part in asked
                if part.rule.charge_when is not None
                for name in (charge.verdict.limits if part.is_policy else [part.charge_name])
            }
            held.append(OpenCharge(charge, conditions, limits, mine, asked[0].name))
        left_out = self._by_fail_mode(away) if away else None
        if away and not told:
            return Ruling(self._telling, None, left_out=left_out)
        for each in held:
            # A request may take longer than the ttl of a slot.
            keep(each.charge)
        decisions = tuple([decision for decision, _ in told.values()])
        shadows = tuple([shadow for _, shadow in told.values()])
        verdict = Verdict(tuple(told), decisions, shadows, self._now())
        return Ruling(self._telling, verdict, held=held, left_out=left_out)

    def _leaves_out(self, error: Exception) -> bool:
        """Whether the limits on a store that raised `error` are left out of the decision."""
        if not isinstance(error, StoreUnavailableError) or isinstance(error, OverloadedError):
            return False
        if self.app.fail != "open":
            return False
        self.app.outage(error)
        return True

    def _failed(self, error: StoreUnavailableError, costs: Any) -> Ruling:
        if isinstance(error, OverloadedError):
            return Ruling(self._telling, None, is_overloaded=True)
        self.app.outage(error)
        asked = [part for part in self._parts if costs == 1 or part.name in costs]
        return Ruling(self._telling, None, left_out=self._by_fail_mode(asked))

    def _by_fail_mode(self, parts: Sequence[_RulePart]) -> Verdict:
        """The decisions of the fail mode on limits whose store is away."""
        declared = [self._declared.get(part.name) for part in parts]
        figures = [getattr(getattr(each, "strategy", None), "limit", 0) for each in declared]
        now = self._now()
        return Verdict(
            tuple([part.name for part in parts]),
            tuple([DegradedDecision.by(self.app.fail, figure, now) for figure in figures]),
            tuple([each is not None and each.shadow for each in declared]),
            now,
        )

    def _limiters(self, rules: Mapping[str, Rule]) -> Iterable[_Source]:
        app = self.app
        own: dict[str, Limit] = {}
        parts: list[_RulePart] = []
        for name, rule in rules.items():
            if rule.limit is None:
                continue
            limit = rule.limit
            if app.shadow and not limit.shadow:
                limit = optional(limit, True)
            own[name] = limit
            parts.append(
                _RulePart(name, rule, _everybody if rule.keyless else self._key(rule.key, name))
            )
        if own:
            limits = Limits(own, store=app.store, clock=app.clock, prefix=app.prefix)
            yield _Source(limits, parts)
        for name, rule in rules.items():
            if rule.ready is not None:
                yield self._ready(name, rule)

    def _ready(self, name: str, rule: Rule) -> _Source:
        declared = getattr(rule.ready, "limits", None)
        if rule.attributes is not None:
            if self.app.secret is not None:
                reject(
                    f"the limit {name!r} is asked by attributes, which hash_keys leaves as they "
                    "are: hash those that are identities where they are made, and leave it out"
                )
            part = _RulePart(name, rule, rule.attributes)
            return _Source(_Policy(name, rule.ready), [part])
        if declared is None:
            part = _RulePart(name, rule, self._key(rule.key, name))
            part.charge_name = ""
            return _Source(_OneLimit(name, rule.ready), [part])
        return _Source(
            rule.ready,
            [
                _RulePart(inner, rule, None if limit.keyless else self._key(rule.key, inner))
                for inner, limit in declared.items()
            ],
        )

    def _key(self, key: Key | Mapping[str, Key] | None, name: str) -> Callable[[Any], Any]:
        if isinstance(key, Mapping):
            if name not in key:
                reject(f"the limit {name!r} has no key; there are {', '.join(key)}")
            key = key[name]
        app = self.app
        return reading(app.key if key is None else key, app.reader, app.address, app.secret)


def _cancel(held: Iterable[OpenCharge]) -> Flow[Any, dict[str, Decision]]:
    """Give back charges of a request that is not admitted. Returns what their limits have left
    then, by name. A store that is away meanwhile does not change that."""
    left: dict[str, Decision] = {}
    for each in held:
        try:
            left.update((yield from each.settling(0)))
        except StoreUnavailableError as error:  # noqa: PERF203
            lost(error, "given back")
    return left


def _told(charge: Any, name: str) -> Iterator[tuple[str, tuple[Decision, bool]]]:
    """The decision of each limit on a charge, and whether it is a shadow."""
    verdict: Verdict | None = charge.verdict
    if verdict is None:
        yield name, (charge.decision, False)
        return
    enforced = verdict.enforced
    for each, decision in verdict.limits.items():
        yield each, (decision, each not in enforced)


def _calls_functions(app: AppLimits, rules: Iterable[Rule]) -> bool:
    keys: list[Any] = [app.key]
    exemptions = [app.exempt]
    for rule in rules:
        keys += rule.key.values() if isinstance(rule.key, Mapping) else [rule.key]
        exemptions.append(rule.exempt)
        if callable(rule.cost) or rule.attributes is not None:
            return True
    return any(each is not None and each.functions for each in exemptions) or not all(
        each is None or isinstance(each, (AddressKey, HeaderKey)) for each in keys
    )


def _everybody(request: Any) -> str:
    return "everybody"


async def _await(value: Awaitable[Any]) -> Any:
    return await value
