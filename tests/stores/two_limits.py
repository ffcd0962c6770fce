"""For the test of a store: what several limits promise under concurrency.

Callers from threads, tasks and processes at limits K1 < K2 admit exactly K1 on a store that decides
all keys in one step, and the second key is charged exactly K1. A store that charges in order and
gives back may admit fewer in the heat, never more, and its keys agree in the end.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import uuid
from collections.abc import Callable
from typing import Any

from penstock import Limits, Store, fixed_window, gcra

TIGHT, LOOSE = 37, 90
CALLERS, EACH, PROCESSES = 8, 12, 4
PERIOD_MS = 864_000_000
PATIENCE_S = 90

MakeStore = Callable[[], Store]


def _limits(store: Store) -> Limits:
    # The looser one first: it is the one that would be charged in vain.
    return Limits(
        {"loose": fixed_window(LOOSE, PERIOD_MS), "tight": gcra(TIGHT, PERIOD_MS)}, store=store
    )


def _keys() -> dict[str, str]:
    # With a hash tag, so that they are in one slot of a cluster.
    name = f"{{{uuid.uuid4().hex}}}"
    return {"loose": name, "tight": name}


def assert_exact_from_threads(make_store: MakeStore) -> None:
    """One store, several threads."""
    store, keys = make_store(), _keys()
    try:
        answers = _by_threads(_limits(store), keys)
        _assert_exact(store, keys, answers)
    finally:
        store.close()


def assert_exact_from_tasks(make_store: MakeStore) -> None:
    """One store, one loop."""
    keys = _keys()

    async def main() -> None:
        store = make_store()
        limits = _limits(store)
        asked = (limits.acheck(keys) for _ in range(CALLERS * EACH))
        answers = [bool(verdict) for verdict in await asyncio.gather(*asked)]
        said = (await limits.apeek(keys)).limits
        _assert_agree(store, answers, said)
        await store.aclose()

    asyncio.run(main())


def assert_exact_from_processes(make_store: MakeStore) -> None:
    """Processes with a store each. `make_store` has to be picklable."""
    spawn, keys = multiprocessing.get_context("spawn"), _keys()
    gate, answers = spawn.Barrier(PROCESSES), spawn.Queue()
    arguments = (make_store, keys, gate, answers)
    processes = [spawn.Process(target=_process, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    try:
        told = [each for _ in processes for each in answers.get(timeout=PATIENCE_S)]
    finally:
        for process in processes:
            process.join(PATIENCE_S)
            process.close()
        answers.close()
    store = make_store()
    try:
        _assert_exact(store, keys, told)
    finally:
        store.close()


def _process(make_store: MakeStore, keys: dict[str, str], gate: Any, answers: Any) -> None:
    store = make_store()
    gate.wait(PATIENCE_S)
    try:
        answers.put(_by_threads(_limits(store), keys, CALLERS // 2))
    except BaseException as error:
        answers.put([repr(error)])
        raise
    finally:
        store.close()


def _by_threads(limits: Limits, keys: dict[str, str], callers: int = CALLERS) -> list[Any]:
    answers: list[Any] = []

    def ask() -> None:
        try:
            for _ in range(EACH):
                answers.append(bool(limits.check(keys)))  # noqa: PERF401 - of many threads
        except Exception as error:
            answers.append(repr(error))

    threads = [threading.Thread(target=ask) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return answers


def _assert_exact(store: Store, keys: dict[str, str], answers: list[Any]) -> None:
    _assert_agree(store, answers, _limits(store).peek(keys).limits)


def _assert_agree(store: Store, answers: list[Any], said: Any) -> None:
    faults = [answer for answer in answers if not isinstance(answer, bool)]
    assert not faults, f"{len(faults)} of {len(answers)} callers got an error: {faults[0]}"
    assert len(answers) > TIGHT * 2
    admitted = sum(answers)
    assert admitted == TIGHT if store.is_atomic("{x}:") else 0 < admitted <= TIGHT
    assert TIGHT - said["tight"].remaining == admitted
    assert LOOSE - said["loose"].remaining == admitted
