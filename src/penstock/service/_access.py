"""Who may ask: those with the token. For every server."""

from __future__ import annotations

import hmac
import re
from hashlib import sha256

from ..core._validation import reject

__all__ = ["BearerToken"]


_TOKEN = re.compile(r"[!-~]+")
_BEARER = re.compile(r"bearer +([!-~]+)", re.IGNORECASE | re.ASCII)


class BearerToken:
    """The token that is good."""

    def __init__(self, token: str) -> None:
        if not _TOKEN.fullmatch(token):
            reject("a token must be of printable ASCII characters, without spaces")
        self._digest = _digest(token)

    def accept(self, authorization: str | None) -> bool:
        """Whether the value of an `authorization` header is good. Takes as long for any wrong
        one."""
        match = _BEARER.fullmatch(authorization or "")
        given = "" if match is None else match[1]
        return hmac.compare_digest(self._digest, _digest(given)) and match is not None


def _digest(token: str) -> bytes:
    return sha256(token.encode("ascii")).digest()
