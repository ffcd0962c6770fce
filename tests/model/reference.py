"""The transcript of a scenario, repeated by the models: what each call has to answer.

`Reference.follow` goes through the events in order. It keeps a model of each key of each limit and
a record of each charge. Where the models are sure of all keys that a call touches, every field of
its answer has to be equal; else the answer is taken as it is, and the models follow it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock import Decision

from . import figures as f
from .models import MAX, KeyModel, Slots, model_of
from .scenarios import Call, Limit, Scenario
from .worlds import Answer, Event, Transcript

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Broken(AssertionError):  # noqa: N818
    """A law or an answer of the contract does not hold in a transcript."""

    def __init__(self, law: str, event: Event | None, text: str) -> None:
        self.law = law
        self.event = event
        self.text = text
        where = "" if event is None else f"\n  call  {event.call!r} at {event.now}"
        super().__init__(f"{law}{where}\n  {text}")


@dataclass
class Charged:
    """What a reservation took from one limit."""

    limit: Limit
    figures: f.Figures
    key: str
    units: int
    decision: Decision
    at: int
    """When it was made."""
    starts_at: int
    generation: int
    """How often the key was reset before."""


@dataclass
class Kept:
    """A charge and whether it is still open."""

    number: int
    at: int
    call: Call
    parts: list[Charged]
    open: bool = True


@dataclass
class Reference:
    scenario: Scenario
    keys: dict[tuple[str, str], KeyModel] = field(default_factory=dict)
    generations: dict[tuple[str, str], int] = field(default_factory=dict)
    reset_at: dict[tuple[str, str], int] = field(default_factory=dict)
    """When each key was last reset."""
    charges: dict[int, Kept] = field(default_factory=dict)
    compared: int = 0
    """How many answers were compared field by field."""

    def follow(self, events: Transcript) -> None:
        for event in events:
            getattr(self, f"_{event.call.verb}")(event)

    # What takes part in a call.

    def parts(self, event: Event) -> list[tuple[Limit, f.Figures, str]]:
        """The limits that a call is about, their figures and keys."""
        told = []
        for limit in self.scenario.limits:
            figures = self.scenario.figures(limit, event.call, event.base)
            if figures is None or (limit.optional and event.call.absent):
                continue
            told.append((limit, figures, key_of(limit, event.call)))
        return told

    def model(self, limit: Limit, figures: f.Figures, key: str, now: int) -> KeyModel:
        """The model of a key, under these figures from now on."""
        name = (limit.name, key)
        found = self.keys.get(name)
        if found is None:
            found = self.keys[name] = model_of(figures)
        elif found.figures != figures:
            fresh = model_of(figures)
            is_cold = found.sure(now) and found.peek(now) == model_of(found.figures).peek(now)
            if isinstance(found, Slots):
                fresh.held = found.held  # type: ignore[attr-defined]
            elif not is_cold or found.unsure_until > now:
                # The share that is used is kept: a law, not an exact state.
                spans = found.figures.span_ms + figures.span_ms
                fresh.doubt(max(found.unsure_until, now) + 2 * spans)
            self.keys[name] = fresh
            found = fresh
        return found

    def _models(self, event: Event) -> list[tuple[Limit, KeyModel]]:
        return [
            (limit, self.model(limit, figures, key, event.now))
            for limit, figures, key in self.parts(event)
        ]

    # Calls that decide.

    def _check(self, event: Event) -> None:
        self._decide(event)

    def _reserve(self, event: Event) -> None:
        self._decide(event)

    def _many(self, event: Event) -> None:
        if self.scenario.kind not in ("limiter", "two_tier"):
            self._decide(event)
            return
        call, now = event.call, event.now
        if event.answer.error:
            return
        ((limit, figures, _),) = self.parts(event)
        each = (f"k{call.key % 2}", f"k{(call.key + 1) % 2}", f"k{call.key % 2}")
        for key, told in zip(each, event.answer.each, strict=True):
            model = self.model(limit, figures, key, now)
            if model.sure(now):
                expected = model.decide(now, call.cost)
                self._alike(event, "check_many equals one check per key", model, expected, told)
            if told.allowed:
                count(model, now, call.cost)

    def _decide(self, event: Event) -> None:
        answer, call, now = event.answer, event.call, event.now
        if answer.error:
            return
        models = self._models(event)
        self._looks(event, event.before, models)
        costs = costs_of(self.scenario, call)
        expected: dict[str, Decision] = {}
        delays: dict[str, int] = {}
        for limit, model in models:
            cost = costs[limit.name]
            if call.wait_ms and model.figures.paced and cost:
                told, delay = model.book(now, cost, call.wait_ms)  # type: ignore[attr-defined]
                # A shadow books, too, and delays nothing.
                delays[limit.name] = 0 if limit.shadow else delay
            else:
                told = model.decide(now, cost)
            expected[limit.name] = told
        unsure = [limit.name for limit, model in models if not model.sure(now)]
        denied = [
            limit.name
            for limit, _ in models
            if not limit.shadow and not expected[limit.name].allowed
        ]
        if not unsure:
            if denied:
                for limit, model in models:
                    if expected[limit.name].allowed:
                        expected[limit.name] = model.decide(now, 0)
            loose_ms = max([model.loose_ms for _, model in models], default=0)
            if loose_ms:
                for limit, model in models:
                    told = answer.limits[limit.name]
                    law = "each limit answers by its own transition"
                    self._alike(event, law, model, expected[limit.name], told)
                expected = dict(answer.limits)
            self._compare_verdict(event, expected)
            if call.verb == "reserve" and answer.allowed:
                starts_at = now + max(delays.values(), default=0)
                if abs(starts_at - (answer.starts_at or 0)) > loose_ms:
                    law = "a reservation starts as soon as all limits have the units"
                    self._same(event, law, starts_at, answer.starts_at)
        if answer.allowed:
            self._take(event, models, costs)
        self._looks(event, event.after, models)

    def _take(
        self, event: Event, models: list[tuple[Limit, KeyModel]], costs: dict[str, int]
    ) -> None:
        """Count what was admitted, by what the answer says."""
        answer, now, parts = event.answer, event.now, []
        for limit, model in models:
            told, cost = answer.limits.get(limit.name), costs[limit.name]
            if told is None or not told.allowed or not cost:
                continue
            if isinstance(model, Slots):
                model.take(now, cost, -1 if answer.charge is None else answer.charge)
            else:
                count(model, now, cost, event.call.wait_ms)
            key = key_of(limit, event.call)
            starts_at = now if answer.starts_at is None else answer.starts_at
            if limit.shadow and model.figures.paced:
                # It may have been booked, which `starts_at` does not tell.
                starts_at = now + event.call.wait_ms
            parts.append(
                Charged(
                    limit,
                    model.figures,
                    key,
                    cost,
                    told,
                    now,
                    starts_at,
                    self.generations.get((limit.name, key), 0),
                )
            )
        if answer.charge is not None:
            self.charges[answer.charge] = Kept(answer.charge, now, event.call, parts)

    def _compare_verdict(self, event: Event, expected: dict[str, Decision]) -> None:
        """Section 10, from the decisions of the limits that took part."""
        answer = event.answer
        self._same(event, "each limit answers by its own transition", expected, dict(answer.limits))
        for what, wanted in verdict_of(self.scenario, expected, event.now).items():
            self._same(event, f"the verdict's {what}", wanted, getattr(answer, what))
        self.compared += 1

    # Calls that look.

    def _peek(self, event: Event) -> None:
        self._looks(event, event.answer.limits, self._models(event))

    def _looks(self, event: Event, shown: Any, models: list[tuple[Limit, KeyModel]]) -> None:
        for limit, model in models:
            told = shown.get(limit.name)
            if told is not None and model.sure(event.now):
                expected = model.peek(event.now)
                self._alike(event, "peek shows what is left", model, expected, told)

    def _forecast(self, event: Event) -> None:
        models = [(limit, model) for limit, model in self._models(event) if not limit.shadow]
        told = event.answer.forecast
        sure = all(model.sure(event.now) and not model.loose_ms for _, model in models)
        if told is None or not sure:
            return
        each = [model.forecast(event.now, event.call.cost) for _, model in models]
        fits = min([one.spendable_now for one in each], default=None)
        if fits is None:
            return
        tightest = [one for one in each if one.spendable_now == fits]
        self._same(event, "forecast: spendable_now", fits, told.spendable_now)
        if len(each) == 1:
            self._same(event, "forecast", each[0], told)
        self._same(event, "forecast: full_at", max(one.full_at for one in each), told.full_at)
        del tightest

    # Calls on charges.

    def _settle(self, event: Event) -> None:
        self._end(event, event.call.amount)

    def _cancel(self, event: Event) -> None:
        self._end(event, None)

    def _end(self, event: Event, actual: int | None) -> None:
        answer, now = event.answer, event.now
        kept = self.charges.get(answer.charge) if answer.charge is not None else None
        if kept is None or answer.error:
            return
        figures = [part.figures for part in kept.parts]
        if not answer.done and is_forgotten(self.scenario, now - kept.at, figures):
            kept.open = False
        self._same(event, "a charge is settled or cancelled once", kept.open, answer.done)
        if not kept.open:
            return
        kept.open = False
        for part in kept.parts:
            name = (part.limit.name, part.key)
            model = self.keys[name]
            model.sure(now)  # or what has faded would be cleared with what is counted now
            if isinstance(model, Slots):
                if self.generations.get(name, 0) == part.generation:
                    model.release(now, kept.number)
                continue
            units = part.units - (0 if actual is None else actual)
            if units < 0:
                if model.figures != part.figures:
                    model.doubt(now + 4 * (model.figures.span_ms + part.figures.span_ms))
                model.charge(now, -units)
                count(model, now, 0)
            elif units > 0 and self.generations.get(name, 0) == part.generation:
                if model.figures != part.figures or part.starts_at > part.at or now < part.at:
                    model.doubt(now + 4 * (model.figures.span_ms + part.figures.span_ms))
                if part.at <= self.reset_at.get(name, 0):
                    # A service does not tell a charge from before a reset by anything but instants.
                    model.doubt(now + 4 * model.figures.span_ms)
                if model.figures.paced and any(self._books(name)):
                    model.doubt(now + 4 * model.figures.span_ms + 10**6)
                model.refund(now, units, part.decision, part.at)
        # The peek has the figures of the charge's own call, and the model those of the last one.
        told = []
        for part in kept.parts:
            model = self.keys[part.limit.name, part.key]
            if model.figures == self.scenario.figures(part.limit, kept.call, event.base):
                told.append((part.limit, model))
        self._looks(event, event.after, told)

    def _books(self, name: tuple[str, str]) -> list[Kept]:
        """The charges that have booked units of a key ahead."""
        return [
            kept
            for kept in self.charges.values()
            for part in kept.parts
            if (part.limit.name, part.key) == name and part.starts_at > part.at
        ]

    def _renew(self, event: Event) -> None:
        answer, now = event.answer, event.now
        kept = self.charges.get(answer.charge) if answer.charge is not None else None
        if kept is None or answer.error:
            return
        pools = [self.keys[part.limit.name, part.key] for part in kept.parts]
        held = [pool for pool in pools if isinstance(pool, Slots)]
        renewed = [pool.renew(now, kept.number) for pool in held] if kept.open else []
        self._same(
            event,
            "renew says whether all slots are held",
            bool(renewed) and all(renewed),
            answer.done,
        )

    # Calls that operators make.

    def _pause(self, event: Event) -> None:
        if event.answer.error:
            return
        for limit, model in self._named(event):
            if not isinstance(model, Slots) and not isinstance(model.figures, f.Unlimited):
                model.doubt(event.now + event.call.amount + 3 * model.figures.span_ms + 2)
                model.take(event.now, 0)
            del limit

    def _reset(self, event: Event) -> None:
        if event.answer.error:
            return
        for limit, model in self._named(event):
            key = key_of(limit, event.call)
            self.generations[limit.name, key] = self.generations.get((limit.name, key), 0) + 1
            self.keys[limit.name, key] = model_of(model.figures)
            self.reset_at[limit.name, key] = event.now

    def _named(self, event: Event) -> list[tuple[Limit, KeyModel]]:
        """The keys that a pause or a reset is about."""
        told = []
        for limit in self.scenario.limits:
            if limit.optional and event.call.absent:
                continue
            figures = self.scenario.figures(limit, event.call, event.base) or limit.plans[0]
            assert figures is not None
            key = key_of(limit, event.call)
            told.append((limit, self.model(limit, figures, key, event.now)))
        return told

    def _reload(self, event: Event) -> None: ...

    def _alike(
        self, event: Event, law: str, model: KeyModel, expected: Decision, found: Decision
    ) -> None:
        """Equal, but for the roundings of refunds."""
        if expected != found and not (model.loose_ms and _close(expected, found, model.loose_ms)):
            self._same(event, law, expected, found)

    def _same(self, event: Event, law: str, expected: Any, found: Any) -> None:
        if expected != found:
            raise Broken(law, event, f"expected {expected!r}\n  found    {found!r}")


def _close(one: Decision, other: Decision, ms: int) -> bool:
    if one.limit != other.limit or abs(one.retry_after_ms - other.retry_after_ms) > ms:
        return False
    if one.allowed != other.allowed:
        return True
    return abs(one.remaining - other.remaining) <= 1 and abs(one.reset_at - other.reset_at) <= ms


def count(model: KeyModel, now: int, cost: int, wait_ms: int = 0) -> None:
    """Count units. What an uncertain state takes makes it uncertain for longer."""
    model.sure(now)
    if model.unsure_until > now:
        model.doubt(now + wait_ms + 3 * model.figures.span_ms + 2)
    model.take(now, cost)


def key_of(limit: Limit, call: Call) -> str:
    return "" if limit.keyless else f"k{call.key % 2}"


def is_forgotten(scenario: Scenario, age_ms: int, figures: Iterable[f.Figures] = ()) -> bool:
    """Whether a service may have forgotten a charge of these limits: once nothing of it can come
    back any more, but not within the first hour, and after a day at the latest."""
    life_ms = min(max([HOUR_MS, *[each.span_ms for each in figures]]), DAY_MS)
    return scenario.kind in ("service", "http") and age_ms >= life_ms - 1


def costs_of(scenario: Scenario, call: Call) -> dict[str, int]:
    """The cost of a call to each limit."""
    costs = call.costs or (call.cost,) * len(scenario.limits)
    return {limit.name: cost for limit, cost in zip(scenario.limits, costs, strict=True)}


def verdict_of(scenario: Scenario, decisions: dict[str, Decision], now: int) -> dict[str, Any]:
    """The fields of a verdict, by section 10."""
    shadows = {limit.name for limit in scenario.limits if limit.shadow}
    enforced = {name: told for name, told in decisions.items() if name not in shadows}
    violated = tuple(name for name, told in enforced.items() if not told.allowed)
    allowed = not violated
    if violated:
        longest = max(enforced[name].retry_after_ms for name in violated)
        binding = next(name for name in violated if enforced[name].retry_after_ms == longest)
    elif enforced:
        least = min(told.remaining for told in enforced.values())
        binding = next(name for name, told in enforced.items() if told.remaining == least)
    shadowed = tuple(name for name in decisions if name in shadows and not decisions[name].allowed)
    told: dict[str, Any] = {"allowed": allowed, "violated": violated}
    told["shadowed"] = shadowed if allowed else ()
    if enforced:
        told.update(binding=binding, decision=enforced[binding])
    elif decisions:
        told.update(decision=Decision(True, MAX, MAX, now, 0))
    return told


def answer_fields(answer: Answer) -> dict[str, Any]:
    """The fields that have to be equal on every store."""
    return {name: value for name, value in vars(answer).items() if name != "error"}
