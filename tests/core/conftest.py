"""Fixtures of the tests of the core."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest


@pytest.fixture
def pool() -> Any:
    """Threads enough for every line here."""
    with ThreadPoolExecutor(12) as pool:
        yield pool
