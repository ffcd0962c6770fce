"""The service: named policies behind doors. The core knows no transport; each door is a room."""

from __future__ import annotations

from .core import Service, build_service

__all__ = ["Service", "build_service"]
