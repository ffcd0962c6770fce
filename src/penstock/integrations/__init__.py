"""Penstock inside web frameworks, HTTP clients and task queues, one module each."""

from __future__ import annotations

__all__: list[str] = []
