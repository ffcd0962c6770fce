"""Random timelines through the stores that keep records: the oracle's answer at every step."""

from __future__ import annotations

import pytest

from penstock import Store
from penstock.core._transform import checking
from tests.stores.postgres.live import open_empty
from tests.stores.sqlite.fresh import FreshSqliteStore
from tests.support.helpers import Reference
from tests.wire.timelines import KINDS, make_timelines

STEPS = 600


def _follow(store: Store, kind: str) -> None:
    for timeline in make_timelines(kind, seed=4, steps=STEPS):
        oracle, check = Reference(timeline.strategy), checking(timeline.strategy)
        for now, cost in timeline.requests:
            seen = store.apply(timeline.key, check, now, cost)
            assert seen == oracle.check(now, cost), (timeline.strategy, now, cost)
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_sqlite_follows_the_oracle(kind: str) -> None:
    """States go through text and come back to the bit."""
    _follow(FreshSqliteStore(), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_postgres_follows_the_oracle(kind: str) -> None:
    """Through guesses, confirmations and text alike."""
    _follow(open_empty(), kind)
