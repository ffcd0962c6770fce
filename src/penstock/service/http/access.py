"""Who may ask: bearer tokens, and no browser on behalf of another site."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from ...core.validation import reject

__all__ = ["Tokens", "is_cross_site", "read_tokens"]

_SHORTEST = 16


class Tokens:
    """The tokens that are good. None at all means that everyone may ask."""

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self._digests = [_digest(token) for token in tokens]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accept(self, authorization: str | None) -> bool:
        """Whether the header's value is good. Takes as long for any wrong one."""
        if not self._digests:
            return True
        scheme, _, token = (authorization or "").partition(" ")
        given = _digest(token.strip())
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, given)
        return found and scheme.lower() == "bearer"


def read_tokens(path: str | Path) -> Tokens:
    """One token per line, so that an old one stays good while clients take up a new one."""
    try:
        text = Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeError) as error:
        reject(f"the token file {str(path)!r} cannot be read: {error}")
    tokens = [line.strip() for line in text.splitlines() if line.strip()]
    if not tokens:
        reject(
            f"the token file {str(path)!r} has no token in it; write one into it, such as "
            "`openssl rand -hex 32` makes"
        )
    if short := [token for token in tokens if len(token) < _SHORTEST or " " in token]:
        reject(
            f"{len(short)} of the tokens in {str(path)!r} cannot be used: a token has at least "
            f"{_SHORTEST} characters and no spaces"
        )
    return Tokens(tokens)


def is_cross_site(headers: dict[str, str]) -> bool:
    """Whether a browser sends this for a page of another site, which must not be able to spend
    what its visitors, or the service's own machine, have left."""
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _digest(token: str) -> bytes:
    return sha256(token.encode("latin-1", "replace")).digest()
