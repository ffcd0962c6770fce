"""The smallest honest stores, and what becomes of them when one promise is dropped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from penstock import Store, Transform
from penstock.core._steps import decide_all


class DictStore(Store):
    """A store as a third party might write it: one method."""

    def __init__(self) -> None:
        self.lock: Any = threading.Lock()
        self.states: dict[str, tuple[Any, int]] = {}
        self.closed = False

    def apply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        with self.lock:
            outcome = transform.run(self.read(key, now), now, cost)
            self.write(key, outcome, now)
            return outcome.result

    def read(self, key: str, now: int) -> Any:
        state, expires = self.states.get(key, (None, 0))
        return state if now < expires else None

    def write(self, key: str, outcome: Any, now: int) -> None:
        if outcome.persist and outcome.state is None:
            self.states.pop(key, None)
        elif outcome.persist:
            self.states[key] = (outcome.state, now + outcome.ttl_ms)

    def close(self) -> None:
        self.closed = True


class AsyncOnlyStore(Store):
    """The same, awaitable."""

    def __init__(self) -> None:
        self.inner = DictStore()
        self.lock = asyncio.Lock()
        self.closed = False

    async def aapply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        async with self.lock:
            await asyncio.sleep(0)
            return self.inner.apply(key, transform, now, cost)

    async def aclose(self) -> None:
        self.closed = True


class _NoLock:
    def __enter__(self) -> None: ...

    def __exit__(self, *_exc: object) -> None: ...


class NonAtomicStore(DictStore):
    """Lets others in between reading and writing."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = _NoLock()


class LeakingStore(DictStore):
    """Mixes up keys that begin alike."""

    def read(self, key: str, now: int) -> Any:
        return super().read(key[:1], now)

    def write(self, key: str, outcome: Any, now: int) -> None:
        super().write(key[:1], outcome, now)


class CaseBlindStore(DictStore):
    """Mixes up keys that differ in case."""

    def read(self, key: str, now: int) -> Any:
        return super().read(key.lower(), now)

    def write(self, key: str, outcome: Any, now: int) -> None:
        super().write(key.lower(), outcome, now)


class ShortKeyStore(DictStore):
    """Cuts long keys off, as a column of fixed width would."""

    def read(self, key: str, now: int) -> Any:
        return super().read(key[:255], now)

    def write(self, key: str, outcome: Any, now: int) -> None:
        super().write(key[:255], outcome, now)


class ImmortalStore(DictStore):
    """Ignores the TTL."""

    def read(self, key: str, now: int) -> Any:
        return self.states.get(key, (None, 0))[0]


class LateStore(DictStore):
    """Forgets one millisecond late."""

    def read(self, key: str, now: int) -> Any:
        return super().read(key, now - 1)


class EarlyStore(DictStore):
    """Forgets one millisecond early."""

    def read(self, key: str, now: int) -> Any:
        return super().read(key, now + 1)


class FirstTtlStore(DictStore):
    """Keeps the TTL of the first write."""

    def write(self, key: str, outcome: Any, now: int) -> None:
        known = self.read(key, now) is not None
        expires = self.states.get(key, (None, 0))[1]
        super().write(key, outcome, now)
        if known and key in self.states:
            self.states[key] = (self.states[key][0], expires)


class EagerStore(DictStore):
    """Writes denials too."""

    def write(self, key: str, outcome: Any, now: int) -> None:
        if outcome.state is not None:
            self.states[key] = (outcome.state, now + outcome.ttl_ms)
        elif outcome.persist:
            self.states.pop(key, None)


class TouchingStore(DictStore):
    """Reading renews the TTL."""

    def read(self, key: str, now: int) -> Any:
        state = super().read(key, now)
        if state is not None:
            self.states[key] = (state, max(self.states[key][1], now + 60_000))
        return state


class StubbornStore(DictStore):
    """Its reset does nothing."""

    def reset(self, key: str) -> None: ...


class SweepingResetStore(DictStore):
    """Its reset forgets everybody."""

    def reset(self, key: str) -> None:
        self.states.clear()


class FourteenDigitStore(DictStore):
    """Writes floats the way Lua does by default."""

    def write(self, key: str, outcome: Any, now: int) -> None:
        if isinstance(outcome.state, float):
            outcome.state = float(f"{outcome.state:.14g}")
        super().write(key, outcome, now)


class TruthyStore(DictStore):
    """Takes every falsy state for none."""

    def read(self, key: str, now: int) -> Any:
        return super().read(key, now) or None


class UnorderedStore(DictStore):
    """Runs a batch once per distinct key."""

    def apply_many(
        self, keys: Sequence[str], transform: Transform[Any], now: int, cost: int
    ) -> list[Any]:
        results = {key: self.apply(key, transform, now, cost) for key in dict.fromkeys(keys)}
        return [results[key] for key in keys]


class RoundingStore(DictStore):
    """Tells the instant to the second."""

    def apply_timed(
        self, key: str, transform: Transform[Any], now: int, cost: int
    ) -> tuple[Any, int]:
        result, at = super().apply_timed(key, transform, now, cost)
        return result, at // 1000 * 1000


class HoardingStore(DictStore):
    """Keeps None as a state instead of deleting the key, and shows it."""

    def read(self, key: str, now: int) -> Any:
        state = super().read(key, now)
        return "deleted" if state is self else state

    def write(self, key: str, outcome: Any, now: int) -> None:
        if outcome.persist:
            held = self if outcome.state is None else outcome.state
            self.states[key] = (held, now + max(1, outcome.ttl_ms))

    def reset(self, key: str) -> None:
        self.states.pop(key, None)


class WedgedStore(DictStore):
    """Writes before the transform has finished."""

    def apply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        with self.lock:
            state, expires = self.states.pop(key, (None, 0))
            outcome = transform.run(state if now < expires else None, now, cost)
            if state is not None:
                self.states[key] = (state, expires)
            self.write(key, outcome, now)
            return outcome.result


class OwnTimeStore(DictStore):
    """Rounds the instant it is given to seconds."""

    def apply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        return super().apply(key, transform, now // 1000 * 1000, cost)


class FragileStore(DictStore):
    """Cannot be closed twice."""

    def close(self) -> None:
        if self.closed and len(self.states) == 1:
            self.states.clear()
            raise RuntimeError("already closed")
        super().close()


class NonAtomicAsyncStore(AsyncOnlyStore):
    """Awaits between reading and writing."""

    async def aapply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        state = self.inner.read(key, now)
        await asyncio.sleep(0)
        outcome = transform.run(state, now, cost)
        self.inner.write(key, outcome, now)
        return outcome.result


class HalfOpenAsyncStore(DictStore):
    """Sound when called, leaking when awaited."""

    async def aapply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        return self.apply(key[:1], transform, now, cost)


class GreedyStore(DictStore):
    """Charges each key for itself."""

    def apply_all(self, steps: Sequence[Any], now: int) -> list[Any]:
        return [self.apply(step.key, step.transform, now, step.cost) for step in steps]


class ForgetfulStore(DictStore):
    """Decides every step on what was there before the first one."""

    def apply_all(self, steps: Sequence[Any], now: int) -> list[Any]:
        with self.lock:
            made = [
                (step, step.transform.run(self.read(step.key, now), now, step.cost))
                for step in steps
            ]
            if all(step.shadow or step.transform.admits(out.result) for step, out in made):
                for step, outcome in made:
                    self.write(step.key, outcome, now)
            return [outcome.result for _, outcome in made]


class SternStore(DictStore):
    """Lets shadows deny."""

    def apply_all(self, steps: Sequence[Any], now: int) -> list[Any]:
        return super().apply_all([step._replace(shadow=False) for step in steps], now)


class CarelessStore(DictStore):
    """Looks at all keys, then lets others in before it charges them."""

    def apply_all(self, steps: Sequence[Any], now: int) -> list[Any]:
        results, writes = decide_all(
            steps, lambda key, _transform: self.read(key, now), lambda _key: now
        )
        time.sleep(0)
        for key, (_, outcome) in writes.items():
            self.write(key, outcome, now)
        return results


BROKEN = [
    pytest.param(NonAtomicStore, "applies atomically", id="non-atomic"),
    pytest.param(LeakingStore, "isolates keys", id="leaking"),
    pytest.param(CaseBlindStore, "isolates keys", id="case-blind"),
    pytest.param(ShortKeyStore, "takes any key", id="short-key"),
    pytest.param(ImmortalStore, "expires after its TTL", id="immortal"),
    pytest.param(LateStore, "expires after its TTL", id="late"),
    pytest.param(EarlyStore, "expires after its TTL", id="early"),
    pytest.param(FirstTtlStore, "a write renews the TTL", id="first-ttl"),
    pytest.param(EagerStore, "a denial writes nothing", id="eager"),
    pytest.param(TouchingStore, "only writes renew the TTL", id="touching"),
    pytest.param(StubbornStore, "reset clears", id="stubborn-reset"),
    pytest.param(SweepingResetStore, "reset clears", id="sweeping-reset"),
    pytest.param(FourteenDigitStore, "round-trips states", id="fourteen-digits"),
    pytest.param(TruthyStore, "tells falsy from absent", id="truthy"),
    pytest.param(HoardingStore, "None deletes", id="hoarding"),
    pytest.param(UnorderedStore, "apply_many equals apply", id="unordered"),
    pytest.param(RoundingStore, "apply_timed tells the instant", id="rounding"),
    pytest.param(WedgedStore, "a failing transform changes nothing", id="wedged"),
    pytest.param(OwnTimeStore, "passes the instant and the cost", id="own-time"),
    pytest.param(GreedyStore, "several keys are all or nothing", id="greedy"),
    pytest.param(ForgetfulStore, "a key may be named twice", id="forgetful"),
    pytest.param(SternStore, "a shadow never denies", id="stern"),
    pytest.param(CarelessStore, "several keys agree in a crowd", id="careless"),
    pytest.param(FragileStore, "closes twice", id="fragile"),
]
