"""Task queues with real workers: a task that has to wait is put back, and it costs nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import gcra
from tests.client.serving import RunningService
from tests.servers import Valkey, require
from tests.servers.process import ARQ, REPO, environment

QUEUES = ["celery", "dramatiq", "arq"]
all_queues = pytest.mark.parametrize("queue", QUEUES)

WORKERS = {
    "celery": (
        *("celery", "-A", "tests.integrations.apps.celery_app", "worker", "-P", "threads"),
        *("-c", "2", "-l", "INFO", "--without-mingle", "--without-gossip"),
        "--without-heartbeat",
    ),
    "dramatiq": (
        *("dramatiq", "tests.integrations.apps.dramatiq_app", "-p", "1", "-t", "2"),
        *("--worker-shutdown-timeout", "5000"),
    ),
    "arq": ("arq", "tests.integrations.apps.arq_app.WorkerSettings"),
}


PUT_BACK = {"celery": "ignored", "dramatiq": "Retrying message", "arq": "retrying job in"}
"""What a worker logs, not as an error, of a task that it puts back."""


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    require("valkey")
    with Valkey() as valkey:
        yield valkey


POLICIES = """\
version: 1
limiters:
  tasks: {strategy: gcra, limit: 4, period: 1s, burst: 2}
"""


@pytest.fixture(scope="module", autouse=True)
def service() -> Iterator[RunningService]:
    """Where a policy is asked for, by `TASKS_SERVICE`."""
    with RunningService(policies=POLICIES, token=None) as running:
        os.environ["TASKS_SERVICE"] = running.url("http")
        yield running
        del os.environ["TASKS_SERVICE"]


def surroundings(queue: str, server: Valkey) -> dict[str, str]:
    """arq needs a redis-py that is older than that of the other tests."""
    paths = [str(REPO / "src"), str(REPO)]
    if queue == "arq":
        paths.insert(0, str(ARQ))
    service = os.environ["TASKS_SERVICE"]
    return environment(PYTHONPATH=":".join(paths), TASKS_REDIS=server.url, TASKS_SERVICE=service)


class Workers:
    """Two processes that serve a queue, until the end of the block."""

    def __init__(self, queue: str, server: Valkey, folder: Path) -> None:
        if queue == "arq":
            require("arq")
        self.logs = [folder / f"{queue}-{number}.log" for number in range(2)]
        self._children = []
        for number, log in enumerate(self.logs):
            words = [sys.executable, "-m", *WORKERS[queue]]
            if queue == "celery":
                words += ["-n", f"w{number}@here"]
            with log.open("wb") as file:
                self._children.append(
                    subprocess.Popen(
                        words,
                        stdout=file,
                        stderr=file,
                        cwd=REPO,
                        env=surroundings(queue, server),
                        start_new_session=True,
                    )
                )

    def stop(self) -> list[int]:
        for child in self._children:
            child.send_signal(signal.SIGTERM)
        return [child.wait(30) for child in self._children]

    def kill(self) -> None:
        """With what they have started: a worker may be several processes."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def said(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in self.logs)


@pytest.fixture(scope="module")
def workers(
    server: Valkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Workers]]:
    """The workers of a queue, started when they are first asked for."""
    started: list[Workers] = []

    @cache
    def of(queue: str) -> Workers:
        started.append(Workers(queue, server, tmp_path_factory.mktemp(queue)))
        return started[-1]

    yield of
    for each in started:
        each.kill()


def send(queue: str, server: Valkey, name: str, tenants: list[str]) -> list[str]:
    """The results of tasks that are put into the queue all at once, by another process."""
    program = {
        "celery": (
            "import sys, json; from tests.integrations.apps import asked, celery_app as a;"
            "each = [asked(sys.argv[1], t) for t in sys.argv[2:]];"
            "sent = [getattr(a, name).delay(t) for name, t in each];"
            "print(json.dumps([each.get(timeout=60) for each in sent]))"
        ),
        "dramatiq": (
            "import sys, json; from tests.integrations.apps import asked, dramatiq_app as a;"
            "each = [asked(sys.argv[1], t) for t in sys.argv[2:]];"
            "sent = [getattr(a, name).send(t) for name, t in each];"
            "print(json.dumps([m.get_result(block=True, timeout=60_000) for m in sent]))"
        ),
        "arq": (
            "import sys, asyncio; from tests.integrations.apps import arq_app as a;"
            "asyncio.run(a.main(sys.argv[1], sys.argv[2:]))"
        ),
    }[queue]
    done = subprocess.run(
        [sys.executable, "-c", program, name, *tenants],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=REPO,
        env=surroundings(queue, server),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: list[str] = json.loads(done.stdout.splitlines()[-1])
    return results


def ran(server: Valkey, tenant: str) -> list[dict[str, Any]]:
    with redis.Redis.from_url(server.url) as client:
        return [json.loads(told) for told in client.lrange(f"ran:{tenant}", 0, -1)]  # type: ignore


def test_the_example_with_arq_shows_what_it_says(server: Valkey) -> None:
    require("arq")
    done = subprocess.run(
        [sys.executable, str(REPO / "examples" / "arq_jobs.py"), server.url],
        capture_output=True,
        text=True,
        timeout=100,
        env=surroundings("arq", server),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "all of them ran: ['acme', 'acme', 'acme', 'other']",
        "each in its first try: True",
        "one after the other: True",
    ]
    assert "ERROR" not in done.stderr


@all_queues
def test_tasks_run_at_the_pace_across_workers_and_cost_no_retry(
    queue: str, server: Valkey, workers: Callable[[str], Workers]
) -> None:
    """Each exactly once, in its first attempt, where even one retry would be too many; those of
    another tenant do not wait for them. The logs know of no error. Whether workers share a store,
    or ask a service."""
    at_work = workers(queue)
    busy, idle, policy = f"{queue}-busy", f"{queue}-idle", f"{queue}-policy"
    tenants = [busy] * 10 + [idle] * 2 + [policy] * 6
    assert send(queue, server, "work", tenants) == [f"{tenant} done" for tenant in tenants]
    runs = ran(server, busy)
    assert len(runs) == 10
    assert {each["attempt"] for each in runs} == {0}
    times = sorted(each["at"] for each in runs)
    # 10 at 4 a second, two of them at once. A clock that is read twice may differ by a little.
    assert times[-1] - times[0] >= 8 / 4 - 0.1
    by_policy = sorted(each["at"] for each in ran(server, policy))
    assert len(by_policy) == 6
    assert {each["attempt"] for each in ran(server, policy)} == {0}
    assert by_policy[-1] - by_policy[0] >= 4 / 4 - 0.1
    assert len(ran(server, idle)) == 2
    assert max(each["at"] for each in ran(server, idle)) < times[-1]
    assert PUT_BACK[queue] in at_work.said()
    for word in ("ERROR", "CRITICAL", "Traceback", "skipped"):
        assert word not in at_work.said()


@all_queues
def test_a_task_that_fails_is_retried_by_its_queue_and_asks_again(
    queue: str, server: Valkey, workers: Callable[[str], Workers]
) -> None:
    """What failed is a run like any other; windows, which cannot be booked, are asked again."""
    workers(queue)
    tenant = f"{queue}-fails"
    assert send(queue, server, "fail_once", [tenant] * 3) == [f"{tenant} done"] * 3
    runs = ran(server, tenant)
    assert sorted(each["attempt"] for each in runs) == [0, 0, 0, 1]
    times = sorted(each["at"] for each in runs)
    # Two in each second by the clock of the server, which began sometime in the first.
    assert all(later - earlier > 0.001 for earlier, later in zip(times, times[2:], strict=False))


@all_queues
def test_tasks_with_slots_keep_the_slots_busy(
    queue: str, server: Valkey, workers: Callable[[str], Workers]
) -> None:
    """40 tasks of a tenth of a second and two slots are two seconds of work; put back for the ttl
    of a slot they would take minutes. A denial costs no attempt."""
    workers(queue)
    tenant = f"{queue}-slotted"
    assert send(queue, server, "slotted", [tenant] * 40) == [f"{tenant} done"] * 40
    runs = ran(server, tenant)
    assert {each["attempt"] for each in runs} == {0}
    times = sorted(each["at"] for each in runs)
    print(f"{queue}: {times[-1] - times[0] + 0.1:.2f} s")
    assert times[-1] - times[0] < 2 * 3


def test_a_job_of_arq_that_calls_another_is_not_put_back_once_it_has_begun(
    server: Valkey, workers: Callable[[str], Workers]
) -> None:
    """The other one waits where it is, whatever it is called with: what was done stays done."""
    workers("arq")
    assert send("arq", server, "outer", ["arq-nested"] * 3) == ["arq-nested done"] * 3
    assert (
        sorted(each["kind"] for each in ran(server, "arq-nested")) == ["inner"] * 3 + ["outer"] * 3
    )


def test_async_actors_are_limited_too(server: Valkey, workers: Callable[[str], Workers]) -> None:
    workers("dramatiq")
    assert send("dramatiq", server, "awork", ["dramatiq-async"] * 4) == ["dramatiq-async done"] * 4
    assert len(ran(server, "dramatiq-async")) == 4


@all_queues
def test_workers_end_when_they_are_told_to(
    queue: str, server: Valkey, workers: Callable[[str], Workers]
) -> None:
    """Run last: the limit keeps nobody from shutting down."""
    assert workers(queue).stop() == [0, 0]


def test_an_actor_may_have_a_broker_and_a_name_of_its_own(server: Valkey) -> None:
    """Which need not be the global one. What it calls like a function, itself included, is not put
    back."""
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq.middleware import CurrentMessage

    from penstock.integrations.dramatiq import limited_actor

    broker = RedisBroker(url=server.url, namespace="own-broker")
    if not any(isinstance(each, CurrentMessage) for each in broker.middleware):
        broker.add_middleware(CurrentMessage())
    started: list[str] = []

    def inner(tenant: str) -> None:
        started.append(f"inner {tenant}")

    def outer(tenant: str, again: bool = True) -> None:
        started.append(f"outer {tenant}")
        if again:
            called(tenant)
            calling(tenant, again=False)

    limit = limited_actor(gcra(2, 1_000, burst=1), key="{tenant}", store=server.patient_url)
    called = dramatiq.actor(limit(inner), broker=broker, actor_name="called")
    calling = dramatiq.actor(limit(outer), broker=broker, actor_name="calling")
    worker = dramatiq.Worker(broker, worker_threads=2, worker_timeout=100)
    worker.start()
    try:
        for tenant in ("a", "a", "b"):
            calling.send(tenant)
        broker.join("default", timeout=60_000)
        worker.join()
    finally:
        worker.stop()
        broker.close()
    once = ["outer a", "outer a", "inner a"]
    assert sorted(started) == sorted([*once, *once, "outer b", "outer b", "inner b"])


def test_a_job_of_arq_may_be_called_with_any_context(server: Valkey) -> None:
    """As tests of a program do."""
    require("arq")
    program = (
        "import asyncio; from penstock.integrations.arq import limited_job\n"
        "@limited_job('5/second', store='memory://')\n"
        "async def job(ctx, word): return word\n"
        "print(asyncio.run(job(None, 'one')), asyncio.run(job({}, 'two')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=surroundings("arq", server),
        check=False,
    )
    assert done.stdout.split() == ["one", "two"], done.stderr
