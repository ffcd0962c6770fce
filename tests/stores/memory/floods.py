"""Crowds of keys for the tests of bounds."""

from __future__ import annotations

from penstock import Limiter


def flood(limiter: Limiter, keys: int, lead: str = "made up") -> None:
    for number in range(keys):
        limiter.check(f"{lead} {number}")


def fill_up(limiter: Limiter, key: str, count: int = 20) -> None:
    for _ in range(count):
        assert limiter.check(key)
