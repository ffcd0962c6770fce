"""Eight processes that check at the same moment, half of them in threads and half in tasks."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock import SystemClock
from penstock.core._transform import checking
from penstock.stores.redis import RedisStore
from tests.stores.redis.live import PATIENT_MS, SIX
from tests.support.processes import forking_context

PROCESSES = 8
CALLERS = 200
LIMIT = 50
SLOW_MS = 5_000
_PATIENCE_S = 60


@dataclass(frozen=True)
class Job:
    """`slow_ms` is by how much the clocks of every other process are behind."""

    url: str
    kind: str
    key: str
    use_server_time: bool = True
    slow_ms: int = 0


class Crowd:
    """`admitted(job)` lets all 200 callers go at once and says how many got in."""

    def __enter__(self) -> Crowd:
        forking = forking_context()
        self._gate = forking.Barrier(PROCESSES)
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        for number in range(PROCESSES):
            ours, theirs = forking.Pipe()
            process = forking.Process(target=_work, args=(number, theirs, self._gate), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        assert all(pipe.poll(_PATIENCE_S) and pipe.recv() == "ready" for pipe in self._pipes)
        return self

    def __exit__(self, *failure: object) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.join(_PATIENCE_S)
            process.close()
            pipe.close()

    def admitted(self, job: Job) -> int:
        for pipe in self._pipes:
            pipe.send(job)
        answers = [_answer(pipe, job) for pipe in self._pipes]
        assert all(isinstance(answer, int) for answer in answers), answers
        return sum(answers)


def _answer(pipe: Any, job: Job) -> Any:
    """What a process says to this job; an answer that came too late for another is dropped."""
    while pipe.poll(_PATIENCE_S):
        key, answer = pipe.recv()
        if key == job.key:
            return answer
    return "no answer"


def _work(number: int, pipe: Any, gate: Any) -> None:
    stores: dict[Any, RedisStore] = {}
    loop = asyncio.new_event_loop()
    pipe.send("ready")
    while job := pipe.recv():
        try:
            store = stores.get((job.url, job.use_server_time))
            if store is None:
                store = RedisStore.from_url(
                    job.url, use_server_time=job.use_server_time, timeout_ms=PATIENT_MS
                )
                stores[job.url, job.use_server_time] = store
            slow_ms = job.slow_ms if number % 2 else 0
            check = _Check(store, job, slow_ms)
            crowd = partial(_in_tasks, loop=loop) if number < 4 else _in_threads
            pipe.send((job.key, crowd(check, gate)))
        except Exception as error:  # noqa: PERF203
            gate.abort()
            pipe.send((job.key, repr(error)))
    for store in stores.values():
        loop.run_until_complete(store.aclose())
    loop.close()


class _Check:
    """One check by a clock that may be behind."""

    def __init__(self, store: RedisStore, job: Job, slow_ms: int) -> None:
        self._store = store
        self._key = job.key
        self._transform = checking(SIX[job.kind](LIMIT))
        self._clock = SystemClock()
        self._slow_ms = slow_ms

    def now(self) -> bool:
        at = self._clock.now() - self._slow_ms
        return self._store.apply(self._key, self._transform, at, 1).allowed

    async def soon(self) -> bool:
        at = self._clock.now() - self._slow_ms
        return (await self._store.aapply(self._key, self._transform, at, 1)).allowed


def _in_tasks(check: _Check, gate: Any, loop: asyncio.AbstractEventLoop) -> int:
    async def crowd() -> int:
        gate.wait(_PATIENCE_S)
        return sum(await asyncio.gather(*(check.soon() for _ in range(CALLERS // PROCESSES))))

    return loop.run_until_complete(crowd())


def _in_threads(check: _Check, gate: Any) -> int:
    answers: list[bool] = []
    start = threading.Event()

    def call() -> None:
        start.wait()
        answers.append(check.now())

    threads = [threading.Thread(target=call) for _ in range(CALLERS // PROCESSES)]
    for thread in threads:
        thread.start()
    gate.wait(_PATIENCE_S)
    start.set()
    for thread in threads:
        thread.join()
    assert len(answers) == len(threads)
    return sum(answers)
