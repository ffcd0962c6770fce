"""The command line, as a shell sees it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import ManualClock, gcra, rate_limit
from penstock.cli import COMMANDS
from penstock.stores.sqlite import SqliteStore
from tests.cli.shell import Run
from tests.servers.process import REPO, environment
from tests.stores.postgres.live import running

NOW = 1_700_000_000_000


def test_the_version_says_which_path_is_on(run: Run) -> None:
    """One line, for bug reports."""
    code, out, _ = run("version")
    path = "native" if penstock.accelerated else "interpreted"
    assert code == 0
    assert out.startswith(f"penstock {penstock.__version__}, {path} path, Python 3.")
    assert run("--version") == (0, out, "")


def test_help_lists_every_command(run: Run) -> None:
    """With a line on each."""
    code, out, _ = run("--help")
    assert code == 0
    for command in COMMANDS:
        assert f"\n    {command}" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run: Run, command: str) -> None:
    """It ends with 0 and explains itself."""
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"usage: penstock {command}" in out


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("dance",),
        ("store",),
        ("store", "init"),
        ("store", "dance", "sqlite:///x.db"),
        ("store", "init", "nonsense"),
        ("store", "init", "gopher://x"),
        ("store", "init", "sqlite://x.db"),
        ("store", "init", "postgresql://host/db?table=no%20name"),
        ("store", "sweep", "postgresql://host/db?timeout_ms=soon"),
        ("version", "extra"),
        ("serve", "--nonsense"),
        ("bench", "--rounds", "0"),
        ("bench", "--seconds", "0"),
        ("bench", "--store", "gopher://x"),
        ("doctor", "extra"),
        ("load",),
        ("load", "ftp://x"),
        ("load", "http://host/path"),
        ("load", "http://host:port"),
        ("load", "http://host", "--rate", "0"),
        ("load", "http://host", "--rate", "nan"),
        ("load", "http://host", "--keys", "0"),
        ("load", "http://host", "--connections", "0"),
        ("load", "http://host", "--seconds", "0"),
        ("load", "http://host", "--cost", "0"),
        ("load", "http://host", "--ca", "ca.pem"),
        ("load", "https://host", "--ca", "nowhere.pem"),
        ("load", "https://host", "--cert", "cert.pem"),
        ("load", "http://host", "--token-file", "nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(run: Run, words: tuple[str, ...]) -> None:
    """On standard error, and nothing else."""
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert err.startswith("penstock")
    assert err.count("\n") == 1


def test_a_store_that_is_away_is_one_line_and_code_1(run: Run) -> None:
    """That is no mistake of the caller."""
    code, out, err = run("store", "init", "postgresql://me:s3cret@127.0.0.1:1/db")
    assert (code, out) == (1, "")
    assert err.startswith("penstock: cannot connect to PostgreSQL at 127.0.0.1:1/db")
    assert err.count("\n") == 1
    assert "s3cret" not in err


def test_a_sqlite_store_is_set_up_and_swept(run: Run, tmp_path: Path) -> None:
    """Twice, since init may be repeated."""
    path = tmp_path / "limits.db"
    for _ in range(2):
        code, out, _ = run("store", "init", f"sqlite:///{path}")
        assert code == 0
        assert out == f"ready: SqliteStore({str(path)!r}, synchronous='normal')\n"
    store = SqliteStore(path)
    rate_limit(gcra(5, 1_000), store=store, clock=ManualClock(NOW)).check("k")
    store.close()
    assert run("store", "sweep", f"sqlite:///{path}") == (0, "dropped: 1\n", "")


def test_a_file_of_someone_else_is_refused(run: Run, tmp_path: Path) -> None:
    """With its path, and what to do."""
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE users (id)")
    connection.close()
    code, out, err = run("store", "init", f"sqlite:///{path}")
    assert (code, out) == (2, "")
    assert "give the store a file of its own" in err


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_postgres_store_is_set_up_and_swept(run: Run, driver: str) -> None:
    """Through either driver; the password of the URL is not repeated."""
    url = running().url.replace("postgres@", "postgres:s3cret@")
    url = f"{url}?table=by_command_{driver}&driver={driver}"
    code, out, err = run("store", "init", url)
    assert (code, err) == (0, "")
    assert out.startswith("ready: <PostgresStore on PostgreSQL at 127.0.0.1:")
    assert "s3cret" not in out
    assert run("store", "sweep", url) == (0, "dropped: 0\n", "")


def test_a_store_with_nothing_to_set_up_says_so(run: Run) -> None:
    """That is fine too: a script may run init for whatever URL it is given."""
    code, out, _ = run("store", "init", "memory://")
    assert (code, out) == (0, "nothing to do: MemoryStore needs no set-up\n")


@pytest.mark.parametrize("module", ["penstock", "penstock.cli"])
def test_the_command_runs_as_a_module(module: str) -> None:
    """For those whose scripts folder is not on the path."""
    done = subprocess.run(
        [sys.executable, "-m", module, "version"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(PYTHONPATH=str(REPO / "src")),
    )
    assert done.stdout.startswith("penstock ")


def test_the_script_is_declared() -> None:
    """`pip install` puts `penstock` on the path."""
    text = (REPO / "pyproject.toml").read_text()
    assert '[project.scripts]\npenstock = "penstock.cli:main"\n' in text
