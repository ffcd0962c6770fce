"""Setting up the table, and names that could do harm."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from penstock import ConfigInvalidError, ManualClock, gcra, rate_limit
from penstock.stores import open_store
from penstock.stores.postgres import PostgresStore
from tests.stores.postgres.live import new_table, open_empty, running

NOW = 1_700_000_000_000

EVIL = [
    "",
    "1st",
    "a b",
    'a"b',
    "a'b",
    "a;DROP TABLE x",
    "a--",
    "public.penstock",
    "ünïcode",
    "a" * 51,
    "a\n",
    "a\0",
    None,
    7,
]


@pytest.mark.parametrize("name", EVIL)
@pytest.mark.parametrize("what", ["schema", "table"])
def test_a_name_that_is_no_plain_identifier_is_refused(what: str, name: Any) -> None:
    """Before anything is connected to."""
    with pytest.raises(ConfigInvalidError, match=f"{what} must be a plain identifier"):
        PostgresStore.from_url("postgresql://127.0.0.1:1/x", **{what: name})


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("tabel=x", "table"),
        ("shema=x", "schema"),
        ("timeout=5", "timeout_ms"),
        ("use_servertime=true", "use_server_time"),
    ],
)
def test_a_misspelt_parameter_is_a_mistake_that_names_the_right_one(
    driver: str, wrong: str, right: str
) -> None:
    """Not an outage that begins when somebody connects."""
    with pytest.raises(ConfigInvalidError, match=f"not {wrong.partition('=')[0]}; write {right}="):
        open_store(f"postgresql://127.0.0.1:1/x?driver={driver}&{wrong}")


def test_a_parameter_that_libpq_does_not_know_is_refused_at_once() -> None:
    """In libpq's words; those that it knows are passed on."""
    url = "postgresql://me:s3cret@127.0.0.1:1/x"
    with pytest.raises(ConfigInvalidError, match='"sslmod"') as caught:
        open_store(f"{url}?sslmod=disable")
    assert "s3cret" not in str(caught.value)
    open_store(f"{url}?sslmode=disable&connect_timeout=3&application_name=x&options=-c%20a%3Db")


def test_a_reserved_word_is_a_name_like_any_other() -> None:
    """Names are quoted, and keep their case."""
    store = PostgresStore.from_url(running().url, schema="Order", table="Select")
    store.init()
    limiter = rate_limit(gcra(5, 60_000), store=store, clock=ManualClock(NOW))
    assert limiter.check("k").remaining == 4
    assert running().query('SELECT count(*) FROM "Order"."Select"') == [["1"]]
    store.close()


@pytest.mark.parametrize(
    "key",
    [
        "'; DROP TABLE penstock; --",
        '{"a","b"}',
        "\\x00",
        "%s",
        "$1",
        "NULL",
        "back\\slash",
        "quote\"quote'quote",
    ],
)
def test_a_key_is_never_read_as_sql(key: str) -> None:
    """Whatever it looks like, it comes to the server as bytes."""
    store = open_empty()
    limiter = rate_limit(gcra(5, 60_000), store=store, clock=ManualClock(NOW))
    assert limiter.check(key).remaining == 4
    assert limiter.check(key).remaining == 3
    assert limiter.peek("another").remaining == 5
    store.close()


def test_init_may_be_repeated_and_raced() -> None:
    """Eight at once, sync and async and drivers, and once more."""
    urls = [f"{running().url}?table=raced&driver={driver}" for driver in ("psycopg", "asyncpg")]
    errors: list[Exception] = []

    def init(number: int) -> None:
        try:
            store = PostgresStore.from_url(urls[number % 2])
            if number % 2 or number % 4:
                asyncio.run(store.ainit())
            else:
                store.init()
                store.close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=init, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    init(0)
    assert errors == []
    with_table = open_store(urls[0])
    assert rate_limit(gcra(5, 60_000), store=with_table).check("k")
    with_table.close()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("COMMENT ON TABLE {} IS NULL", "no comment"),
        ("COMMENT ON TABLE {} IS 'penstock store, version 2'", "version 2"),
        ("COMMENT ON TABLE {} IS 'orders'", "'orders'"),
    ],
)
def test_a_table_that_is_not_understood_is_refused(statement: str, words: str) -> None:
    """One of another program, or of a version to come: neither used nor altered."""
    table = new_table()
    running().query(statement.format(table))
    store = PostgresStore.from_url(running().url, table=table)
    with pytest.raises(ConfigInvalidError, match=words):
        store.init()
    with pytest.raises(ConfigInvalidError, match=words):
        rate_limit(gcra(5, 60_000), store=store).check("k")
    with pytest.raises(ConfigInvalidError, match=words):
        asyncio.run(rate_limit(gcra(5, 60_000), store=store).acheck("k"))
    store.close()


def test_a_missing_function_is_put_back_by_init() -> None:
    """The rows stay as they were."""
    table = new_table()
    store = PostgresStore.from_url(running().url, table=table)
    limiter = rate_limit(gcra(5, 60_000), store=store, clock=ManualClock(NOW))
    limiter.check("k")
    running().query(f"DROP FUNCTION {table}_swap")
    store.close()
    with pytest.raises(ConfigInvalidError, match="or its function is missing"):
        limiter.check("k")
    store.init()
    assert limiter.check("k").remaining == 3
    store.close()


@pytest.mark.parametrize(
    "query", ["timeout_ms=soon", "timeout_ms=0", "use_server_time=maybe", "driver=odbc"]
)
def test_an_option_that_means_nothing_is_refused(query: str) -> None:
    """With a text that says what would be right."""
    with pytest.raises(ConfigInvalidError):
        open_store(f"postgresql://127.0.0.1:1/x?{query}")
