"""Tasks of Celery."""

from __future__ import annotations

import time
from typing import Any

from celery import Celery

from penstock import fixed_window
from penstock.integrations.celery import limited_task
from tests.integrations.apps import BROKER, LIMIT, OPTIONS, POLICY, SLOT_S, SLOTS, note

app = Celery("tasks", broker=BROKER, backend=BROKER)
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    task_default_queue="penstock-celery",
)


@app.task(bind=True, max_retries=0)
@limited_task(LIMIT, **OPTIONS)
def work(self: Any, tenant: str) -> str:
    note("work", tenant, self.request.retries)
    return f"{tenant} done"


@app.task(bind=True, max_retries=0, acks_late=True)
@limited_task(POLICY, key="{tenant}")
def work_by_policy(self: Any, tenant: str) -> str:
    note("work", tenant, self.request.retries)
    return f"{tenant} done"


@app.task(bind=True, autoretry_for=(KeyError,), max_retries=1, default_retry_delay=0)
@limited_task(fixed_window(2, 1_000), **OPTIONS)
def fail_once(self: Any, tenant: str) -> str:
    if note("fail", tenant, self.request.retries) == 1:
        raise KeyError(tenant)
    return f"{tenant} done"


@app.task(bind=True, max_retries=0)
@limited_task(SLOTS, **OPTIONS)
def slotted(self: Any, tenant: str) -> str:
    note("slotted", tenant, self.request.retries)
    time.sleep(SLOT_S)
    return f"{tenant} done"
