"""Policy files: parse, validate, build."""

from __future__ import annotations

from .loading import load_policy_file, parse_policies
from .model import DEFAULT_FILE, ConcurrencySpec, PolicyFile, PolicySpec, TwoTierSpec
from .policies import has_fail_mode, names_with
from .words import in_words

__all__ = [
    "DEFAULT_FILE",
    "ConcurrencySpec",
    "PolicyFile",
    "PolicySpec",
    "TwoTierSpec",
    "has_fail_mode",
    "in_words",
    "load_policy_file",
    "names_with",
    "parse_policies",
]
