"""The URLs of a SqliteStore: as in SQLAlchemy, three slashes and then the path."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ...core.validation import reject

__all__ = ["parse_url", "require_path"]


def parse_url(url: str) -> tuple[str, dict[str, Any]]:
    """The path, and the options by name."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = SplitResult("sqlite", "", "", "", "")
    if parts.netloc or len(parts.path) < 2:
        reject(
            "a SQLite URL is sqlite:///relative.db or sqlite:////absolute.db, with three slashes "
            "before the path"
        )
    if parts.fragment:
        reject("a SQLite URL has no fragment; write '#' in a path as %23")
    options: dict[str, Any] = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name == "timeout_ms" and text.isdecimal():
            options[name] = int(text)
        elif name == "synchronous":
            options[name] = text.lower()
        else:
            shown = f"this {name}" if name.isidentifier() else "what it was given"
            reject(
                "sqlite:// takes ?synchronous=off|normal|full|extra and ?timeout_ms=<number>, "
                f"not {shown}"
            )
    return unquote(parts.path[1:]), options


def require_path(path: Any) -> str:
    """Absolute, so that a change of the working folder does not change the limit."""
    if not isinstance(path, (str, os.PathLike)):
        reject(f"path must be the path of a file, not {path!r}")
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        reject(f"path must be the path of a file as text, not {text!r}")
    if text == ":memory:":
        reject("a SqliteStore is a file; for limits inside one process use MemoryStore")
    return os.path.abspath(text)
