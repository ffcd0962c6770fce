"""200 callers in 8 processes at a limit of 50: 50 get in, every time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.redis.crowd import LIMIT, SLOW_MS, Crowd, Job
from tests.stores.redis.live import SIX, new_key, url_of
from tests.support.effort import count

TRIALS = count(5, 20)


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    with Crowd() as started:
        yield started


@pytest.mark.parametrize("kind", SIX)
@pytest.mark.parametrize("name", ["valkey", "redis8", "cluster"])
def test_a_crowd_of_processes_gets_exactly_the_limit(crowd: Crowd, name: str, kind: str) -> None:
    """Every time, although half of the processes' clocks are 5 s behind: the server's decides."""
    url = url_of(name)
    counts = [crowd.admitted(Job(url, kind, new_key(), slow_ms=SLOW_MS)) for _ in range(TRIALS)]
    assert counts == [LIMIT] * TRIALS


@pytest.mark.parametrize("kind", SIX)
def test_clocks_that_disagree_never_let_more_in(crowd: Crowd, kind: str) -> None:
    """By the callers' own clocks, half of them 5 s behind, over a cluster: at most the limit."""
    url = url_of("cluster")
    for _ in range(TRIALS):
        job = Job(url, kind, new_key(), use_server_time=False, slow_ms=SLOW_MS)
        assert LIMIT - 1 <= crowd.admitted(job) <= LIMIT
