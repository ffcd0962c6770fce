"""What only D1Store has: its schema, its sweep, its statements."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from penstock import ConfigInvalidError, StoreUnavailableError, gcra
from penstock.core._transform import checking
from penstock.stores import open_store
from tests.stores import edge

NOW = 1_700_000_000_000
CHECK = checking(gcra(10, 3_600_000))


def _query(sql: str, *params: object) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = edge.running("d1").query("limits", sql, *params)["results"]
    return rows


def _table(url: str) -> str:
    return dict(parse_qsl(urlsplit(url).query))["table"]


def test_init_twice_is_init_once() -> None:
    """sync and async, and what was spent stays."""
    store: Any = edge.open_empty("d1")
    store.apply("k", CHECK, NOW, 1)
    store.init()

    async def again() -> None:
        await store.ainit()
        await store.aclose()

    asyncio.run(again())
    assert store.apply("k", CHECK, NOW, 1).remaining == 8
    store.close()


def test_a_table_of_another_program_is_refused() -> None:
    """One with our name and without our mark is left as it is."""
    url = edge.url_of("d1")
    store: Any = open_store(url)
    _query(f"CREATE TABLE {_table(url)} (id INTEGER)")
    with pytest.raises(ConfigInvalidError, match="not created by this store"):
        store.init()
    assert _query(f"SELECT count(*) AS n FROM {_table(url)}") == [{"n": 0}]
    store.close()


def test_a_schema_of_another_version_is_refused() -> None:
    """A later Penstock may have changed it."""
    url = edge.url_of("d1")
    store: Any = edge.opened(url)
    _query(f"UPDATE {_table(url)}_schema SET version = 2")
    with pytest.raises(ConfigInvalidError, match="schema version is 2, not 1"):
        store.init()
    store.close()


def test_a_missing_table_names_the_fix() -> None:
    """Not an outage: a mistake, and the text says what to call."""
    store = open_store(edge.url_of("d1"))
    with pytest.raises(ConfigInvalidError, match=r"init\(\)"):
        store.apply("k", CHECK, NOW, 1)
    store.close()


def test_a_missing_database_says_so() -> None:
    """As Cloudflare says it."""
    url = edge.url_of("d1").replace("/limits?", "/other?")
    store = open_store(url)
    with pytest.raises(ConfigInvalidError, match="7404"):
        store.apply("k", CHECK, NOW, 1)
    store.close()


def test_a_sweep_drops_what_no_clock_can_need() -> None:
    """Late by its margin, on the database's clock, sync and async."""
    url = edge.url_of("d1")
    store: Any = edge.opened(url)
    for number in range(5):
        store.apply(f"k{number}", CHECK, NOW, 1)
    assert store.sweep() == 0
    [row] = _query(f"SELECT min(keep_until) AS low FROM {_table(url)}")
    now_ms = int(time.time() * 1000)
    # 360 s until it means nothing, and as long again.
    assert now_ms + 715_000 < row["low"] < now_ms + 725_000
    assert store.sweep(row["low"] - 1) == 0
    _query(f"UPDATE {_table(url)} SET keep_until = 1 WHERE key < 'k2'")
    assert store.sweep() == 2

    async def sweep() -> int:
        swept: int = await store.asweep(now_ms + 10_000_000)
        await store.aclose()
        return swept

    assert asyncio.run(sweep()) == 3
    assert _query(f"SELECT count(*) AS n FROM {_table(url)}") == [{"n": 0}]
    store.close()


def test_a_sweep_works_in_slices() -> None:
    """More keys than one statement deletes."""
    url = edge.url_of("d1")
    store: Any = edge.opened(url)
    _query(
        f"INSERT INTO {_table(url)} (key, record, version, keep_until) "
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500) "
        "SELECT 'k' || i, '', '', 1 FROM n"
    )
    assert store.sweep() == 2500
    store.close()


def test_many_keys_are_one_batch() -> None:
    """Sixty keys take two requests per 32 of them."""
    store: Any = edge.open_empty("d1")
    sent: list[Any] = []
    send = store._client.send
    store._client.send = lambda calls, deadline: sent.extend(calls) or send(calls, deadline)
    decisions = store.apply_many([f"k{n % 50}" for n in range(60)], CHECK, NOW, 1)
    assert [d.remaining for d in decisions] == [9] * 50 + [8] * 10
    assert len(sent) == 4
    store.close()


def test_a_wrong_token_is_unavailable_and_an_account_too() -> None:
    """Whether it will be right later is not for the store to say."""
    url = edge.url_of("d1")
    for bad in (open_store(url, token="wrong"), open_store(url.replace("test-account", "other"))):
        with pytest.raises(StoreUnavailableError, match="token is wrong or lacks"):
            bad.apply("k", CHECK, NOW, 1)
        bad.close()
