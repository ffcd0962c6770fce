"""Policy files: parsing, validation, and what the policies mean."""

from __future__ import annotations

from ._loading import load_policy_file, parse_policies
from ._model import DEFAULT_FILE, ConcurrencySpec, PolicyFile, PolicySpec, TwoTierSpec
from ._policies import fail_modes, has_fail_mode, names_with
from ._words import in_words

__all__ = [
    "DEFAULT_FILE",
    "ConcurrencySpec",
    "PolicyFile",
    "PolicySpec",
    "TwoTierSpec",
    "fail_modes",
    "has_fail_mode",
    "in_words",
    "load_policy_file",
    "names_with",
    "parse_policies",
]
