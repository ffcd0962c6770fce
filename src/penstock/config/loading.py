"""`load_policy_file`: from a path to policies."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..core.files import read_regular
from .model import PolicyFile
from .policies import policies_of
from .tree import PolicyFileError, read_json, read_yaml

__all__ = [
    "MAX_BYTES",
    "load_policy_file",
    "parse_policies",
    "parse_policy_file",
    "read_policy_file",
]

MAX_BYTES = 1 << 20
"""Of a policy file."""


def load_policy_file(path: str | Path) -> PolicyFile:
    """The policies of a YAML file, or of a JSON file if its name ends in .json.

    Raises `config_invalid` with the file, the path inside it and what would be right.
    """
    return parse_policy_file(read_policy_file(path), str(path))


def read_policy_file(path: str | Path) -> bytes:
    """The bytes of a policy file; raises `config_invalid` if they cannot be had."""
    try:
        return read_regular(path, MAX_BYTES)
    except OSError as error:
        raise PolicyFileError(f"{path}: cannot be read: {error.strerror or error}") from None


def parse_policy_file(raw: bytes, source: str) -> PolicyFile:
    """The policies in the bytes of a file."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PolicyFileError(
            f"{source}: is not UTF-8, at byte {error.start}; save it as UTF-8"
        ) from None
    return parse_policies(text, source, hashlib.sha256(raw).hexdigest())


def parse_policies(text: str, source: str = "penstock.yaml", digest: str = "") -> PolicyFile:
    """The policies of a text; `source` says in messages where it is from, and by its ending
    whether it is JSON."""
    read = read_json if source.lower().endswith(".json") else read_yaml
    return policies_of(read(text, source), digest)
