"""Calls to language models: estimated, admitted, settled by what was used."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace as Answer
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Limits,
    ManualClock,
    MemoryStore,
    RateLimitExceededError,
    fixed_window,
    gcra,
    slots,
)
from penstock.integrations.language_models import ModelLimits, estimate_tokens
from tests.servers.process import REPO, environment
from tests.stores.redis.live import PATIENT_MS, url_of
from tests.support.helpers import NOW, GoneStore, run


class RefusedError(Exception):
    """As client libraries raise it: the answer is inside."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(status)
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        self.response = Answer(status_code=status, headers=told)


def make(**options: Any) -> ModelLimits:
    chosen: dict[str, Any] = {
        "requests": fixed_window(10, 60_000),
        "tokens": fixed_window(1_000, 60_000),
        "in_flight": 2,
        "clock": ManualClock(NOW),
        "timeout": 0,
    }
    return ModelLimits(**{**chosen, **options})


def left(model: ModelLimits) -> tuple[int, ...]:
    return tuple(model.remaining().values())


OPENAI = {"prompt_tokens": 40, "completion_tokens": 60, "total_tokens": 100}
ANTHROPIC = {"input_tokens": 40, "output_tokens": 60}


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [], "usage": OPENAI},
        Answer(usage=Answer(**OPENAI)),
        {"usage": {"input_tokens": 40, "output_tokens": 60, "total_tokens": 100}},
        {"content": [], "usage": ANTHROPIC},
        Answer(usage=Answer(**ANTHROPIC, cache_read_input_tokens=500)),
        {"usage": {"input_tokens": 10, "cache_creation_input_tokens": 30, "output_tokens": 60}},
        100,
    ],
)
def test_an_estimate_is_replaced_by_the_usage_that_an_answer_reports(answer: Any) -> None:
    model = make()
    with model.call(prompt=50, max_tokens=500) as call:
        assert left(model) == (9, 450, 1)
        call.used(answer)
    assert left(model) == (9, 900, 2)
    assert call.usage.tokens == 100


def openai_events() -> Iterator[Any]:
    for _ in range(5):
        yield {"choices": [{"delta": {"content": "x"}}], "usage": None}
    yield {"choices": [], "usage": OPENAI}


def anthropic_events() -> Iterator[Any]:
    yield Answer(
        type="message_start", message=Answer(usage=Answer(input_tokens=40, output_tokens=1))
    )
    for _ in range(5):
        yield Answer(type="content_block_delta")
    yield Answer(type="message_delta", usage=Answer(output_tokens=60))
    yield Answer(type="message_stop")


def responses_events() -> Iterator[Any]:
    yield {"type": "response.created", "response": {"usage": None}}
    yield {"type": "response.completed", "response": {"usage": ANTHROPIC}}


@pytest.mark.parametrize("events", [openai_events, anthropic_events, responses_events])
def test_a_stream_reports_its_usage_on_the_way(events: Any) -> None:
    model = make()
    with model.call(50, 500) as call:
        assert len(list(call.stream(events()))) == len(list(events()))
    assert left(model) == (9, 900, 2)

    async def later() -> AsyncIterator[Any]:
        for event in events():
            await asyncio.sleep(0)
            yield event

    async def main() -> None:
        async with model.call(50, 500) as call:
            async for _ in call.astream(later()):
                pass

    run(main())
    assert left(model) == (8, 800, 2)


def test_a_stream_that_breaks_off_has_used_what_was_seen() -> None:
    """By an error, or because nobody reads on; a piece is about a token."""
    model = make()

    def broken() -> Iterator[Any]:
        yield from itertools.islice(openai_events(), 3)
        raise ConnectionError

    with pytest.raises(ConnectionError), model.call(50, 500) as call:
        list(call.stream(broken()))
    assert left(model) == (9, 947, 2)
    with model.call(50, 500) as call:
        for _ in call.stream(anthropic_events()):
            break
    assert left(model) == (8, 947 - 41, 2)


def test_an_answer_without_usage_leaves_the_estimate() -> None:
    model = make()
    with model.call(50, 50) as call:
        list(call.stream([{"choices": []}]))
    with model.call(50, 50):
        pass
    assert left(model) == (8, 800, 2)


def test_a_call_that_fails_or_is_cancelled_gives_everything_back() -> None:
    model = make()
    with pytest.raises(ConnectionError), model.call(50, 500):
        raise ConnectionError
    assert left(model) == (10, 1_000, 2)

    async def slow() -> None:
        async with model.call(50, 500):
            await asyncio.sleep(3_600)

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(slow(), 0.02)

    run(main())
    assert left(model) == (10, 1_000, 2)


def test_a_refusal_pauses_everybody_for_as_long_as_it_says() -> None:
    clock = ManualClock(NOW)
    model = make(clock=clock)
    with pytest.raises(RefusedError), model.call(50, 100):
        raise RefusedError(429, retry_after="20")
    assert left(model) == (10, 1_000, 2)
    with pytest.raises(RateLimitExceededError) as caught, model.call(50, 100):
        raise AssertionError("the call must not be made")
    assert 19_000 < caught.value.decision.retry_after_ms <= 20_100
    with model.call(50, 100, key="another account"):
        pass
    clock.advance(20_000)
    with model.call(50, 100):
        pass


def test_a_response_can_be_told_of_without_raising() -> None:
    model = make()
    with model.call(50, 100) as call:
        call.answered(Answer(status_code=529, headers={"retry-after": "5"}))
    assert left(model) == (10, 1_000, 2)
    with pytest.raises(RateLimitExceededError), model.call(50, 100):
        pass


def test_what_a_provider_says_is_left_shrinks_requests_and_tokens() -> None:
    model = make()
    headers = {"x-ratelimit-remaining-requests": "4", "x-ratelimit-remaining-tokens": "300"}
    with model.call(50, 100) as call:
        call.used(100)
        call.answered(Answer(status=200, headers=headers))
    assert left(model) == (4, 300, 2)


def test_nothing_is_heeded_where_that_is_turned_off() -> None:
    model = make(honour=False)
    with pytest.raises(RefusedError), model.call(50, 100):
        raise RefusedError(429, retry_after="20")
    with model.call(50, 100):
        assert left(model) == (9, 850, 1)


def test_calls_in_flight_are_bounded_and_wait_for_each_other() -> None:
    model = make(in_flight=1, timeout=20, clock=None)
    order = []

    async def call(number: int) -> None:
        async with model.call(1, 1):
            order.append(number)
            assert model.remaining()["in_flight"] == 0
            await asyncio.sleep(0.01)

    async def main() -> None:
        await asyncio.gather(*(call(number) for number in range(4)))

    run(main())
    assert order == [0, 1, 2, 3]


def test_a_place_in_flight_is_renewed_for_as_long_as_the_call_lasts() -> None:
    """By a thread, or by a task: three times its term, by a clock that waits for each renewal."""
    clock = ManualClock(NOW)
    store = MemoryStore(clock=clock)
    model = ModelLimits(in_flight=1, slot_ttl_ms=600, timeout=0, store=store, clock=clock)
    held = Limits({"in_flight": slots(1, ttl_ms=600)}, store=store, clock=clock, prefix="model")
    deadline = time.monotonic() + 60

    def is_renewed() -> bool:
        assert time.monotonic() < deadline, "the place was not renewed"
        return held.peek({"in_flight": "all"}).retry_after_ms == 600

    with model.call(1, 1):
        for _ in range(4):
            clock.advance(450)
            while not is_renewed():
                time.sleep(0.01)

    async def main() -> None:
        async with model.call(1, 1):
            for _ in range(4):
                clock.advance(450)
                while not is_renewed():
                    await asyncio.sleep(0.01)

    run(main())
    assert model.remaining() == {"in_flight": 1}


def test_an_answer_is_not_lost_with_the_store(caplog: pytest.LogCaptureFixture) -> None:
    store = GoneStore()
    model = make(in_flight=None, store=store)
    with caplog.at_level(logging.WARNING), model.call(50, 100) as call:
        call.used(20)
        store.is_gone = True
    assert "could not be told to the store" in caplog.text


def test_an_estimate_is_rather_high() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens("four letters are about a token") == 10
    assert estimate_tokens("日本") == 2


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ModelLimits(), "nothing to limit"),
        (lambda: make(requests="often"), "rate"),
        (lambda: make(in_flight=0), "in_flight"),
        (lambda: make(honour="yes"), "honour"),
        (lambda: make(timeout=-1), "timeout"),
        (lambda: make(slot_ttl_ms=0), "ttl_ms"),
        (lambda: make().call(-1, 5), "prompt"),
        (lambda: make().call([{"content": "x"}], 5), "of messages give the texts"),
        (lambda: make().call("x", -5), "max_tokens"),
        (lambda: make().call("x", 5, key=""), "empty"),
        (lambda: make().call(600, 600), "can never be admitted"),
        (lambda: make().call(1, 1).used({"answer": "x"}), "reports no usage"),
    ],
)
def test_bad_input_is_said_at_once(call: Any, said: str) -> None:
    with pytest.raises(ConfigInvalidError, match=said):
        call()


def test_eight_processes_call_a_provider_and_are_never_refused_by_its_limits() -> None:
    """640 calls, streams and whole answers in both shapes. Refusals are those made on purpose, and
    nobody starves: of the first half of the calls, each process has at least a quarter of its
    share."""
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", str(REPO / "examples" / "llm_tokens.py")),
            *("--processes", "8", "--calls", "80"),
            *("--store", f"{url_of('valkey')}?timeout_ms={PATIENT_MS}"),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment(PYTHONPATH=str(REPO / "src")),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "640 answered, 8 refused on purpose, 0 refused by limits" in done.stdout
    least = re.search(r"each had at least (\d+)", done.stdout)
    assert least is not None
    assert int(least[1]) >= 10


@pytest.mark.parametrize(
    ("tokens", "longest_call_ms", "burst"),
    [
        ("600/minute", 60_000, 600),
        ("10/second", 60_000, 600),
        ("10/second", 500, 10),
        ("600/minute", 120_000, 1_200),
        ("20000/second", 2_000, 40_000),
    ],
)
def test_a_rate_of_tokens_gets_a_burst_that_covers_the_longest_call(
    tokens: str, longest_call_ms: int, burst: int
) -> None:
    clock = ManualClock(1_700_000_000_000)
    model = ModelLimits(tokens=tokens, longest_call_ms=longest_call_ms, clock=clock)
    assert model.remaining()["tokens"] == burst

    # What was not used comes back at the end of the longest call, on a busy key.
    with model.call(1, max_tokens=9) as call:
        clock.advance(longest_call_ms - 1)
        call.used(1)
    assert model.remaining()["tokens"] >= burst - 1


def test_a_burst_that_calls_outlast_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    ModelLimits(tokens=gcra(10, 1_000), longest_call_ms=900)
    ModelLimits(tokens=fixed_window(10, 1_000))
    assert not caplog.records
    ModelLimits(tokens=gcra(10, 1_000))
    assert "outlasts the burst of gcra(limit=10" in caplog.text
