"""`penstock check`: one decision, for shell scripts."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

from ..config import load_policy_file
from ..config._loading import import_modules
from ..config._model import form_of
from ..core._clock import SystemClock
from ..core._decision import Decision
from ..core._durations import wait_in_words
from ..core._errors import ConfigInvalidError, UnsupportedError
from ..core._limiter import Limiter
from ..core._store import Store
from ..core._strategy import Strategy
from ..core._validation import reject
from ..service._deciding import joined, limiter_on
from ..service._registry import unknown_policy
from ..stores._opening import open_store
from ..strategies import strategy_of_rate
from ._settings import Settings, add_import, imports_of
from ._store import add_store, call_and_close, store_url

__all__ = ["SUMMARY", "configure", "run"]


SUMMARY = "decide one request, against a rate or a policy"

DENIED = 3

_EPILOG = f"""\
examples:
  penstock check alice --rate 100/minute --store redis://localhost:6379
  penstock check alice --policy api --config penstock.yaml --store redis://localhost:6379
  penstock check backup --rate 1/hour --store sqlite:///limits.db && ./backup.sh

With --policy, counts are shared with a service that serves the same file on the same store. With
--rate, they are shared with `rate_limit("100/minute", store=..., prefix=...)`.

Exit codes: 0 allowed, {DENIED} denied, 1 the store is away, 2 invalid arguments.
"""


@dataclass(frozen=True, slots=True)
class _Counted:
    """The strategy to check, and the prefix of its counts."""

    strategy: Strategy
    prefix: str


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    settings = Settings(parser)
    add("key", metavar="KEY", help="the key to check: a client, a tenant, a job")
    limits = parser.add_mutually_exclusive_group(required=True)
    limits.add_argument("--rate", metavar="RATE", help="the limit, such as 100/minute or 5/30s")
    limits.add_argument("--policy", metavar="NAME", help="a policy of the file in --config")
    add("--config", metavar="FILE", help="the policy file")
    add_import(settings)
    add_store(settings, help="the store, such as redis://HOST:6379 or sqlite:///limits.db")
    add("--cost", type=int, metavar="N", default=1, help="the cost of the request (%(default)s)")
    add("--prefix", metavar="TEXT", default="", help="the prefix of the key, with --rate")
    add("--peek", action="store_true", help="only look, and spend nothing")
    add("--json", action="store_true", help="print the decision as JSON")


def run(args: argparse.Namespace) -> int:
    """Decide and print the decision. The exit code says whether it was allowed."""
    args.settings.resolve(args)
    counted = _by_rate(args) if args.rate is not None else _by_policy(args)
    url = store_url(args)
    if url is None:
        reject("a store is needed: give --store URL, --store-file FILE or PENSTOCK_STORE")
    if url.partition("://")[0].lower() == "memory":
        reject(
            "memory:// is forgotten when this command ends; use sqlite:///limits.db or redis://HOST"
        )
    store = open_store(url)
    limiter = limiter_on(store, counted.strategy, SystemClock(), counted.prefix)
    decision = _decide(limiter, store, args)
    print(_as_json(decision) if args.json else _in_words(decision, limiter.clock.now()))
    return 0 if decision.allowed else DENIED


def _by_rate(args: argparse.Namespace) -> _Counted:
    if args.config is not None:
        reject("--config goes with --policy, not with --rate; leave it out")
    return _Counted(strategy_of_rate(args.rate), args.prefix)


def _by_policy(args: argparse.Namespace) -> _Counted:
    if args.config is None:
        reject("--policy needs the policy file: give it with --config")
    if args.prefix:
        reject("--prefix goes with --rate; a policy file has its own prefix")
    import_modules(imports_of(args))
    file = load_policy_file(args.config)
    spec = file.policies.get(args.policy)
    if spec is None:
        raise unknown_policy(args.policy, file.policies)
    strategy = {"limiter": spec.strategy, "budget": spec.budget}.get(spec.kind)
    if strategy is None:
        why = "needs attributes" if spec.several else "has slots, which have to be given back"
        raise UnsupportedError(
            f"policy {spec.name!r} is of the kind {spec.kind!r}, which {why}: ask the service"
        )
    return _Counted(strategy, joined(file.prefix, spec.name, form_of(strategy)))


def _decide(limiter: Limiter, store: Store, args: argparse.Namespace) -> Decision:
    if args.peek and args.cost != 1:
        raise ConfigInvalidError("--peek is always about a cost of 1; leave out --cost")
    if args.peek:
        return call_and_close(
            store, lambda: limiter.peek(args.key), lambda: limiter.apeek(args.key)
        )
    return call_and_close(
        store,
        lambda: limiter.check(args.key, args.cost),
        lambda: limiter.acheck(args.key, args.cost),
    )


def _as_json(decision: Decision) -> str:
    return json.dumps(
        {
            "allowed": decision.allowed,
            "limit": decision.limit,
            "remaining": decision.remaining,
            "reset_at": decision.reset_at,
            "retry_after_ms": decision.retry_after_ms,
        }
    )


def _in_words(decision: Decision, now: int) -> str:
    left = f"{decision.remaining} of {decision.limit} left"
    if not decision.allowed:
        return f"denied: try again in {_seconds(decision.retry_after_ms)}; {left}"
    return f"allowed: {left}, all of it again in {_seconds(max(0, decision.reset_at - now))}"


def _seconds(ms: int) -> str:
    if ms > 3_600_000:
        return wait_in_words(ms)
    return f"{ms / 1000:,.3f}".rstrip("0").rstrip(".") + " s"
