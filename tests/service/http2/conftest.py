"""Every test of HTTP/2 runs on both implementations: interpreted and, if built, compiled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.service.http2 import _bounds, _connection, _frames, _hpack, _streams

try:
    from penstock.accel import _http2 as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

INTERPRETED = SimpleNamespace(
    __name__="penstock.service.http2",
    **{
        name: getattr(module, name)
        for module in (_streams, _hpack, _frames, _bounds, _connection)
        for name in module.__all__
    },
)
IMPLEMENTATIONS: dict[str, Any] = {"interpreted": INTERPRETED}
if compiled is not None:
    IMPLEMENTATIONS["compiled"] = compiled


@pytest.fixture(params=IMPLEMENTATIONS)
def protocol(request: pytest.FixtureRequest) -> Any:
    """The names of one implementation."""
    return IMPLEMENTATIONS[request.param]
