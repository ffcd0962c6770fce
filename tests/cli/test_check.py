"""`penstock check`, as a script uses it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from penstock import rate_limit
from penstock.config import load_policy_file
from penstock.service._core import build_service
from penstock.stores import open_store
from penstock.stores.postgres import PostgresStore
from tests.cli.shell import Run
from tests.stores.postgres.live import running

POLICIES = """\
version: 1
limiters:
  api:
    strategy: fixedWindow
    limit: 2
    window: 1h
    anchor: first
  tokens:
    tokenBudget: {budget: 100, window: 1h}
  slots:
    concurrency: {minLimit: 1, maxLimit: 3}
  several:
    limits:
      user: {by: user, strategy: fixedWindow, limit: 2, window: 1h}
"""


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'limits.db'}"


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "penstock.yaml"
    path.write_text(POLICIES)
    return str(path)


def test_a_rate_is_enforced_from_one_run_to_the_next(run: Run, store: str) -> None:
    """Code 0 while it is allowed, 3 when it is not, and a word on when."""
    asked = ("check", "alice", "--rate", "2/hour", "--store", store)
    code, out, _ = run(*asked)
    assert code == 0
    assert out.startswith("allowed: 1 of 2 left, all of it again in 1,7")
    assert run(*asked)[0] == 0
    code, out, err = run(*asked)
    assert (code, err) == (3, "")
    assert out.startswith("denied: try again in 1,")
    assert out.endswith("0 of 2 left\n")


def test_a_library_counts_on_the_same_key(run: Run, store: str) -> None:
    """The prefix and the rate of the program, and the shell spends from its limit."""
    run("check", "alice", "--rate", "5/hour", "--prefix", "api", "--store", store, "--cost", "3")
    opened = open_store(store)
    assert rate_limit("5/hour", store=opened, prefix="api").peek("alice").remaining == 2
    opened.close()


def test_a_peek_spends_nothing(run: Run, store: str) -> None:
    """However often."""
    for _ in range(5):
        assert run("check", "a", "--rate", "2/hour", "--store", store, "--peek")[0] == 0


def test_json_has_the_five_fields(run: Run, store: str) -> None:
    """For `jq`."""
    _, out, _ = run("check", "a", "--rate", "2/hour", "--store", store, "--json")
    answer = json.loads(out)
    assert {**answer, "reset_at": 0} == {
        "allowed": True,
        "limit": 2,
        "remaining": 1,
        "reset_at": 0,
        "retry_after_ms": 0,
    }


def test_a_policy_is_asked_by_name(run: Run, store: str, config: str) -> None:
    """Limiters and budgets; each with its own counts."""
    asked = ("check", "alice", "--config", config, "--store", store, "--policy")
    assert [run(*asked, "api")[0] for _ in range(3)] == [0, 0, 3]
    assert run(*asked, "tokens", "--cost", "60")[1].startswith("allowed: 40 of 100 left")


def test_a_service_counts_on_the_same_keys(run: Run, store: str, config: str) -> None:
    """What it admitted is spent for the shell."""

    async def ask() -> bool:
        service = build_service(load_policy_file(config), store)
        try:
            return (await service.check("api", "alice", 2)).allowed
        finally:
            await service.aclose()

    assert asyncio.run(ask())
    assert run("check", "alice", "--config", config, "--store", store, "--policy", "api")[0] == 3


def test_a_store_with_async_calls_alone_will_do(run: Run) -> None:
    """asyncpg has no sync calls."""
    url = f"{running().url}?table=by_check&driver=asyncpg"
    psycopg = PostgresStore.from_url(f"{running().url}?table=by_check")
    psycopg.init()
    psycopg.close()
    assert [run("check", "a", "--rate", "1/hour", "--store", url)[0] for _ in range(2)] == [0, 3]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--rate", "2/hour"), "--store"),
        (("--rate", "2/hour", "--store", "memory://"), "sqlite:///limits.db"),
        (("--rate", "often", "--store", "sqlite:///x.db"), "such as '100/minute'"),
        (("--rate", "1/s", "--policy", "api", "--store", "sqlite:///x.db"), "not allowed with"),
        (("--policy", "api", "--store", "sqlite:///x.db"), "--config"),
        (("--rate", "1/s", "--config", "f", "--store", "sqlite:///x.db"), "--policy"),
        (("--rate", "1/s", "--cost", "0", "--store", "sqlite:///x.db"), "cost"),
        (("--rate", "1/s", "--cost", "2", "--peek", "--store", "sqlite:///x.db"), "--cost"),
        (("--rate", "1/s", "--store", "sqlite:///x.db", "--nonsense"), "penstock check --help"),
        (("--store", "sqlite:///x.db"), "--rate --policy"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_touched(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    """Code 2, and what would be right."""
    monkeypatch.chdir(tmp_path)
    code, out, err = run("check", "alice", *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert says in err
    assert not [path for path in tmp_path.iterdir() if path.stat().st_size]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("apu", "did you mean 'api'?"),
        ("slots", "has slots, which have to be given back: ask the service"),
        ("several", "needs attributes: ask the service"),
    ],
)
def test_a_policy_that_cannot_be_asked_here_is_named(
    run: Run, store: str, config: str, policy: str, says: str
) -> None:
    """With what to do instead."""
    asked = ("check", "alice", "--config", config, "--store", store, "--policy", policy)
    code, _, err = run(*asked)
    assert code == 2
    assert says in err


def test_a_store_that_is_away_is_code_1(run: Run) -> None:
    """A script can tell it from a denial."""
    code, out, err = run("check", "a", "--rate", "1/s", "--store", "redis://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert "not charged" in err
