"""The promise that counts: 200 concurrent checks at a limit of 50 admit exactly 50. And that of
several limits: where one of 70 has to admit as well, 50 are admitted, and both charged with 50.

For the test of a store: from threads, from tasks, and from 4 processes with a store each. Pass a
function that makes a store; for processes it has to be picklable, as `partial(open_store, url)`
is. Give the store a generous timeout, since 200 callers on few cores take their time. The period
is ten days, so that nothing is replenished while a test runs, on whichever clock.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from penstock import Store, fixed_window, gcra, rate_limit
from penstock.core._steps import Step
from penstock.core._transform import checking, peeking
from tests.support.processes import forking_context

CALLERS = 200
LIMIT = 50
WIDER_LIMIT = 70
PROCESSES = 4
PERIOD_MS = 864_000_000
PATIENCE_S = 60

_NOW = 1_700_000_000_000

MakeStore = Callable[[], Store]


class Asked(Protocol):
    """What every caller asks, and what must have come of it."""

    def ask(self, store: Store, number: int) -> bool: ...

    async def aask(self, store: Store, number: int) -> bool: ...

    def assert_charged(self, make_store: MakeStore) -> None: ...


class OneLimit:
    """What callers ask: a check of one key."""

    def __init__(self) -> None:
        self._key = f"exactness-{uuid.uuid4().hex}"
        self._strategy = gcra(LIMIT, PERIOD_MS)

    def ask(self, store: Store, _number: int) -> bool:
        return rate_limit(self._strategy, store=store).check(self._key).allowed

    async def aask(self, store: Store, _number: int) -> bool:
        return (await rate_limit(self._strategy, store=store).acheck(self._key)).allowed

    def assert_charged(self, make_store: MakeStore) -> None:
        """With what was admitted; for one key, the number of admissions says it all."""


class TwoLimits:
    """Two keys as one decision. Every second caller names them the other way round."""

    def __init__(self) -> None:
        # With a hash tag, so that both are in one slot of a cluster.
        name = f"{{exactness-{uuid.uuid4().hex}}}"
        self._strategies = {
            f"{name}-a": fixed_window(WIDER_LIMIT, PERIOD_MS, "first"),
            f"{name}-b": fixed_window(LIMIT, PERIOD_MS, "first"),
        }

    def ask(self, store: Store, number: int) -> bool:
        return all(store.apply_all(self._steps(number), _NOW))

    async def aask(self, store: Store, number: int) -> bool:
        return all(await store.aapply_all(self._steps(number), _NOW))

    def assert_charged(self, make_store: MakeStore) -> None:
        async def look() -> None:
            store = make_store()
            for key, strategy in self._strategies.items():
                decision = await store.aapply(key, peeking(strategy), _NOW, 1)
                assert strategy.limit - decision.remaining == LIMIT, key
            await store.aclose()

        asyncio.run(look())

    def _steps(self, number: int) -> list[Step]:
        steps = [Step(key, checking(strategy)) for key, strategy in self._strategies.items()]
        return steps if number % 2 else steps[::-1]


def assert_exact_from_threads(make_store: MakeStore, asked: type[Asked] = OneLimit) -> None:
    """One store, one thread per caller."""
    question = asked()
    _assert_exact(_threads(make_store, question, CALLERS, _start_at_once))
    question.assert_charged(make_store)


def assert_exact_from_tasks(make_store: MakeStore, asked: type[Asked] = OneLimit) -> None:
    """One store, one task per caller, on one loop."""
    question = asked()
    _assert_exact(_tasks(make_store, question, CALLERS, _start_at_once))
    question.assert_charged(make_store)


def assert_exact_from_processes(
    make_store: MakeStore, mode: str = "sync", asked: type[Asked] = OneLimit
) -> None:
    """Four processes with a store each, the callers shared out among them."""
    question = asked()
    forking = forking_context()
    gate = forking.Barrier(PROCESSES)
    answers = forking.Queue()
    arguments = (make_store, question, CALLERS // PROCESSES, mode, gate, answers)
    processes = [forking.Process(target=_process, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    try:
        _assert_exact([answer for _ in processes for answer in answers.get(timeout=PATIENCE_S)])
    finally:
        for process in processes:
            process.join(PATIENCE_S)
            process.close()
        answers.close()
    question.assert_charged(make_store)


def _assert_exact(answers: list[Any]) -> None:
    """Everybody was answered, with no error among the answers, and LIMIT of them with yes."""
    faults = [answer for answer in answers if not isinstance(answer, bool)]
    assert not faults, f"{len(faults)} of {len(answers)} callers got an error: {faults[0]}"
    assert len(answers) == CALLERS
    assert sum(answers) == LIMIT, f"{sum(answers)} admitted at a limit of {LIMIT}"


def _start_at_once() -> None:
    pass


def _process(
    make_store: MakeStore, question: Asked, callers: int, mode: str, gate: Any, answers: Any
) -> None:
    def start() -> None:
        gate.wait(PATIENCE_S)

    try:
        crowd = _threads if mode == "sync" else _tasks
        answers.put(crowd(make_store, question, callers, start))
    except Exception as error:
        gate.abort()
        answers.put([repr(error)])


def _threads(
    make_store: MakeStore, question: Asked, callers: int, start: Callable[[], None]
) -> list[bool | str]:
    store = make_store()
    gate = threading.Barrier(callers, action=start)
    answers: list[bool | str] = []

    def call(number: int) -> None:
        gate.wait(PATIENCE_S)
        try:
            answers.append(question.ask(store, number))
        except Exception as error:
            answers.append(repr(error))

    crowd = [threading.Thread(target=call, args=(n,), daemon=True) for n in range(callers)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(PATIENCE_S)
    store.close()
    return answers


def _tasks(
    make_store: MakeStore, question: Asked, callers: int, start: Callable[[], None]
) -> list[bool | str]:
    async def call(store: Store, number: int) -> bool | str:
        try:
            return await question.aask(store, number)
        except Exception as error:
            return repr(error)

    async def crowd() -> list[bool | str]:
        store = make_store()
        start()
        answers = await asyncio.gather(*(call(store, number) for number in range(callers)))
        await store.aclose()
        return list(answers)

    return asyncio.run(crowd())
