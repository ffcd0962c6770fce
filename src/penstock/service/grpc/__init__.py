"""The gRPC door: the calls of `throttlekit.v1`, with health and reflection beside them."""

from __future__ import annotations

from ...core.errors import ConfigInvalidError

_PACKAGES = {"google", "grpc", "grpc_health", "grpc_reflection"}

try:
    from .server import GrpcDoor, open_grpc
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in _PACKAGES:
        raise
    raise ConfigInvalidError(
        f"the gRPC door needs {error.name}: pip install 'penstock[server]', or turn the door off"
    ) from error

__all__ = ["GrpcDoor", "open_grpc"]
