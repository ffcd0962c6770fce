"""The service: named policies behind HTTP and gRPC servers. The core knows no transport; each
server has a package of its own."""

from __future__ import annotations

from ._core import Service, build_service

__all__ = ["Service", "build_service"]
