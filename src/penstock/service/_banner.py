"""What `penstock serve` says when it is ready: what is served, where, and a line to try."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from urllib.parse import urlsplit

from ..config._words import described
from ._options import ServeOptions
from ._registry import Policy
from ._tls import is_for, names_in

__all__ = ["banner", "print_banner", "shown_store"]


_log = logging.getLogger("penstock.serve")

_SHOWN = 20


def print_banner(options: ServeOptions, lines: list[str]) -> None:
    """Say it on standard output, or as one event where the log is for programs."""
    if options.log_format == "json":
        _log.info("%s", lines[0], extra={"fields": {"serving": lines[1:]}})
        return
    # A reader that has gone away must not keep the service from starting.
    with contextlib.suppress(OSError):
        print("\n".join(lines), flush=True)


def banner(
    options: ServeOptions, policies: Mapping[str, Policy], warnings: Sequence[str] = ()
) -> list[str]:
    """The lines to print."""
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
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _read_out(policies: Mapping[str, Policy]) -> Iterator[str]:
    """The first policies, as `penstock check-config` says them."""
    for policy in islice(policies.values(), _SHOWN):
        for line in described(policy.name, policy.kind, policy.terms, policy.fail):
            yield f"  {line}"
    if len(policies) > _SHOWN:
        yield f"  and {len(policies) - _SHOWN:,} more: penstock check-config says them all"


def _warned(warnings: Sequence[str]) -> Iterator[str]:
    """The first warnings of a policy file, and how many more there are."""
    for warning in warnings[:_SHOWN]:
        yield f"  warning: {warning}"
    if len(warnings) > _SHOWN:
        yield f"  and {len(warnings) - _SHOWN:,} more warnings: penstock check-config says them all"


def _base(options: ServeOptions) -> str:
    scheme = "http" if options.tls is None else "https"
    return f"{scheme}://{_bracketed(_reachable(options.host))}:{options.http_port}"


def _reachable(host: str) -> str:
    """An address that a client on this machine can use."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _try(options: ServeOptions, policies: Mapping[str, Policy]) -> list[str]:
    """A line that works, and what has to be known about it."""
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
        notes.append("put the files of a client's certificate for CLIENT.pem and CLIENT-KEY.pem")
    if options.asks_token:
        words += ["-H", f'"Authorization: Bearer {_shell_token(options)}"']
    line = " ".join([*words, *_request(base, options, policies)])
    return [f"try:  {line}", *(f"      ({note})" for note in notes)]


def _shell_token(options: ServeOptions) -> str:
    """How a shell finds the token, without its being shown."""
    if options.token_file is not None:
        return f"$(cat {shlex.quote(options.token_file)})"
    return f"${options.token_variable}"


def _request(base: str, options: ServeOptions, policies: Mapping[str, Policy]) -> list[str]:
    default = policies.get("default")
    if default is not None and default.kind == "limiter":
        return [f"{base}/check/alice"]
    shown = islice(policies.values(), _SHOWN)
    limiters = [policy.name for policy in shown if policy.kind == "limiter"]
    if not limiters and not options.inline:
        return [f"{base}/ready"]
    body = (
        {"policy": limiters[0], "key": "alice"}
        if limiters
        else {"key": "alice", "limit": 10, "window_ms": 60_000}
    )
    return [f"{base}/check", "-d", shlex.quote(json.dumps(body))]
