"""What the URL of a store behind an HTTP API may say, and where its token comes from.

URLs are logged, so a token is never part of one: `?token_env=NAME` names the environment variable
that holds it. Errors here do not repeat the URL either, in case somebody put one there all the
same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ...core.validation import reject

__all__ = ["Settings", "Token", "is_loopback", "read_url", "require_base_url"]


@dataclass(frozen=True, slots=True)
class Settings:
    """`place` is host, port and path; `options` are the keywords for the store."""

    place: str
    options: dict[str, Any]


def read_url(url: str, token_env: str, options: dict[str, Any], *also: str) -> Settings:
    """Split a URL. `also` are the names of further parameters; `options` override what it says."""
    parts = urlsplit(url)
    if parts.username or parts.password:
        reject(
            f"a {parts.scheme}:// URL must not hold a token: put it into an environment variable "
            f"and name that with ?token_env=; the default is {token_env}"
        )
    said: dict[str, Any] = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name == "timeout_ms" and text.isdecimal():
            said[name] = int(text)
        elif name == "token_env" or name in also:
            said[name] = text
        else:
            known = ", ".join(f"{one}=" for one in ("timeout_ms", "token_env", *also))
            reject(f"a {parts.scheme}:// URL takes {known}, not {name!r}")
    variable = said.pop("token_env", token_env)
    said.update(options)
    if "token" not in said:
        said["token"] = _token_from(variable)
    return Settings(f"{parts.netloc}{parts.path}", said)


def _token_from(variable: str) -> str:
    token = os.environ.get(variable, "")
    if not token:
        reject(
            f"the environment variable {variable} is not set: put the token there, or name "
            "another variable with ?token_env="
        )
    return token


class Token:
    """A secret that no repr, log or traceback with local variables shows."""

    __slots__ = ("_text",)

    def __init__(self, text: object) -> None:
        if not isinstance(text, str) or not text.isascii() or not text.isprintable():
            reject("token must be a text of printable ASCII characters")
        if not text or " " in text:
            reject("token must not be empty or contain spaces")
        self._text = text

    def header(self) -> str:
        return f"Bearer {self._text}"

    def __repr__(self) -> str:
        return "Token(...)"


def require_base_url(url: object) -> str:
    """https, or http to this machine: a token must not travel in the clear."""
    parts = urlsplit(url) if isinstance(url, str) else SplitResult("", "", "", "", "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        reject("the base URL must be https://host/path")
    if parts.username or parts.password or parts.query or parts.fragment:
        reject("the base URL must be scheme, host and path, with no user, token or query")
    if parts.scheme == "http" and not is_loopback(str(url)):
        reject(f"http:// would send the token in the clear to {parts.hostname}: use https://")
    return str(url).rstrip("/")


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
