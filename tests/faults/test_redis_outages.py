"""RedisStore when things break: no call outlives its deadline, every fault is typed, nothing is
charged twice, and service resumes by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from penstock import Decision, StoreUnavailableError, gcra, rate_limit
from penstock.stores.record import pack
from penstock.stores.redis import RedisStore
from tests.servers import FaultProxy, Valkey, require
from tests.stores.crash import LIMIT, STRATEGY, Spender
from tests.stores.redis.live import FIVE, PATIENT_MS, new_key, running
from tests.support.helpers import Quota

from .redis_calls import LONG_MS, TIMEOUT_MS, Either, fails_in_time, retry


@pytest.fixture
def durable() -> Iterator[Valkey]:
    """One that has every write on disk before it answers."""
    require("valkey")
    with Valkey(durable=True) as server:
        yield server


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy(running("valkey").port) as between:
        yield between


def through(proxy: FaultProxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}"


@pytest.mark.parametrize("kind", [*FIVE, "quota"])
def test_a_flushed_script_cache_between_any_two_calls_is_not_noticed(
    either: Either, valkey: Valkey, kind: str
) -> None:
    """SCRIPT FLUSH before every check, peek and batch: counts go on as if nothing had happened."""
    strategy = Quota(20, LONG_MS) if kind == "quota" else FIVE[kind](20)
    limiter = either.limiter(valkey.url, strategy, timeout_ms=PATIENT_MS)
    for left in range(19, 9, -1):
        valkey.call("SCRIPT", "FLUSH")
        assert either.check(limiter, "k").remaining == left
        valkey.call("SCRIPT", "FLUSH")
        assert either.remaining(limiter, "k") == left
        valkey.call("SCRIPT", "FLUSH")
        assert [d.remaining for d in limiter.check_many([f"a{left}"] * 2)] == [19, 18]


def test_a_killed_server_is_an_error_and_its_restart_needs_no_help(
    either: Either, durable: Valkey
) -> None:
    """SIGKILL: typed errors in time. Restarted: the very first call is exact again."""
    limiter = either.limiter(durable.url)
    assert [either.check(limiter, "k").remaining for _ in range(3)] == [49, 48, 47]
    durable.kill()
    for _ in range(3):
        fails_in_time(lambda: either.check(limiter, "k"), "not charged")
    durable.restart()
    assert either.check(limiter, "k").remaining == 46


def test_no_decision_is_lost_when_the_server_is_killed_under_load(durable: Valkey) -> None:
    """kill -9 three times in the middle of a load: what was told was counted, and little else."""
    # Patient, so that a slow disk is not taken for an outage.
    url = f"{durable.url}?timeout_ms={PATIENT_MS}"
    with Spender(url, "k") as one, Spender(url, "k") as other:
        for _ in range(3):
            one.read(150)
            other.read(150)
            durable.kill()
            durable.restart()
        one.read(100)
        other.read(100)
        one.kill()
        other.kill()
    store = RedisStore.from_url(durable.url, timeout_ms=PATIENT_MS)
    spent = LIMIT - rate_limit(STRATEGY, store=store).peek("k").remaining
    store.close()
    told, doubtful = one.admitted + other.admitted, one.doubtful + other.doubtful
    assert one.outages + other.outages >= 2
    # Beside those in doubt, each process had one request under way when it was killed itself.
    assert told <= spent <= told + doubtful + 2
    assert doubtful <= 6, "each process can have one request under way per crash"


class Rivalled(Quota):
    """A quota whose key is written by somebody else whenever a request is decided."""

    def __init__(self, server: Valkey, key: str) -> None:
        super().__init__(5, LONG_MS)
        self.name = "Rivalled"
        self._write = lambda: server.call("SET", key, pack(self.name, 1, 2**52))
        self.tries = 0

    def check(self, state: Any, now: int, cost: int) -> Any:
        self.tries += 1
        self._write()
        return super().check(state, now, cost)


def test_races_that_are_always_lost_end_in_time(either: Either, valkey: Valkey) -> None:
    """Tried again and again after short pauses, then an error, and nothing was charged."""
    strategy = Rivalled(valkey, "k")
    limiter = either.limiter(valkey.url, strategy)
    # Most of the time goes into pauses; should it run out during an exchange, that is the reason.
    fails_in_time(lambda: either.check(limiter, "k"), "changed by others.*not charged|in time")
    assert 3 <= strategy.tries <= 256
    assert either.remaining(limiter, "k") == 4


def test_a_restart_between_two_calls_costs_no_request(either: Either, durable: Valkey) -> None:
    """The idle connection is dead, which is seen before anything is written to it."""
    limiter = either.limiter(durable.url, timeout_ms=PATIENT_MS)
    either.check(limiter, "k")
    time.sleep(0.02)
    durable.kill()
    durable.restart()
    assert either.check(limiter, "k").remaining == 48


def test_a_server_that_lost_its_memory_starts_afresh(either: Either, valkey: Valkey) -> None:
    """Without persistence a restart forgets what was spent: at most one more limit's worth."""
    limiter = either.limiter(valkey.url, gcra(3, LONG_MS), timeout_ms=PATIENT_MS)
    assert sum(either.check(limiter, "k").allowed for _ in range(5)) == 3
    valkey.kill()
    valkey.restart()
    assert sum(either.check(limiter, "k").allowed for _ in range(5)) == 3


def test_a_frozen_server_does_not_hang_its_callers(either: Either, valkey: Valkey) -> None:
    """SIGSTOP for 3 s: each call ends at its deadline; afterwards nobody was charged for free."""
    limiter = either.limiter(valkey.url)
    assert either.check(limiter, "k").remaining == 49
    valkey.pause()
    frozen_until = time.monotonic() + 3
    failed = 0
    while time.monotonic() < frozen_until:
        fails_in_time(lambda: either.check(limiter, "k"), "charged")
        failed += 1
    valkey.resume()
    after = retry(lambda: either.check(limiter, "k"))
    # Each lost reply costs at most its own request, and never lets one in for free.
    assert 48 - failed <= after.remaining <= 48


def test_a_reply_that_was_cut_off_is_charged_once(either: Either, proxy: FaultProxy) -> None:
    """The server acted, the reply was lost: an error that says so, one unit gone, no repetition."""
    limiter, key = either.limiter(through(proxy)), new_key()
    assert either.check(limiter, key).remaining == 49
    proxy.cut_after_request(match=b"EVALSHA", times=1)
    fails_in_time(lambda: either.check(limiter, key), "may have been charged")
    assert either.remaining(limiter, key) == 48
    assert either.check(limiter, key).remaining == 47


def test_a_clients_own_retries_do_not_repeat_a_check(proxy: FaultProxy) -> None:
    """redis-py would resend it three times; the store does not let it."""
    client = redis.Redis(host="127.0.0.1", port=proxy.port)
    assert client.get_retry().get_retries() > 0
    store = RedisStore(client, timeout_ms=TIMEOUT_MS)
    limiter, key = rate_limit(gcra(50, LONG_MS), store=store), new_key()
    limiter.check(key)
    proxy.cut_after_request(match=b"EVALSHA", times=5)
    fails_in_time(lambda: limiter.check(key), "may have been charged")
    proxy.restore()
    assert limiter.check(key).remaining == 47
    store.close()
    client.close()


def test_a_cut_transaction_is_charged_at_most_once(either: Either, proxy: FaultProxy) -> None:
    """The same promise without a script: EXEC is not repeated either."""
    limiter, key = either.limiter(through(proxy), Quota(50, LONG_MS)), new_key()
    assert either.check(limiter, key).remaining == 49
    proxy.cut_after_request(match=b"EXEC", times=1)
    fails_in_time(lambda: either.check(limiter, key), "may have been charged")
    assert either.check(limiter, key).remaining == 47


def test_a_network_that_swallows_everything_is_given_up_on_in_time(
    either: Either, proxy: FaultProxy
) -> None:
    """With a connection open, and while connecting."""
    limiter, key = either.limiter(through(proxy)), new_key()
    either.check(limiter, key)
    proxy.swallow()
    fails_in_time(lambda: either.check(limiter, key), "may have been charged")
    fresh = either.limiter(through(proxy) + "/3")
    fails_in_time(lambda: either.check(fresh, key), "not charged")
    proxy.restore()
    assert retry(lambda: either.check(limiter, key)).remaining == 48


def test_a_refused_connection_is_an_error_in_time(either: Either, proxy: FaultProxy) -> None:
    """And service is back with the server."""
    limiter, key = either.limiter(through(proxy)), new_key()
    proxy.refuse()
    fails_in_time(lambda: either.check(limiter, key), "not charged")
    proxy.restore()
    assert either.check(limiter, key).remaining == 49


def test_an_address_that_nobody_answers_is_given_up_on_in_time(either: Either) -> None:
    """A name that does not resolve included."""
    limiter = either.limiter("redis://no-such-host.invalid:6379")
    fails_in_time(lambda: either.check(limiter, "k"), "not charged")


def test_a_late_reply_never_answers_another_question(either: Either, proxy: FaultProxy) -> None:
    """Replies that come after their deadline are not mistaken for those of later requests."""
    wide = either.limiter(through(proxy), gcra(1_000, LONG_MS), prefix="wide")
    narrow = rate_limit(gcra(7, LONG_MS), store=wide.store, prefix="narrow")
    key = new_key()
    either.check(wide, key)
    proxy.delay(TIMEOUT_MS + 60)
    for _ in range(2):
        fails_in_time(lambda: either.check(wide, key), "charged")
    proxy.delay(30)
    for _ in range(5):
        assert retry(lambda: either.check(narrow, key)).limit == 7
        assert retry(lambda: either.check(wide, key)).limit == 1_000


def test_tasks_that_share_a_connection_fail_and_recover_each_on_its_own(proxy: FaultProxy) -> None:
    """Of 40 tasks on a stalling line those in time are answered, each with its own reply."""

    async def main() -> None:
        store = RedisStore.from_url(through(proxy), timeout_ms=TIMEOUT_MS)
        limiters = [rate_limit(gcra(n, LONG_MS), store=store, prefix=str(n)) for n in range(1, 41)]
        key = new_key()
        await limiters[0].acheck(f"{key}-warm")
        proxy.delay(TIMEOUT_MS - 50)

        async def late(number: int) -> Any:
            await asyncio.sleep(number * 0.005)
            if number == 20:
                await asyncio.to_thread(proxy.delay, TIMEOUT_MS + 50)
            return await limiters[number].acheck(f"{key}-{number}")

        tasks = [late(number) for number in range(40)]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for number, answer in enumerate(answers):
            good = isinstance(answer, Decision) and answer.limit == number + 1
            assert good or isinstance(answer, StoreUnavailableError), answer
        assert isinstance(answers[0], Decision)
        assert isinstance(answers[-1], StoreUnavailableError)
        proxy.restore()
        await asyncio.sleep(0.3)
        assert (await limiters[6].acheck(key)).limit == 7
        await store.aclose()

    asyncio.run(main())


def test_a_cancelled_task_leaves_no_reply_to_the_next(proxy: FaultProxy) -> None:
    """Its place in the line stays until its reply has come."""

    async def main() -> None:
        store = RedisStore.from_url(through(proxy), timeout_ms=PATIENT_MS)
        wide, narrow = (rate_limit(gcra(n, LONG_MS), store=store, prefix=str(n)) for n in (50, 7))
        key = new_key()
        await wide.acheck(key)
        proxy.delay(60)
        task = asyncio.create_task(wide.acheck(key))
        await asyncio.sleep(0.01)
        task.cancel()
        assert (await narrow.acheck(key)).limit == 7
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.aclose()

    asyncio.run(main())
