"""Clients of HTTP that wait for limits and heed answers, each against a real server."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    ManualClock,
    MemoryStore,
    RateLimitExceededError,
    fixed_window,
    gcra,
    slots,
)
from penstock.integrations._outgoing import Outgoing
from tests.servers.process import REPO, environment
from tests.stores.redis.live import PATIENT_MS, new_key, url_of
from tests.support.helpers import NOW, run

Get = Callable[..., int]


class Asked:
    """An Outgoing that is asked without a client, and what it answers."""

    def __init__(self, limit: Any, **options: Any) -> None:
        self.clock = ManualClock(NOW)
        self.outgoing = Outgoing(limit, clock=self.clock, timeout=0, **options)

    def admits(self, url: str, method: str = "GET", **headers: str) -> bool:
        try:
            self.outgoing.enter(method, url, headers)
        except RateLimitExceededError:
            return False
        return True

    def answered(self, status: int, headers: dict[str, str], url: str = "http://a/") -> None:
        self.outgoing.observe(self.outgoing.enter("GET", url, {}), status, headers)

    def wait_ms(self, url: str = "http://a/") -> int:
        try:
            self.outgoing.enter("GET", url, {})
        except RateLimitExceededError as error:
            return error.decision.retry_after_ms
        return 0


def test_hosts_count_apart_and_by_port() -> None:
    asked = Asked("1/minute")
    assert asked.admits("https://a.example/x")
    assert not asked.admits("https://user:secret@A.example/y")
    assert asked.admits("https://b.example/")
    assert asked.admits("https://b.example:8443/")


def test_the_first_route_that_fits_counts() -> None:
    asked = Asked(
        "100/minute",
        routes={
            "POST api.example/orders": "1/minute",
            "api.example/users/{id}/posts": "2/minute",
            "api.example": "3/minute",
            "*.example.org": "1/minute",
        },
    )
    assert asked.admits("https://api.example/orders", "POST")
    assert not asked.admits("https://api.example:444/orders/7", "POST")
    assert asked.admits("https://api.example/orders")
    assert asked.admits("https://api.example/users/1/posts")
    assert asked.admits("https://api.example/users/2/posts/9")
    assert not asked.admits("https://api.example/users/3/posts?page=2")
    assert asked.admits("https://api.example/users/3")
    assert asked.admits("https://api.example/ordersandmore", "POST")
    assert not asked.admits("https://api.example/")
    assert asked.admits("https://x.example.org/")
    assert not asked.admits("https://y.example.org/")
    assert asked.admits("https://other.example/")


def test_a_key_parts_hosts_and_routes_further() -> None:
    asked = Asked(
        "1/minute", routes={"b.example/search": "1/minute"}, key=lambda r: r.headers["account"]
    )
    assert asked.admits("https://a.example/", account="x")
    assert asked.admits("https://a.example/", account="y")
    assert not asked.admits("https://a.example/", account="x")
    assert asked.admits("https://b.example/search", account="x")
    assert not asked.admits("https://b.example/search/more", account="x")


def test_hosts_that_no_route_names_may_be_left_alone() -> None:
    asked = Asked(None, routes={"a.example": "1/minute"})
    assert asked.admits("https://a.example/")
    assert not asked.admits("https://a.example/")
    assert all(asked.admits("https://b.example/") for _ in range(10))


def test_several_limits_of_a_host_are_one_decision() -> None:
    asked = Asked({"short": fixed_window(5, 1_000), "long": fixed_window(7, 60_000)})
    assert [asked.admits("https://a/") for _ in range(6)] == [True] * 5 + [False]
    asked.clock.advance(1_000)
    assert [asked.admits("https://a/") for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("status", "headers", "wait_ms"),
    [
        (429, {"Retry-After": "7"}, 7_000),
        (503, {"Retry-After": "7"}, 7_000),
        (403, {"Retry-After": "7"}, 7_000),
        (403, {}, 0),
        (200, {"Retry-After": "7"}, 0),
        (429, {"retry-after-ms": "1500", "Retry-After": "7"}, 1_500),
        (429, {"Retry-After": formatdate(NOW / 1000 + 9, usegmt=True)}, 9_000),
        # By the partner's own clock, which is an hour ahead.
        (
            429,
            {
                "Date": formatdate(NOW / 1000 + 3600, usegmt=True),
                "Retry-After": formatdate(NOW / 1000 + 3605, usegmt=True),
            },
            5_000,
        ),
        (429, {"Retry-After": formatdate(NOW / 1000 - 60, usegmt=True)}, 0),
        (429, {"Retry-After": "soon"}, 0),
        (429, {"Retry-After": "-5"}, 0),
        (429, {"Retry-After": "nan"}, 0),
        # More than fits into a number: of no use, and no reason to fail a call that was answered.
        (429, {"Retry-After": "1e308"}, 0),
        (429, {"retry-after-ms": "1e308"}, 0),
        (429, {"x-ratelimit-reset": "9" * 400 + "d"}, 0),
        (200, {"RateLimit": f'"a";r={"9" * 5_000};t=4'}, 0),
        (429, {"RateLimit": f"remaining={'9' * 5_000}, reset={'9' * 5_000}"}, 0),
        (429, {"Retry-After": "99999999"}, 3_600_000),
        (429, {}, 0),
        (200, {"RateLimit": '"a";r=0;t=4, "b";r=9;t=100'}, 4_000),
        (200, {"RateLimit": '"a";r=0', "RateLimit-Policy": '"a";q=10;w=8'}, 8_000),
        (200, {"RateLimit": '"b";r=0;t=4', "RateLimit-Policy": '"b";q=9;qu="content-bytes"'}, 0),
        (200, {"RateLimit": "limit=100, remaining=0, reset=6"}, 6_000),
        (200, {"RateLimit": "nonsense;;;="}, 0),
        (200, {"RateLimit-Remaining": "0", "RateLimit-Reset": "6"}, 6_000),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(NOW // 1000 + 5)}, 5_000),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(NOW + 5_250)}, 5_250),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset-after": "0.25"}, 250),
        (200, {"x-rate-limit-remaining": "0", "x-rate-limit-reset": "3"}, 3_000),
        (
            200,
            {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m2s"},
            62_000,
        ),
        (200, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20ms"}, 20),
        (429, {"x-ratelimit-remaining": "4", "x-ratelimit-reset": "3"}, 3_000),
        (200, {"x-ratelimit-remaining": "1e999", "x-ratelimit-reset": "x"}, 0),
        (
            200,
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2023-11-14T22:13:30Z",
            },
            10_000,
        ),
    ],
)
def test_what_answers_say_is_read(status: int, headers: dict[str, str], wait_ms: int) -> None:
    """Seconds, dates, instants, durations; and what makes no sense is left out."""
    asked = Asked("1000/second")
    asked.answered(status, headers)
    assert asked.wait_ms() == wait_ms
    assert asked.wait_ms("http://b/") == 0


def test_a_pause_ends_at_the_pace_and_not_with_all_that_was_saved_up() -> None:
    asked = Asked("10/second")
    asked.answered(429, {"Retry-After": "60"})
    asked.clock.advance(60_000)
    assert asked.admits("http://a/")
    assert not asked.admits("http://a/")
    asked.clock.advance(100)
    assert asked.admits("http://a/")


def test_a_window_is_not_held_until_its_end() -> None:
    asked = Asked(fixed_window(10, 86_400_000))
    asked.answered(429, {"Retry-After": "2"})
    assert asked.wait_ms() == 2_000
    asked.clock.advance(2_000)
    assert asked.wait_ms() == 0


def test_a_booking_from_before_a_pause_is_not_used_in_it() -> None:
    """The second request sleeps when the first is refused; it goes when the pause is over."""
    clock = ManualClock(NOW)
    store = MemoryStore(clock=clock)
    outgoing = Outgoing(gcra(1, 1_000), clock=clock, store=store)
    first = outgoing.enter("GET", "http://a/", {})
    gone: list[int] = []

    def second() -> None:
        outgoing.enter("GET", "http://a/", {})
        gone.append(clock.now())

    thread = threading.Thread(target=second)
    thread.start()
    # It has booked when the next one would have to wait for two.
    impatient = Outgoing(gcra(1, 1_000), clock=clock, timeout=0, store=store)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with pytest.raises(RateLimitExceededError) as caught:
            impatient.enter("GET", "http://a/", {})
        if caught.value.decision.retry_after_ms == 2_000:
            break
        time.sleep(0.005)
    outgoing.observe(first, 429, {"Retry-After": "60"})
    clock.advance(1_000)
    time.sleep(0.05)
    assert gone == []
    while thread.is_alive() and time.monotonic() < deadline:
        clock.advance(1_000)
        time.sleep(0.005)
    thread.join()
    assert gone[0] >= NOW + 60_000


def test_a_waiter_that_is_cancelled_gives_its_place_back() -> None:
    async def main() -> None:
        clock = ManualClock(NOW)
        outgoing = Outgoing(gcra(1, 1_000), clock=clock)
        await outgoing.aenter("GET", "http://a/", {})
        waiting = asyncio.ensure_future(outgoing.aenter("GET", "http://a/", {}))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        clock.advance(1_000)
        await asyncio.wait_for(outgoing.aenter("GET", "http://a/", {}), 10)

    run(main())


def test_an_answer_is_not_lost_when_the_store_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    outgoing = Outgoing("10/second", store=store)
    entered = outgoing.enter("GET", "http://a/", {})

    def away(*_words: Any) -> Any:
        from penstock import StoreUnavailableError

        raise StoreUnavailableError("gone")

    store.apply_all = away  # type: ignore[method-assign]
    outgoing.observe(entered, 429, {"Retry-After": "3"})
    assert "could not be kept" in caplog.text


SENDER = """
import sys, time
from penstock import gcra
from penstock.integrations._outgoing import Outgoing
outgoing = Outgoing(gcra(20, 1_000, burst=4), store=sys.argv[1], prefix=sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
times = []
for _ in range(15):
    entered = outgoing.enter("GET", "http://a/", {})
    times.append(time.time())
print(*times, flush=True)
outgoing.close()
"""


def test_processes_wait_in_one_order_and_keep_the_limit_together() -> None:
    """Four of them, 60 requests, 4 at once and 20 a second; none is left to the end."""
    words = [sys.executable, "-c", SENDER, f"{url_of('valkey')}?timeout_ms={PATIENT_MS}", new_key()]
    children = [
        subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPO,
            env=environment(),
        )
        for _ in range(4)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    sent = [
        [float(word) for word in child.communicate(timeout=60)[0].split()] for child in children
    ]
    times = sorted(itertools.chain(*sent))
    assert len(times) == 60
    # 4 that were saved up; the others at the pace.
    assert times[-1] - times[0] >= 55 / 20 * 0.95
    # More than a second in: one that the machine kept from running until then has an excuse.
    shares = [sum(time < times[40] for time in each) for each in sent]
    assert min(shares) > 0


async def _later(_request: Any) -> Any:
    return "k"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Outgoing("10 a second"), "rate"),
        (lambda: Outgoing(None), "nothing to limit"),
        (lambda: Outgoing("1/second", timout=1), "no option 'timout'; did you mean 'timeout'"),
        (lambda: Outgoing("1/second", verify=False), "no option 'verify'; there are routes, key"),
        (lambda: Outgoing("1/second", timeout=-1), "timeout"),
        (lambda: Outgoing("1/second", key="host"), "key must be a function"),  # type: ignore
        (lambda: Outgoing("1/second", key=_later), "key must be a plain function"),
        (lambda: Outgoing("1/second", honour=1), "honour must be"),  # type: ignore
        (lambda: Outgoing("1/second", routes=["a"]), "routes must map"),  # type: ignore
        (lambda: Outgoing("1/second", routes={"http://a/": "1/second"}), "a route is a host"),
        (lambda: Outgoing("1/second", routes={"": "1/second"}), "a route is a host"),
        (lambda: Outgoing("1/second", routes={"a": "often"}), "rate"),
        (lambda: Outgoing({"paused": "1/second"}), "taken"),
        (lambda: Outgoing({"at_once": slots(2)}), "counts requests in flight"),
        (lambda: Outgoing("1/second", max_pause_ms=0), "max_pause_ms"),
        (lambda: Outgoing("1/second", max_waiters=-1), "max_waiters"),
    ],
)
def test_bad_input_is_said_at_construction(make: Any, said: str) -> None:
    with pytest.raises(ConfigInvalidError, match=said):
        make()
