"""Limit a gRPC server, and call it with a client that knows how to wait.

The server allows two calls at once and ten a second, and tells others when to come back. A client
with an interceptor of its own waits before it calls; a plain one is refused.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from penstock import gcra
from penstock.integrations.grpc import LimitClientInterceptor, LimitInterceptor


def greet(request: bytes, context: Any) -> bytes:
    return b"hello " + request


def call(channel: Any) -> str:
    answer: bytes = channel.unary_unary("/Greeter/Greet")(b"you")
    return answer.decode()


def main() -> None:
    limit = LimitInterceptor(gcra(10, 1_000, burst=2))
    executor = ThreadPoolExecutor(4)
    server = grpc.server(executor, interceptors=[limit])
    handlers = {"Greet": grpc.unary_unary_rpc_method_handler(greet)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Greeter", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        patient = grpc.intercept_channel(channel, LimitClientInterceptor(gcra(8, 1_000, burst=1)))
        greetings = [call(patient) for _ in range(4)]
        print(f"with patience: {greetings}")
        try:
            for _ in range(10):
                call(channel)
        except grpc.RpcError as error:
            print(f"without: {error.code().name}")

    server.stop(None).wait()
    executor.shutdown()


if __name__ == "__main__":
    main()
