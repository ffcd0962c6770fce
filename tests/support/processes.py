"""Processes for the tests of what several of them do at once.

Each is forked from one that has imported what most of them need, and has no threads: a fresh
interpreter would spend half a second on imports, and hundreds of them are started. Where it matters
that a process knows nothing, a test spawns one.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

PRELOADED = [
    "tests.stores.exactness",
    "tests.stores.edge",
    "tests.stores.postgres.live",
    "tests.stores.redis.live",
    "aiobotocore.session",
    "asyncpg",
    "boto3.session",
    "httpx",
    "psycopg",
    "redis.asyncio.cluster",
]


def forking_context() -> ForkServerContext:
    """Like `multiprocessing.get_context("spawn")`, and quicker."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
