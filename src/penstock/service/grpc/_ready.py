"""Checks that are answered in compiled code, from their last frame to those of the reply.

`accel/_grpc.pyx` says which. Everything else takes the long way, through `_dispatch.py` and
`_calls.py`, and is answered the same; so is everything where nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core import native
from ...wire.proto.rate_limiter_pb2_grpc import RATE_LIMITER
from .._core import Service
from ..http2 import KnownPath, compiled
from ._dispatch import MAX_MESSAGE_BYTES
from ._open_calls import Places

__all__ = ["ready_checks"]

_CHECK = f"/{RATE_LIMITER}/Check".encode()


def ready_checks(
    service: Service, routes: Mapping[bytes, KnownPath], places: Places, *, asks_token: bool
) -> Any:
    """What makes connections that answer checks by themselves; None where there are none."""
    if native is None or compiled is None:
        return None
    try:
        from ...accel import _grpc
    except ImportError:
        return None
    return _grpc.ReadyChecks(
        route=routes[_CHECK].number,
        max_bytes=MAX_MESSAGE_BYTES,
        entry_of=service.entry,
        places=places,
        durations=service.metrics.latency("grpc").durations,
        codes=service.metrics.grpc.codes,
        asks_token=asks_token,
    )
