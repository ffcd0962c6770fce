"""Who may ask: those with the token, and no browser on behalf of another site."""

from __future__ import annotations

import hmac
from hashlib import sha256

__all__ = ["Token", "is_cross_site"]


class Token:
    """The token that is good. None at all means that everyone may ask."""

    def __init__(self, token: str | None = None) -> None:
        self._digest = None if token is None else _digest(token)

    def accept(self, authorization: str | None) -> bool:
        """Whether the header's value is good. Takes as long for any wrong one."""
        if self._digest is None:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        same = hmac.compare_digest(self._digest, _digest(given.strip()))
        return same and scheme.lower() == "bearer"


def is_cross_site(headers: dict[str, str]) -> bool:
    """Whether a browser sends this for a page of another site, which must not be able to spend
    what its visitors, or the service's own machine, have left."""
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _digest(token: str) -> bytes:
    # Header values arrive as the bytes they are, one character each.
    return sha256(token.encode("latin-1", "replace")).digest()
