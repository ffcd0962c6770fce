"""Fixtures of the tests of the service."""

from __future__ import annotations

from pathlib import Path

import pytest

from .reloads import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
