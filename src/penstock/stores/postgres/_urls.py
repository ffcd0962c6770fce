"""Where a store connects to: a URL, told apart into what is ours and what is the driver's."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from ...core._validation import reject

__all__ = ["PostgresTarget", "parse_url"]

_OURS = ("schema", "table", "driver", "timeout_ms", "use_server_time")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class PostgresTarget:
    """The URL for the driver, and how to speak of it: without secrets."""

    url: str = field(repr=False)
    where: str

    def redact(self, text: str) -> str:
        """Drivers do not quote passwords; should one ever do, it stops here."""
        password = urlsplit(self.url).password or ""
        for secret in {password, unquote(password)} - {""}:
            text = text.replace(secret, "***")
        return text


def parse_url(url: str) -> tuple[PostgresTarget, dict[str, Any]]:
    """The target, and our own options: `schema`, `table`, `driver`, `timeout_ms` and
    `use_server_time`. All other parameters are the driver's, unless they look like one of ours
    misspelt: as a driver's, each driver would refuse it in its own words, when it connects."""
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2]
    except ValueError:
        reject("a PostgreSQL URL is postgresql://user:password@host:5432/database")
    options: dict[str, Any] = {}
    theirs: list[tuple[str, str]] = []
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name in ("schema", "table", "driver"):
            options[name] = text
        elif name == "timeout_ms":
            options[name] = int(text) if text.isdecimal() else text
        elif name == "use_server_time":
            if text.lower() not in _FLAGS:
                reject(f"use_server_time must be true or false, not {text!r}")
            options[name] = _FLAGS[text.lower()]
        elif near := get_close_matches(name, _OURS, 1, 0.75):
            reject(f"a postgresql:// URL takes {', '.join(_OURS)}, not {name}; write {near[0]}=")
        else:
            theirs.append((name, text))
    query = urlencode(theirs, quote_via=quote)
    plain = urlunsplit(("postgresql", parts.netloc, parts.path, query, ""))
    where = f"PostgreSQL at {hosts or 'the default address'}{parts.path}"
    return PostgresTarget(plain, where), options
