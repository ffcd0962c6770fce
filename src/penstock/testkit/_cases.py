"""The cases of the conformance kit, each a flow written once for sync and async.

They use transforms without accelerators, so that the store's own `apply` is tested; the last case
uses every registered strategy with its accelerators, and compares with Python.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core._decision import Decision, Outcome
from ..core._steps import Step
from ..core._strategy import Strategy
from ..core._transform import Transform, checking, peeking
from ._samples import sample_strategies
from ._steps import Apply, ApplyAll, ApplyMany, ApplyTimed, Close, Flow, Raised, Reset, Storm

__all__ = ["CASES", "Case"]


# A Tuesday in November 2023. Real instants have 13 digits; some mistakes only show there.
NOW = 1_700_000_000_000
TTL_MS = 60_000
CALLERS = 200


@dataclass(frozen=True, slots=True)
class Case:
    """One promise of the store contract: its `name`, and the `flow` that tests it.
    `needs_atomicity` is whether an approximate store may break it."""

    name: str
    flow: Callable[[], Flow]
    needs_atomicity: bool = False

    @property
    def summary(self) -> str:
        """What is promised, in a sentence."""
        return (self.flow.__doc__ or "").strip()

    def __str__(self) -> str:
        return self.name


class _Probe(Strategy):
    """Whose state the transforms of the kit read. It has no accelerators and is never checked."""

    name = "conformance_probe"

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        raise NotImplementedError


_PROBE = _Probe()


def _transform(role: str, run: Callable[[Any, int, int], Outcome[Any]]) -> Transform[Any]:
    return Transform(_PROBE, role, run, lambda _now, _retry_after_ms: "no room")


def _put(value: Any, ttl_ms: int = TTL_MS) -> Transform[Any]:
    """Writes `value`; the result is what was there."""
    return _transform("check", lambda state, _now, _cost: Outcome(value, state, ttl_ms, True))


def _deny(value: Any) -> Transform[Any]:
    """Computes `value` but does not persist it; the result is what was there."""
    return _transform("check", lambda state, _now, _cost: Outcome(value, state, TTL_MS, False))


def _add(state: Any, _now: int, cost: int) -> Outcome[Any]:
    total = (state or 0) + cost
    return Outcome(total, total, TTL_MS, True)


_ADD = _transform("check", _add)
# Were it written after all, it would change nothing: the fault is left to the case about denials.
_READ = _transform("peek", lambda state, _now, _cost: Outcome(state, state, TTL_MS, False))


def _expect(seen: Any, wanted: Any, what: str) -> None:
    if not _same(seen, wanted):
        raise AssertionError(f"{what}: expected {_shown(wanted)}, saw {_shown(seen)}")


def _same(seen: Any, wanted: Any) -> bool:
    """Equal in value and type all the way down: 1, 1.0 and True are three things."""
    if type(seen) is not type(wanted):
        return False
    if isinstance(wanted, list):
        return len(seen) == len(wanted) and all(map(_same, seen, wanted))
    if isinstance(wanted, dict):
        return seen.keys() == wanted.keys() and all(_same(seen[k], wanted[k]) for k in wanted)
    return bool(seen == wanted)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _persists_and_mutates() -> Flow:
    """What a transition writes is what the next one on that key reads."""
    _expect((yield Apply("k", _READ, NOW)), None, "a key never written")
    for step in (1, 2, 3):
        _expect((yield Apply("k", _ADD, NOW + step)), step, f"the result of transition {step}")
        _expect((yield Apply("k", _READ, NOW + step)), step, f"the state after transition {step}")
    _expect((yield Apply("k", _ADD, NOW + 4, 39)), 42, "a transition of cost 39 on top of 3")
    _expect((yield Apply("k", _READ, NOW + 4)), 42, "the state after it")


def _passes_the_instant_and_the_cost() -> Flow:
    """The transform is run with exactly the `now` and the `cost` that were passed."""
    echo = _transform("check", lambda _state, now, cost: Outcome([now, cost], None, TTL_MS, True))
    for now, cost in ((NOW, 1), (NOW + 12_345, 2**53 - 1), (NOW + 1, 7)):
        yield Apply("k", echo, now, cost)
        given = yield Apply("k", _READ, NOW + 12_345)
        _expect(given, [now, cost], "what the transform was given")


def _isolates_keys() -> Flow:
    """A key never sees what another holds, however alike their names."""
    keys = ("a", "A", "a:", ":a", "a:a", "aa", "a b", "ab", "0", "00", "a*", "a?", "[a]", "{a}")
    for count, key in enumerate(keys, start=1):
        _expect((yield Apply(key, _READ, NOW)), None, f"key {key!r}, before it was written")
        yield Apply(key, _ADD, NOW, count)
    for count, key in enumerate(keys, start=1):
        _expect((yield Apply(key, _READ, NOW)), count, f"key {key!r}, after all were written")


def _takes_any_key() -> Flow:
    """Unicode, spaces, colons, control characters and 4,096 bytes are all fine in a key."""
    keys = (
        "ключ",
        "鍵",
        "🔑 of the café",
        "e\u0301",
        "\u00e9",
        "two  spaces ",
        "tab\tnewline\nreturn\r",
        "nul\x00inside",
        "a:b::c",
        "x" * 4096,
        "x" * 4095 + "y",
        "鍵" * 1365 + "k",
    )
    for count, key in enumerate(keys, start=1):
        what = f"the key {_shown(key)}"
        _expect((yield Apply(key, _READ, NOW)), None, f"{what}, before it was written")
        _expect((yield Apply(key, _ADD, NOW, count)), count, what)
    for count, key in enumerate(keys, start=1):
        _expect((yield Apply(key, _READ, NOW)), count, f"the key {_shown(key)}, read back")


def _round_trips_states() -> Flow:
    """Any state made of JSON's types comes back exactly, types included."""
    states: tuple[Any, ...] = (
        0.1,
        1 / 3,
        2 / 3 * 1e-300,
        1700000000123.4567,
        1.7976931348623157e308,
        2.2250738585072014e-308,
        -0.30000000000000004,
        1.0,
        2**53 - 1,
        -(2**53 - 1),
        [[NOW, 1], [NOW + 1, 2**53 - 1]],
        [[], [[[1.5]]], [None, True, False, "text", "ключ\n\"'\\ \u2028"]],
        {"t": 0.1, "l": NOW, "nested": {"": [1, 1.0]}},
        "a plain string",
    )
    for state in states:
        yield Apply("k", _put(state), NOW)
        _expect((yield Apply("k", _READ, NOW)), state, "a state read back")


def _tells_falsy_from_absent() -> Flow:
    """Zero, the empty string, False and empty containers are states, not the lack of one."""
    falsy: tuple[Any, ...] = (0, 0.0, "", False, [], {})
    for state in falsy:
        yield Apply("k", _put(state), NOW)
        _expect((yield Apply("k", _READ, NOW)), state, "a falsy state read back")


def _reset_clears() -> Flow:
    """`reset` forgets one key, that key only, and may be repeated."""
    yield Apply("k", _ADD, NOW, 5)
    yield Apply("other", _ADD, NOW, 7)
    for _ in range(2):
        _expect((yield Reset("k")), None, "reset")
        _expect((yield Apply("k", _READ, NOW)), None, "the key after its reset")
    _expect((yield Reset("never written")), None, "reset of a key that is not there")
    _expect((yield Apply("other", _READ, NOW)), 7, "another key after that reset")
    _expect((yield Apply("k", _ADD, NOW)), 1, "a transition after the reset")


def _none_deletes() -> Flow:
    """Persisting a state of None deletes the key."""
    yield Apply("k", _ADD, NOW, 5)
    _expect((yield Apply("k", _put(None), NOW)), 5, "the transition that deletes")
    _expect((yield Apply("k", _READ, NOW)), None, "the key after it was deleted")
    _expect((yield Apply("k", _put(None), NOW)), None, "deleting what is not there")


def _expires_after_its_ttl() -> Flow:
    """A state is there until one ms before its TTL has passed, and absent from that instant on."""
    for key in ("before", "at", "after"):
        yield Apply(key, _put("brief", TTL_MS), NOW)
    yield Apply("long", _put("long", 30 * TTL_MS), NOW)
    _expect((yield Apply("before", _READ, NOW + TTL_MS - 1)), "brief", "1 ms before the expiry")
    _expect((yield Apply("at", _READ, NOW + TTL_MS)), None, "at the instant of the expiry")
    _expect((yield Apply("after", _READ, NOW + 20 * TTL_MS)), None, "long after the expiry")
    _expect((yield Apply("long", _READ, NOW + 20 * TTL_MS)), "long", "a key with a longer TTL")
    _expect((yield Apply("at", _ADD, NOW + 20 * TTL_MS)), 1, "a transition on an expired key")


def _a_write_renews_the_ttl() -> Flow:
    """Every write counts its TTL from its own instant, longer or shorter than before."""
    yield Apply("k", _put("first", TTL_MS), NOW)
    yield Apply("k", _put("second", TTL_MS), NOW + 100)
    _expect((yield Apply("k", _READ, NOW + 100 + TTL_MS - 1)), "second", "1 ms before the expiry")
    yield Apply("k", _put("third", TTL_MS // 2), NOW + 200)
    _expect((yield Apply("k", _READ, NOW + 200 + TTL_MS // 2 - 1)), "third", "1 ms before it")
    _expect((yield Apply("k", _READ, NOW + 200 + TTL_MS // 2)), None, "at a shortened expiry")


def _denial_writes_nothing() -> Flow:
    """A transition that does not persist leaves the state as it was, or absent as it was."""
    _expect((yield Apply("k", _deny("intruder"), NOW)), None, "a denial on an absent key")
    _expect((yield Apply("k", _READ, NOW)), None, "the key after a denial")
    yield Apply("k", _put("kept"), NOW)
    _expect((yield Apply("k", _deny("intruder"), NOW + 1)), "kept", "a denial on a written key")
    _expect((yield Apply("k", _deny(None), NOW + 2)), "kept", "a denial that carries None")
    _expect((yield Apply("k", _READ, NOW + 3)), "kept", "the state after the denials")


def _peeking_never_writes() -> Flow:
    """Looking leaves no trace, neither on an absent key nor on a written one."""
    look = _transform("peek", lambda state, _now, _cost: Outcome("trace", state, TTL_MS, False))
    _expect((yield Apply("k", look, NOW)), None, "a peek at an absent key")
    _expect((yield Apply("k", look, NOW)), None, "a second peek at it")
    yield Apply("k", _put("kept"), NOW)
    for now in (NOW, NOW + 1, NOW + 1_000):
        _expect((yield Apply("k", look, now)), "kept", f"a peek {now - NOW} ms after the write")


def _only_writes_renew_the_ttl() -> Flow:
    """Neither a peek nor a denial keeps a state alive."""
    yield Apply("peeked", _put("brief"), NOW)
    yield Apply("denied", _put("brief"), NOW)
    for now in (NOW + 1, NOW + TTL_MS - 1):
        yield Apply("peeked", _READ, now)
        yield Apply("denied", _deny("intruder"), now)
    _expect((yield Apply("peeked", _READ, NOW + TTL_MS)), None, "the expiry, peeks or not")
    _expect((yield Apply("denied", _READ, NOW + TTL_MS)), None, "the expiry, denials or not")


def _a_failing_transform_changes_nothing() -> Flow:
    """An error inside the transform reaches the caller, and the key stays as it was and usable."""

    def fail(_state: Any, _now: int, _cost: int) -> Outcome[Any]:
        raise ZeroDivisionError("meant to fail")

    yield Apply("k", _put("kept"), NOW)
    raised = yield Apply("k", _transform("check", fail), NOW + 1, may_raise=True)
    if not isinstance(raised, Raised) or not isinstance(raised.error, ZeroDivisionError):
        raise AssertionError(f"the transform's own error did not arrive, but {_shown(raised)}")
    _expect((yield Apply("k", _READ, NOW + 1)), "kept", "the state after the error")
    _expect((yield Apply("k", _put("new"), NOW + 2)), "kept", "a transition after the error")


def _apply_many_equals_apply() -> Flow:
    """`apply_many` is one `apply` per key, in order, repeated keys included."""
    _expect((yield ApplyMany((), _ADD, NOW)), [], "no keys at all")
    yield Apply("b", _ADD, NOW, 10)
    many = yield ApplyMany(("a", "b", "a", "c", "a"), _ADD, NOW, 2)
    _expect(many, [2, 12, 4, 2, 6], "five transitions on three keys")
    for key, total in (("a", 6), ("b", 12), ("c", 2)):
        _expect((yield Apply(key, _READ, NOW)), total, f"the state of {key!r} afterwards")
    _expect((yield ApplyMany(("c", "a"), _READ, NOW)), [2, 6], "two reads")
    denied = yield ApplyMany(("a", "z"), _deny("intruder"), NOW)
    _expect(denied, [6, None], "two denials")
    _expect((yield ApplyMany(("a", "z"), _READ, NOW)), [6, None], "the states after the denials")
    expired = yield ApplyMany(("a", "b"), _READ, NOW + TTL_MS)
    _expect(expired, [None, None], "both at the expiry")


def _apply_timed_tells_the_instant() -> Flow:
    """`apply_timed` is `apply`, and says at which instant it decided."""
    _expect((yield ApplyTimed("k", _ADD, NOW, 3)), (3, NOW), "a transition and its instant")
    _expect((yield ApplyTimed("k", _ADD, NOW - 5)), (4, NOW - 5), "another, by an earlier clock")
    _expect((yield Apply("k", _READ, NOW)), 4, "the state after them")
    for number, strategy in enumerate(sample_strategies()):
        decision = strategy.check(None, NOW, 1).result
        timed = yield ApplyTimed(f"s{number}", checking(strategy), NOW)
        _expect(timed, (decision, NOW), f"a check of {strategy!r} and its instant")


def _applies_atomically() -> Flow:
    """200 concurrent transitions on one key count to exactly 200, and no two see the same state."""
    entered, company = threading.Lock(), threading.Event()

    def add(state: Any, _now: int, cost: int) -> Outcome[Any]:
        # The first one in takes its time: whoever can come in beside it, will.
        if entered.acquire(blocking=False):
            company.wait(0.05)
        else:
            company.set()
        return _add(state, _now, cost)

    results = yield Storm(Apply("k", _transform("check", add), NOW), CALLERS)
    _expect((yield Apply("k", _READ, NOW)), CALLERS, f"the count after {CALLERS} transitions")
    _expect(sorted(results), list(range(1, CALLERS + 1)), "the results, sorted")


def _closes_twice() -> Flow:
    """`close` may be called again."""
    yield Apply("k", _ADD, NOW)
    _expect((yield Close()), None, "close")
    _expect((yield Close()), None, "close, again")


def _decides_as_plain_python() -> Flow:
    """Strategies decide through the store, accelerators and all, as their Python functions do."""
    strategies = sample_strategies()
    moves = (0, 0, 1, 90, 0, 143, -400, 0, 500, 333, 1, 2_500, 0, -1_000, 700, 5_000)
    costs = (1, 2, 1, 1, 3, 1, 1, 6, 2, 1, 2**53 - 1, 5, 1, 1, 1, 4)
    for number, strategy in enumerate(strategies):
        key, expires, now = f"k{number}", 0, NOW + 137
        state: Any = None
        for move, cost in zip(moves, costs, strict=True):
            now += move
            held = state if now < expires else None
            looked = yield Apply(key, peeking(strategy), now)
            _expect(looked, strategy.peek(held, now), f"peek of {strategy!r} at {now}")
            outcome = strategy.check(held, now, cost)
            seen = yield Apply(key, checking(strategy), now, cost)
            _expect(seen, outcome.result, f"{strategy!r} at {now}, cost {cost}")
            if outcome.persist:
                state, expires = outcome.state, now + outcome.ttl_ms


def _spend(limit: int) -> Transform[Any]:
    """Adds the cost as long as the sum stays within the limit; the result is the sum, or -1."""

    def spend(state: Any, _now: int, cost: int) -> Outcome[Any]:
        total = (state or 0) + cost
        if total > limit:
            return Outcome(state, -1, 0, False)
        return Outcome(total, total, TTL_MS, True)

    def give_back(state: Any, _now: int, cost: int) -> Outcome[Any]:
        return Outcome((state or 0) - cost, cost, TTL_MS, True)

    transform = _transform("check", spend)
    transform.admits = lambda result: result >= 0
    transform.reverse = lambda _charged_at: _transform("refund", give_back)
    return transform


def _several_keys_are_all_or_nothing() -> Flow:
    """`apply_all` writes every key if all steps allow it, and else none."""
    both = (Step("a", _spend(3)), Step("b", _spend(2)))
    _expect((yield ApplyAll(both, NOW)), [1, 1], "the first request")
    _expect((yield ApplyAll(both, NOW)), [2, 2], "the second request")
    results = yield ApplyAll(both, NOW)
    _expect(results[1], -1, "a request beyond the limit of the second key")
    _expect((yield Apply("a", _READ, NOW)), 2, "the first key after that request")
    _expect((yield Apply("b", _READ, NOW)), 2, "the second key after that request")


def _a_key_may_be_named_twice() -> Flow:
    """The second step of `apply_all` on a key sees what the first one left."""
    twice = (Step("a", _spend(5), 2), Step("b", _spend(9)), Step("a", _spend(5), 2))
    _expect((yield ApplyAll(twice, NOW)), [2, 1, 4], "two steps on one key")
    _expect((yield ApplyAll(twice, NOW))[2], -1, "two steps, of which only one fits")
    _expect((yield Apply("a", _READ, NOW)), 4, "the key after that request")
    _expect((yield Apply("b", _READ, NOW)), 1, "the other key after that request")


def _a_shadow_never_denies() -> Flow:
    """A shadow of `apply_all` is charged when the request is admitted and it admits it itself."""
    steps = (Step("a", _spend(3)), Step("s", _spend(1), 1, True))
    for count in (1, 2, 3):
        _expect((yield ApplyAll(steps, NOW))[0], count, f"request {count}")
    yield ApplyAll(steps, NOW)
    _expect((yield Apply("a", _READ, NOW)), 3, "the key after four requests")
    _expect((yield Apply("s", _READ, NOW)), 1, "the shadow after four requests")


def _a_failing_step_changes_nothing() -> Flow:
    """An error inside one step of `apply_all` reaches the caller, and no key is changed."""

    def fail(_state: Any, _now: int, _cost: int) -> Outcome[Any]:
        raise ZeroDivisionError("meant to fail")

    yield ApplyAll((Step("a", _spend(9)), Step("b", _spend(9))), NOW)
    steps = (Step("a", _spend(9)), Step("b", _transform("check", fail)))
    raised = yield ApplyAll(steps, NOW, may_raise=True)
    if not isinstance(raised, Raised) or not isinstance(raised.error, ZeroDivisionError):
        raise AssertionError(f"the transform's own error did not arrive, but {_shown(raised)}")
    _expect((yield Apply("a", _READ, NOW)), 1, "the first key after the error")
    _expect((yield Apply("b", _READ, NOW)), 1, "the second key after the error")


def _several_keys_agree_in_a_crowd() -> Flow:
    """200 concurrent requests at limits of 300 and 50 are admitted 50 times, and each key is
    charged for those and for no others."""
    steps = (Step("loose", _spend(300)), Step("tight", _spend(50)))
    results = yield Storm(ApplyAll(steps, NOW), CALLERS)
    admitted = sum(loose >= 0 and tight >= 0 for loose, tight in results)
    _expect(admitted, 50, "the number of requests that were admitted")
    _expect((yield Apply("tight", _READ, NOW)), 50, "what the tighter limit was charged")
    _expect((yield Apply("loose", _READ, NOW)), 50, "what the looser limit was charged")


CASES: tuple[Case, ...] = (
    Case("persists and mutates", _persists_and_mutates),
    Case("passes the instant and the cost", _passes_the_instant_and_the_cost),
    Case("isolates keys", _isolates_keys),
    Case("a denial writes nothing", _denial_writes_nothing),
    Case("peeking never writes", _peeking_never_writes),
    Case("takes any key", _takes_any_key),
    Case("round-trips states", _round_trips_states),
    Case("tells falsy from absent", _tells_falsy_from_absent),
    Case("reset clears", _reset_clears),
    Case("None deletes", _none_deletes),
    Case("expires after its TTL", _expires_after_its_ttl),
    Case("only writes renew the TTL", _only_writes_renew_the_ttl),
    Case("a write renews the TTL", _a_write_renews_the_ttl),
    Case("a failing transform changes nothing", _a_failing_transform_changes_nothing),
    Case("apply_many equals apply", _apply_many_equals_apply),
    Case("apply_timed tells the instant", _apply_timed_tells_the_instant),
    Case("applies atomically", _applies_atomically, needs_atomicity=True),
    Case("several keys are all or nothing", _several_keys_are_all_or_nothing),
    Case("a key may be named twice", _a_key_may_be_named_twice),
    Case("a shadow never denies", _a_shadow_never_denies),
    Case("a failing step changes nothing", _a_failing_step_changes_nothing),
    Case("several keys agree in a crowd", _several_keys_agree_in_a_crowd, needs_atomicity=True),
    Case("closes twice", _closes_twice),
    Case("decides as plain Python", _decides_as_plain_python),
)
