"""Under an event loop that is not asyncio's, async calls work or are refused with what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import penstock
from penstock import Limits, Store, UnsupportedError, limited, rate_limit, slots
from penstock.admission import AdmissionControl
from penstock.budget import token_budget
from penstock.client import ServiceLimiter
from penstock.concurrency import ConcurrencyLimiter, Gradient
from penstock.leasing import two_tier
from penstock.stores import open_store
from tests.client.serving import TOKEN, still
from tests.servers import Valkey, require

# The stores behind these URLs are not there: the loop is missed before anything is sent.
AWAY = {
    "cluster": "redis+cluster://127.0.0.1:1",
    "postgres": "postgresql://127.0.0.1:1/db",
    "dynamodb": "dynamodb://table?endpoint=http://127.0.0.1:1&region=eu-west-1",
}
STORES = ("memory", "valkey", "sqlite", *AWAY)

LIMITERS: dict[str, Callable[[Store], Any]] = {
    "limiter": lambda store: rate_limit("5/minute", store=store),
    "slots": lambda store: rate_limit(slots(2), store=store),
    "limits": lambda store: Limits({"user": "5/minute"}, store=store),
    "strict": lambda store: two_tier("5/minute", store, "strict"),
    "cached-deny": lambda store: two_tier("5/minute", store, "cached-deny"),
    "leased": lambda store: two_tier("5/minute", store, "leased"),
    "concurrency": lambda store: ConcurrencyLimiter(Gradient(2, 2), store=store),
    "admission": lambda store: AdmissionControl(
        ConcurrencyLimiter(Gradient(2, 2)),
        rate_limit("5/minute", store=store, prefix="rate"),
        rate_limit(token_budget(5, 60_000), store=store, prefix="words"),
    ),
    "store": lambda store: store,
}
GOOD: dict[str, Any] = {
    "key": "k",
    "keys": ["k"],
    "until_ms": 1,
    "tokens": 1,
    "lease_id": "x",
    "lease_ids": ["x"],
    "limits": None,
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    require("valkey")
    with Valkey() as valkey:
        file = tmp_path_factory.mktemp("trio") / "counts.db"
        yield {"memory": "memory://", "valkey": valkey.url, "sqlite": f"sqlite:///{file}", **AWAY}


def async_calls(thing: Any) -> Iterator[tuple[str, Any]]:
    """The public async methods with a sync twin whose arguments are known here."""
    for name in sorted(dir(type(thing))):
        if name.startswith("a") and hasattr(thing, name[1:]):
            call = getattr(thing, name)
            parameters = inspect.signature(getattr(type(thing), name)).parameters.values()
            needed = [
                each.name
                for each in parameters
                if each.name != "self"
                and each.kind is each.POSITIONAL_OR_KEYWORD
                and each.default is each.empty
            ]
            if all(each in GOOD for each in needed):
                yield name, (call, needed)


async def outcome(call: Any, arguments: list[Any]) -> str:
    """ "fine" if the call works, "refused" if it names the way out, otherwise the error."""
    try:
        await call(*arguments)
    except UnsupportedError as error:
        return "refused" if "trio.to_thread.run_sync" in str(error) else f"unsupported: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "fine"


def outcomes(thing: Any, **good: Any) -> dict[str, str]:
    values = {**GOOD, **good}
    return {
        name: trio.run(outcome, call, [values[each] for each in needed])
        for name, (call, needed) in async_calls(thing)
    }


# Calls that a limiter does not have, by whatever loop, and calls that need no store here: the slots
# of these limiters are held in process, and the lease "x" is not held at all.
LACKING = {("slots", "acheck"), ("slots", "acheck_many"), ("slots", "apause")}
LOCAL = {"aheartbeat", "arelease", "awithdraw"}


@pytest.mark.parametrize("kind", LIMITERS)
@pytest.mark.parametrize("name", STORES)
def test_every_async_call_works_or_is_refused(
    name: str, kind: str, servers: dict[str, str]
) -> None:
    """In memory most of them need no loop. Elsewhere they all do."""
    store = open_store(servers[name])
    found = outcomes(LIMITERS[kind](store), keys={"user": "k"} if kind == "limits" else ["k"])
    store.close()

    def is_right(call: str, outcome: str) -> bool:
        # The store was handed in, so closing a limiter does not close it.
        needs_none = name == "memory" or call in LOCAL or (call == "aclose" and kind != "store")
        return outcome == "refused" or (outcome == "fine" and needs_none)

    assert found
    assert {
        call: outcome
        for call, outcome in found.items()
        if not is_right(call, outcome) and (kind, call) not in LACKING
    } == {}


@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize("fail", ["open", "error"])
def test_every_async_call_to_a_service_is_refused_in_every_fail_mode(
    transport: str, fail: Any
) -> None:
    with still() as service:
        url = service.url(transport)
        with ServiceLimiter(url, "api", token=TOKEN, timeout_ms=10_000, fail=fail) as limiter:
            assert set(outcomes(limiter).values()) == {"refused"}


@pytest.mark.parametrize("name", ["valkey", "sqlite"])
def test_the_sync_calls_that_the_error_names_work_in_a_worker_thread(
    name: str, servers: dict[str, str]
) -> None:
    limiter = rate_limit("1/minute", store=servers[name], prefix="thread")

    async def ask() -> list[bool]:
        return [(await trio.to_thread.run_sync(limiter.check, "k")).allowed for _ in range(2)]

    assert trio.run(ask) == [True, False]
    limiter.close()


def test_waiting_is_refused_after_a_denial_that_charged_nothing() -> None:
    limiter = rate_limit("1/minute")
    assert limiter.check("k").allowed
    assert trio.run(outcome, limiter.aacquire, ["k"]) == "refused"


def test_a_decorated_function_that_has_to_wait_is_refused() -> None:
    @limited("1/minute", key="k", timeout=120)
    async def work() -> int:
        return 1

    assert trio.run(outcome, work, []) == "fine"
    assert trio.run(outcome, work, []) == "refused"


def test_renewing_a_slot_in_the_background_is_refused() -> None:
    async def hold() -> None:
        (await rate_limit(slots(1)).areserve("k")).akeep_renewed()

    assert trio.run(outcome, hold, []) == "refused"


def test_a_loop_is_looked_up_in_one_place() -> None:
    """Except in programs that start their own, and in queues, whose callers have looked it up."""
    root = Path(penstock.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "get_running_loop()" in path.read_text().replace("_get_running_loop()", "")
    }
    own = {path for path in found if path.startswith(("service/", "cli/", "_queueing/"))}
    assert found - own == {"core/_loops.py"}
