"""One operation on a key, with the instant at which Redis decided it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    Limits,
    Outcome,
    calendar_quota,
    gcra,
    rate_limit,
    slots,
)
from penstock.core._transform import booking, checking, refunding, releasing, taking
from penstock.stores.redis import RedisStore
from penstock.strategies import Gcra
from tests.stores.redis.live import (
    PATIENT_MS,
    SPAN_MS,
    interpreted,
    new_key,
    patient_url_of,
    running,
)

POOL, PACE, DAY = slots(1), gcra(2, SPAN_MS), calendar_quota(5, "day")


class WithoutLua(Gcra):
    """Kept as a record, and decided in this process."""

    name = "cell_without_lua"

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        return super().check(state, now, cost)


def server_ms() -> int:
    seconds, micros = map(int, running("valkey").call("TIME"))
    return seconds * 1000 + micros // 1000


def operations(now: int) -> list[tuple[str, Any, int, int]]:
    """Of every kind of answer, denials among them, as `apply_timed` takes them."""
    pool, pace, day = new_key(), new_key(), new_key()
    return [
        (pool, taking(POOL, "one"), now, 1),
        (pool, taking(POOL, "two"), now, 1),
        (pool, releasing(POOL, "one"), now, 1),
        (pace, checking(PACE), now, 2),
        (pace, booking(PACE, 1), now, 1),
        (pace, refunding(PACE, now), now, 1),
        (day, checking(DAY), now, 5),
        (day, checking(DAY), now, 1),
    ]


def require_right(told: list[tuple[Any, int]]) -> None:
    results: list[Any] = [result for result, _ in told]
    assert [bool(results[place]) for place in (0, 1, 3, 6, 7)] == [True, False, True, True, False]
    assert (results[2], results[4].decision.allowed, results[5]) == (1, False, 1)


@pytest.mark.parametrize("by_server", [True, False])
@pytest.mark.parametrize("path", ["sync", "compiled", "interpreted"])
def test_it_says_when_it_was_decided(
    path: str, by_server: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the server's clock or the caller's, with scripts that the server knows or does not."""
    if path == "interpreted":
        interpreted(monkeypatch)
    server = running("valkey")
    store = RedisStore.from_url(server.url, use_server_time=by_server, timeout_ms=PATIENT_MS)

    async def awaited(now: int) -> list[tuple[Any, int]]:
        told = [await store.aapply_timed(*each) for each in operations(now)]
        await store.aclose()
        return told

    server.call("SCRIPT", "FLUSH")
    for _ in range(2):
        before = server_ms()
        if path == "sync":
            told = [store.apply_timed(*each) for each in operations(before)]
        else:
            told = asyncio.run(awaited(before))
        require_right(told)
        instants = [at for _, at in told]
        if by_server:
            assert before <= min(instants) <= max(instants) <= server_ms()
        else:
            assert set(instants) == {before}
    store.close()


@pytest.mark.parametrize("several", [False, True])
def test_without_lua_a_reservation_is_charged_and_refunded(several: bool) -> None:
    """The step that asks for the instant is the last one on the key, and does not write: the one
    before it does."""
    store = RedisStore.from_url(patient_url_of("valkey"))
    limiter: Any = rate_limit(WithoutLua(3, SPAN_MS), store=store, prefix=new_key())
    keys: Any = "alice"
    if several:
        limits = {"plain": WithoutLua(3, SPAN_MS), "pace": gcra(10, SPAN_MS)}
        limiter, keys = Limits(limits, store=store, prefix=new_key()), dict.fromkeys(limits, "k")
    charges = [limiter.reserve(keys) for _ in range(5)]
    assert [charge.allowed for charge in charges] == [True] * 3 + [False] * 2
    assert charges[0].cancel()
    assert [limiter.reserve(keys).allowed for _ in range(2)] == [True, False]
    store.close()


@pytest.mark.parametrize("path", ["sync", "compiled", "interpreted"])
def test_a_key_of_something_else_is_named_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path == "interpreted":
        interpreted(monkeypatch)
    store, key = RedisStore.from_url(patient_url_of("valkey")), new_key()
    running("valkey").call("SADD", key, "foreign")

    async def awaited() -> None:
        await rate_limit(POOL, store=store).areserve("other")
        with pytest.raises(ConfigInvalidError, match=f"^key '{key}' holds the state of something"):
            await rate_limit(POOL, store=store).areserve(key)
        await store.aclose()

    if path == "sync":
        with pytest.raises(ConfigInvalidError, match=f"^key '{key}' holds the state of something"):
            rate_limit(POOL, store=store).reserve(key)
    else:
        asyncio.run(awaited())
    store.close()
