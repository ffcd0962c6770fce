"""Bytes: commands out, replies in. hiredis does both, at C speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .factory import require_module
from .requests import Command, Refusal

__all__ = ["ProtocolError", "new_reader", "pack"]

_hiredis = require_module("hiredis")
_pack_one = _hiredis.pack_command
ProtocolError: type[Exception] = _hiredis.ProtocolError


def pack(commands: Sequence[Command]) -> bytes:
    """The commands as one payload."""
    if len(commands) == 1:
        payload: bytes = _pack_one(commands[0])
        return payload
    return b"".join([_pack_one(command) for command in commands])


def new_reader() -> Any:
    """A parser whose error replies are `Refusal`s, as values."""
    return _hiredis.Reader(replyError=Refusal)
