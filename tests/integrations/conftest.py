"""What the files of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integrations.serving import shared


@pytest.fixture(autouse=True, scope="package")
def _no_server_left_behind() -> Iterator[None]:
    """The server that the tests share ends with them."""
    yield
    shared.close()
