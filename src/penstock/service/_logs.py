"""The output of a service: its log, one line per event on standard error, and its banner, which
says what is served, where, and a command to try.

Messages may contain what a client has sent. So control characters are escaped, for every logger: a
line of the log is always one event, and clients cannot forge lines. An exception is logged in one
line, by its type and text.

The same failure may happen with every request. So only a few warnings and errors of the same kind
are written per span of time; the next one says how many were left out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from time import monotonic
from typing import Any

from ..config._words import described
from ..stores._urls import split_url
from ._access import is_for, names_in
from ._entries import Policy
from ._options import ServeOptions

__all__ = [
    "RepeatFilter",
    "banner",
    "print_banner",
    "set_up_logs",
    "shown_store",
]


# The C0 and C1 controls, line and paragraph separators, and controls of text direction.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


LINES_PER_SPAN = 10
SPAN_S = 10.0
_MAX_KINDS = 256


def set_up_logs(log_format: str, level: int = logging.INFO) -> None:
    """Log to standard error, as "text" or "json"."""
    handler = logging.StreamHandler()
    handler.addFilter(RepeatFilter())
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def escaped(text: str) -> str:
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


# asyncio puts objects into its format strings: "Exception in callback <... at 0x7f...>(42)".
_VARYING = re.compile(r"0x[0-9a-fA-F]+|[0-9]+|'[^']*'|\"[^\"]*\"")
_KIND_CHARACTERS = 120


def _kind_of(message: object) -> str:
    """What the messages of one kind have in common: the first line, without numbers, addresses of
    objects and quoted texts."""
    line = str(message).partition("\n")[0][: 4 * _KIND_CHARACTERS]
    return _VARYING.sub("#", line)[:_KIND_CHARACTERS]


class RepeatFilter(logging.Filter):
    """Passes `LINES_PER_SPAN` warnings and errors of a kind per `SPAN_S`. Records are of one kind
    if they have the same logger, level, kind of message and type of exception."""

    def __init__(self) -> None:
        super().__init__()
        # By kind: the start of the span, the lines passed in it, and the lines left out.
        self._kinds: dict[tuple[object, ...], tuple[float, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        error = record.exc_info[0] if record.exc_info else None
        kind: tuple[object, ...] = (record.name, record.levelno, _kind_of(record.msg), error)
        now = monotonic()
        if kind not in self._kinds and len(self._kinds) >= _MAX_KINDS:
            self._kinds = {k: v for k, v in self._kinds.items() if now - v[0] < SPAN_S}
            if len(self._kinds) >= _MAX_KINDS:
                kind = ()  # too many kinds at once are counted as one
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


_log = logging.getLogger("penstock.serve")

_SHOWN = 20


def print_banner(options: ServeOptions, lines: list[str]) -> None:
    """Print it to standard output, or log it as one event if the log is JSON."""
    if options.log_format == "json":
        _log.info("%s", lines[0], extra={"fields": {"serving": lines[1:]}})
        return
    # A closed standard output must not keep the service from starting.
    with contextlib.suppress(OSError):
        print("\n".join(lines), flush=True)


def banner(
    options: ServeOptions, policies: Mapping[str, Policy], warnings: Sequence[str] = ()
) -> list[str]:
    """The lines of the banner."""
    plural = "policy" if len(policies) == 1 else "policies"
    source = options.config or "the built-in default"
    lines = [
        f"penstock serves {len(policies)} {plural} ({source}) on {shown_store(options.store)}, "
        f"fail {options.fail}, {options.workers} worker{'s' * (options.workers > 1)}"
    ]
    lines += _read_out(policies)
    lines += _warned(warnings)
    if options.sources:
        told = (f"{name.replace('_', ' ')} from {place}" for name, place in options.sources.items())
        lines.append(f"  with  {', '.join(told)}")
    if options.http_port:
        lines.append(f"  HTTP  {_base(options)}  (described at {_base(options)}/docs)")
    if options.grpc_port:
        lines.append(f"  gRPC  {_bracketed(options.host)}:{options.grpc_port}  (throttlekit.v1)")
    if options.http_port:
        lines += _try(options, policies)
    return lines


def shown_store(url: str) -> str:
    """The store's URL without its password and its parameters."""
    parts = split_url(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _read_out(policies: Mapping[str, Policy]) -> Iterator[str]:
    """The first policies, described as by `penstock check-config`."""
    for policy in islice(policies.values(), _SHOWN):
        for line in described(policy.name, policy.kind, policy.terms, policy.fail):
            yield f"  {line}"
    if len(policies) > _SHOWN:
        yield f"  and {len(policies) - _SHOWN:,} more: penstock check-config shows them all"


def _warned(warnings: Sequence[str]) -> Iterator[str]:
    """The first warnings of a policy file, and how many more there are."""
    for warning in warnings[:_SHOWN]:
        yield f"  warning: {warning}"
    if len(warnings) > _SHOWN:
        yield f"  and {len(warnings) - _SHOWN:,} more warnings: penstock check-config shows all"


def _base(options: ServeOptions) -> str:
    scheme = "http" if options.tls is None else "https"
    return f"{scheme}://{_bracketed(_reachable(options.host))}:{options.http_port}"


def _reachable(host: str) -> str:
    """An address that a client on this machine can use."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _try(options: ServeOptions, policies: Mapping[str, Policy]) -> list[str]:
    """A command that works, and notes about it."""
    words, notes, base = ["curl", "-sS"], [], _base(options)
    if options.tls is not None:
        words += ["--cacert", shlex.quote(options.tls.cert)]
        host = _reachable(options.host)
        names = names_in(options.tls)
        if names and not is_for(names, host):
            name = _bracketed(names[0].replace("*", "any"))
            base = f"https://{name}:{options.http_port}"
            here = f"{_bracketed(host)}:{options.http_port}"
            words += ["--connect-to", f"{name}:{options.http_port}:{here}"]
            notes.append(f"the certificate is for {', '.join(names[:3])}: clients use that name")
    if options.tls_ca is not None:
        words += ["--cert", "CLIENT.pem", "--key", "CLIENT-KEY.pem"]
        notes.append("replace CLIENT.pem and CLIENT-KEY.pem by a client's certificate and key")
    if options.asks_token:
        words += ["-H", f'"Authorization: Bearer {_shell_token(options)}"']
    line = " ".join([*words, *_request(base, options, policies)])
    return [f"try:  {line}", *(f"      ({note})" for note in notes)]


def _shell_token(options: ServeOptions) -> str:
    """A shell expression for the token, which does not show it."""
    if options.token_file is not None:
        return f"$(cat {shlex.quote(options.token_file)})"
    return f"${options.token_variable}"


def _request(base: str, options: ServeOptions, policies: Mapping[str, Policy]) -> list[str]:
    default = policies.get("default")
    if default is not None and default.kind == "limiter":
        return [f"{base}/check/alice"]
    shown = list(islice(policies.values(), _SHOWN))
    body: dict[str, Any]
    path = "/check"
    if limiters := [policy.name for policy in shown if policy.kind == "limiter"]:
        body = {"policy": limiters[0], "key": "alice"}
    elif several := [(policy.name, policy.several) for policy in shown if policy.several]:
        name, limits = several[0]
        body = {"policy": name, "attributes": limits.example()}
        path = "/v1/reserve" if limits.has_slots else "/v1/check"
    elif options.inline:
        body = {"key": "alice", "limit": 10, "window_ms": 60_000}
    else:
        return [f"{base}/ready"]
    return [base + path, "-d", shlex.quote(json.dumps(body))]
