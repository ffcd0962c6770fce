"""Cloudflare's REST API: its address, its names, and the envelope around every reply."""

from __future__ import annotations

from typing import Any

from ..cas._requests import require_name
from ._client import RestReply, refused

__all__ = ["API", "TOKEN_ENV", "Refused", "require_id", "result_of"]


API = "https://api.cloudflare.com/client/v4"
TOKEN_ENV = "CLOUDFLARE_API_TOKEN"

_ID = r"[A-Za-z0-9_-]{1,64}"


def require_id(what: str, text: object) -> str:
    """An account, database or namespace id: it becomes part of a path."""
    return require_name(what, text, _ID)


class Refused(Exception):  # noqa: N818 - an answer that a store may read
    """Cloudflare said no. `codes` are its error codes, `error` is what to raise."""

    def __init__(self, codes: list[int], said: str, error: Exception) -> None:
        super().__init__(said)
        self.codes = codes
        self.error = error


def result_of(reply: RestReply, where: str) -> Any:
    """The result inside the envelope, or Refused."""
    envelope = reply.json()
    if not isinstance(envelope, dict):
        raise Refused([], "", refused(reply.status, "not the API's JSON", where))
    if reply.status < 300 and envelope.get("success"):
        return envelope.get("result")
    errors = [error for error in envelope.get("errors") or [] if isinstance(error, dict)]
    said = "; ".join(f"{error.get('code')} {error.get('message')}" for error in errors)
    status = reply.status if reply.status >= 300 else 500
    codes = [error.get("code", 0) for error in errors]
    raise Refused(codes, said, refused(status, said, where))
