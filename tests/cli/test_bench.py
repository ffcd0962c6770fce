"""`penstock bench`: it measures what it says."""

from __future__ import annotations

import re

from tests.cli.shell import Run
from tests.stores.postgres.live import running
from tests.stores.redis.live import url_of


def test_checks_in_process_are_told_as_multiples_of_a_look_up(run: Run) -> None:
    """Four rows, none of them nothing."""
    code, out, _ = run("bench", "--rounds", "1")
    assert code == 0
    rows = re.findall(r"^  (\S.*?)\s+([\d.]+) ns\s+([\d.]+) x$", out, re.MULTILINE)
    assert [name for name, _, _ in rows] == [
        "check, allowed",
        "check, denied",
        "check_many, per key",
        "await acheck",
    ]
    assert all(float(ratio) > 0.1 for _, _, ratio in rows)


def test_a_store_is_measured_sync_and_async(run: Run) -> None:
    """From threads, then from tasks."""
    code, out, _ = run(
        *("bench", "--store", url_of("valkey"), "--rounds", "1", "--seconds", "0.1"),
        *("--callers", "4"),
    )
    assert code == 0
    rates = [int(rate.replace(",", "")) for rate in re.findall(r"([\d,]+) checks/s", out)]
    assert len(rates) == 2
    assert min(rates) > 100


def test_the_calls_that_a_store_lacks_are_left_out(run: Run) -> None:
    """With the reason, and the other one is measured."""
    url = f"{running().url}?table=by_bench&driver=asyncpg"
    assert run("store", "init", url)[0] == 0
    code, out, _ = run("bench", "--store", url, "--rounds", "1", "--seconds", "0.1")
    assert code == 0
    assert re.search(r"threads, check +.*sync", out)
    assert re.search(r"tasks, acheck +[\d,]+ checks/s", out)


def test_a_store_that_is_away_is_code_1(run: Run) -> None:
    """In one line."""
    code, _, err = run("bench", "--store", "redis://127.0.0.1:1", "--rounds", "1")
    assert code == 1
    assert err.count("\n") == 1
