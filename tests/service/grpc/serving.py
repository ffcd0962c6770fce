"""A service with its gRPC server in a process of its own, for tests with several of them."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from penstock.config import parse_policies
from penstock.service import build_service
from penstock.service.grpc import open_grpc


def _serve(policies: str, store_url: str, pipe: Connection) -> None:
    async def main() -> None:
        service = build_service(parse_policies(policies, "penstock.yaml"), store_url)
        await service.start()
        server = await open_grpc(service, port=0)
        pipe.send(server.port)
        await asyncio.to_thread(pipe.poll, None)
        await server.drain(5)
        await service.aclose()

    asyncio.run(main())


@contextmanager
def serving(policies: str, store_url: str) -> Iterator[int]:
    """The port of a service in another process, which ends with the block."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(policies, store_url, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        process.join(15)
        process.kill()
