"""Laws over whole transcripts, for what the contract bounds and does not fix.

Each function takes a scenario and its transcript and raises `Broken` at the first event that breaks
its law. They hold in every state, also where the models are unsure: during pauses, behind bookings,
under changed figures. `LAWS` has the laws of every kind of world; those that compare two runs of a
scenario are in `comparing.py`, those of leases in `leases.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from penstock import Decision

from . import figures as f
from .reference import Broken, costs_of, is_forgotten, key_of
from .scenarios import Limit, Scenario
from .worlds import Event, Transcript

Law = Callable[[Scenario, Transcript], None]
Name = tuple[str, str]
"""A key of a limit."""


def parts(scenario: Scenario, event: Event) -> Iterator[tuple[Limit, f.Figures, Name, int]]:
    """The limits that a call asks, with figures, key and cost."""
    costs = costs_of(scenario, event.call)
    for limit in scenario.limits:
        figures = scenario.figures(limit, event.call, event.base)
        if figures is not None and not (limit.optional and event.call.absent):
            yield limit, figures, (limit.name, key_of(limit, event.call)), costs[limit.name]


def asks(event: Event) -> bool:
    return event.call.verb in ("check", "reserve") and event.answer.allowed is not None


def fields_are_in_range(scenario: Scenario, events: Transcript) -> None:
    """Section 3: whole numbers, nothing negative, no more left than the limit, a wait exactly where
    denied."""
    for event in events:
        answer = event.answer
        shown = [*answer.limits.values(), *answer.each, *event.before.values()]
        shown += event.after.values()
        shown += [told for looks in event.plans.values() for told in looks.values()]
        if answer.decision is not None:
            shown.append(answer.decision)
        for told in shown:
            numbers = (told.limit, told.remaining, told.reset_at, told.retry_after_ms)
            whole = all(type(number) is int for number in numbers)
            ranged = 0 <= told.remaining <= told.limit and told.retry_after_ms >= 0
            if not (whole and ranged and told.allowed == (told.retry_after_ms == 0)):
                raise Broken("fields are in range", event, repr(told))
        ahead = answer.forecast
        if ahead is not None and not (
            ahead.spendable_now >= 0 and event.now <= ahead.next_replenish_at <= ahead.full_at
        ):
            raise Broken("fields are in range", event, repr(ahead))


def errors_are_expected(scenario: Scenario, events: Transcript) -> None:
    """The calls are legal; only a booking of limits without a pace is refused, naming gcra. A
    service forgets charges after a day."""
    made: dict[int, int] = {}
    ended: set[int] = set()
    for event in events:
        number = event.answer.charge
        if event.call.verb == "reserve" and number is not None:
            made[number] = event.now
        elif event.answer.done and number is not None:
            ended.add(number)
        if not event.answer.error:
            continue
        expected = event.call.wait_ms and "gcra" in event.answer.error
        if scenario.kind in ("service", "http") and "no such charge" in event.answer.error:
            charge = max(0, len(made) - 1 - event.call.charge)
            expected = is_forgotten(scenario, event.now - made[charge]) or charge in ended
        if scenario.kind in ("service", "http") and event.call.verb == "renew":
            expected = expected or "no slots" in event.answer.error
        if not expected:
            raise Broken("a legal call is answered", event, event.answer.error)


def denials_and_looks_write_nothing(scenario: Scenario, events: Transcript) -> None:
    for event in events:
        is_look = event.answer.allowed and not any(costs_of(scenario, event.call).values())
        if asks(event) and (is_look or not event.answer.allowed) and event.before != event.after:
            raise Broken("a denial or a look writes nothing", event, _changed(event))


def looks_never_deny(scenario: Scenario, events: Transcript) -> None:
    """A limit that is asked at cost 0 shows what is left."""
    for event in events:
        if not asks(event):
            continue
        for limit, _, _, cost in parts(scenario, event):
            told = event.answer.limits.get(limit.name)
            if cost == 0 and told is not None and not told.allowed:
                raise Broken("a look never denies", event, f"{limit.name}: {told!r}")


def calls_agree(scenario: Scenario, events: Transcript) -> None:
    """What a peek shows is what a request gets at the same instant."""
    for event in events:
        if not asks(event) or event.answer.error:
            continue
        for limit, figures, _, cost in parts(scenario, event):
            told, shown = event.answer.limits.get(limit.name), event.before.get(limit.name)
            if told is None or shown is None or cost == 0:
                continue
            if event.call.wait_ms and figures.paced:
                if shown.remaining >= cost and not told.allowed:
                    raise Broken("calls agree", event, f"{limit.name}: {shown!r}, then {told!r}")
                continue
            if told.allowed != (shown.remaining >= cost):
                raise Broken("calls agree", event, f"{limit.name}: {shown!r}, then {told!r}")
            # A remembered denial has the wait that the store told first: a sliding window would
            # tell another one by now, and a bucket rounds.
            kinds = (f.SlidingWindow, f.TokenBucket)
            fresh = scenario.mode != "cached-deny" or not isinstance(figures, kinds)
            if cost == 1 and fresh and told.retry_after_ms != shown.retry_after_ms:
                raise Broken("calls agree", event, f"{limit.name}: {shown!r}, then {told!r}")
            left = event.after.get(limit.name)
            if event.answer.allowed and told.allowed and left is not None:
                expected = shown.remaining - (0 if isinstance(figures, f.Unlimited) else cost)
                if left.remaining != expected:
                    raise Broken("an admission takes its cost", event, _changed(event))


def forecasts_agree(scenario: Scenario, events: Transcript) -> None:
    """A forecast says how many requests fit that a peek at the same instant shows."""
    for event in events:
        told = event.answer.forecast
        if event.call.verb != "forecast" or told is None:
            continue
        enforced = [limit for limit, _, _, _ in parts(scenario, event) if not limit.shadow]
        shown = [event.before[limit.name] for limit in enforced if limit.name in event.before]
        if not shown:
            continue
        fits = min(each.remaining // event.call.cost for each in shown)
        if scenario.mode != "leased" and told.spendable_now != fits:
            raise Broken("a forecast agrees with a peek", event, f"{told!r}, but {shown!r}")
        if event.call.cost == 1 and (told.spendable_now > 0) != all(each.allowed for each in shown):
            raise Broken("a forecast agrees with a peek", event, f"{told!r}, but {shown!r}")


def same_filling(limit: Limit) -> bool:
    """Whether a key is replenished in the same time under every plan. Else a state that was written
    under a third plan may be converted to more units for the larger of two plans than for the
    smaller one."""
    figures = [each for each in limit.plans if each is not None]
    return all(each.fills_like(figures[0]) for each in figures)


def forecasts_are_true(scenario: Scenario, events: Transcript) -> None:
    """More is left at the instant that a forecast names, and not before; and everything when it
    says so. Peeks at these instants show it, while nothing else happens."""
    for event in events:
        told = event.answer.forecast
        enforced = [limit.name for limit, _, _, _ in parts(scenario, event) if not limit.shadow]
        if told is None or len(enforced) != 1 or not event.ahead:
            continue
        # Under other figures it may be earlier: a key that is full under those it was used with is
        # forgotten, and the share of a paused bucket shows when the pause is over.
        paced = [limit for limit in scenario.limits if limit.own(0).paced]
        is_exact = all(len(set(limit.plans)) == 1 for limit in paced)
        (name,) = enforced
        left = {at: shown[name] for at, shown in event.ahead.items()}
        left[event.now] = event.before[name]
        now, more_at = left[event.now], told.next_replenish_at
        text = f"{told!r}, but {left!r}"
        if now.remaining < now.limit and more_at in left:
            if left[more_at].remaining <= now.remaining:
                raise Broken("a forecast is true: next_replenish_at", event, text)
            if is_exact and left[more_at - 1].remaining > now.remaining:
                raise Broken("a forecast is true: next_replenish_at", event, text)
        if told.full_at in left and left[told.full_at].remaining < now.limit:
            raise Broken("a forecast is true: full_at", event, text)


def charges_end_once(scenario: Scenario, events: Transcript) -> None:
    """The first settlement or cancellation counts; a replay returns False and changes nothing."""
    ended = set()
    made: dict[int, int] = {}
    for event in events:
        number = event.answer.charge
        if event.call.verb == "reserve" and number is not None:
            made[number] = event.now
        if event.call.verb not in ("settle", "cancel") or number is None or event.answer.error:
            continue
        if not event.answer.done and is_forgotten(scenario, event.now - made[number]):
            ended.add(number)
        if event.answer.done is not (number not in ended):
            raise Broken("a charge ends once", event, f"returned {event.answer.done}")
        if number in ended and event.before != event.after:
            raise Broken("a replayed settlement changes nothing", event, _changed(event))
        ended.add(number)


@dataclass
class Taken:
    """Units that one request took from one limit."""

    event: Event
    figures: f.Figures
    units: int
    charge: int | None
    generation: int
    decision: Decision
    used: int
    """Units that were not given back."""


@dataclass
class Story:
    """What happened to one key of one limit, in order."""

    limit: Limit
    taken: list[Taken] = field(default_factory=list)
    generation: int = 0
    paused_until: int = 0
    booked_in_pause: bool = False
    """Whether units were booked since: that removes the mark of a pause of gcra."""


def settled_units(event: Event, taken: Taken) -> int:
    """How many units a settlement says were used."""
    return 0 if event.call.verb == "cancel" else event.call.amount


class Stories:
    """The stories of all keys, as far as they have been told."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.by_name: dict[Name, Story] = {}
        self.latest = 0
        """The latest instant that the clock has shown."""

    def of(self, limit: Limit, name: Name) -> Story:
        return self.by_name.setdefault(name, Story(limit))

    def charged(self, number: int | None) -> list[tuple[Story, Taken]]:
        """What a charge has taken."""
        return [
            (story, taken)
            for story in self.by_name.values()
            for taken in story.taken
            if number is not None and taken.charge == number
        ]

    def tell(self, event: Event) -> None:
        """Add an event."""
        answer, call = event.answer, event.call
        self.latest = max(self.latest, event.now)
        for story in self.by_name.values():
            if self.latest >= story.paused_until:
                story.paused_until = 0  # over, even if the clock goes back
        if answer.error:
            return
        if asks(event) and answer.allowed:
            for limit, figures, name, cost in parts(self.scenario, event):
                told = answer.limits.get(limit.name)
                if told is not None and told.allowed and cost:
                    story = self.of(limit, name)
                    story.booked_in_pause |= event.now < story.paused_until
                    made = (event, figures, cost, answer.charge, story.generation, told, cost)
                    story.taken.append(Taken(*made))
        elif call.verb == "many" and answer.each:
            for key, told in zip((0, 1, 0), answer.each, strict=True):
                if told.allowed:
                    (limit,) = self.scenario.limits
                    asked = self.scenario.figures(limit, call, event.base)
                    assert asked is not None
                    story = self.of(limit, (limit.name, f"k{(call.key + key) % 2}"))
                    made = (event, asked, call.cost, None, story.generation, told, call.cost)
                    story.taken.append(Taken(*made))
        elif call.verb in ("settle", "cancel") and answer.done:
            for _, taken in self.charged(answer.charge):
                taken.used = min(taken.units, settled_units(event, taken))
        elif call.verb in ("pause", "reset"):
            for limit in self.scenario.limits:
                if limit.optional and call.absent:
                    continue
                story = self.of(limit, (limit.name, key_of(limit, call)))
                if call.verb == "reset":
                    story.generation += 1
                    story.paused_until = 0
                elif not isinstance(limit.plans[0], (f.Slots, f.Unlimited)):
                    story.paused_until = max(story.paused_until, event.now + call.amount)
                    story.booked_in_pause = False


def refunds_are_bounded(scenario: Scenario, events: Transcript) -> None:
    """A refund gives back no more than the charge took, and nothing if the key was reset since. A
    settlement of more than was reserved gives back nothing."""
    stories = Stories(scenario)
    for event in events:
        if event.call.verb in ("settle", "cancel") and event.answer.done:
            for story, taken in stories.charged(event.answer.charge):
                name, figures = story.limit.name, taken.figures
                before, after = event.before.get(name), event.after.get(name)
                if before is None or after is None or isinstance(figures, f.Unlimited):
                    continue
                back = after.remaining - before.remaining
                unused = max(0, taken.units - settled_units(event, taken))
                if before.limit > figures.limit:
                    unused = -(-unused * before.limit // figures.limit)
                if isinstance(figures, f.Slots):
                    unused = 1
                if back > unused:
                    raise Broken("a refund gives back at most the charge", event, _changed(event))
                if story.generation != taken.generation and back > 0:
                    law = "a charge from before a reset refunds nothing"
                    raise Broken(law, event, _changed(event))
        stories.tell(event)


def pauses_hold(scenario: Scenario, events: Transcript) -> None:
    """Nothing is admitted before the end of a pause, under whatever figures; a booking starts no
    earlier."""
    stories = Stories(scenario)
    for event in events:
        if asks(event) and event.answer.allowed:
            for limit, figures, name, cost in parts(scenario, event):
                told = event.answer.limits.get(limit.name)
                until = stories.of(limit, name).paused_until
                if told is None or not cost or event.now >= until:
                    continue
                starts_at = event.answer.starts_at or event.now
                books = event.call.wait_ms and figures.paced
                if told.allowed and not (books and (limit.shadow or starts_at >= until)):
                    raise Broken("a pause holds", event, f"paused until {until}: {told!r}")
        for looks in (event.before, event.after, *event.plans.values()):
            for limit, _, name, _ in parts(scenario, event):
                shown, story = looks.get(limit.name), stories.of(limit, name)
                if looks is not event.before and event.call.verb == "reset":
                    continue
                if event.call.verb in ("settle", "cancel", "renew"):
                    continue  # they look at the keys of the charge
                if shown is not None and shown.allowed and event.now < story.paused_until:
                    law = "a peek shows the pause"
                    raise Broken(law, event, f"paused until {story.paused_until}: {shown!r}")
        if event.call.verb in ("settle", "cancel") and event.answer.done:
            for story, taken in stories.charged(event.answer.charge):
                shown = event.after.get(story.limit.name)
                marked = not (isinstance(taken.figures, f.Gcra) and story.booked_in_pause)
                if (
                    shown is not None
                    and shown.allowed
                    and event.now < story.paused_until
                    and marked
                ):
                    text = f"paused until {story.paused_until}: {_changed(event)}"
                    raise Broken("a refund never ends a pause", event, text)
        stories.tell(event)


def resets_forget(scenario: Scenario, events: Transcript) -> None:
    """A key that was reset is cold."""
    for event in events:
        if event.call.verb != "reset" or event.answer.error:
            continue
        for limit, figures, _, _ in parts(scenario, event):
            shown = event.after.get(limit.name)
            if shown is not None and shown.remaining != figures.limit:
                raise Broken("a reset key is cold", event, f"{limit.name}: {shown!r}")


def overdrafts_are_bounded(scenario: Scenario, events: Transcript) -> None:
    """After a settlement a key owes at most one whole limit."""
    stories = Stories(scenario)
    for event in events:
        if event.call.verb == "settle" and event.answer.done:
            for story, taken in stories.charged(event.answer.charge):
                name = story.limit.name
                before, after = event.before.get(name), event.after.get(name)
                if before is None or after is None or event.now < story.paused_until:
                    continue
                spans = [each.span_ms for each in story.limit.plans if each is not None]
                most = 2 * max(spans) + max(spans) // max(1, after.limit) + 2
                most += max(0, stories.latest - event.now)
                if after.retry_after_ms > max(most, before.retry_after_ms):
                    raise Broken("an overdraft owes at most one limit", event, _changed(event))
                del taken
        stories.tell(event)


BURSTS = 2
"""The bound of refunds in bursts: any span of s ms has at most BURSTS * burst + s / T units."""


def spans_are_bounded(scenario: Scenario, events: Transcript) -> None:
    """Units that were taken and not given back, in any span: by the largest figures that the key
    was asked with, however plans alternate and whatever is refunded."""
    stories = Stories(scenario)
    for event in events:
        stories.tell(event)
    instants = [event.now for event in events]
    if instants != sorted(instants):
        return  # a clock that goes back has no spans
    for story in stories.by_name.values():
        for generation in range(story.generation + 1):
            told = [each for each in story.taken if each.generation == generation and each.used]
            figures = [each for each in story.limit.plans if each is not None]
            # Without refunds a burst and the pace, however plans alternate.
            refunded = any(each.used != each.units for each in story.taken)
            books = any(each.event.call.wait_ms for each in told)
            if not (story.limit.shadow and books):  # of which `starts_at` does not tell
                _bounded(figures, told, BURSTS if refunded else 1)


def _bounded(figures: list[f.Figures], told: list[Taken], bursts: int) -> None:
    if not told:
        return
    most = max(each.limit for each in figures)
    first = figures[0]
    if isinstance(first, (f.FixedWindow, f.CalendarQuota)):
        windows: dict[int, int] = {}
        for taken in told:
            end = taken.decision.reset_at
            windows[end] = windows.get(end, 0) + taken.used
            if windows[end] > most:
                text = f"{windows[end]} used in one window of {most}"
                raise Broken("a window admits its limit", taken.event, text)
        return
    if any(each.event.call.wait_ms and len(each.event.answer.limits) > 1 for each in told):
        return  # the verdict does not tell from when each limit has the units
    told = sorted(told, key=_starts)
    for place, one in enumerate(told):
        used = 0
        for other in told[place:]:
            used += other.used
            span = _starts(other) - _starts(one)
            # What is booked ahead may be more than comes at once.
            bound = bound_of(figures, max(most, *[each.units for each in told]), span, bursts)
            if used > bound:
                text = f"{used} used within {span} ms, and at most {bound} may be"
                raise Broken("a span is bounded", other.event, text)


def bound_of(figures: list[f.Figures], most: int, span_ms: int, bursts: int = BURSTS) -> float:
    """The most units in a span."""
    first = figures[0]
    if isinstance(first, (f.Gcra, f.TokenBucket)):
        pace = max(each.pace for each in figures) * 1.005
        return bursts * most + max(0, span_ms) * pace + 1
    if isinstance(first, f.WindowLog):
        return most * (span_ms // first.window_ms + 1)
    if isinstance(first, f.SlidingWindow):
        return 2 * most * (span_ms // first.window_ms + 1)
    return float("inf")


def _starts(taken: Taken) -> int:
    return taken.event.answer.starts_at or taken.event.now


def waits_are_true(scenario: Scenario, events: Transcript) -> None:
    """A request that waited as long as its denial said, while nothing else happened, is admitted.
    A token bucket may round the wait down by one millisecond, a sliding window looks no further
    than the end of its tick, and a slot may be asked for sooner."""
    exact = (f.Gcra, f.FixedWindow, f.CalendarQuota, f.WindowLog, f.Unlimited)
    for before, event in pairwise(events):
        if not (asks(before) and asks(event)) or before.answer.allowed or event.answer.allowed:
            continue
        decision = before.answer.decision
        assert decision is not None
        same = (before.call.key, before.call.cost, before.call.costs, before.call.absent)
        if same != (event.call.key, event.call.cost, event.call.costs, event.call.absent):
            continue
        if (before.call.plan, before.base, before.call.wait_ms, before.call.node) != (
            event.call.plan,
            event.base,
            event.call.wait_ms,
            event.call.node,
        ):
            continue
        told = list(parts(scenario, event))
        fits = all(cost <= figures.limit or limit.shadow for limit, figures, _, cost in told)
        known = all(isinstance(figures, exact) or limit.shadow for limit, figures, _, _ in told)
        if fits and known and event.now >= before.now + decision.retry_after_ms:
            text = f"denied after {event.now - before.now} ms; it was told {decision!r}"
            raise Broken("a wait is long enough", event, text)


def plans_are_ordered(scenario: Scenario, events: Transcript) -> None:
    """At every instant, larger figures make nobody wait longer. The debt of an overdraft is kept as
    a share of the limit, so that is left out where the pace does not grow with the limit."""
    in_debt = False
    for event in events:
        in_debt = in_debt or event.call.verb == "settle"
        for limit in scenario.limits:
            if in_debt and not same_filling(limit):
                continue
            for one, smaller in enumerate(limit.plans):
                for other, larger in enumerate(limit.plans):
                    if smaller is None or larger is None or not larger.allows(smaller):
                        continue
                    low = event.plans.get(one, {}).get(limit.name)
                    high = event.plans.get(other, {}).get(limit.name)
                    if low is None or high is None or isinstance(smaller, f.Slots):
                        continue
                    slack = 1 if isinstance(smaller, f.TokenBucket) else 0
                    if high.retry_after_ms > low.retry_after_ms + slack:
                        text = f"{limit.name}: {low!r} with {smaller!r}, {high!r} with {larger!r}"
                        raise Broken("raising a limit lengthens no wait", event, text)


def reloads_are_ordered(scenario: Scenario, events: Transcript) -> None:
    """A reload that raises a limit lengthens no wait, and leaves no less."""
    for event in events:
        if event.call.verb != "reload" or (scenario.override is not None and event.call.key == 1):
            continue
        for limit in scenario.limits:
            old, new = limit.own(event.base), limit.own(event.call.plan)
            if not same_filling(limit):
                continue
            before, after = event.before.get(limit.name), event.after.get(limit.name)
            if before is None or after is None or isinstance(old, f.Slots) or not new.allows(old):
                continue
            slack = 1 if isinstance(old, f.TokenBucket) else 0
            if after.retry_after_ms > before.retry_after_ms + slack:
                text = f"{old!r}, then {new!r}\n  {_changed(event)}"
                raise Broken("raising a limit lengthens no wait", event, text)
            if after.remaining < before.remaining:
                text = f"{old!r}, then {new!r}\n  {_changed(event)}"
                raise Broken("raising a limit leaves no less", event, text)


def _changed(event: Event) -> str:
    def shown(looks: Mapping[str, Decision]) -> str:
        return ", ".join(f"{name or 'key'}: {told!r}" for name, told in looks.items())

    return f"before {shown(event.before)}\n  after  {shown(event.after)}"


LAWS: tuple[Law, ...] = (
    errors_are_expected,
    fields_are_in_range,
    denials_and_looks_write_nothing,
    looks_never_deny,
    calls_agree,
    forecasts_agree,
    forecasts_are_true,
    charges_end_once,
    refunds_are_bounded,
    pauses_hold,
    resets_forget,
    overdrafts_are_bounded,
    spans_are_bounded,
    waits_are_true,
    plans_are_ordered,
    reloads_are_ordered,
)
