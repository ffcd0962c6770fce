"""Runs scenarios: the world of each kind, on a store and a prefix of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from penstock import PenstockError, Store

from .http_world import HttpWorld
from .scenarios import Scenario
from .services import ServiceWorld
from .stores import let_go, new_prefix, open_store
from .worlds import LimiterWorld, LimitsWorld, Transcript, TwoTierWorld, World

WORLDS: dict[str, Callable[[Scenario, Store, str], World]] = {
    "limiter": LimiterWorld,
    "limits": LimitsWorld,
    "two_tier": TwoTierWorld,
    "service": ServiceWorld,
    "http": HttpWorld,
}


def run(scenario: Scenario) -> Transcript:
    """Make all calls of a scenario."""
    store = open_store(scenario.store)
    world = None
    try:
        world = WORLDS[scenario.kind](scenario, store, new_prefix())
        return world.run()
    finally:
        if world is not None:
            world.close()
        with suppress(PenstockError):
            let_go(scenario.store, store)
