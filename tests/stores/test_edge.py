"""What holds for every store that compares and swaps, on its real engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import re
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    Limiter,
    ManualClock,
    StoreUnavailableError,
    gcra,
    rate_limit,
)
from penstock.core._errors import install_line
from penstock.core._transform import checking
from penstock.stores import open_store
from tests.servers import FaultProxy
from tests.stores import edge
from tests.stores.crash import LIMIT, STRATEGY, Spender
from tests.stores.exactness import (
    assert_exact_from_processes,
    assert_exact_from_tasks,
    assert_exact_from_threads,
)
from tests.stores.replay import assert_vectors_hold, read_suites
from tests.support.effort import some
from tools.wire.convert import decision_fields, strategy_of

each = pytest.mark.parametrize("name", edge.ALL)
each_exact = pytest.mark.parametrize("name", edge.EXACT)
each_mode = pytest.mark.parametrize("mode", ["sync", "async"])

NOW = 1_700_000_000_000
TEN_A_DAY = gcra(10, 86_400_000)
# What only a write has on the wire.
WRITE = {
    "dynamodb": b"PutItem",
    "d1": b"INTO t",
    "durable-object": b'"swap"',
    "deno-kv": b'"swap"',
    "workers-kv": b"PUT ",
}


def _check(store: Any, mode: str, key: str = "k") -> Any:
    """One check at a fixed instant, in the mode, the store left open."""
    if mode == "sync":
        return store.apply(key, checking(TEN_A_DAY), NOW, 1)

    async def once() -> Any:
        try:
            return await store.aapply(key, checking(TEN_A_DAY), NOW, 1)
        finally:
            await store.aclose()

    return asyncio.run(once())


@pytest.fixture
def proxied(name: str) -> Iterator[FaultProxy]:
    with FaultProxy(edge.running(name).port) as proxy:
        yield proxy


@each_exact
def test_threads_are_admitted_exactly(name: str) -> None:
    """200 threads at 50 on one store."""
    assert_exact_from_threads(partial(edge.open_empty, name))


@each_exact
def test_tasks_are_admitted_exactly(name: str) -> None:
    """200 tasks at 50 on one store, on one key: all of them finish."""
    assert_exact_from_tasks(partial(edge.open_empty, name))


@each_mode
@each_exact
def test_processes_are_admitted_exactly(name: str, mode: str) -> None:
    """200 callers at 50 in four processes, with a store each."""
    url = edge.url_of(name)
    edge.opened(url).close()
    assert_exact_from_processes(partial(open_store, url), mode)


@each
def test_the_golden_vectors_hold(name: str) -> None:
    """Decision by decision, through the sync calls. What decides is Python, the same for each."""
    store = edge.open_empty(name)
    assert_vectors_hold(store, some(read_suites(), one_in=4))
    store.close()


@each
def test_the_golden_vectors_hold_side_by_side(name: str) -> None:
    """Through the async calls, the suites at the same time."""
    store = edge.open_empty(name)

    async def replay(suite: dict[str, Any]) -> None:
        check = checking(strategy_of(**suite["strategy"]))
        for op in suite["ops"]:
            decision = await store.aapply(suite["name"], check, op["now"], op["cost"])
            assert decision_fields(decision) == op["expect"], (suite["name"], op)

    async def replay_all() -> None:
        await asyncio.gather(*map(replay, some(read_suites(), one_in=4, start=2)))
        await store.aclose()

    asyncio.run(replay_all())


@each_mode
@each
def test_a_write_whose_reply_was_lost_is_charged_once(
    name: str, mode: str, proxied: FaultProxy
) -> None:
    """The server has written, the connection is cut: the store looks, and knows its write again."""
    store = edge.opened(edge.url_of(name, proxied.port))
    proxied.cut_after_request(match=WRITE[name], times=1)
    assert _check(store, mode).remaining == 9
    assert proxied.cuts_left == 0
    proxied.restore()
    assert _check(store, mode).remaining == 8
    store.close()


@each_mode
@each
def test_a_server_that_does_not_answer_costs_the_timeout(
    name: str, mode: str, proxied: FaultProxy
) -> None:
    """One deadline for the whole call, then a typed error, then service again."""
    store = edge.opened(edge.url_of(name, proxied.port, timeout_ms=1_000))
    _check(store, mode)
    proxied.swallow()
    start = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="charged"):
        _check(store, mode)
    # Without a deadline a client would wait for a minute, or for ever.
    assert 0.9 < time.monotonic() - start < 10
    proxied.restore()
    assert _check(store, mode).remaining == 8
    store.close()


@each
def test_a_paused_server_costs_the_timeout_and_loses_nothing(name: str) -> None:
    """SIGSTOP and SIGCONT: what was asked meanwhile is an error, not a wrong answer."""
    with edge.new_server(name) as server:
        store = edge.opened(edge.url_of(name, server.port, timeout_ms=1_000))
        assert _check(store, "sync").remaining == 9
        server.pause()
        start = time.monotonic()
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                _check(store, "sync")
        assert time.monotonic() - start < 20
        server.resume()
        # A write that waited in the server's socket may be done now; that is what was said.
        assert _check(store, "sync").remaining in (7, 8)
        store.close()


@each_exact
def test_a_killed_server_forgets_nothing_that_was_answered(name: str) -> None:
    """kill -9 in the middle of a load, then a restart: no admission is lost, and none is stuck."""
    with edge.new_server(name) as server:
        url = edge.url_of(name, server.port, timeout_ms=5_000)
        edge.opened(url).close()
        with Spender(url, "k") as spender:
            spender.read(40)
            server.kill()
            server.restart()
            spender.read(40)
            spender.kill()
        # The stand-ins may not survive a client that is killed in mid-request.
        server.restart()
        store = open_store(url)
        spent = LIMIT - _patiently(rate_limit(STRATEGY, store=store)).remaining
        store.close()
    # The last request before the end of the process may have been charged unheard.
    assert spender.admitted <= spent <= spender.admitted + spender.doubtful + 1
    assert spender.admitted >= 40


def _patiently(limiter: Limiter) -> Decision:
    """A server whose client was killed may need a moment."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return limiter.peek("k")
        except StoreUnavailableError:  # noqa: PERF203
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@each_mode
@each
def test_an_outage_is_a_typed_error_and_ends(name: str, mode: str, proxied: FaultProxy) -> None:
    """Refused connections: unavailable, not charged; the next call after it is served."""
    store = edge.opened(edge.url_of(name, proxied.port, timeout_ms=5_000))
    _check(store, mode)
    proxied.refuse()
    with pytest.raises(StoreUnavailableError, match="was not charged") as caught:
        _check(store, mode)
    assert caught.value.code == "store_unavailable"
    proxied.restore()
    assert _check(store, mode).remaining == 8
    store.close()


@each
def test_an_expired_state_is_absent_on_the_clock_of_the_limiter(name: str) -> None:
    """Whatever the backend has kept of it."""
    store = edge.open_empty(name)
    clock = ManualClock(NOW)
    limiter = rate_limit(gcra(2, 1_000), store=store, clock=clock)
    assert [bool(limiter.check("k")) for _ in range(3)] == [True, True, False]
    clock.advance(1_000)
    assert limiter.check("k").remaining == 1
    store.close()


@pytest.mark.parametrize("name", edge.HTTP)
def test_a_token_shows_nowhere(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not in reprs, not in the log at its loudest, not in errors of any kind."""
    caplog.set_level(logging.DEBUG)
    url = edge.url_of(name)
    secret = "n0t-the-right-t0ken"
    store: Any = open_store(url, token=secret)
    told = r"token is wrong or lacks a permission; the request was not charged$"
    with pytest.raises(StoreUnavailableError, match=told) as caught:
        _check(store, "sync")
    shown = [repr(store), str(vars(store)), str(vars(store._client)), str(caught.value)]
    with pytest.raises(StoreUnavailableError):
        _check(store, "async")
    store.close()
    assert caplog.records
    shown += [record.getMessage() for record in caplog.records]
    shown += [str(record.args) for record in caplog.records]
    assert not [text for text in shown if secret in text]


@pytest.mark.parametrize("name", edge.HTTP)
def test_a_token_in_a_url_is_refused_unseen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """URLs are logged: the error names the variable to use, and does not repeat the token."""
    scheme = name if name in ("d1", "workers-kv") else f"{name}+https"
    with pytest.raises(ConfigInvalidError, match="token_env=") as caught:
        open_store(f"{scheme}://s3cret@account/place")
    with pytest.raises(ConfigInvalidError) as unknown:
        open_store(f"{scheme}://account/place?token=s3cret")
    assert "s3cret" not in f"{caught.value} {unknown.value}"
    monkeypatch.delenv("MISSING_TOKEN", raising=False)
    with pytest.raises(ConfigInvalidError, match="MISSING_TOKEN is not set"):
        open_store(f"{scheme}://account/place?token_env=MISSING_TOKEN")
    monkeypatch.setenv("OTHER_TOKEN", "t")
    open_store(f"{scheme}://account/place?token_env=OTHER_TOKEN").close()


@pytest.mark.parametrize("scheme", ["durable-object+https", "deno-kv+https"])
def test_a_record_server_takes_its_token_from_its_own_variable_by_default(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that the program it talks to has its token in."""
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    with pytest.raises(ConfigInvalidError, match="variable PENSTOCK_TOKEN is not set"):
        open_store(f"{scheme}://records.example.com")
    monkeypatch.setenv("PENSTOCK_TOKEN", "t")
    open_store(f"{scheme}://records.example.com").close()


@pytest.mark.parametrize("name", ["durable-object", "deno-kv"])
def test_plain_http_is_for_this_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token does not travel in the clear."""
    monkeypatch.setenv("PENSTOCK_TOKEN", edge.TOKEN)
    open_store(f"{name}+http://127.0.0.1:1/").close()
    open_store(f"{name}+http://localhost:1/").close()
    with pytest.raises(ConfigInvalidError, match="in the clear to example"):
        open_store(f"{name}+http://example/")


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://no",
        "dynamodb://bad;name",
        "dynamodb://table/below",
        "dynamodb://table?color=red",
        "dynamodb://user:secret@table",
        "d1://account",
        "d1://acc ount/database",
        "d1://account/data'base",
        "d1://account/database?table=a;b",
        "d1://account/../database",
        "workers-kv://account",
        "workers-kv://account/name/space",
        "durable-object+https:///path",
        "durable-object+https://host/?namespace=a/b",
        "deno-kv+https://host/?timeout_ms=0",
        "deno-kv+https://host/?timeout_ms=soon",
    ],
)
def test_a_bad_url_is_refused_before_anything_is_asked(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that become part of a path or a statement are validated."""
    monkeypatch.setenv("PENSTOCK_TOKEN", edge.TOKEN)
    with pytest.raises(ConfigInvalidError) as refused:
        open_store(url)
    assert "is not set" not in str(refused.value)


@pytest.mark.parametrize(("name", "extra"), [("d1", "edge"), ("dynamodb", "dynamodb")])
def test_a_missing_driver_names_its_extra(
    name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store opens without it; its first use says what to install."""
    for driver in ("httpx", "boto3.session", "aiobotocore.session"):
        monkeypatch.setitem(__import__("sys").modules, driver, None)
    store = open_store(edge.url_of(name, 1))
    line = re.escape(install_line(extra))
    with pytest.raises(ConfigInvalidError, match=line):
        _check(store, "sync")
    with pytest.raises(ConfigInvalidError, match=line):
        _check(store, "async")


@each
def test_a_store_serves_one_loop_after_another(name: str) -> None:
    """Clients belong to a loop; the store makes a new one for each."""
    store = edge.open_empty(name)
    for remaining in (9, 8, 7):
        assert _check(store, "async").remaining == remaining
    assert _check(store, "sync").remaining == 6
    store.close()
    assert _check(store, "sync").remaining == 5
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@each
def test_a_forked_child_has_connections_of_its_own(name: str) -> None:
    """Parent and child take turns on one key, and no reply goes to the wrong one."""
    store = edge.open_empty(name)
    _check(store, "sync")
    child = os.fork()
    if child == 0:
        spent = 0
        with contextlib.suppress(Exception):
            spent = sum(_check(store, "sync", "child").allowed for _ in range(5))
        os._exit(0 if spent == 5 else 1)
    assert [_check(store, "sync").remaining for _ in range(5)] == [8, 7, 6, 5, 4]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert _check(store, "sync", "child").remaining == 4
    store.close()


def test_errors_survive_pickling() -> None:
    """They cross to whoever collects the results of worker processes."""
    error = StoreUnavailableError("gone; the request was not charged")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
