"""One Lua script, and the parts of every script: the files in `scripts/`, and constants."""

from __future__ import annotations

import os
from typing import Any

from ._lua_inlining import names_in
from ._validation import MAX_INSTANT_MS, MAX_SAFE, MAX_SPAN_MS, MAX_STORED_MS

__all__ = ["MARGIN_MS", "MAX_MARGIN_MS", "LuaScript", "constants_of", "literal", "shared"]


MARGIN_MS = 60_000
"""How much longer than its ttl a state is kept, at least."""
MAX_MARGIN_MS = 86_400_000
"""How much longer than its ttl a state is kept, at most."""

# Constants for scripts; the last three are patterns of numbers, for the prelude's `number`.
_CONSTANTS = {
    "MARGIN_MS": MARGIN_MS,
    "MAX_MARGIN_MS": MAX_MARGIN_MS,
    "MAX_SAFE": MAX_SAFE,
    "MAX_SPAN_MS": MAX_SPAN_MS,
    "MAX_INSTANT_MS": MAX_INSTANT_MS,
    "MAX_STORED_MS": MAX_STORED_MS,
    "WHOLE": "^%d+$",
    "REAL": r"^%d+%.?%d*e?-?%d*$",
    "SIGNED": r"^-?%d+%.?%d*e?-?%d*$",
}
_SHARED = os.path.join(os.path.dirname(__file__), "scripts")


class LuaScript:
    """One script as Redis runs it, known on the wire by its name and its sha1."""

    __slots__ = ("_sha1", "name", "source")

    def __init__(self, name: str, source: str) -> None:
        self.name: str = name
        self.source: str = source
        self._sha1 = b""

    @property
    def sha1(self) -> str:
        """The digest by which a server identifies it, in hexadecimal."""
        return self.sha1_bytes.decode()

    @property
    def sha1_bytes(self) -> bytes:
        """Computed on first use: programs that never ask a server need not load OpenSSL."""
        if not self._sha1:
            from hashlib import sha1

            digest = sha1(self.source.encode(), usedforsecurity=False)
            self._sha1 = digest.hexdigest().encode()
        return self._sha1

    def __repr__(self) -> str:
        return f"<LuaScript {self.name}>"


def constants_of(text: str, **others: str) -> str:
    """The declaration of the constants that a text names."""
    named = {*names_in(text)}
    values = {name: value for name, value in {**_CONSTANTS, **others}.items() if name in named}
    if not values:
        return ""
    return f"local {', '.join(values)} = {', '.join(map(literal, values.values()))}\n"


def shared(name: str) -> str:
    """The text of a file in `scripts/`."""
    with open(os.path.join(_SHARED, f"{name}.lua"), encoding="utf-8") as file:
        return file.read()


def literal(value: Any) -> str:
    """A value in Lua."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}'" if isinstance(value, str) else repr(value)
