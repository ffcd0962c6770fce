"""`load_policy_file`: from a path to policies."""

from __future__ import annotations

import hashlib
from pathlib import Path

from .model import PolicyFile
from .policies import policies_of
from .tree import PolicyFileError, read_json, read_yaml

__all__ = ["load_policy_file", "parse_policies"]

_MAX_BYTES = 1 << 20


def load_policy_file(path: str | Path) -> PolicyFile:
    """The policies of a YAML file, or of a JSON file if its name ends in .json.

    Raises `config_invalid` with the file, the path inside it and what would be right.
    """
    source = str(path)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise PolicyFileError(f"{source}: cannot be read: {error.strerror or error}") from None
    if len(raw) > _MAX_BYTES:
        raise PolicyFileError(f"{source}: is larger than {_MAX_BYTES} bytes")
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
