"""Calling a store from a shell, sync or async, whichever it has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..core._errors import UnsupportedError
from ..core._store import Store

__all__ = ["call_and_close"]


R = TypeVar("R")


def call_and_close(store: Store, call: Callable[[], R], acall: Callable[[], Awaitable[R]]) -> R:
    """`call()`, or `await acall()` on a store that has only that; then close the store."""
    try:
        return call()
    except UnsupportedError:
        return asyncio.run(_await_and_close(store, acall))
    finally:
        store.close()


async def _await_and_close(store: Store, acall: Callable[[], Awaitable[R]]) -> R:
    try:
        return await acall()
    finally:
        await store.aclose()
