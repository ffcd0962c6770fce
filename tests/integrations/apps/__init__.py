"""Programs that workers of task queues run in the tests. What a task does is to write down that it
ran, when, and in which attempt."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis

from penstock import gcra, slots
from penstock.client import ServiceLimiter

BROKER = os.environ.get("TASKS_REDIS", "redis://127.0.0.1:6379")
SERVICE = os.environ.get("TASKS_SERVICE", "http://127.0.0.1:8080")
LIMIT = gcra(4, 1_000, burst=2)
"""A quarter of a second apart, and two at once: further ahead than a worker would wait."""

SLOTS = slots(2, ttl_ms=20_000)
SLOT_S = 0.1
"""How long a task holds its slot."""

OPTIONS: dict[str, Any] = {"key": "{tenant}", "store": f"{BROKER}?timeout_ms=5000"}
POLICY = ServiceLimiter(SERVICE, "tasks", timeout_ms=10_000, fail="error")
"""The same limit, as a policy of a service."""


def asked(name: str, tenant: str) -> tuple[str, str]:
    """The task to ask for, and its argument."""
    return f"{name}_by_policy" if tenant.endswith("-policy") else name, tenant


def note(kind: str, tenant: str, attempt: int) -> int:
    """Returns how often this was noted for the tenant."""
    with redis.Redis.from_url(BROKER) as client:
        told = {"kind": kind, "tenant": tenant, "attempt": attempt, "at": time.time()}
        return int(client.rpush(f"ran:{tenant}", json.dumps(told)))
