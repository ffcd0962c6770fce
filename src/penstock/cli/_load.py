"""`penstock load`: a small load generator for a service, with a table of latencies."""

from __future__ import annotations

import argparse
import json
import sys

from ._load_driver import Pace, put_under_load
from ._load_report import LoadReport
from ._load_target import LoadTarget, target_of

__all__ = ["SUMMARY", "configure", "run"]

SUMMARY = "put a service under load and show its latencies"

_EPILOG = """\
examples:
  penstock load http://127.0.0.1:8080                        as fast as it answers
  penstock load http://127.0.0.1:8080 --rate 5000            5,000 a second, evenly
  penstock load http://127.0.0.1:8080 --policy api --keys 1  one hot key of a policy
  penstock load https://limits.internal --ca ca.pem --token-file token

Without --policy, requests bring a limit along that is never reached, so that what is measured is
the service. Latency is counted from when a request was sent or, if it had to wait for a
connection that the service kept busy, from when it was due. Ctrl-C ends early, with the table.

Ends with 0 when every request was answered with a decision, 1 when some were not, 2 when it was
asked for something impossible.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("url", metavar="URL", help="where the service is, such as http://127.0.0.1:8080")
    add("--seconds", type=float, metavar="S", default=10.0, help="for how long (%(default)s)")
    add("--connections", type=int, metavar="N", default=32, help="at once (%(default)s)")
    add("--rate", type=float, metavar="R", help="requests a second; without it, as many as go")
    add("--policy", metavar="NAME", help="ask a policy of the service")
    add("--keys", type=int, metavar="N", default=1_000, help="how many clients (%(default)s)")
    add("--cost", type=int, metavar="N", default=1, help="of each request (%(default)s)")
    add("--token-file", metavar="FILE", help="the bearer token that the service asks for")
    add("--ca", metavar="FILE", help="the authority of the service's certificate, in PEM form")
    add("--cert", metavar="FILE", help="a certificate to show to the service, with its --key")
    add("--key", metavar="FILE", help="its key")
    add("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Load it, and say how it went."""
    target = target_of(args)
    pace = Pace(args.seconds, args.connections, args.rate)
    report = put_under_load(target, pace, _Display(target))
    if args.json:
        print(json.dumps(report.as_dict()))
    else:
        print(report.table(f"{target.url}, {args.connections} connections"))
    return 0 if report.answered and not report.troubles else 1


class _Display:
    """How it goes, while it goes: one line that is written over, or a line a second in a log."""

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
