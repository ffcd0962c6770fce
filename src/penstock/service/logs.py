"""One line per event, on standard error.

Whatever a client sent may turn up in a message. So control characters are escaped here, for every
logger: a line of the log is always one event, and nobody can write another's. A fault is told in
one line as well, by type and text.

The gRPC library's core writes lines of its own past all that, about every handshake that fails. It
is told to be silent, unless somebody has told it something else.
"""

from __future__ import annotations

import json
import logging
import os
import re
from datetime import datetime, timezone

__all__ = ["set_up_logs"]

# The C0 and C1 controls, the line and paragraph separators, and what turns text around.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def set_up_logs(log_format: str, level: int = logging.INFO) -> None:
    """Send everything to standard error as "text" or "json". To be called before the gRPC library
    is imported."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def escaped(text: str) -> str:
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escaped(f"{_when(record)} {record.levelname} {record.name}: {_message(record)}")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **getattr(record, "fields", {}),
        }
        return json.dumps(fields)


def _when(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    message = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        message += f" ({type(error).__name__}: {error})"
    return message
