"""The record of a state outside the process: a JSON text that describes itself.

    {"v":1,"strategy":"backoff","expires_at":1700000060000,"state":[1700000000000,2000]}

The text is the same in every store that keeps records. Numbers are written by `repr`, the shortest
text that reads back as the same double, so states are restored to the bit. A tuple is restored as a
list. Expiry is decided here, by `expires_at` on the clock of the request; a TTL of the backend or a
sweep only frees space, and `keep_ms` says how late that has to be.

A record of an unknown version, or of another strategy, is an error: treating it as absent would
admit again what it had counted.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from ..core._errors import ConfigInvalidError
from ..core._figures import restored
from ..core._lua import MARGIN_MS, MAX_MARGIN_MS
from ..core._transform import Transform
from ..core._validation import reject

__all__ = ["FORMAT", "MARGIN_MS", "foreign_state", "keep_ms", "pack", "restore", "unpack"]


FORMAT = 1
"""The version of the record that this code writes and reads."""

_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of a state")


_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


def pack(kind: str, state: Any, expires_at: int) -> str:
    """The record of a `state` of strategy `kind` that is absent from `expires_at` on."""
    # A number, the state of most strategies, needs no encoder.
    if type(state) is int or (type(state) is float and isfinite(state)):
        text = repr(state)
    else:
        text = _state_text(kind, state)
    return f'{{"v":{FORMAT},"strategy":{_encode(kind)},"expires_at":{expires_at},"state":{text}}}'


def unpack(raw: str | bytes | None, key: str, kind: str, now: int) -> Any:
    """The state in a record; None if there is no record or it has expired."""
    if raw is None:
        return None
    try:
        record = _decode(raw if isinstance(raw, str) else raw.decode())
        version, held = record["v"], record["strategy"]
        expires_at, state = record["expires_at"], record["state"]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise foreign_state(f"key {key!r}", "not a record of this store") from None
    if type(version) is not int or version != FORMAT or type(expires_at) is not int:
        raise foreign_state(f"key {key!r}", f"a record of format {version!r}, not {FORMAT}")
    if state is None:
        raise foreign_state(f"key {key!r}", "a record without a state")
    if now >= expires_at:
        return None
    if held != kind:
        raise foreign_state(f"key {key!r}", f"the strategy {held!r}, not {kind!r}")
    return state


def restore(raw: str | bytes | None, key: str, transform: Transform[Any], now: int) -> Any:
    """The state for a transform, validated by its strategy; None if there is none."""
    if transform.role == "clear":
        # `reset` must work whatever the key holds.
        return None
    state = unpack(raw, key, transform.kind, now)
    if state is None or transform.strategy is None:
        return state
    try:
        return restored(transform.strategy, state)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise foreign_state(f"key {key!r}", error) from error


def keep_ms(ttl_ms: int) -> int:
    """How long to keep the record of a state with this ttl: as long again, at least a minute and at
    most a day longer, for callers that are slow or whose clocks differ."""
    return ttl_ms + min(max(ttl_ms, MARGIN_MS), MAX_MARGIN_MS)


def foreign_state(where: str, detail: object) -> ConfigInvalidError:
    """The error for a key that holds something of another program or strategy."""
    return ConfigInvalidError(
        f"{where} holds the state of something else ({detail}): two limiters, or a limiter and "
        "another program, share it; give each limiter a prefix of its own"
    )


def _state_text(kind: str, state: Any) -> str:
    try:
        text = _encode(state)
        # The encoder silently turns the keys 1, True and None into text.
        if "{" in text and not _text_keys(state):
            raise TypeError("a dict has a key that is not text")
    except (TypeError, ValueError, RecursionError) as error:
        reject(
            f"the state of {kind!r} cannot be kept outside the process ({error}): make it of "
            "finite numbers, strings, lists, dicts with text keys and None"
        )
    return text


def _text_keys(state: Any) -> bool:
    if isinstance(state, dict):
        return all(type(name) is str and _text_keys(held) for name, held in state.items())
    return not isinstance(state, (list, tuple)) or all(map(_text_keys, state))
