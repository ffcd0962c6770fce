"""Limit the tasks of a queue: what has to wait is put back, and the worker is free for others.

Dramatiq's worker runs in this program, with a broker in memory. In earnest the broker is a server,
the workers are processes, and the store of the limit is one that they share:
`store="redis://localhost:6379"`. celery_tasks.py and arq_jobs.py are the same with those.
"""

from __future__ import annotations

import time

import dramatiq
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage

from penstock import gcra
from penstock.integrations.dramatiq import limited_actor

broker = StubBroker()
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)
ran: list[tuple[str, float]] = []


@dramatiq.actor(max_retries=0)
@limited_actor(gcra(4, 1_000, burst=1), key="{tenant}", store="memory://")
def send(tenant: str) -> None:
    ran.append((tenant, time.monotonic()))


def main() -> None:
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=3)
    worker.start()
    for tenant in ("acme", "acme", "acme", "acme", "acme", "other"):
        send.send(tenant)
    broker.join(send.queue_name)
    worker.join()
    worker.stop()
    broker.close()

    tenants = [tenant for tenant, _ in ran]
    times = [at for tenant, at in ran if tenant == "acme"]
    print(f"acme had 5 runs, 250 ms apart: {len(times) == 5 and times[-1] - times[0] >= 0.95}")
    print(f"the other tenant did not wait for all of them: {tenants[-1] == 'acme'}")


if __name__ == "__main__":
    main()
