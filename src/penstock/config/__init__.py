"""Policy files: parse, validate, build."""

from __future__ import annotations

from .model import DEFAULT_FILE, PolicyFile, PolicySpec

__all__ = ["DEFAULT_FILE", "PolicyFile", "PolicySpec"]
