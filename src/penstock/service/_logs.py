"""One line per event, on standard error.

Whatever a client sent may turn up in a message. So control characters are escaped here, for every
logger: a line of the log is always one event, and nobody can write another's. A fault is told in
one line as well, by type and text.

What goes wrong may go wrong for every request. So of lines that tell of the same kind of trouble,
from whichever server, a few are written per span of time; the next one says how many were left out.

The gRPC library's core writes lines of its own past all that, about every handshake that fails. It
is told to be silent, unless somebody has told it something else.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import datetime, timezone
from time import monotonic

__all__ = ["RepeatFilter", "set_up_logs"]


# The C0 and C1 controls, the line and paragraph separators, and what turns text around.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


LINES_PER_SPAN = 10
SPAN_S = 10.0
_MAX_KINDS = 256


def set_up_logs(log_format: str, level: int = logging.INFO) -> None:
    """Send everything to standard error as "text" or "json"."""
    handler = logging.StreamHandler()
    handler.addFilter(RepeatFilter())
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def escaped(text: str) -> str:
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


class RepeatFilter(logging.Filter):
    """Lets through `LINES_PER_SPAN` warnings and errors of a kind per `SPAN_S`. A kind is made by
    the logger, the text before its values are filled in, and the type of the exception."""

    def __init__(self) -> None:
        super().__init__()
        # Since when, how many lines, and how many that were left out.
        self._kinds: dict[tuple[object, ...], tuple[float, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        error = record.exc_info[0] if record.exc_info else None
        kind: tuple[object, ...] = (record.name, record.levelno, str(record.msg), error)
        now = monotonic()
        if kind not in self._kinds and len(self._kinds) >= _MAX_KINDS:
            self._kinds = {k: v for k, v in self._kinds.items() if now - v[0] < SPAN_S}
            if len(self._kinds) >= _MAX_KINDS:
                kind = ()  # so many kinds at once are one
        since, lines, left_out = self._kinds.get(kind, (now, 0, 0))
        if now - since >= SPAN_S:
            since, lines = now, 0
        if lines >= LINES_PER_SPAN:
            self._kinds[kind] = (since, lines, left_out + 1)
            return False
        self._kinds[kind] = (since, lines + 1, 0)
        record.left_out = left_out
        return True


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
    if left_out := getattr(record, "left_out", 0):
        message += f" ({left_out} more like this since the last line)"
    return message
