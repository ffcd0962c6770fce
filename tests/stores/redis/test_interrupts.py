"""A signal handler that raises, anywhere in a call: nothing is lost but that call."""

from __future__ import annotations

import asyncio
import contextlib
import dis
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from penstock import Limiter, StoreUnavailableError, gcra
from penstock.stores.redis import RedisStore
from penstock.stores.redis import _async_connections as async_connections
from penstock.stores.redis import _multiplexed as multiplexed
from penstock.stores.redis import _store as redis_store
from penstock.stores.redis import _sync_connections as sync_connections
from tests.servers import RedisServer
from tests.stores.redis.interrupted import Interrupt, works
from tests.stores.redis.live import SPAN_MS, interpreted, new_key, running, url_of

ROOT = __file__.partition("/tests/")[0]
HALVES = ("penstock/stores/redis/", "penstock/core/flow", "threading.py", "concurrent/futures")


# After these, and only there, the interpreter looks whether a signal has come.
CHECKED = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")


class At:
    """Raises Interrupt at the n-th place in one of the files at which a handler might be run."""

    def __init__(self, number: int, *files: str) -> None:
        self.left = number
        self.files = files
        self.before: dict[FrameType, str] = {}

    def __enter__(self) -> At:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *failure: object) -> None:
        sys.settrace(None)
        self.before.clear()

    @property
    def was_reached(self) -> bool:
        return self.left < 0

    def _enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        # What a finalizer raises is only ever reported.
        by_finalizer = any(f and f.f_code.co_name == "__del__" for f in (frame, frame.f_back))
        if by_finalizer or not self._is_ours(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "opcode":
            before = self.before.get(frame, "")
            self.before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before.startswith(CHECKED):
                self.left -= 1
                if self.left < 0:
                    sys.settrace(None)
                    raise Interrupt
        elif event == "return":
            self.before.pop(frame, None)
        return self._step

    def _is_ours(self, file: str) -> bool:
        return any(part in file for part in self.files)


@pytest.fixture(autouse=True)
def calm() -> Iterator[None]:
    """Collect what tests before this one have left, not in the middle of a traced call."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def connections(server: RedisServer) -> int:
    return len(str(server.call("CLIENT", "LIST", "TYPE", "NORMAL")).splitlines())


def interrupt_everywhere(work: Callable[[], Any], check: Callable[[], None], step: int = 1) -> int:
    """Run `work` once for each of its instructions, interrupted there, and `check` after it."""
    number = 0
    while True:
        with At(number, *HALVES) as at:
            try:
                work()
            except Interrupt:
                assert at.was_reached
        check()
        if not at.was_reached:
            return number
        number += step


def test_interrupted_at_any_instruction_of_a_check_the_next_one_is_served() -> None:
    """On a connection that is there. What was interrupted is not used again, nor left open."""
    server = running("valkey")
    store = RedisStore.from_url(server.url, timeout_ms=5_000)
    seven = Limiter(gcra(7, SPAN_MS), store, prefix=new_key())
    nine = Limiter(gcra(9, SPAN_MS), store, prefix=new_key())
    seven.check("k"), nine.check("k")
    before = connections(server)

    def served() -> None:
        assert [nine.check("k").limit, seven.check("k").limit] == [9, 7]

    assert interrupt_everywhere(lambda: seven.check("k"), served) > 30
    assert connections(server) <= before + 1
    store.close()


def test_interrupted_at_any_instruction_of_connecting_the_next_call_is_served() -> None:
    """Callers come and go while connections are made; none of them holds up the others."""
    server = running("valkey")
    store = RedisStore.from_url(server.url, timeout_ms=5_000)
    limiter = Limiter(gcra(7, SPAN_MS), store, prefix=new_key())
    before = connections(server)

    def connect_anew() -> None:
        store.close()
        limiter.check("k")

    def served() -> None:
        assert limiter.check("k").limit == 7

    assert interrupt_everywhere(connect_anew, served) > 60
    store.close()
    assert connections(server) <= before + 1


def test_interrupted_callers_leave_their_place_among_those_that_connect() -> None:
    """However many are interrupted at the worst moment, the place is free when their time is up."""
    store = RedisStore.from_url(running("valkey").url, timeout_ms=500)
    limiter = Limiter(gcra(7, SPAN_MS), store, prefix=new_key())
    number, was_reached = 0, True
    while was_reached:
        for _ in range(20):
            store.close()
            with (
                At(number, "stores/redis/_sync_connections.py") as at,
                contextlib.suppress(Interrupt),
            ):
                limiter.check("k")
            was_reached = at.was_reached
        store.close()
        # At the latest when the time of those that were interrupted is up.
        with contextlib.suppress(StoreUnavailableError):
            limiter.check("k")
        assert limiter.check("k").limit == 7
        number += 1
    store.close()


# An interrupt between the call of a coroutine function and its await is only ever reported.
@pytest.mark.filterwarnings("ignore:coroutine '.*' was never awaited:RuntimeWarning")
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "interpreted"])
def test_interrupted_at_any_instruction_of_a_shared_connection_no_reply_is_mistaken(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that share it get their own answers or an error, and those after them an answer."""
    if not compiled:
        interpreted(monkeypatch)
    store = RedisStore.from_url(url_of("valkey"), timeout_ms=5_000)
    limiters = [Limiter(gcra(limit, SPAN_MS), store, prefix=new_key()) for limit in range(1, 30)]
    files = (async_connections.__file__, multiplexed.__file__, redis_store.__file__)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: None)

    async def crowd() -> list[Any]:
        asked = (limiter.acheck("k") for limiter in limiters)
        return await asyncio.gather(*asked, return_exceptions=True)

    def answered(answers: list[Any]) -> int:
        """How many got an answer, which must be their own."""
        pairs = [(a, n) for n, a in enumerate(answers, 1) if not isinstance(a, BaseException)]
        assert all(answer.limit == limit for answer, limit in pairs)
        return len(pairs)

    try:
        assert answered(loop.run_until_complete(crowd())) == 29
        number = 0
        while True:
            task = loop.create_task(crowd())
            with At(number, *files) as at:
                try:
                    answered(loop.run_until_complete(task))
                except Interrupt:
                    assert at.was_reached
            if not task.done():
                # As a program does that was asked to end: what was under way still counts.
                answered(loop.run_until_complete(asyncio.wait_for(task, 10)))
            assert answered(loop.run_until_complete(crowd())) == 29
            if not at.was_reached:
                break
            number += 6
        assert number > 200
        loop.run_until_complete(store.aclose())
    finally:
        loop.close()


@pytest.mark.parametrize("kind", ["valkey", "cluster"])
def test_a_timer_whose_handler_raises_neither_crashes_nor_confuses_a_program(kind: str) -> None:
    """Thousands of interrupts, at instants that nobody chose, inside of C code included."""
    url = url_of(kind)
    done = subprocess.run(
        [sys.executable, "-m", "tests.stores.redis.interrupted", url, "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    seen = json.loads(done.stdout)
    assert seen["interrupts"] > 200
    assert seen["wrong"] == 0
    assert seen["served"] == seen["calls"]
    assert seen["files"] < 60


def test_nothing_but_bytes_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """hiredis ends the process if a handler raises while it turns a number into text."""
    packed: list[Any] = []

    def watching(commands: Any) -> bytes:
        packed.extend(part for command in commands for part in command)
        return pack(commands)

    pack = sync_connections.pack
    for module in (sync_connections, async_connections):
        monkeypatch.setattr(module, "pack", watching)
    # Whoever does not know the scripts is sent their text.
    running("valkey").call("SCRIPT", "FLUSH")
    for name in ("valkey", "cluster", "sentinel"):
        exercise(RedisStore.from_url(url_of(name), timeout_ms=20_000))
    assert {bytes} == set(map(type, packed))
    assert len(packed) > 500


def exercise(store: RedisStore) -> None:
    """Every operation of a store, on both kinds of strategies, sync and async."""
    for _, call in works(store):
        call()
    limiter = Limiter(gcra(5, SPAN_MS), store, prefix=new_key())
    limiter.forecast("k")
    limiter.reset("k")

    async def again() -> None:
        await limiter.acheck("k")
        await limiter.acheck_many([f"k{number}" for number in range(600)])
        await limiter.apeek("k")
        await limiter.areset("k")
        await store.aclose()

    asyncio.run(again())
