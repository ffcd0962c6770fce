"""The gRPC server: the calls of `throttlekit.v1`, with health and reflection beside them."""

from __future__ import annotations

from ...core._errors import ConfigInvalidError, missing

_PACKAGES = {"google"}

try:
    from ._server import GrpcServer, open_grpc
except ModuleNotFoundError as _error:
    if (_error.name or "").partition(".")[0] not in _PACKAGES:
        raise
    _needs = missing("the gRPC server", _error.name or "grpc")
    raise ConfigInvalidError(f"{_needs}; or go without it: --no-grpc") from _error

__all__ = ["GrpcServer", "open_grpc"]
