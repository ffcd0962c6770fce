"""Actors of Dramatiq."""

from __future__ import annotations

import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AsyncIO, CurrentMessage
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from penstock import fixed_window
from penstock.integrations.dramatiq import limited_actor
from tests.integrations.apps import BROKER, LIMIT, OPTIONS, POLICY, SLOT_S, SLOTS, note

broker = RedisBroker(url=BROKER)
broker.add_middleware(Results(backend=RedisBackend(url=BROKER)))
for _middleware in (CurrentMessage, AsyncIO):
    if not any(isinstance(each, _middleware) for each in broker.middleware):
        broker.add_middleware(_middleware())
dramatiq.set_broker(broker)


def retries() -> int:
    message = CurrentMessage.get_current_message()
    assert message is not None
    return int(message.options.get("retries", 0))


@dramatiq.actor(max_retries=0, store_results=True)
@limited_actor(LIMIT, **OPTIONS)
def work(tenant: str) -> str:
    note("work", tenant, retries())
    return f"{tenant} done"


@dramatiq.actor(max_retries=0, store_results=True)
@limited_actor(POLICY, key="{tenant}")
def work_by_policy(tenant: str) -> str:
    note("work", tenant, retries())
    return f"{tenant} done"


@dramatiq.actor(max_retries=0, store_results=True)
@limited_actor(LIMIT, **OPTIONS)
async def awork(tenant: str) -> str:
    note("awork", tenant, 0)
    return f"{tenant} done"


@dramatiq.actor(max_retries=1, min_backoff=1, max_backoff=1, store_results=True)
@limited_actor(fixed_window(2, 1_000), **OPTIONS)
def fail_once(tenant: str) -> str:
    if note("fail", tenant, retries()) == 1:
        raise KeyError(tenant)
    return f"{tenant} done"


@dramatiq.actor(max_retries=0, store_results=True)
@limited_actor(SLOTS, **OPTIONS)
def slotted(tenant: str) -> str:
    note("slotted", tenant, retries())
    time.sleep(SLOT_S)
    return f"{tenant} done"
