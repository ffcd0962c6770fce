"""`manage.py penstock`: list the limits of a project, look at a key, reset it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ....._limits import Limits
from ...._who import stored_by
from ..._limits import declared_rules, limits_of_project

__all__ = ["Command"]


class Command(BaseCommand):  # type: ignore[misc]
    """The command."""

    help = "List rate limits, look at what a key has left, or reset it."

    def add_arguments(self, parser: Any) -> None:
        """`list`, `show LIMIT KEY`, `reset LIMIT KEY`."""
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list", help="all limits of the settings and of the views")
        for action, told in (("show", "what a key has left"), ("reset", "forget what it spent")):
            inner = actions.add_parser(action, help=told)
            inner.add_argument("limit", help="the name of a limit, as `list` and the headers say")
            inner.add_argument("key", help="such as a client's address")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it."""
        rules = dict(declared_rules())
        if options["action"] == "list":
            for name, rule in rules.items():
                limit = rule.limit
                told = repr(rule.ready) if limit is None else limit.strategy.in_words()
                self.stdout.write(f"{name}: {told}")
            return
        name, key = options["limit"], options["key"]
        if name not in rules:
            raise CommandError(f"there is no limit {name!r}; there are {', '.join(rules)}")
        limit = rules[name].limit
        if limit is None:
            raise CommandError(f"{name!r} is a limiter that the project has made: ask that one")
        app = limits_of_project().limits
        limits = Limits({name: limit}, store=app.store, clock=app.clock, prefix=app.prefix)
        keys = {name: stored_by(app.secret)(key)}
        if not limits.has_state(keys):
            self.stdout.write(
                f"{name}: there is no state for {key}: it was never used, or everything is "
                "replenished; `list` shows the limits, and keys are written as the manual says, "
                "such as 203.0.113.9 or 'user 7'"
            )
            return
        if options["action"] == "reset":
            limits.reset(keys)
            self.stdout.write(f"{name}: {key} starts afresh")
            return
        decision = limits.peek(keys).decision
        until = datetime.fromtimestamp(decision.reset_at / 1000, timezone.utc)
        self.stdout.write(
            f"{name}: {key} has {decision.remaining} of {decision.limit} left, "
            f"all of them again at {until:%Y-%m-%d %H:%M:%S} UTC"
        )
