"""The promise that counts: 200 concurrent checks at a limit of 50 admit exactly 50.

For the test of a store: from threads, from tasks, and from 4 processes with a store each. Pass a
function that makes a store; for processes it has to be picklable, as `partial(open_store, url)`
is. Give the store a generous timeout, since 200 callers on few cores take their time. The period
is ten days, so that nothing is replenished while a test runs, on whichever clock.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import uuid
from collections.abc import Callable
from typing import Any

from penstock import Store, gcra, rate_limit

CALLERS = 200
LIMIT = 50
PROCESSES = 4
PERIOD_MS = 864_000_000
PATIENCE_S = 60

MakeStore = Callable[[], Store]


def assert_exact_from_threads(make_store: MakeStore) -> None:
    """One store, one thread per caller."""
    _assert_exact(_threads(make_store, _new_key(), CALLERS, _start_at_once))


def assert_exact_from_tasks(make_store: MakeStore) -> None:
    """One store, one task per caller, on one loop."""
    _assert_exact(_tasks(make_store, _new_key(), CALLERS, _start_at_once))


def assert_exact_from_processes(make_store: MakeStore, mode: str = "sync") -> None:
    """Four processes with a store each, the callers shared out among them."""
    spawn = multiprocessing.get_context("spawn")
    gate = spawn.Barrier(PROCESSES)
    answers = spawn.Queue()
    arguments = (make_store, _new_key(), CALLERS // PROCESSES, mode, gate, answers)
    processes = [spawn.Process(target=_process, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    try:
        _assert_exact([answer for _ in processes for answer in answers.get(timeout=PATIENCE_S)])
    finally:
        for process in processes:
            process.join(PATIENCE_S)
            process.close()
        answers.close()


def _new_key() -> str:
    return f"exactness-{uuid.uuid4().hex}"


def _assert_exact(answers: list[Any]) -> None:
    """Everybody was answered, with no error among the answers, and LIMIT of them with yes."""
    faults = [answer for answer in answers if not isinstance(answer, bool)]
    assert not faults, f"{len(faults)} of {len(answers)} callers got an error: {faults[0]}"
    assert len(answers) == CALLERS
    assert sum(answers) == LIMIT, f"{sum(answers)} admitted at a limit of {LIMIT}"


def _start_at_once() -> None:
    pass


def _process(
    make_store: MakeStore, key: str, callers: int, mode: str, gate: Any, answers: Any
) -> None:
    def start() -> None:
        gate.wait(PATIENCE_S)

    try:
        crowd = _threads if mode == "sync" else _tasks
        answers.put(crowd(make_store, key, callers, start))
    except Exception as error:
        gate.abort()
        answers.put([repr(error)])


def _threads(
    make_store: MakeStore, key: str, callers: int, start: Callable[[], None]
) -> list[bool | str]:
    store = make_store()
    limiter = rate_limit(gcra(LIMIT, PERIOD_MS), store=store)
    gate = threading.Barrier(callers, action=start)
    answers: list[bool | str] = []

    def call() -> None:
        gate.wait(PATIENCE_S)
        try:
            answers.append(limiter.check(key).allowed)
        except Exception as error:
            answers.append(repr(error))

    crowd = [threading.Thread(target=call, daemon=True) for _ in range(callers)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(PATIENCE_S)
    store.close()
    return answers


def _tasks(
    make_store: MakeStore, key: str, callers: int, start: Callable[[], None]
) -> list[bool | str]:
    async def call(limiter: Any) -> bool | str:
        try:
            return bool((await limiter.acheck(key)).allowed)
        except Exception as error:
            return repr(error)

    async def crowd() -> list[bool | str]:
        store = make_store()
        limiter = rate_limit(gcra(LIMIT, PERIOD_MS), store=store)
        start()
        answers = await asyncio.gather(*(call(limiter) for _ in range(callers)))
        await store.aclose()
        return list(answers)

    return asyncio.run(crowd())
