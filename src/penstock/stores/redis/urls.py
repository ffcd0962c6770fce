"""What a Redis URL says.

    redis://user:password@host:6379/0        rediss:// for TLS
    unix:///run/redis.sock?db=0
    redis+cluster://host1:6379,host2:6379    rediss+cluster:// for TLS
    redis+sentinel://host1:26379,host2:26379/service/0    rediss+sentinel:// for TLS

User and password are those of the data servers; sentinels that ask for their own take
`?sentinel_username=` and `?sentinel_password=`. `?timeout_ms=` and `?use_server_time=` are the
store's, for programs that know it only by its URL. Other parameters are the driver's, such as
`?ssl_ca_certs=` and `?client_name=`; `factory.py` refuses those that it does not know.

A URL holds a password, and one that was not escaped may end up in any of its parts: so no message
repeats the URL, nor its host or path.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from ...core.validation import reject, require_choice

__all__ = ["OPTIONS", "SENTINEL_OPTIONS", "ParsedUrl", "parse", "split_options"]

OPTIONS = ("timeout_ms", "use_server_time")

SENTINEL_OPTIONS = {"sentinel_username": "username", "sentinel_password": "password"}


@dataclass(slots=True)
class ParsedUrl:
    """`url` is what the driver understands of it, with the `parameters`; the rest is ours."""

    url: str
    hosts: list[tuple[str, int]]
    parameters: list[str]
    cluster: bool = False
    service: str = ""
    sentinel_options: dict[str, Any] = field(default_factory=dict)


def split_options(url: str) -> tuple[str, dict[str, Any]]:
    """The URL without the store's own parameters, and those."""
    parts = _split(url)
    query = _query(parts)
    options: dict[str, Any] = {}
    if "timeout_ms" in query:
        text = query.pop("timeout_ms")
        if not text.isdecimal():
            reject(f"?timeout_ms= must be a whole number of milliseconds, not {text!r}")
        options["timeout_ms"] = int(text)
    if "use_server_time" in query:
        text = query.pop("use_server_time").lower()
        options["use_server_time"] = (
            require_choice("?use_server_time=", text, ("true", "false")) == "true"
        )
    if not options:
        return url, options
    return parts._replace(query=urlencode(query)).geturl(), options


def parse(url: str) -> ParsedUrl:
    scheme, _, kind = url.partition("://")[0].lower().partition("+")
    parts = _split(url)
    query = _query(parts)
    if scheme == "unix" and not kind:
        return ParsedUrl(url, [(parts.path, 0)], list(query))
    if scheme not in ("redis", "rediss") or kind not in ("", "cluster", "sentinel"):
        reject("not a Redis URL: it starts with redis://, rediss://, redis+cluster://, ...")
    credentials, at, hosts_text = parts.netloc.rpartition("@")
    hosts = [_host(text, 26379 if kind == "sentinel" else 6379) for text in hosts_text.split(",")]
    if len(hosts) > 1 and not kind:
        reject(f"{scheme}:// names one server; for several use {scheme}+cluster:// or +sentinel://")
    path = [unquote(word) for word in parts.path.split("/") if word]
    service = ""
    if kind == "sentinel":
        if not path:
            reject(f"a sentinel URL names its service: {scheme}+sentinel://host:26379/service/0")
        service = path.pop(0)
    db = path[0] if path else "0"
    if len(path) > 1 or not db.isdecimal() or (kind == "cluster" and db != "0"):
        reject(
            "the path of a Redis URL must be a database number (a cluster has only 0); in a "
            "password write / as %2F"
        )
    ours = SENTINEL_OPTIONS if kind == "sentinel" else {}
    sentinel = {ours[name]: query.pop(name) for name in ours if name in query}
    host = hosts_text if not kind else "localhost"
    rest = f"?{urlencode(query)}" if query else ""
    plain = f"{scheme}://{credentials}{at}{host}/{db}{rest}"
    return ParsedUrl(plain, hosts, list(query), kind == "cluster", service, sentinel)


def _split(url: str) -> SplitResult:
    # Rejected outside of the handler: the text of a ValueError may hold the password, and would
    # be in the traceback.
    parts = None
    with suppress(ValueError):
        parts = urlsplit(url)
    if parts is None:
        reject("not a Redis URL: redis://user:password@host:6379/0, an IPv6 host in [brackets]")
    return parts


def _query(parts: SplitResult) -> dict[str, str]:
    return dict(parse_qsl(parts.query, keep_blank_values=True))


def _host(text: str, default_port: int) -> tuple[str, int]:
    found = None
    with suppress(ValueError):
        parts = urlsplit(f"//{text}")
        found = parts.hostname or "localhost", parts.port or default_port
    if found is None:
        reject(
            "a host of this Redis URL is not a name and a port number; in a password write / as "
            "%2F, ? as %3F and # as %23"
        )
    return found
