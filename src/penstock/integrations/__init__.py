"""Penstock inside web frameworks, HTTP clients and task queues, one module each.

What web frameworks share is here: `Rule` is one limit as it is declared on an app or a route, and
the `by_...` functions identify clients.
"""

from __future__ import annotations

from ._rules import Rule, WebOptions
from ._ruling import Answered
from ._who import by_address, by_api_key, by_header

__all__ = ["Answered", "Rule", "WebOptions", "by_address", "by_api_key", "by_header"]
