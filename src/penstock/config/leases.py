"""`twoTier` and `federated`: how a policy's budget travels."""

from __future__ import annotations

from typing import Any

from .model import TwoTierSpec
from .reader import Fields, snake

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
_WINDOWED = ("fixed_window", "sliding_window", "sliding_window_log")


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
    if policy.has("strategy") and snake(policy.raw("strategy")) not in _WINDOWED:
        policy.fail(
            "federated",
            "needs a strategy with a window, at whose end what was handed out is void: "
            "fixedWindow, slidingWindow or slidingWindowLog",
        )
    return policy.below("federated", ("batch",)).integer("batch", 1_000)
