"""Limit the tasks of Celery: what has to wait is put back, costs no retry and logs no error.

The worker runs in this program, with a broker in memory. In earnest the broker is a server, the
workers are processes, and the store of the limit is one that they share:
`store="redis://localhost:6379"`.
"""

from __future__ import annotations

import logging
import time

from celery import Celery  # type: ignore[import-untyped]
from celery.contrib.testing.worker import start_worker  # type: ignore[import-untyped]

from penstock import gcra
from penstock.integrations.celery import limited_task

SPACING_MS = 200
app = Celery("tasks", broker="memory://", backend="cache+memory://")
ran: list[tuple[str, float]] = []


@app.task(max_retries=0)  # type: ignore[untyped-decorator]
@limited_task(gcra(1, SPACING_MS, burst=1), key="{tenant}", store="memory://")
def send(tenant: str) -> str:
    ran.append((tenant, time.monotonic()))
    return tenant


def main() -> None:
    logging.disable(logging.WARNING)
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        began = time.monotonic()
        for tenant in ("acme", "acme", "acme", "other"):
            send.delay(tenant)
        while len(ran) < 4 and time.monotonic() < began + 40:
            time.sleep(0.02)
    acme = [at for tenant, at in ran if tenant == "acme"]
    print("all of them ran:", sorted(tenant for tenant, _ in ran))
    # The third has two spaces before it.
    print("one after the other:", (acme[-1] - began) * 1000 >= 2 * SPACING_MS - 20)


if __name__ == "__main__":
    main()
