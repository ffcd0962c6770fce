"""Random scenarios from a seed, hostile callers included.

Limits are small and windows short, so that a few dozen calls meet full limits, ends of windows and
expired states. Besides plain requests, callers cancel everything that they hold at one moment,
settle with huge amounts, settle and cancel twice, use charges from before a reset, alternate
between plans, and have clocks that jump.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from .figures import (
    CalendarQuota,
    Figures,
    FixedWindow,
    Gcra,
    SlidingWindow,
    Slots,
    TokenBucket,
    Unlimited,
    WindowLog,
)
from .scenarios import START, Call, Limit, Scenario
from .stores import IN_ORDER

HUGE = 2**53 - 1

KINDS: dict[str, Callable[[random.Random], Figures]] = {
    "gcra": lambda rng: _gcra(rng),
    "token_bucket": lambda rng: TokenBucket(
        rng.choice((1, 2, 5, 10)), rng.choice((0.5, 1.0, 3.3, 10.0, 20.0))
    ),
    "fixed_window": lambda rng: FixedWindow(
        rng.choice((1, 3, 5, 10)), rng.choice((700, 1_000, 5_000)), rng.choice(("epoch", "first"))
    ),
    "sliding_window": lambda rng: SlidingWindow(
        rng.choice((1, 3, 5, 10)), rng.choice((700, 1_000, 5_000)), rng.choice((1, 2, 7, 10))
    ),
    "sliding_window_log": lambda rng: WindowLog(
        rng.choice((1, 3, 5, 10)), rng.choice((700, 1_000, 5_000))
    ),
    "calendar_quota": lambda rng: CalendarQuota(
        rng.choice((1, 5, 10)),
        rng.choice(("hour", "day", "week", "month")),
        rng.choice(("UTC", "Asia/Kolkata", "America/New_York", "Europe/Berlin")),
    ),
    "slots": lambda rng: Slots(rng.choice((1, 2, 4)), rng.choice((500, 2_000))),
    "unlimited": lambda _rng: Unlimited(),
}
RATES = tuple(kind for kind in KINDS if kind not in ("slots", "unlimited"))


def _gcra(rng: random.Random) -> Gcra:
    rate = rng.choice((1, 3, 7, 10, 60))
    burst = rng.choice((rate, rate, 1, 3, 10))
    return Gcra(burst, rng.choice((1_000, 1_000, 10_000)), rate)


@dataclass(frozen=True)
class Mixture:
    """Which calls are drawn, and how often each, in relation to the others."""

    verbs: dict[str, int]
    plans: int = 1
    keys: int = 2
    nodes: int = 1
    jumps: bool = False
    """Whether clocks go back."""
    books: bool = True


PLAIN = {"check": 12, "peek": 3, "forecast": 2, "many": 2, "obey": 3}
CHARGES = {**PLAIN, "reserve": 10, "settle": 6, "cancel": 6, "renew": 1}
ALL = {**CHARGES, "pause": 1, "reset": 1}
OPERATED = {**CHARGES, "pause": 5, "reset": 3}


def draw_calls(
    rng: random.Random, limits: tuple[Limit, ...], mix: Mixture, count: int
) -> list[Call]:
    """Calls in a row. Now and then a whole episode of one kind, such as a storm of cancels."""
    spans = [each.span_ms for limit in limits for each in limit.plans if each is not None]
    most = max(each.limit for limit in limits for each in limit.plans if each is not None)
    calls: list[Call] = []
    while len(calls) < count:
        dice = rng.random()
        if dice < 0.04 and "cancel" in mix.verbs:
            calls += _bank(rng, limits, spans, mix)
        elif dice < 0.08 and mix.plans > 1:
            calls += _alternate(rng, limits, mix)
        else:
            calls.append(draw_call(rng, limits, spans, most, mix))
    return calls


def draw_call(
    rng: random.Random, limits: tuple[Limit, ...], spans: list[int], most: int, mix: Mixture
) -> Call:
    verb = rng.choices(list(mix.verbs), list(mix.verbs.values()))[0]
    if verb in ("check", "many") and _held(limits):
        verb = "reserve"
    if verb == "pause" and not any(pausable(limit) for limit in limits):
        verb = "peek"
    most = min(most, 12)
    cost = rng.choice((1, 1, 1, 1, 2, 3, most, most, max(1, most // 2), most + 1))
    costs = None
    if verb in ("check", "reserve") and (_held(limits) or (len(limits) > 1 and rng.random() < 0.3)):
        costs = tuple(1 if _held((limit,)) else rng.choice((0, 1, 1, cost)) for limit in limits)
    if _held(limits) and (verb == "forecast" or len(limits) == 1):
        cost, costs = 1, None
    wait_ms = 0
    paced = any(each is not None and each.paced for limit in limits for each in limit.plans)
    if verb == "reserve" and mix.books and rng.random() < (0.3 if paced else 0.02):
        wait_ms = rng.choice((1, 200, max(spans), 10 * max(spans)))
    amount = 0
    if verb == "settle":
        amount = rng.choice((0, 0, 1, 2, cost, most, 3 * most, HUGE, 10**9))
    elif verb == "pause":
        amount = rng.choice((1, 100, rng.choice(spans), 3 * rng.choice(spans)))
        amount = min(amount, 10_000_000)
    return Call(
        verb,
        gap_ms=draw_gap(rng, spans, mix.jumps),
        key=rng.randrange(mix.keys),
        cost=cost,
        costs=costs,
        absent=verb not in ("pause", "reset") and rng.random() < 0.2,
        wait_ms=wait_ms,
        charge=rng.choice((0, 0, 0, 1, 2, 5, 9)),
        amount=amount,
        plan=rng.randrange(mix.plans),
        node=rng.randrange(mix.nodes),
        awaits=rng.random() < 0.3,
    )


def _held(limits: tuple[Limit, ...]) -> bool:
    """Whether slots are among them: these are reserved, one at a time."""
    return any(isinstance(each, Slots) for limit in limits for each in limit.plans)


def pausable(limit: Limit) -> bool:
    return not isinstance(limit.plans[0], (Slots, Unlimited))


def draw_gap(rng: random.Random, spans: list[int], jumps: bool) -> int:
    span = min(rng.choice(spans), 40_000_000)
    dice = rng.random()
    if dice < 0.5:
        return 0
    if dice < 0.7:
        return rng.choice((1, 3, 20, 90, 130))
    if dice < 0.93:
        return rng.randint(1, max(1, span // rng.choice((1, 2, 5, 10))))
    if dice < 0.96:
        return rng.randint(span, 2 * span + 1)
    return -rng.choice((1, 50, 700)) if jumps else 0


def _bank(
    rng: random.Random, limits: tuple[Limit, ...], spans: list[int], mix: Mixture
) -> list[Call]:
    """Reservations over a while that are cancelled together, and what they free used at once."""
    key, node = rng.randrange(mix.keys), rng.randrange(mix.nodes)
    count = rng.choice((3, 6, 10))
    gap = max(1, rng.choice(spans) // rng.choice((1, 2, 10)))
    cost = 1 if _held(limits) else rng.choice((1, 2, 5, 10))
    paced = any(each is not None and each.paced for limit in limits for each in limit.plans)
    wait = rng.choice((0, 0, 10 * gap)) if mix.books and paced else 0
    first = [
        Call("reserve", gap_ms=gap, key=key, node=node, cost=cost, wait_ms=wait)
        for _ in range(count)
    ]
    order = list(range(count))
    if rng.random() < 0.5:
        rng.shuffle(order)
    last = [Call("cancel", key=key, node=node, charge=place) for place in order]
    use = Call("reserve" if _held(limits) else "check", key=key, node=node, cost=cost)
    if rng.random() < 0.5 and not _held(limits):
        return [*first, *[call for cancel in last for call in (cancel, use)]]
    return [*first, *last, *[use] * rng.choice((2, 12))]


def _alternate(rng: random.Random, limits: tuple[Limit, ...], mix: Mixture) -> list[Call]:
    """One key, asked under one plan and the other by turns."""
    key, verb = rng.randrange(mix.keys), rng.choice(("check", "reserve"))
    plans, cost = rng.sample(range(mix.plans), 2), rng.choice((1, 1, 3))
    if _held(limits):
        verb, cost = "reserve", 1
    return [
        Call(verb, gap_ms=rng.choice((0, 0, 1, 30)), key=key, cost=cost, plan=plans[turn % 2])
        for turn in range(rng.choice((6, 20)))
    ]


def draw_plans(
    rng: random.Random, kind: str, count: int, lifted: bool
) -> tuple[Figures | None, ...]:
    """The figures of a limit under several plans: the same kind, other ceilings."""
    base = KINDS[kind](rng)
    plans: list[Figures | None] = [base]
    for _ in range(count - 1):
        if lifted and rng.random() < 0.2:
            plans.append(None)
        elif rng.random() < 0.3:
            plans.append(base.with_pace(rng.choice((2, 5))))
        else:
            plans.append(base.with_limit(rng.choice((1, 2, 6, 10, 30, base.limit))))
    return tuple(plans)


def limiter(seed: int, store: str = "memory", kind: str = "") -> Scenario:
    """One limit, asked by a limiter; of this kind of strategy, if one is named."""
    rng = random.Random(seed)
    kind = kind or rng.choice(list(KINDS))
    mix = Mixture(rng.choice((PLAIN, CHARGES, ALL, OPERATED)), jumps=rng.random() < 0.4)
    limits = (Limit("", (KINDS[kind](rng),)),)
    calls = draw_calls(rng, limits, mix, rng.choice((15, 40)))
    return Scenario("limiter", limits, tuple(calls), store, START + rng.randrange(10**9))


def plain(seed: int, store: str = "memory") -> Scenario:
    """One limit, asked by checks and peeks alone: what section 4 fixes to the bit."""
    rng = random.Random(seed)
    mix = Mixture(PLAIN, jumps=rng.random() < 0.4)
    limits = (Limit("", (KINDS[rng.choice([*RATES, "unlimited"])](rng),)),)
    calls = draw_calls(rng, limits, mix, rng.choice((15, 40)))
    return Scenario("limiter", limits, tuple(calls), store, START + rng.randrange(10**9))


def changed(seed: int, store: str = "memory") -> Scenario:
    """One limit whose figures change: the limiter is closed, and made again with others."""
    rng = random.Random(seed)
    plans = draw_plans(rng, rng.choice([*RATES, "slots"]), 3, lifted=False)
    mix = Mixture({**OPERATED, "reload": 6}, plans=3, jumps=rng.random() < 0.2)
    limits = (Limit("", plans),)
    # A limiter has one plan at a time.
    drawn = draw_calls(rng, limits, mix, rng.choice((15, 40)))
    calls = [call if call.verb == "reload" else replace(call, plan=0) for call in drawn]
    return Scenario("limiter", limits, tuple(calls), store, START + rng.randrange(10**9))


def several(seed: int, store: str = "memory") -> Scenario:
    """One to four limits as one decision."""
    rng = random.Random(seed)
    limits = []
    for number in range(rng.randint(1, 4)):
        kind = rng.choice([*RATES, *RATES, "slots", "unlimited"])
        keyless = rng.random() < 0.2
        limits.append(
            Limit(
                f"{kind}{number}",
                (KINDS[kind](rng),),
                shadow=rng.random() < 0.3,
                optional=not keyless and rng.random() < 0.3,
                keyless=keyless,
            )
        )
    # Stores that charge key by key remember the instant of a denied request.
    jumps = rng.random() < 0.3 and store not in IN_ORDER
    mix = Mixture(rng.choice((PLAIN, CHARGES, ALL, OPERATED)), jumps=jumps)
    calls = draw_calls(rng, tuple(limits), mix, rng.choice((15, 40)))
    return Scenario("limits", tuple(limits), tuple(calls), store, START + rng.randrange(10**9))


def policies(seed: int, store: str = "memory", kind: str = "service") -> Scenario:
    """A policy of one to three limits with plans, changed by reloads, on a service."""
    rng = random.Random(seed)
    plans = rng.choice((2, 3))
    limits = []
    for number in range(rng.randint(1, 3)):
        name = rng.choice([*RATES, *RATES, "slots"])
        keyless = rng.random() < 0.15
        limits.append(
            Limit(
                f"{name}{number}",
                draw_plans(rng, name, plans, lifted=True),
                # Not all may be shadows, but all others may be lifted.
                shadow=number > 0 and rng.random() < 0.35,
                optional=not keyless and rng.random() < 0.25,
                keyless=keyless,
            )
        )
    nodes = 1 if kind == "http" else rng.choice((1, 2))
    verbs = {**ALL, "pause": 2, "reload": 3}
    mix = Mixture(verbs, plans=plans, nodes=nodes, jumps=rng.random() < 0.2)
    calls = draw_calls(rng, tuple(limits), mix, rng.choice((15, 40)))
    start, override = START + rng.randrange(10**9), rng.choice((None, None, 1))
    return Scenario(kind, tuple(limits), tuple(calls), store, start, override, nodes)


def two_tier(seed: int, store: str = "memory", kind: str = "", mode: str = "") -> Scenario:
    """Nodes that share a store and keep something of their own."""
    rng = random.Random(seed)
    kind = kind or rng.choice(RATES)
    mode = mode or rng.choice(
        ("strict", "cached-deny", "cached-deny", "leased", "leased", "leased")
    )
    nodes = rng.choice((1, 2, 3))
    verbs = rng.choice((PLAIN, {**ALL, "pause": 2}))
    mix = Mixture({k: v for k, v in verbs.items() if k != "many"}, nodes=nodes, keys=1)
    limits = (Limit("", (KINDS[kind](rng),)),)
    calls = draw_calls(rng, limits, mix, rng.choice((15, 40)))
    return Scenario(
        "two_tier",
        limits,
        tuple(calls),
        store,
        START + rng.randrange(10**9),
        None,
        nodes=nodes,
        mode=mode,
        batch=rng.choice((1, 2, 5)),
        coupled=rng.random() < 0.6,
    )


DRAWN: dict[str, Callable[..., Scenario]] = {
    "plain": plain,
    "limiter": limiter,
    "changed": changed,
    "limits": several,
    "service": policies,
    "two_tier": two_tier,
    "http": lambda seed, store="memory": policies(seed, store, "http"),
}
