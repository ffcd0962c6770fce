"""`twoTier` and `federated`: how a policy's budget travels."""

from __future__ import annotations

from typing import Any

from ..core.strategy import find_strategy, registered
from .model import TwoTierSpec
from .reader import Fields

__all__ = ["MODES", "read_federated", "read_two_tier"]

# Those of `penstock.leasing`; a test compares.
MODES = ("strict", "cached-deny", "leased")

_TWO_TIER = (
    "mode",
    "batch",
    "low_water",
    "window_coupled",
    "return_idle_after",
    "return_idle_after_ms",
)


def read_two_tier(policy: Fields) -> TwoTierSpec:
    """How the strategy beside it is spent on each node."""
    if not policy.has("strategy"):
        policy.fail("two_tier", "belongs beside a strategy, whose counts it shares out")
    fields = policy.below("two_tier", _TWO_TIER)
    options: dict[str, Any] = {}
    if fields.has("mode"):
        options["mode"] = fields.choice("mode", MODES)
    if fields.has("batch"):
        options["batch"] = fields.integer("batch", 100)
    if fields.has("low_water"):
        most = options.get("batch", TwoTierSpec.batch) - 1
        options["low_water"] = fields.integer("low_water", 20, low=0, high=most)
    if fields.has("window_coupled"):
        options["window_coupled"] = fields.flag("window_coupled")
    if fields.has("return_idle_after") or fields.has("return_idle_after_ms"):
        options["return_idle_after_ms"] = fields.span_ms("return_idle_after", "30s")
    return TwoTierSpec(**options)


def read_federated(policy: Fields) -> int:
    """The most that a remote client is handed out at once."""
    if policy.has("concurrency"):
        policy.fail("federated", "cannot hand out slots, which live in one process")
    strategy = find_strategy(policy.raw("strategy")) if policy.has("strategy") else None
    if strategy is not None and strategy.window_kind is None:
        *some, last = (cls.wire_name for cls in registered() if cls.window_kind is not None)
        policy.fail(
            "federated",
            "needs a strategy with a window, at whose end what was handed out is void: "
            f"{', '.join(some)} or {last}",
        )
    return policy.below("federated", ("batch",)).integer("batch", 1_000)
