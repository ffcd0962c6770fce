"""Laws of two tiers: what nodes may decide by themselves (section 9).

A single node with `cached-deny` answers as the store does. Several nodes may deny for up to
`max_stale_ms` what another node has freed. A node with `leased` credits may spend them without the
store, so a fleet has a bound instead of an exact answer.
"""

from __future__ import annotations

from dataclasses import replace

from . import figures as f
from .laws import (
    LAWS,
    Law,
    Stories,
    Taken,
    asks,
    bound_of,
    calls_agree,
    charges_end_once,
    errors_are_expected,
    fields_are_in_range,
    forecasts_agree,
    resets_forget,
)
from .reference import Broken
from .running import run
from .scenarios import Scenario
from .worlds import Transcript

MAX_STALE_MS = 1_000


def laws_of(scenario: Scenario) -> tuple[Law, ...]:
    """The laws of a mode other than "strict"."""
    if scenario.mode == "cached-deny":
        if scenario.nodes == 1:
            return LAWS
        # A node may show a denial that another node has ended.
        several = tuple(law for law in LAWS if law is not calls_agree)
        return (*several, denials_are_fresh)
    alone = (a_node_agrees_with_itself,) if scenario.nodes == 1 else ()
    return (
        errors_are_expected,
        fields_are_in_range,
        charges_end_once,
        forecasts_agree,
        resets_forget,
        pauses_hold_on_their_node,
        fleets_are_bounded,
        *alone,
    )


def denials_are_fresh(scenario: Scenario, events: Transcript) -> None:
    """A denial that the store would not give is at most `max_stale_ms` old."""
    exact = run(replace(scenario, mode="strict"))
    denied_at: dict[tuple[int, int, int], int] = {}
    for event, other in zip(events, exact, strict=False):
        call = event.call
        if call.verb != other.call.verb or event.now != other.now:
            return  # `obey` has waited for another denial
        if call.verb != "check":
            continue
        place = (call.node % scenario.nodes, call.key % 2, call.cost)
        mine, theirs = event.answer.allowed, other.answer.allowed
        if mine and not theirs:
            text = f"admitted {event.answer.decision!r}, the store {other.answer.decision!r}"
            raise Broken("a node admits only what the store admits", event, text)
        if theirs and not mine:
            since = denied_at.get(place)
            if since is None or event.now - since > MAX_STALE_MS:
                text = f"denied since {since}, while the store admits: {event.answer.decision!r}"
                raise Broken("a denial is remembered for max_stale_ms at most", event, text)
            return  # from here on, the two have charged different requests
        if not mine and place not in denied_at:
            denied_at[place] = event.now
        elif mine:
            denied_at.pop(place, None)


def a_node_agrees_with_itself(scenario: Scenario, events: Transcript) -> None:
    """What one node's peek admits, its check and its reservation admit too, and what they deny it
    denies."""
    for event in events:
        if not asks(event) or event.call.cost != 1 or event.call.wait_ms:
            continue
        shown = event.before[""]
        if shown.allowed != event.answer.allowed:
            text = f"peek {shown!r}\n  {event.call.verb} {event.answer.decision!r}"
            raise Broken("the calls of one limiter agree", event, text)


def pauses_hold_on_their_node(scenario: Scenario, events: Transcript) -> None:
    """The node that pauses a key admits nothing; the others at most the credits that they have."""
    paused_until, pausing = 0, -1
    credits = dict.fromkeys(range(scenario.nodes), 0)
    spent: dict[int | None, int] = {}
    for event in events:
        node = event.call.node % scenario.nodes
        if event.call.verb == "pause" and event.now + event.call.amount > paused_until:
            paused_until, pausing = event.now + event.call.amount, node
            credits = dict.fromkeys(range(scenario.nodes), scenario.batch - 1)
        elif event.call.verb == "reset":
            paused_until = 0
        elif event.call.verb in ("settle", "cancel") and event.answer.done:
            # The credits of a charge may come back to its node.
            credits[node] += spent.pop(event.answer.charge, 0)
        elif asks(event) and event.answer.allowed and event.now < paused_until:
            starts_at = event.answer.starts_at or event.now
            if starts_at >= paused_until:
                continue
            credits[node] -= event.call.cost
            if event.answer.charge is not None:
                spent[event.answer.charge] = event.call.cost
            if node == pausing or credits[node] < 0:
                text = f"paused until {paused_until} by node {pausing}: {event.answer.decision!r}"
                raise Broken("a pause holds on every node but for its credits", event, text)


def fleets_are_bounded(scenario: Scenario, events: Transcript) -> None:
    """Coupled credits: the limit per fixed window. Credits that carry over: N * (B - 1) more."""
    stories = Stories(scenario)
    for event in events:
        stories.tell(event)
    (figures,) = [each for limit in scenario.limits for each in limit.plans if each is not None]
    held = scenario.nodes * (scenario.batch - 1)
    for story in stories.by_name.values():
        for generation in range(story.generation + 1):
            taken = [each for each in story.taken if each.generation == generation and each.used]
            # A reset leaves the credits of other nodes.
            more = 0 if scenario.coupled and not story.generation else held
            if isinstance(figures, (f.FixedWindow, f.CalendarQuota)):
                _windows(figures, taken, more)
            else:
                _spans(figures, taken, held)


def _windows(figures: f.Figures, taken: list[Taken], more: int) -> None:
    if isinstance(figures, f.FixedWindow) and figures.anchor == "first":
        return  # windows of one key may follow each other at any instant
    windows: dict[int, int] = {}
    for each in taken:
        end = each.decision.reset_at
        windows[end] = windows.get(end, 0) + each.used
        if windows[end] > figures.limit + more:
            text = f"{windows[end]} in a window of {figures.limit}, with {more} credits on nodes"
            raise Broken("a fleet is bounded", each.event, text)


def _spans(figures: f.Figures, taken: list[Taken], held: int) -> None:
    for place, one in enumerate(taken):
        used = 0
        for other in taken[place:]:
            used += other.used
            span = other.event.now - one.event.now
            most = bound_of([figures], max(figures.limit, *[each.units for each in taken]), span)
            if used > most + held:
                text = f"{used} within {span} ms, at most {most} and {held} credits"
                raise Broken("a fleet is bounded", other.event, text)
