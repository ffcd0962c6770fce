"""The service: named policies behind servers. The core knows no transport; each has a package."""

from __future__ import annotations

from ._core import Service, build_service

__all__ = ["Service", "build_service"]
