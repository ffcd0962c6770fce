"""A policy of a real service, asked like a limiter: sync and async, over HTTP and over gRPC."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    Forecast,
    ManualClock,
    RateLimitExceededError,
    UnsupportedError,
    Verdict,
    limited,
)
from penstock.client import ServiceCharge, ServiceLimiter
from tests.client.asking import Asked, asking
from tests.client.serving import TOKEN, RunningService, still
from tests.servers import FaultProxy
from tests.support.helpers import NOW

LEFT_MS = 40_000
"""Of the minute that NOW is in."""

SHORT_MS = 2_000
FLIGHT = f"""
version: 1
limiters:
  flight: {{limits: {{flight: {{by: key, strategy: slots, limit: 1, ttlMs: {SHORT_MS}}}}}}}
"""


def test_a_key_is_decided_by_the_service(ask: Callable[..., Asked], key: str) -> None:
    limiter = ask("one")
    assert limiter.check(key) == Decision(True, 2, 1, NOW + LEFT_MS, 0)
    assert limiter.peek(key) == Decision(True, 2, 1, NOW + LEFT_MS, 0)
    assert limiter.forecast(key) == Forecast(1, NOW + LEFT_MS, NOW + LEFT_MS)
    assert limiter.check(key, 1)
    assert limiter.check(key) == Decision(False, 2, 0, NOW + LEFT_MS, LEFT_MS)
    told = limiter.check_many([key, f"{key}-other"], 2)
    assert [decision.allowed for decision in told] == [False, True]


def test_attributes_get_a_verdict(ask: Callable[..., Asked], key: str) -> None:
    """With all that the limits said, shadows apart."""
    limiter = ask("api")
    for _ in range(3):
        verdict = limiter.check({"user": key, "tenant": key})
    assert isinstance(verdict, Verdict)
    assert (verdict.allowed, verdict.binding, verdict.remaining) == (True, "user", 0)
    assert list(verdict.limits) == ["user", "tenant", "all"]
    assert list(verdict.enforced) == ["user", "tenant"]
    denied = limiter.check({"user": key, "tenant": key})
    assert (denied.allowed, denied.violated) == (False, ("user",))
    assert limiter.peek({"user": key}).violated == ("user",)
    assert limiter.forecast({"user": key}).spendable_now == 0
    assert limiter.check({"user": key, "plan": "pro", "tokens": 700}).limits["tokens"].limit == 1000


def test_what_was_reserved_is_settled_once(ask: Callable[..., Asked], key: str) -> None:
    limiter = ask("api")
    charge = limiter.reserve({"user": key, "tokens": 900})
    assert (charge.allowed, charge.is_open, charge.starts_at) == (True, True, NOW)
    assert limiter.on(charge, "settle", {"tokens": 100}) is True
    assert (charge.is_open, limiter.on(charge, "settle", 1)) == (False, False)
    left = limiter.check({"user": key, "tokens": 0})
    assert (left.limits["tokens"].remaining, left.limits["user"].remaining) == (900, 1)
    again = ServiceCharge(limiter.limiter, left, charge.id, charged_at=NOW, starts_at=NOW)
    assert limiter.on(again, "cancel") is False, "another holder of the id comes too late"


def test_a_settlement_reports_what_it_could_not_charge(ask: Callable[..., Asked], key: str) -> None:
    """By the name of the limit; a key owes at most one whole limit."""
    limiter = ask("api")
    charge = limiter.reserve({"user": key, "tokens": 900})
    assert limiter.on(charge, "settle", {"tokens": 2**53 - 1}) is True
    assert charge.uncharged == {"tokens": 2**53 - 1 - 2_000}


def test_a_settlement_of_one_limit_reports_what_it_could_not_charge(
    ask: Callable[..., Asked], key: str
) -> None:
    limiter = ask("one")
    charge = limiter.reserve(key)
    assert limiter.on(charge, "settle", 10) is True
    assert charge.uncharged == {"": 6}


def test_a_cancelled_charge_gives_everything_back(ask: Callable[..., Asked], key: str) -> None:
    limiter = ask("one")
    charge = limiter.reserve(key, 2)
    assert limiter.peek(key).remaining == 0
    denied = limiter.reserve(key)
    assert (denied.allowed, denied.id, limiter.on(denied, "cancel")) == (False, "", False)
    with pytest.raises(ConfigInvalidError, match="denied"):
        limiter.on(denied, "settle", 1)
    assert limiter.on(charge, "cancel") is True
    assert limiter.peek(key).remaining == 2


def test_slots_of_a_charge_are_renewed(ask: Callable[..., Asked], key: str) -> None:
    limiter = ask("key")
    charge = limiter.reserve({"key": key})
    assert limiter.on(charge, "renew") is True
    assert limiter.reserve({"key": key}).verdict.violated == ("flight",)
    assert limiter.on(charge, "settle", {}) is True
    assert limiter.on(charge, "renew") is False
    assert limiter.reserve({"key": key}).allowed


@pytest.mark.parametrize("fault", ["swallow", "refuse"])
@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize("way", ["sync", "async"])
def test_who_is_cut_off_from_the_service_is_told_before_its_slots_expire(
    way: str, transport: str, fault: str
) -> None:
    """Once, by its own clock, though a call may hang for longer than the slots last."""
    told: list[tuple[ServiceCharge, float]] = []

    def lost(charge: ServiceCharge) -> None:
        told.append((charge, time.monotonic()))

    async def holding(proxy: FaultProxy) -> None:
        url = f"{transport}://127.0.0.1:{proxy.port}"
        async with ServiceLimiter(url, "flight", token=TOKEN, timeout_ms=10_000) as limiter:
            before = time.monotonic()
            charge = await limiter.areserve({"key": "k"})
            assert charge.holds
            getattr(charge, "keep_renewed" if way == "sync" else "akeep_renewed")(lost)
            getattr(proxy, fault)()
            while not told:
                assert time.monotonic() < before + 30
                await asyncio.sleep(0.01)
            assert not charge.holds
            assert (charge.is_lost, charge.is_open) == (True, True)
            # It expires a ttl after it was taken, which was not before this.
            assert told[0][1] < before + SHORT_MS / 1000
            proxy.restore()
            await asyncio.sleep(0.3)
            assert [each for each, _ in told] == [charge]

    with RunningService(policies=FLIGHT) as running:
        port = int(running.url(transport).rpartition(":")[2])
        with FaultProxy(port) as proxy:
            asyncio.run(asyncio.wait_for(holding(proxy), 60))


@pytest.mark.parametrize("way", ["sync", "async"])
def test_slots_that_are_kept_are_renewed_until_they_are_lost(way: str) -> None:
    """By a thread or by a task; who holds them is told when the service gave them away."""
    told: list[ServiceCharge] = []

    async def holding(running: RunningService, limiter: ServiceLimiter) -> None:
        assert running.clock is not None
        charge = await limiter.areserve({"key": "kept"})
        if way == "sync":
            charge.keep_renewed(told.append)
        else:
            charge.akeep_renewed(told.append)

        async def until(happened: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 30
            while not happened():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)

        for _ in range(2):
            running.clock.advance(8_000)
            left = [0]
            while left[0] < 10_000:
                denied = (await limiter.areserve({"key": "kept"})).verdict
                assert denied is not None
                assert denied.violated == ("flight",)
                left[0] = denied.limits["flight"].reset_at - running.clock.now()
                await asyncio.sleep(0.02)
        assert (charge.is_lost, told) == (False, [])
        await limiter.areset({"key": "kept"})
        await until(lambda: charge.is_lost)
        await until(lambda: told == [charge])
        kept = (await limiter.areserve({"key": "kept"})).akeep_renewed()
        with pytest.raises(ConfigInvalidError, match="already"):
            kept.akeep_renewed()
        assert await kept.acancel()
        await limiter.aclose()

    with still() as running:
        options: Any = {"token": TOKEN, "timeout_ms": 10_000, "heartbeat_ms": 100}
        limiter = ServiceLimiter(running.url("http"), "key", **options)
        asyncio.run(asyncio.wait_for(holding(running, limiter), 60))


@pytest.mark.parametrize("way", ["sync", "async"])
def test_who_gives_slots_back_is_not_told_that_they_are_lost(way: str) -> None:
    """By a renewal that finds them gone while the answer to `cancel` is on its way."""
    told: list[ServiceCharge] = []

    async def holding(limiter: ServiceLimiter) -> None:
        charge = await limiter.areserve({"key": "given"})
        if way == "sync":
            charge.keep_renewed(told.append)
        else:
            charge.akeep_renewed(told.append)
        transport: Any = limiter._transport
        acall = transport.acall

        async def slow(call: str, fields: Any) -> Any:
            answer = await acall(call, fields)
            if call == "cancel":
                deadline = time.monotonic() + 30
                while charge.holds:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.02)
                await asyncio.sleep(0.2)
            return answer

        transport.acall = slow
        async with limiter:
            assert await charge.acancel()
            assert (told, charge.is_lost, charge.is_open) == ([], False, False)

    with still() as running:
        options: Any = {"token": TOKEN, "timeout_ms": 10_000, "heartbeat_ms": 100}
        limiter = ServiceLimiter(running.url("http"), "key", **options)
        asyncio.run(asyncio.wait_for(holding(limiter), 60))


def test_what_a_policy_with_slots_admits_is_held(way: tuple[str, str]) -> None:
    """`acquire` waits for a slot and answers with the charge that holds it; so does `take`."""
    clock = ManualClock(NOW)
    with (
        RunningService(clock) as running,
        asking(running.url(way[0]), "key", way[1], clock=clock) as limiter,
    ):
        held = limiter.acquire("k", timeout=30)
        assert isinstance(held, ServiceCharge)
        assert (held.allowed, held.is_open, held.ttl_ms) == (True, True, 10_000)
        with pytest.raises(RateLimitExceededError) as caught:
            limiter.acquire("k", timeout=0)
        assert caught.value.decision == limiter.peek("k")
        assert limiter.forecast("k").spendable_now == 0
        clock.advance(1_000)
        assert held.ttl_ms == 10_000
        assert limiter.on(held, "settle", {}) is True
        again = limiter.take({"key": "k"})
        assert (again.allowed, list(again.verdict.limits)) == (True, ["each", "flight"])
        assert not limiter.take({"key": "k"})
    with still() as running, asking(running.url(way[0]), "one", way[1]) as limiter:
        assert limiter.take("k") == Decision(True, 2, 1, NOW + LEFT_MS, 0)


def test_a_slot_that_comes_back_is_given_to_who_waits(service: RunningService) -> None:
    """Long before it would have run out."""
    url = service.url("http")
    with ServiceLimiter(url, "key", token=TOKEN, timeout_ms=10_000) as limiter:
        first: Any = limiter.acquire("waited for")
        waiting = threading.Thread(target=lambda: got.append(limiter.acquire("waited for")))
        got: list[Any] = []
        waiting.start()
        assert first.settle({})
        waiting.join(30)
        assert got[0].allowed
        assert got[0].cancel()


def test_a_function_may_wait_for_a_policy(service: RunningService, key: str) -> None:
    """By its key or by attributes; slots are held while it runs, and given back."""
    url = service.url("http")
    with (
        ServiceLimiter(url, "one", token=TOKEN, timeout_ms=10_000) as one,
        ServiceLimiter(url, "key", token=TOKEN, timeout_ms=10_000) as several,
    ):

        @limited(one, key="{user}", timeout=0)
        def send(user: str) -> str:
            return user

        assert [send(key), send(key)] == [key, key]
        with pytest.raises(RateLimitExceededError):
            send(key)

        @limited(several, key={"key": "{user}"}, timeout=0)
        async def work(user: str) -> int:
            return (await several.apeek({"key": user})).limits["flight"].remaining

        async def main() -> list[int]:
            found = [await work(key), await work(key)]
            await several.aclose()
            return found

        assert asyncio.run(main()) == [0, 0]
        assert several.peek({"key": key}).limits["flight"].remaining == 1


def test_units_are_booked_ahead(ask: Callable[..., Asked], key: str) -> None:
    limiter = ask("pace")
    assert limiter.reserve({"user": key}).starts_at == NOW
    assert limiter.reserve({"user": key}, max_wait_ms=5_000).starts_at == NOW + 1_000


def test_what_was_used_is_debited(ask: Callable[..., Asked], key: str) -> None:
    """The one that crosses the budget is counted in full; after it nobody is admitted."""
    words = ask("words")
    assert words.debit(key, 60) == Decision(True, 100, 40, NOW + LEFT_MS, 0)
    assert words.debit(key, 60) == Decision(True, 100, 0, NOW + LEFT_MS, 0)
    assert words.debit(key) == Decision(False, 100, 0, NOW + LEFT_MS, LEFT_MS)
    with pytest.raises(ConfigInvalidError, match="tokens must be"):
        words.debit(key, 0)
    with pytest.raises(UnsupportedError):
        ask("one").debit(key)


def test_costs_are_told_by_limit(ask: Callable[..., Asked], key: str) -> None:
    """As to `Limits`: those that are left out cost 1, or what an attribute says."""
    several, user = ask("api"), {"user": key}
    verdict = several.check(user, {"tokens": 300})
    assert (verdict.limits["tokens"].remaining, verdict.limits["user"].remaining) == (700, 2)
    verdict = several.check({**user, "tokens": 200}, {"user": 0})
    assert (verdict.limits["tokens"].remaining, verdict.limits["user"].remaining) == (500, 2)
    assert several.forecast(user, {"tokens": 250}).spendable_now == 2
    charge = several.reserve(user, {"tokens": 400})
    assert several.on(charge, "cancel") is True
    assert several.acquire(user, {"tokens": 100}).limits["tokens"].remaining == 400
    assert several.check(user, {}).limits["user"].remaining == 0
    assert ask("paired").check(key, {"second": 4}).limits["second"].remaining == 6


def test_many_requests_get_a_verdict_each(ask: Callable[..., Asked], key: str) -> None:
    """One that is wrong charges none of them."""
    several, user = ask("api"), {"user": key}
    told = several.check_many([user, {**user, "tokens": 7}], {"user": 2})
    assert [verdict.allowed for verdict in told] == [True, False]
    assert told[1].violated == ("user",)
    with pytest.raises(ConfigInvalidError, match="'user' is missing"):
        several.check_many([user, {"tenant": "t"}])
    assert several.peek(user).limits["user"].remaining == 1
    assert [each.remaining for each in ask("paired").check_many([key, key], {"first": 2})] == [8, 6]
    assert several.check_many([]) == []


@pytest.mark.parametrize(
    ("cost", "told"),
    [
        ({"colour": 1}, "there is no limit 'colour' in policy 'api'; there are user, tenant"),
        ({"tenant": 1}, "but its key, the attribute 'tenant', is missing; send it, or leave out"),
        ({"user": -1}, "the cost of 'user' must be"),
        ({"user": 1.5}, "the cost of 'user' must be"),
        ({"user": 2**53}, "the cost of 'user' must be"),
        ({1: 1}, "has the names of limits"),
    ],
)
def test_costs_that_cannot_be_right_charge_nothing(
    ask: Callable[..., Asked], key: str, cost: dict[Any, Any], told: str
) -> None:
    several, user = ask("api"), {"user": key}
    for call in (several.check, several.forecast, several.reserve):
        with pytest.raises(ConfigInvalidError, match=told):
            call(user, cost)
    with pytest.raises(ConfigInvalidError, match=told):
        several.check_many([user], cost)
    with pytest.raises(ConfigInvalidError, match="has a single limit: pass a key"):
        ask("one").check(key, {"user": 1})
    assert several.peek(user).limits["user"].remaining == 3


def test_a_key_alone_is_the_attribute_of_that_name(ask: Callable[..., Asked], key: str) -> None:
    """By whatever is asked."""
    paired = ask("paired")
    assert paired.check(key, 2).remaining == 8
    assert paired.peek(key).remaining == 8
    assert paired.forecast(key, 4).spendable_now == 2
    assert [told.remaining for told in paired.check_many([key, key])] == [7, 6]
    assert paired.reserve(key, 2).allowed


def test_pauses_and_resets_are_obeyed(ask: Callable[..., Asked], key: str) -> None:
    limiter = ask("one")
    limiter.pause(key, NOW + 30_000)
    assert limiter.check(key).retry_after_ms >= 30_000
    limiter.reset(key)
    assert limiter.check(key)
    several = ask("api")
    several.pause({"user": key, "tenant": key}, NOW + 30_000, limits=["tenant"])
    assert several.check({"user": key, "tenant": key}).violated == ("tenant",)
    several.reset({"user": key, "tenant": key})
    assert several.check({"user": key, "tenant": key})


def test_the_words_of_the_service_are_passed_on(ask: Callable[..., Asked], key: str) -> None:
    with pytest.raises(ConfigInvalidError, match="nowhere"):
        ask("nowhere").check(key)
    with pytest.raises(ConfigInvalidError, match="user"):
        ask("api").check({"tenant": key})
    with pytest.raises(UnsupportedError):
        ask("flight").check(key)
    with pytest.raises(ConfigInvalidError, match="token"):
        ask("one", token="a-wrong-token-of-somebody").check(key)
    with pytest.raises(ConfigInvalidError, match="token"):
        ask("one", token=None).check(key)


def test_mistakes_are_told_before_anything_is_sent(ask: Callable[..., Asked], key: str) -> None:
    limiter = ask("one")
    for call in (
        lambda: limiter.check(""),
        lambda: limiter.check(key, 0),
        lambda: limiter.check(7),
        lambda: limiter.check({"user": 1.5}),
        lambda: limiter.check_many("text"),
        lambda: limiter.pause(key, -1),
        lambda: limiter.reserve(key, max_wait_ms=-1),
        lambda: limiter.on(limiter.reserve(key), "settle", -1),
    ):
        with pytest.raises(ConfigInvalidError):
            call()


def test_acquire_waits_until_it_is_admitted(way: tuple[str, str]) -> None:
    """By the time that the service says; what can never be admitted is refused."""
    with RunningService() as service, asking(service.url(way[0]), "paced", way[1]) as limiter:
        for _ in range(3):
            assert limiter.acquire("k", timeout=30).allowed
        with pytest.raises(ConfigInvalidError, match="at most 1"):
            limiter.acquire("k", 2)
    with still() as service, asking(service.url(way[0]), "api", way[1]) as limiter:
        assert limiter.acquire({"user": "u"}, timeout=0)
        limiter.check({"user": "u"}, 2)
        with pytest.raises(RateLimitExceededError) as caught:
            limiter.acquire({"user": "u"}, timeout=1)
        assert caught.value.decision.retry_after_ms == LEFT_MS


def test_a_block_settles_and_an_exception_cancels(service: RunningService, way: Any) -> None:
    """Left normally, what was reserved stays spent: also over gRPC, where nothing by limit could be
    taken for nothing at all."""
    transport, kind = way
    limiter = ServiceLimiter(service.url(transport), "one", token=TOKEN, timeout_ms=10_000)
    kept, lost = f"kept-{way}", f"lost-{way}"

    def sync() -> None:
        with limiter, limiter.reserve(kept, 2):
            pass
        with pytest.raises(RuntimeError), limiter.reserve(lost, 2):
            raise RuntimeError
        assert (limiter.peek(kept).remaining, limiter.peek(lost).remaining) == (0, 2)
        limiter.close()

    async def awaited() -> None:
        async with limiter:
            async with await limiter.areserve(kept, 2):
                pass
            with pytest.raises(RuntimeError):
                async with await limiter.areserve(lost, 2):
                    raise RuntimeError
            assert (await limiter.apeek(kept)).remaining == 0
            assert (await limiter.apeek(lost)).remaining == 2

    sync() if kind == "sync" else asyncio.run(awaited())


def test_threads_share_a_limiter(service: RunningService, key: str) -> None:
    """Exactly as many are admitted as the policy allows."""
    with ServiceLimiter(service.url("http"), "one", token=TOKEN, timeout_ms=10_000) as limiter:
        told: list[bool] = []

        def ask() -> None:
            told.extend([limiter.check(key).allowed for _ in range(5)])

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(told), sum(told)) == (40, 2)


def test_waiters_of_one_key_are_served_in_order(service: RunningService, key: str) -> None:
    """One asks, the others wait; a reset here lets them ask again at once."""

    async def main() -> list[int]:
        served: list[int] = []
        url = service.url("http")
        async with ServiceLimiter(url, "one", token=TOKEN, timeout_ms=10_000) as limiter:
            await limiter.acheck(key, 2)

            async def wait(number: int) -> None:
                await limiter.aacquire(key, timeout=600)
                served.append(number)

            tasks = []
            for number in range(4):
                tasks.append(asyncio.create_task(wait(number)))
                # Behind the first check: then it has been denied, and those after it only wait.
                for _ in range(3):
                    await limiter.apeek(key)
            while len(served) < 4:
                await limiter.areset(key)
                await asyncio.sleep(0.01)
            await asyncio.gather(*tasks)
        return served

    assert asyncio.run(main()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("redis://localhost", {}, "its scheme is none of"),
        ("localhost:8080", {}, "its scheme is none of"),
        ("http://", {}, "no host"),
        ("http://host:port", {}, "no valid host"),
        ("http://user:secret@host", {}, "token="),
        ("http://host?token=secret", {}, "token="),
        ("grpc://host", {}, "a host and a port"),
        ("grpc://host:1/path", {}, "a host and a port"),
        (7, {}, "not a int"),
        ("http://host", {"tls": object()}, "https://"),
        ("https://host", {"tls": object()}, "SSLContext"),
        ("grpcs://host:1", {"tls": object()}, "ssl_channel_credentials"),
        ("http://host", {"token": ""}, "printable"),
        ("http://host", {"token": "a\nb"}, "printable"),
        ("http://host", {"fail": "ajar"}, "fail"),
        ("http://host", {"timeout_ms": 0}, "timeout_ms"),
        ("http://host", {"max_waiters": -1}, "max_waiters"),
        ("http://host", {"policy": ""}, "policy"),
    ],
)
def test_what_cannot_be_right_is_refused_at_once(
    url: Any, options: dict[str, Any], text: str
) -> None:
    """Without repeating what may hold a secret."""
    with pytest.raises(ConfigInvalidError, match=text) as caught:
        ServiceLimiter(url, **{"policy": "p", **options})
    assert "secret" not in str(caught.value)
