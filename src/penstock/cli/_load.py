"""`penstock load`: a small load generator for a service, with a table of latencies."""

from __future__ import annotations

import argparse
import json
import ssl
import sys
from urllib.parse import SplitResult, urlsplit

from ..core._files import read_ascii
from ..core._validation import reject, require_cost, require_int
from ..service._access import read_pem
from ._load_driver import LoadReport, LoadTarget, Pace, put_under_load

__all__ = ["SUMMARY", "configure", "run"]


SUMMARY = "put a service under load and show its latencies"

_EPILOG = """\
examples:
  penstock load http://127.0.0.1:8080                        as fast as it answers
  penstock load http://127.0.0.1:8080 --rate 5000            5,000 a second, evenly
  penstock load http://127.0.0.1:8080 --policy api --keys 1  one hot key of a policy
  penstock load https://limits.internal --ca ca.pem --token-file token

Without --policy, requests contain a limit that is never reached. Latency is counted from when a
request was sent or, if it had to wait for a connection that the service kept busy, from when it was
due. Ctrl-C ends early, with the table.

Exit codes: 0 every request got a decision, 1 some did not, 2 invalid arguments.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("url", metavar="URL", help="the address of the service, such as http://127.0.0.1:8080")
    add("--seconds", type=float, metavar="S", default=10.0, help="duration (%(default)s)")
    add("--connections", type=int, metavar="N", default=32, help="connections (%(default)s)")
    add("--rate", type=float, metavar="R", help="requests a second (as many as possible)")
    add("--policy", metavar="NAME", help="check this policy of the service")
    add("--keys", type=int, metavar="N", default=1_000, help="number of keys (%(default)s)")
    add("--cost", type=int, metavar="N", default=1, help="cost of each request (%(default)s)")
    add("--token-file", metavar="FILE", help="the file with the token of the service")
    add("--ca", metavar="FILE", help="the CA of the service's certificate, in PEM format")
    add("--cert", metavar="FILE", help="a client certificate, in PEM format; needs --key")
    add("--key", metavar="FILE", help="the key of the client certificate")
    add("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Put the service under load and print the result."""
    target = _target_of(args)
    pace = Pace(args.seconds, args.connections, args.rate)
    report = put_under_load(target, pace, _Display(target))
    if args.json:
        print(json.dumps(report.as_dict()))
    else:
        print(report.table(f"{target.url}, {args.connections} connections"))
    return 0 if report.answered and not report.troubles else 1


class _Display:
    """Shows progress: in one line that is overwritten on a terminal, else in a line a second."""

    def __init__(self, target: LoadTarget) -> None:
        self._live = sys.stderr.isatty()
        self.every_s = 0.25 if self._live else 1.0
        self._say(f"asking {target.url}")

    def show(self, report: LoadReport) -> None:
        self._say(report.line())

    def end(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _say(self, text: str) -> None:
        lead, end = ("\r\x1b[K", "") if self._live else ("", "\n")
        print(f"{lead}{text}", end=end, file=sys.stderr, flush=True)


# Never reached, so that every request is allowed.
_AMPLE = {"limit": 1_000_000_000, "window_ms": 60_000}


def _target_of(args: argparse.Namespace) -> LoadTarget:
    """Validate the arguments before anything is sent."""
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
        reject("--ca, --cert and --key need an https:// URL")
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
        reject(f"give only scheme, host and port, not {url!r}; requests go to /check")
    return parts


def _tls(args: argparse.Namespace) -> ssl.SSLContext:
    if (args.cert is None) != (args.key is None):
        reject("--cert and --key must be given together")
    for path in (args.ca, args.cert, args.key):
        if path is not None:
            read_pem(path)
    try:
        context = ssl.create_default_context(cafile=args.ca)
        if args.cert is not None:
            context.load_cert_chain(args.cert, args.key, password="")
    except (OSError, ValueError) as error:
        listed = ", ".join(name for name in (args.ca, args.cert, args.key) if name)
        reject(f"no usable certificate in PEM format in {listed}: {error}")
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
