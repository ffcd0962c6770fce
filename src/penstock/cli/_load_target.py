"""What is asked, of whom: from the command's arguments to bytes."""

from __future__ import annotations

import argparse
import json
import ssl
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from ..core._files import read_ascii
from ..core._validation import reject, require_cost, require_int
from ..service._tls import read_pem

__all__ = ["LoadTarget", "target_of"]

# Never reached, so that every answer is a decision that admits.
_AMPLE = {"limit": 1_000_000_000, "window_ms": 60_000}


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """An address, and the requests to send there by turns."""

    url: str
    host: str
    port: int
    tls: ssl.SSLContext | None
    requests: list[bytes]


def target_of(args: argparse.Namespace) -> LoadTarget:
    """Refuses what makes no sense, before anything is sent."""
    require_int("--keys", args.keys, high=1_000_000)
    require_int("--connections", args.connections, high=10_000)
    require_cost(args.cost)
    if not 0.1 <= args.seconds <= 86_400:
        reject(f"--seconds must lie between 0.1 and 86400, not {args.seconds!r}")
    if args.rate is not None and not 0.1 <= args.rate <= 10_000_000:
        reject(f"--rate must lie between 0.1 and 10000000 a second, not {args.rate!r}")
    parts = _address(args.url)
    secure = parts.scheme == "https"
    if not secure and (args.ca or args.cert or args.key):
        reject("--ca, --cert and --key are for an https:// URL")
    tls = _tls(args) if secure else None
    port = parts.port or (443 if secure else 80)
    head = _head(parts.netloc, args.token_file)
    asked = _AMPLE if args.policy is None else {"policy": args.policy}
    bodies = (
        json.dumps({**asked, "key": f"client-{number}", "cost": args.cost}).encode()
        for number in range(args.keys)
    )
    requests = [head + b"Content-Length: %d\r\n\r\n" % len(body) + body for body in bodies]
    return LoadTarget(f"{parts.scheme}://{parts.netloc}", str(parts.hostname), port, tls, requests)


def _address(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        reject(f"{url!r} is not a URL: {error}")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        reject(f"give the service as http://HOST:PORT or https://HOST:PORT, not {url!r}")
    if parts.path.strip("/") or parts.query or parts.username is not None:
        reject(f"give scheme, host and port and no more, not {url!r}; requests go to /check")
    return parts


def _tls(args: argparse.Namespace) -> ssl.SSLContext:
    if (args.cert is None) != (args.key is None):
        reject("--cert and --key belong together: give both or neither")
    for path in (args.ca, args.cert, args.key):
        if path is not None:
            read_pem(path)
    try:
        context = ssl.create_default_context(cafile=args.ca)
        if args.cert is not None:
            context.load_cert_chain(args.cert, args.key, password="")
    except (OSError, ValueError) as error:
        listed = ", ".join(name for name in (args.ca, args.cert, args.key) if name)
        reject(f"no usable certificate in PEM form in {listed}: {error}")
    return context


def _head(host: str, token_file: str | None) -> bytes:
    lines = ["POST /check HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    if token_file is not None:
        try:
            token = read_ascii(token_file, 1 << 16).strip()
        except OSError as error:
            reject(f"the token file {token_file!r} cannot be read: {error.strerror or error}")
        lines.append(f"Authorization: Bearer {token}")
    return "".join(f"{line}\r\n" for line in lines).encode()
