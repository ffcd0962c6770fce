"""The HTTP client of stores, sync and async: addresses, tokens and errors.

URLs are logged, so a token is never part of one: `?token_env=NAME` names the environment variable
that holds it. Errors here do not show the URL either, in case somebody put a token there anyway.

This is the only file that imports httpx. Its errors, and every HTTP status that is not a success,
are translated here. Messages name the address and what the server said, never what was sent:
headers contain the token.

The last part is for Cloudflare's REST API: its address, its names, and the envelope around every
reply.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ..._queueing import Mutex
from ...core._errors import ConfigInvalidError, require_module
from ...core._validation import reject
from .._sheet import ConnectionFailedError
from ..cas._drivers import PerLoop, Workers
from ..cas._requests import require_name

__all__ = [
    "CLOUDFLARE_API",
    "CLOUDFLARE_TOKEN_ENV",
    "ApiToken",
    "CloudflareRefused",
    "HttpCall",
    "RestClient",
    "RestReply",
    "RestSettings",
    "is_loopback",
    "read_url",
    "refused",
    "require_base_url",
    "require_id",
    "result_of",
    "translated",
]


@dataclass(frozen=True, slots=True)
class RestSettings:
    """`place` is host, port and path; `options` are the keywords for the store."""

    place: str
    options: dict[str, Any]


def read_url(url: str, token_env: str, options: dict[str, Any], *also: str) -> RestSettings:
    """Split a URL. `also` has the names of further parameters; `options` take precedence over the
    URL."""
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
    return RestSettings(f"{parts.netloc}{parts.path}", said)


def _token_from(variable: str) -> str:
    token = os.environ.get(variable, "")
    if not token:
        reject(
            f"the environment variable {variable} is not set: put the token there, or name "
            "another variable with ?token_env="
        )
    return token


class ApiToken:
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
        return "ApiToken(...)"


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


# By name, since httpx is only imported when it is used.
_NOT_SENT = frozenset(
    {
        "ConnectError",
        "ConnectTimeout",
        "InvalidURL",
        "LocalProtocolError",
        "PoolTimeout",
        "ProxyError",
        "UnsupportedProtocol",
    }
)
_LATE = frozenset({"PoolTimeout", "ConnectTimeout", "ReadTimeout", "WriteTimeout"})


def translated(error: Exception, where: str) -> Exception:
    """The error for an exception of httpx; any other is returned as it is."""
    if not any(base.__module__.partition(".")[0] == "httpx" for base in type(error).__mro__):
        return error
    name = type(error).__name__
    text = f"{where}: {str(error) or name}"
    return ConnectionFailedError(text, may_have_run=name not in _NOT_SENT, again=name not in _LATE)


def refused(status: int, said: str, where: str) -> Exception:
    """The error for an HTTP status and the server's message. A success without the expected body is
    an outage: a proxy, or a broken server, may have sent it."""
    text = f"{where} answered {status}: {said[:300]}"
    if status < 300:
        return ConnectionFailedError(text, may_have_run=True)
    if status in (401, 403):
        return ConnectionFailedError(
            f"{text}; the token is wrong or lacks a permission", may_have_run=False
        )
    if status == 429:
        return ConnectionFailedError(text, may_have_run=False, again=True)
    if status >= 500 or status == 408:
        return ConnectionFailedError(text, may_have_run=True, again=True)
    return ConfigInvalidError(text)


_CONNECTIONS = 64
_MAX_REPLY = 32 << 20
# A reply that has arrived is read although the deadline has passed meanwhile.
_GRACE_S = 0.1


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One request. `body` is text as it is, or anything else as JSON."""

    method: str
    path: str
    body: Any = None


@dataclass(frozen=True, slots=True)
class RestReply:
    status: int
    text: str

    def json(self) -> Any:
        """The body, or None where it is not JSON: a proxy may have answered."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


class RestClient:
    """One httpx client for all threads, and one for each loop. They repeat nothing by themselves.

    The token shows up in the header of a request and nowhere else.
    """

    def __init__(self, base_url: str, token: str, timeout_ms: int) -> None:
        self.base_url: str = require_base_url(base_url)
        self._timeout_s = timeout_ms / 1000
        self._make = partial(_make, self.base_url, ApiToken(token), self._timeout_s)
        self._forget()

    def _forget(self) -> None:
        self._mutex = Mutex()
        self._workers = Workers()
        self._blocking: Any = None
        self._asynchronous = PerLoop(self._open, _shut)

    after_fork = _forget

    def prepare(self) -> None:
        if self._blocking is None:
            with self._mutex.hold():
                if self._blocking is None:
                    self._blocking = self._make("Client")

    async def aprepare(self) -> None:
        await self._asynchronous.get()

    def send(self, calls: Sequence[HttpCall], deadline: float) -> list[Any]:
        """All calls at once: for each its RestReply, or the ConnectionFailedError it met."""
        self.prepare()
        jobs = [partial(self._send, self._blocking, call, deadline) for call in calls]
        return self._workers.run(jobs, deadline)

    async def asend(self, calls: Sequence[HttpCall], deadline: float) -> list[Any]:
        client = await self._asynchronous.get()
        jobs = [self._asend(client, call, deadline) for call in calls]
        return await asyncio.gather(*jobs, return_exceptions=True)

    def close(self) -> None:
        with self._mutex.hold():
            client, self._blocking = self._blocking, None
        if client is not None:
            client.close()
        self._workers.close()

    async def aclose(self) -> None:
        self.close()
        await self._asynchronous.aclose()

    def __repr__(self) -> str:
        return f"<RestClient of {self.base_url}>"

    def _send(self, client: Any, call: HttpCall, deadline: float) -> RestReply:
        content = bytearray()
        try:
            with client.stream(**self._arguments(call), timeout=_left_s(deadline)) as response:
                for chunk in response.iter_raw():
                    _add(content, chunk, deadline)
        except Exception as error:
            raise translated(error, self.base_url) from None
        return RestReply(response.status_code, content.decode(errors="replace"))

    async def _asend(self, client: Any, call: HttpCall, deadline: float) -> RestReply:
        left_s = _left_s(deadline)
        try:
            return await asyncio.wait_for(self._exchange(client, call, left_s, deadline), left_s)
        except asyncio.TimeoutError:
            raise ConnectionFailedError("no reply in time", may_have_run=True) from None
        except Exception as error:
            raise translated(error, self.base_url) from None

    async def _exchange(
        self, client: Any, call: HttpCall, left_s: float, deadline: float
    ) -> RestReply:
        content = bytearray()
        async with (
            client.stream(**self._arguments(call), timeout=left_s) as response,
            aclosing(response.aiter_raw()) as chunks,
        ):
            async for chunk in chunks:
                _add(content, chunk, deadline)
        return RestReply(response.status_code, content.decode(errors="replace"))

    def _arguments(self, call: HttpCall) -> dict[str, Any]:
        # Joined here: httpx would add a slash at the end of the address.
        arguments: dict[str, Any] = {"method": call.method, "url": self.base_url + call.path}
        if isinstance(call.body, str):
            arguments["content"] = call.body.encode()
        elif call.body is not None:
            arguments["content"] = json.dumps(call.body, separators=(",", ":")).encode()
            arguments["headers"] = {"Content-Type": "application/json"}
        return arguments

    async def _open(self) -> Any:
        return self._make("AsyncClient")


def _make(base_url: str, token: ApiToken, timeout_s: float, kind: str) -> Any:
    httpx = require_module("a store behind an HTTP API", "httpx")
    limits = httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS)
    return getattr(httpx, kind)(
        # A compressed reply could expand to any length.
        headers={"Authorization": token.header(), "Accept-Encoding": "identity"},
        timeout=timeout_s,
        limits=limits,
        follow_redirects=False,
        # A proxy of the environment is for other hosts, not for this machine.
        trust_env=not is_loopback(base_url),
    )


def _add(content: bytearray, chunk: bytes, deadline: float) -> None:
    """Add a part of a reply. httpx bounds the time of each read, but neither their number nor the
    length of the reply."""
    content += chunk
    if len(content) > _MAX_REPLY:
        text = f"the reply is longer than {_MAX_REPLY:,} bytes"
        raise ConnectionFailedError(text, may_have_run=True)
    if time.monotonic() > deadline + _GRACE_S:
        raise ConnectionFailedError("no reply in time", may_have_run=True)


async def _shut(client: Any) -> None:
    await client.aclose()


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise ConnectionFailedError("no time left to ask", may_have_run=False)
    return left_s


CLOUDFLARE_API = "https://api.cloudflare.com/client/v4"
CLOUDFLARE_TOKEN_ENV = "CLOUDFLARE_API_TOKEN"

_ID = r"[A-Za-z0-9_-]{1,64}"


def require_id(what: str, text: object) -> str:
    """An account, database or namespace id: it becomes part of a path."""
    return require_name(what, text, _ID)


class CloudflareRefused(Exception):  # noqa: N818 - an answer that a store may read
    """An error of Cloudflare's API. `codes` are its error codes, `error` is what to raise."""

    def __init__(self, codes: list[int], said: str, error: Exception) -> None:
        super().__init__(said)
        self.codes = codes
        self.error = error


def result_of(reply: RestReply, where: str) -> Any:
    """The result inside the envelope, or CloudflareRefused."""
    envelope = reply.json()
    if not isinstance(envelope, dict):
        raise CloudflareRefused([], "", refused(reply.status, "not the API's JSON", where))
    if reply.status < 300 and envelope.get("success"):
        return envelope.get("result")
    listed = envelope.get("errors")
    listed = listed if isinstance(listed, list) else []
    errors = [error for error in listed if isinstance(error, dict)]
    said = "; ".join(f"{error.get('code')} {error.get('message')}" for error in errors)
    status = reply.status if reply.status >= 300 else 500
    codes = [error.get("code", 0) for error in errors]
    raise CloudflareRefused(codes, said, refused(status, said, where))
