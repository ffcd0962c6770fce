"""What an idle connection takes: `python -m bench.idle_connections`.

A server in a process of its own is asked once on each of many connections, which then stay open.
The memory of the process, before and after, is divided by their number: over HTTP/1.1, over HTTP/2
on the HTTP port, and on the gRPC port. What the system keeps for sockets is not in it. Ends with 1
if a bound is missed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import socket
import sys
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from .grpc_paths import BODY, CHECK, PREFACE, _frame, _head

BOUNDS = {"http1": 6_144, "http2": 12_288, "grpc": 12_288}
CONNECTIONS = 2_000

_BODY = b'{"policy":"plenty","key":"alice"}'
_HTTP1 = b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (
    len(_BODY),
    _BODY,
)


def _field(name: bytes, value: bytes) -> bytes:
    """As clients send it: both sides remember it."""
    return b"\x40" + bytes((len(name),)) + name + bytes((len(value),)) + value


def _begin() -> bytes:
    return PREFACE + _frame(4, 0, 0, b"") + _frame(4, 1, 0, b"")


def _http2() -> bytes:
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/v1/check"),
        (b":authority", b"localhost"),
        (b"user-agent", b"bench/1"),
    ]
    head = b"".join(_field(*field) for field in fields)
    return _begin() + _frame(1, 4, 1, head) + _frame(0, 1, 1, _BODY)


def _grpc() -> bytes:
    message = b"\0" + len(BODY).to_bytes(4, "big") + BODY
    head = _head(CHECK).replace(b"\0\x05:path", b"\x40\x05:path") + _field(b"user-agent", b"bench")
    return _begin() + _frame(1, 4, 1, head) + _frame(0, 1, 1, message)


FIRST = {"http1": _HTTP1, "http2": _http2(), "grpc": _grpc()}
"""What a client sends."""

ENDS = {"http1": b"}}", "http2": b"}}", "grpc": b"\x01\x05\0\0\0\x01"}
"""What is in its answer, near the end."""


def serve(pipe: Connection) -> None:
    """Serves until it is told to end; tells its memory whenever it is asked."""
    import asyncio

    from penstock import gcra
    from penstock.config import PolicyFile, PolicySpec
    from penstock.service import build_service
    from penstock.service._running import run_loop
    from penstock.service.grpc import open_grpc
    from penstock.service.http import HttpServer

    async def main() -> int:
        plenty = PolicySpec("plenty", gcra(10_000, 1_000, burst=100_000_000))
        service = build_service(PolicyFile({"plenty": plenty}))
        await service.start()
        grpc = await open_grpc(service, port=0, max_connections=16_384)
        http = HttpServer(service)
        port = await http.start("127.0.0.1", 0)
        asked: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        loop.add_reader(pipe.fileno(), lambda: asked.put_nowait(pipe.recv()))
        pipe.send({"http1": port, "http2": port, "grpc": grpc.port})
        while await asked.get() != "end":
            gc.collect()
            pipe.send(_resident())
        loop.remove_reader(pipe.fileno())
        await http.stop()
        await grpc.drain(1)
        await service.aclose()
        return 0

    run_loop(main)


def _resident() -> int:
    """Bytes of memory that are this process's own."""
    fields = Path("/proc/self/smaps_rollup").read_text().splitlines()
    [line] = [line for line in fields if line.startswith("Private_Dirty:")]
    return int(line.split()[1]) * 1024


def idle(port: int, protocol: str, count: int) -> list[socket.socket]:
    """Connections that have been answered once."""
    made = []
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", port))
        one.sendall(FIRST[protocol])
        made.append(one)
    deadline = time.monotonic() + 60
    for one in made:
        answer = b""
        while ENDS[protocol] not in answer:
            one.settimeout(max(0.1, deadline - time.monotonic()))
            more = one.recv(65_536)
            if not more:
                raise RuntimeError(f"the server has ended a connection: {answer!r}")
            answer += more
    return made


def measure(count: int = CONNECTIONS) -> dict[str, int]:
    """Bytes per connection, by protocol."""
    context = get_context("spawn")
    found = {}
    for protocol in BOUNDS:
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        ports = ours.recv()
        # What was free before is used up by these.
        warm = idle(ports[protocol], protocol, count // 2)
        ours.send("memory")
        before = ours.recv()
        held = idle(ports[protocol], protocol, count)
        time.sleep(0.5)
        ours.send("memory")
        found[protocol] = (ours.recv() - before) // count
        for one in (*warm, *held):
            one.close()
        ours.send("end")
        process.join()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    found = measure(parser.parse_args().connections)
    for protocol, size in found.items():
        print(f"{protocol:6} {size:6} bytes a connection; at most {BOUNDS[protocol]}")
    print(json.dumps(found))
    return 1 if any(size > BOUNDS[protocol] for protocol, size in found.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
