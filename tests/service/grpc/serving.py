"""A service with its gRPC server in a process of its own, for tests with several of them."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from penstock.config import parse_policies
from penstock.service import build_service
from penstock.service.grpc import open_grpc


def _serve(policies: str, store_url: str, options: dict[str, Any], pipe: Connection) -> None:
    async def main() -> None:
        service = build_service(parse_policies(policies, "penstock.yaml"), store_url)
        await service.start()
        server = await open_grpc(service, port=0, **options)
        pipe.send(server.port)
        await asyncio.to_thread(pipe.poll, None)
        await server.drain(5)
        await service.aclose()

    asyncio.run(main())


@contextmanager
def serving(policies: str, store_url: str, **options: Any) -> Iterator[int]:
    """The port of a service in another process, which ends with the block; `options` go to
    `open_grpc`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    words = (policies, store_url, options, theirs)
    process = context.Process(target=_serve, args=words, daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        process.join(15)
        process.kill()
