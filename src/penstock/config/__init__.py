"""Policy files: parse, validate, build."""

from __future__ import annotations

from .loading import load_policy_file, parse_policies
from .model import DEFAULT_FILE, ConcurrencySpec, PolicyFile, PolicySpec, TwoTierSpec

__all__ = [
    "DEFAULT_FILE",
    "ConcurrencySpec",
    "PolicyFile",
    "PolicySpec",
    "TwoTierSpec",
    "load_policy_file",
    "parse_policies",
]
