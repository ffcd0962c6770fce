"""What carries a call to a service: its name and fields there, the fields of the answer back.

Both transports speak the names of the HTTP server (docs/http.md), so that what asks does not know
which one it has. A transport raises `store_unavailable` where there was no answer, and says whether
the call may have been obeyed; the service's own refusals are raised with its words.

No call that spends is sent twice: a connection that died may have died after the service decided.

`open_transport` leads from a URL to the one that speaks with it.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from ..core._errors import (
    ConfigInvalidError,
    PenstockError,
    StoreUnavailableError,
    UnsupportedError,
    require_module,
)
from ..core._validation import reject

__all__ = [
    "SERVICE_SCHEMES",
    "SPENDING",
    "Answer",
    "ServiceTransport",
    "grpc_target",
    "no_answer",
    "open_transport",
    "refusal",
]


Answer = Mapping[str, Any]

SPENDING = frozenset({"admit", "check", "check-many", "debit", "reserve"})
"""Calls that must not be repeated when their answer was lost; all others may be."""

_BUSY = (408, 425, 429)


class ServiceTransport(Protocol):
    """Sync and async; `call` is the last part of a path below /v1."""

    def call(self, name: str, fields: Mapping[str, Any]) -> Answer: ...

    async def acall(self, name: str, fields: Mapping[str, Any]) -> Answer: ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


def no_answer(where: str, name: str, error: object, *, sent: bool) -> StoreUnavailableError:
    """The error for a call whose answer did not come."""
    told = str(error) or type(error).__name__
    doubt = ""
    if name in SPENDING:
        doubt = "; it may have been charged" if sent else "; nothing was charged"
    return StoreUnavailableError(f"no answer from the service at {where}: {told}{doubt}")


def refusal(where: str, status: int, problem: Answer) -> PenstockError:
    """The error for an HTTP status that is no success, in the words of the service."""
    detail = str(problem.get("detail") or "no details")[:1_000]
    text = f"the service at {where} answered {status}: {detail}"
    if status == 501:
        return UnsupportedError(text)
    if status >= 500 or status in _BUSY:
        is_full = problem.get("reason") == "full"
        return StoreUnavailableError(text, reason="full" if is_full else "away")
    if status == 401:
        return ConfigInvalidError(f"{text}; pass the service's token as token=...")
    if "code" not in problem:
        return ConfigInvalidError(f"{text}; is this the address of a Penstock service?")
    return ConfigInvalidError(text)


SERVICE_SCHEMES = ("http", "https", "grpc", "grpcs")


def open_transport(
    url: str, token: str | None, timeout_ms: int, tls: Any
) -> tuple[str, ServiceTransport]:
    """The URL as it may be shown, and its transport. Nothing is connected before the first call."""
    scheme, host, port, path = _parts(url)
    shown_as = (
        f"{scheme}://{f'[{host}]' if ':' in host else host}{'' if port is None else f':{port}'}"
    )
    if scheme in ("http", "grpc") and tls is not None:
        reject(f"tls is for {scheme}s:// URLs, and {scheme}:// has none")
    _require_token(token)
    if scheme.startswith("grpc"):
        return shown_as, _grpc_transport(scheme, shown_as, token, timeout_ms, tls)
    from ._http import HttpTransport

    if scheme == "https":
        tls = ssl.create_default_context() if tls is None else tls
        if not isinstance(tls, ssl.SSLContext):
            reject(f"tls must be an ssl.SSLContext for an https:// URL, not a {type(tls).__name__}")
    transport = HttpTransport(host, port, path, token=token, timeout_ms=timeout_ms, tls=tls)
    return shown_as + path.rstrip("/"), transport


def grpc_target(url: str, tls: Any) -> tuple[str, Any]:
    """Host and port, and gRPC's credentials, of a URL that must be one of gRPC."""
    scheme, host, port, _ = _parts(url)
    if not scheme.startswith("grpc"):
        reject("units are leased over gRPC: give a URL such as 'grpc://localhost:50051'")
    if scheme == "grpc" and tls is not None:
        reject("tls is for grpcs:// URLs, and grpc:// has none")
    return f"{f'[{host}]' if ':' in host else host}:{port}", _grpc_credentials(scheme, tls)


def _grpc_credentials(scheme: str, tls: Any) -> Any:
    grpc = require_module("asking a service over gRPC", "grpc", "client")
    if scheme == "grpc":
        return None
    tls = grpc.ssl_channel_credentials() if tls is None else tls
    if not isinstance(tls, grpc.ChannelCredentials):
        reject(
            "tls must be made by grpc.ssl_channel_credentials for a grpcs:// URL, not a "
            f"{type(tls).__name__}"
        )
    return tls


def _grpc_transport(
    scheme: str, shown_as: str, token: str | None, timeout_ms: int, tls: Any
) -> ServiceTransport:
    credentials = _grpc_credentials(scheme, tls)
    require_module("asking a service over gRPC", "google.protobuf", "client")
    from ._grpc import GrpcTransport

    target = shown_as.partition("://")[2]
    return GrpcTransport(target, token=token, timeout_ms=timeout_ms, credentials=credentials)


def _parts(url: Any) -> tuple[str, str, int | None, str]:
    """Scheme, host, port and path. What is wrong is not repeated: there may be a password in it."""
    example = "a service's URL is such as 'http://localhost:8080' or 'grpc://localhost:50051'"
    if not isinstance(url, str):
        reject(f"{example}, not a {type(url).__name__}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        reject(f"{example}; this one has no valid host and port")
    if parts.scheme not in SERVICE_SCHEMES or not host:
        reject(f"{example}; this one has no host, or another scheme than {SERVICE_SCHEMES}")
    if parts.username is not None or parts.query or parts.fragment:
        reject("a service's URL is scheme, host, port and path; pass the token as token=...")
    if parts.scheme.startswith("grpc") and (parts.path not in ("", "/") or port is None):
        reject("a gRPC URL is a host and a port, such as 'grpc://localhost:50051'")
    return parts.scheme, host, port, parts.path


def _require_token(token: Any) -> None:
    if token is None:
        return
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        # Without the value: it is not to be seen.
        reject("token must be a text of printable ASCII characters, or None")
