"""The file of a SqliteStore: whose it is, what is wrong with it, and how a URL names it."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigInvalidError, StoreUnavailableError, gcra, rate_limit
from penstock.stores import open_store
from penstock.stores.sqlite import SqliteStore


def test_the_schema_is_set_up_once(path: Path) -> None:
    """`init` may be repeated, and says before any traffic whether the file will do."""
    store = SqliteStore(path)
    store.init()
    asyncio.run(store.ainit())
    store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("CREATE TABLE users (id)", "another program's database"),
        ("PRAGMA user_version = 7", "another program's database"),
        ("PRAGMA application_id = 1", "another program's database"),
        ("PRAGMA application_id = 0x50454E53", "schema version 0, not 1"),
    ],
)
def test_a_file_of_someone_else_is_refused_and_left_alone(
    path: Path, statement: str, words: str
) -> None:
    """Whatever is not ours, or of a version to come, is not touched."""
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()
    before = path.read_bytes()
    store = SqliteStore(path)
    with pytest.raises(ConfigInvalidError, match=words):
        store.init()
    with pytest.raises(ConfigInvalidError, match=words):
        asyncio.run(rate_limit(gcra(5, 1_000), store=store).acheck("k"))
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    """A text file stays a text file."""
    path.write_text("not a database, " * 100)
    with pytest.raises(ConfigInvalidError, match="file is not a database"):
        SqliteStore(path).init()


def test_a_damaged_file_is_a_typed_error(path: Path) -> None:
    """Damage is an outage, not a fresh start."""
    store = SqliteStore(path)
    limiter = rate_limit(gcra(5, 60_000), store=store)
    for number in range(500):
        limiter.check(f"k{number}")
    store.close()
    damaged = bytearray(path.read_bytes())
    damaged[4096:] = os.urandom(len(damaged) - 4096)
    path.write_bytes(damaged)
    with pytest.raises(StoreUnavailableError, match="malformed; the file is damaged"):
        limiter.check("k1")
    store.close()


def test_a_full_disk_is_a_typed_error(path: Path) -> None:
    """Nothing is charged, and service resumes when there is room."""
    store = SqliteStore(path)
    limiter = rate_limit(gcra(5, 60_000), store=store)
    limiter.check("k")
    connection = store._database._connection
    assert connection is not None
    connection.execute("PRAGMA max_page_count = 3")
    with pytest.raises(StoreUnavailableError, match=r"full; make room.*nothing was charged"):
        limiter.check_many([f"{number}" * 1_000 for number in range(9)])
    assert limiter.check("k").remaining == 3
    store.close()


def test_a_path_that_cannot_be_opened_is_a_typed_error(tmp_path: Path) -> None:
    """A folder in place of the file."""
    with pytest.raises(StoreUnavailableError, match=r"unable to open.*must be a file"):
        rate_limit(gcra(5, 1_000), store=SqliteStore(tmp_path)).check("k")


def test_a_folder_that_is_not_there_is_a_mistake_and_no_outage(tmp_path: Path) -> None:
    """It cannot become right by waiting. The text names it; once it is there, the store works."""
    folder = tmp_path / "missing"
    store = SqliteStore(folder / "x.db")
    limiter = rate_limit(gcra(5, 1_000), store=store)
    told = re.escape(f"no folder {folder}; create it")
    with pytest.raises(ConfigInvalidError, match=told):
        limiter.check("k")
    with pytest.raises(ConfigInvalidError, match=told):
        store.init()
    folder.mkdir()
    assert limiter.check("k").remaining == 4
    store.close()


def test_a_file_that_cannot_be_written_is_a_typed_error(path: Path) -> None:
    """Reading still works; a check says what is wrong."""
    store = SqliteStore(path)
    store.init()
    connection = store._database._connection
    assert connection is not None
    connection.execute("PRAGMA query_only = 1")
    with pytest.raises(StoreUnavailableError, match=r"readonly.*cannot be written"):
        rate_limit(gcra(5, 1_000), store=store).check("k")
    store.close()


def test_urls_name_relative_and_absolute_paths(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes and the path; options behind a question mark."""
    monkeypatch.chdir(path.parent)
    for url in ("sqlite:///limits.db", f"sqlite:///{path}"):
        store = open_store(url)
        assert isinstance(store, SqliteStore)
        assert store.path == str(path)
        assert (store.synchronous, store.timeout_ms) == ("normal", 1_000)
    store = open_store("sqlite:///a%20b%23.db?synchronous=OFF&timeout_ms=50")
    assert isinstance(store, SqliteStore)
    assert store.path == str(path.parent / "a b#.db")
    assert (store.synchronous, store.timeout_ms) == ("off", 50)
    assert repr(store) == f"SqliteStore({store.path!r}, synchronous='off')"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite://limits.db",
        "sqlite:///:memory:",
        "sqlite:///x.db?synchronous=maybe",
        "sqlite:///x.db?timeout_ms=soon",
        "sqlite:///x.db?timeout_ms=0",
        "sqlite:///x.db?mode=ro",
        "sqlite:///x#y.db",
    ],
)
def test_a_url_that_means_nothing_is_refused(url: str) -> None:
    """With a text that says what would be right."""
    with pytest.raises(ConfigInvalidError):
        open_store(url)


@pytest.mark.parametrize("path", [None, 5, b"x.db", "", "a\0b", ":memory:"])
def test_a_path_that_is_none_is_refused(path: Any) -> None:
    """Before anything is opened."""
    with pytest.raises(ConfigInvalidError):
        SqliteStore(path)
