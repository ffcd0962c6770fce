"""Several steps as one decision, on Redis.

Steps whose keys are in one slot are one script and one round trip, whatever the mixture of their
strategies. A strategy without Lua is decided here first, on the record of its key, and its write is
part of the same script, which does nothing if the record has changed since; that takes a second
round trip, and another one each time another process was faster.

Keys in several slots of a cluster are one script per slot, one after the other, those with only
shadows last; when one denies or fails, what those before it charged is refunded.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ...core._decision import Booking
from ...core._errors import PenstockError, StoreUnavailableError
from ...core._steps import Step, as_they_stand, decide_all, looked_at, reversal
from ...core._transform import READING, Transform, checking, looking, trying
from .. import record
from .._sheet import ConnectionFailedError
from ._plans import Plan, RecordSwap, plan_of
from ._requests import TIME, Command, Delay, RedisFlow, malformed, ms_of, text_or_none
from ._routing import RedisRouter, names_of

__all__ = ["apply_steps"]


_RACES = 256
_LONGEST_PAUSE_MS = 32


def apply_steps(router: RedisRouter, plan: Plan, steps: Sequence[Step], now: int) -> RedisFlow:
    """The results, in the order of the steps. A `now` of 0 asks for the server's clock."""
    keys = [step[0] for step in steps]
    if not router.topology.is_one_group(keys):
        return _slot_by_slot(router, looked_at(steps), router.topology.groups(keys), now)
    if plan.here:
        return _partly_here(router, plan, steps, keys, now)
    return _in_one_slot(router, plan, steps, keys, now)


def _slot_by_slot(
    router: RedisRouter, steps: Sequence[Step], groups: Sequence[Sequence[int]], now: int
) -> RedisFlow:
    results: list[Any] = [None] * len(steps)
    charged: list[list[_PassedStep]] = []
    admitted, at = True, now
    try:
        for group in sorted(groups, key=lambda group: all(steps[place].shadow for place in group)):
            if not admitted:
                yield from _try_group(router, steps, group, now, at, results)
                continue
            slot = [steps[place] for place in group]
            answers, at = yield from _group(router, slot, now, others=bool(charged))
            # By place: a key that is named twice may have the same step twice, of which one passes.
            passed = []
            for place, step, answer in zip(group, slot, answers, strict=True):
                results[place] = answer
                if step.transform.admits(answer):
                    passed.append(_PassedStep(place, step, answer, at))
                elif not step.shadow:
                    admitted = False
            if admitted:
                charged.append(passed)
            else:
                yield from _give_back(router, charged, now, results)
    except Exception:
        with suppress(PenstockError):
            yield from _give_back(router, charged, now, results)
        raise
    return results


def _try_group(
    router: RedisRouter,
    steps: Sequence[Step],
    group: Sequence[int],
    now: int,
    at: int,
    results: list[Any],
) -> RedisFlow:
    """The results of the steps of a slot after another slot has denied, without writing."""
    tries: dict[int, Step] = {}
    for place in group:
        tried = _tried(steps[place])
        if tried is None:
            results[place] = steps[place].transform.refuse(at, 1)
        else:
            tries[place] = tried
    if tries:
        answers, _ = yield from _group(router, list(tries.values()), now, others=False)
        for place, answer in zip(tries, answers, strict=True):
            results[place] = answer


def _tried(step: Step) -> Step | None:
    """The same step without writing, as a check; None for refunds and pauses, which are left
    out."""
    transform = step.transform
    if transform.role in READING:
        return step
    if transform.lua is None or transform.role == "check":
        return step._replace(transform=trying(transform))
    if transform.reverse is None or transform.strategy is None:
        return None
    return step._replace(transform=trying(checking(transform.strategy)))


class _PassedStep(NamedTuple):
    """A step that was admitted in an earlier slot."""

    place: int
    step: Step
    answer: Any
    at: int


def _give_back(
    router: RedisRouter, charged: list[list[_PassedStep]], now: int, results: list[Any]
) -> RedisFlow:
    """Refund the steps of earlier slots, the last slot first, with one call for each. The figures
    that are left go into the results."""
    while charged:
        refunds, looks, places = [], [], []
        for place, step, answer, at in reversed(charged.pop()):
            refund, transform = reversal(step, answer, at), step.transform
            if refund is not None and refund.cost:
                refunds.append(refund)
                if transform.stands is not None and transform.strategy is not None:
                    looks.append(Step(step.key, looking(transform.strategy), 0))
                    places.append(place)
        if refunds:
            answers, _ = yield from _group(router, [*refunds, *looks], now, others=True)
            for place, left in zip(places, answers[len(refunds) :], strict=True):
                booked = type(results[place]) is Booking
                results[place] = Booking(left, 0) if booked else left


def _in_one_slot(
    router: RedisRouter, plan: Plan, steps: Sequence[Step], keys: Sequence[str], now: int
) -> RedisFlow:
    commands = (plan.command(steps, keys, now, {}),)
    (reply,) = yield from router.ask(
        keys[0], commands, script=plan.script, consuming=True, keys=keys
    )
    return plan.answers(steps, reply, {})


def _partly_here(
    router: RedisRouter, plan: Plan, steps: Sequence[Step], keys: Sequence[str], now: int
) -> RedisFlow:
    results, _ = yield from _DecidedHere(router, plan, looked_at(steps), keys).run(now)
    return results


def _group(router: RedisRouter, steps: Sequence[Step], now: int, *, others: bool) -> RedisFlow:
    """The results of steps whose keys one script may use, and the instant of the decision;
    `others` if keys before them have been charged."""
    plan, keys = plan_of(steps), [step.key for step in steps]
    if plan.here:
        return (yield from _DecidedHere(router, plan, steps, keys, others).run(now))
    (reply,) = yield from _ask(router, plan, steps, keys, now, others=others)
    return plan.answers(steps, reply, {}), reply[0]


def _ask(
    router: RedisRouter,
    plan: Plan,
    steps: Sequence[Step],
    keys: Sequence[str],
    now: int,
    swaps: Mapping[int, RecordSwap] | None = None,
    others: bool = False,
) -> RedisFlow:
    command = plan.command(steps, keys, now, swaps or {})
    return router.ask(
        keys[0], (command,), script=plan.script, consuming=True, keys=keys, others=others
    )


class _DecidedHere:
    """Steps of which some have no Lua, whose keys one script may use."""

    def __init__(
        self,
        router: RedisRouter,
        plan: Plan,
        steps: Sequence[Step],
        keys: Sequence[str],
        others: bool = False,
    ) -> None:
        self._router = router
        self._plan = plan
        self._steps = steps
        self._keys = keys
        self._others = others

    def run(self, now: int) -> RedisFlow:
        """The results, and the instant of the decision."""
        for race in range(_RACES):
            records, server_now = yield from self._look()
            at = now or server_now
            decided, writes = self._decide(records, at)
            swaps = self._swaps(decided, records, writes, at, server_now)
            (reply,) = yield from _ask(
                self._router, self._plan, self._steps, self._keys, at, swaps, self._others
            )
            if type(reply) is not list:
                raise malformed(reply)
            # The instant alone says that a record has changed.
            if len(reply) != 1:
                answers = self._plan.answers(self._steps, reply, decided)
                return self._as_they_stand(answers, records, at), at
            try:
                yield Delay(random.uniform(0, min(2.0**race, _LONGEST_PAUSE_MS)))
            except ConnectionFailedError:
                break
        raise StoreUnavailableError(
            f"{names_of(self._keys)} was changed by others each time before this request could be "
            "written; it was not charged; give the strategy a Lua accelerator, or raise timeout_ms"
        )

    def _look(self) -> RedisFlow:
        """The records of the keys that are decided here, and the server's time."""
        keys = list(dict.fromkeys(self._keys[place] for place in self._plan.here))
        commands: list[Command] = [(b"GET", key.encode()) for key in keys]
        *raws, time = yield from self._router.ask(
            keys[0], [*commands, TIME], consuming=False, keys=self._keys, others=self._others
        )
        return dict(zip(keys, map(text_or_none, raws), strict=True)), ms_of(time)

    def _as_they_stand(self, answers: list[Any], records: dict[str, Any], now: int) -> list[Any]:
        """The answers, with those of the steps that were decided here as a denied request gets
        them."""
        pairs = zip(self._steps, answers, strict=True)
        if all(step.shadow or step.transform.admits(answer) for step, answer in pairs):
            return answers
        here = self._plan.here
        stand = as_they_stand(
            [self._steps[place] for place in here],
            [answers[place] for place in here],
            lambda key, transform: record.restore(records[key], key, transform, now),
            lambda _key: now,
        )
        for place, answer in zip(here, stand, strict=True):
            answers[place] = answer
        return answers

    def _decide(
        self, records: dict[str, Any], now: int
    ) -> tuple[dict[int, Any], dict[str, tuple[Transform[Any], Any]]]:
        """The results by place, and the records to write."""

        def read(key: str, transform: Transform[Any]) -> Any:
            return record.restore(records[key], key, transform, now)

        # As shadows: whether anything is written is for the script to say.
        steps = [self._steps[place]._replace(shadow=True) for place in self._plan.here]
        results, writes = decide_all(steps, read, lambda _key: now)
        return dict(zip(self._plan.here, results, strict=True)), writes

    def _swaps(
        self,
        decided: dict[int, Any],
        records: dict[str, Any],
        writes: dict[str, tuple[Transform[Any], Any]],
        now: int,
        server_now: int,
    ) -> dict[int, RecordSwap]:
        """The steps that were decided here. The last one of a key writes it."""
        last = {self._keys[place]: place for place in self._plan.here}
        swaps: dict[int, RecordSwap] = {}
        for place in self._plan.here:
            step, key = self._steps[place], self._keys[place]
            keep_ms, text = 0, b""
            if last[key] == place and key in writes:
                transform, outcome = writes[key]
                keep_ms = -1
                if outcome.state is not None:
                    ttl_ms = outcome.ttl_ms
                    text = record.pack(transform.kind, outcome.state, now + ttl_ms).encode()
                    # A caller ahead of the server: those who ask by the right time need it longer.
                    keep_ms = max(0, now - server_now) + record.keep_ms(ttl_ms)
            admits = step.shadow or step.transform.admits(decided[place])
            held = records[key]
            held = b"" if held is None else held if isinstance(held, bytes) else held.encode()
            swaps[place] = RecordSwap(int(admits), keep_ms, held, text)
        return swaps
