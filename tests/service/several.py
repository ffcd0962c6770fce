"""A policy file of several limits, and a service that serves it."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock import ManualClock, Verdict
from penstock.config import parse_policies
from penstock.service._core import Service, build_service
from penstock.service._judging import Judgement
from penstock.stores.memory import MemoryStore
from tests.support.helpers import NOW

FILE = """\
version: 1
limiters:
  api:
    limits:
      user: {by: user, strategy: fixedWindow, limit: 3, window: 1m}
      tenant: {by: tenant, strategy: fixedWindow, limit: 5, window: 1m, optional: true}
      tokens: {by: user, cost: tokens, strategy: fixedWindow, limit: 1000, window: 1m,
        optional: true}
      all: {strategy: fixedWindow, limit: 100, window: 1m, shadow: true}
      posts: {strategy: fixedWindow, limit: 2, window: 1m, when: {method: [POST, PUT]}}
    plans:
      pro: {user: {limit: 10}}
      staff: {user: unlimited, tenant: unlimited}
    overrides:
      user: {alice: {limit: 4}, root: unlimited}
  key:
    limits:
      each: {by: key, strategy: fixedWindow, limit: 2, window: 1m}
      flight: {by: key, strategy: slots, limit: 1, ttl: 10s}
  everybody:
    limits:
      all: {strategy: fixedWindow, limit: 5, window: 1m}
  pace:
    limits:
      user: {by: user, strategy: gcra, limit: 1, period: 1s}
      day: {by: user, strategy: calendarQuota, limit: 5, period: day}
  one: {strategy: fixedWindow, limit: 2, window: 1m}
  tight:
    fail: closed
    limits:
      user: {by: user, strategy: fixedWindow, limit: 3, window: 1m}
      all: {strategy: fixedWindow, limit: 3, window: 1m, shadow: true}
"""


def serving(store: Any = None, clock: ManualClock | None = None, file: str = FILE) -> Service:
    at = clock or ManualClock(NOW)
    return build_service(
        parse_policies(file, "p.yaml"), store=store or MemoryStore(clock=at), clock=at
    )


def judged(service: Service, policy: str = "api", cost: int = 1, **attributes: Any) -> Verdict:
    asked = service.judge(policy, attributes, cost)
    return (asked if isinstance(asked, Judgement) else asyncio.run(asked())).verdict
