"""Transports: send a call, its name and fields, to a service and return the fields of the answer.

Both transports use the names of the HTTP API (docs/http.md), so that callers need not know which
one they have. Without an answer, a transport raises `store_unavailable` and says whether the call
may have taken effect; an error of the service is raised with its message.

A call that spends is never sent twice: a connection may break after the service has decided.

`open_transport` opens the transport of a URL.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from ..core._errors import (
    ConfigInvalidError,
    OverloadedError,
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
"""Calls that must not be repeated if their answer was lost; all others may be."""

_BUSY = (408, 425, 429)


class ServiceTransport(Protocol):
    """Calls a service, sync and async. The name of a call is the last part of its path in the HTTP
    API, such as "check" for /v1/check."""

    def call(self, name: str, fields: Mapping[str, Any]) -> Answer: ...

    async def acall(self, name: str, fields: Mapping[str, Any]) -> Answer: ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


def no_answer(where: str, name: str, error: object, *, sent: bool) -> StoreUnavailableError:
    """The error for a call without an answer."""
    told = str(error) or type(error).__name__
    doubt = ""
    if name in SPENDING:
        doubt = "; it may have been charged" if sent else "; nothing was charged"
    return StoreUnavailableError(f"no answer from the service at {where}: {told}{doubt}")


def refusal(where: str, status: int, problem: Answer) -> PenstockError:
    """The error for an HTTP status other than 200, with the service's message."""
    detail = str(problem.get("detail") or "no details")[:1_000]
    text = f"the service at {where} answered {status}: {detail}"
    if status == 501:
        return UnsupportedError(text)
    if problem.get("code") == "overloaded":
        return OverloadedError(text)
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
    """The URL for display, and its transport, which connects with the first call."""
    scheme, host, port, path = _parts(url)
    shown_as = (
        f"{scheme}://{f'[{host}]' if ':' in host else host}{'' if port is None else f':{port}'}"
    )
    if scheme in ("http", "grpc") and tls is not None:
        reject(f"tls needs a {scheme}s:// URL; leave it out for {scheme}://")
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
    """Host and port, and grpcio's credentials, of a URL that must be grpc:// or grpcs://."""
    scheme, host, port, _ = _parts(url)
    if not scheme.startswith("grpc"):
        reject("credits are leased over gRPC: use a URL such as 'grpc://localhost:50051'")
    if scheme == "grpc" and tls is not None:
        reject("tls needs a grpcs:// URL; leave it out for grpc://")
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
    """Scheme, host, port and path. Errors do not show the URL: it may contain a password."""
    example = "url must be like 'http://localhost:8080' or 'grpc://localhost:50051'"
    if not isinstance(url, str):
        reject(f"{example}, not a {type(url).__name__}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        reject(f"{example}; this one has no valid host and port")
    if parts.scheme not in SERVICE_SCHEMES or not host:
        schemes = ", ".join(SERVICE_SCHEMES)
        reject(f"{example}; this one has no host, or its scheme is none of {schemes}")
    if parts.username is not None or parts.query or parts.fragment:
        reject(
            f"{example}, without a user, query or fragment; pass the service's token as token=..."
        )
    if parts.scheme.startswith("grpc") and (parts.path not in ("", "/") or port is None):
        reject("a grpc:// URL needs a host and a port and no path: 'grpc://localhost:50051'")
    return parts.scheme, host, port, parts.path


def _require_token(token: Any) -> None:
    if token is None:
        return
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        # The value is a secret, so it is not shown.
        reject("token must be a text of printable ASCII characters, or None")
