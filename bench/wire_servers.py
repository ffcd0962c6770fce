"""The servers of bench.wire_peers: how each is started, and the bytes that it is asked with.

A server runs on the first core, all else on the second. Each has the same load: requests of ten
thousand keys, all of which are admitted, with the limit in the request where it can be.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools import foreign

__all__ = ["SERVER_CORE", "Asked", "Peers", "Server", "open_servers"]

ROOT = Path(__file__).resolve().parents[1]
SERVER_CORE, LOAD_CORE = 0, 1
_AMPLE = 1_000_000_000
# What the load fills in: the number of the request, and of its key.
_NUMBER, _KEY = "########", "user:@@@@@@@@"


@dataclass(frozen=True)
class Asked:
    """What one kind of request is made of; the load knows nothing else about a server."""

    protocol: str
    port: int
    pieces: tuple[bytes, bytes, bytes]
    expected: bytes

    @property
    def packed(self) -> bytes:
        return b"".join(struct.pack("<I", len(piece)) + piece for piece in self.pieces)


@dataclass
class Server:
    """A process on its core, by the kinds of request that it can be asked."""

    name: str
    process: subprocess.Popen[bytes]
    asked: dict[str, Asked] = field(default_factory=dict)

    def cpu_s(self) -> float:
        """Of all threads, to the nanosecond."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


@dataclass
class Peers:
    """All servers of one run, and why some are not among them."""

    servers: dict[str, Server] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, make: Callable[[], Server]) -> None:
        try:
            self.servers[name] = make()
        except foreign.MissingError as missing:
            self.missing[name] = str(missing)


def http(
    port: int,
    start: str,
    body: str = "",
    *,
    own_head: bool = False,
    expected: bytes = b'"allowed":true',
) -> Asked:
    """`own_head` gives every request headers of its own."""
    lines = [f"{start} HTTP/1.1", "Host: 127.0.0.1"]
    if own_head:
        lines.append(f"traceparent: 00-{'0' * 24}{_NUMBER}-{'0' * 8}{_NUMBER}-01")
        lines.append(f"x-request-id: {'0' * 24}{_NUMBER}")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    request = "\r\n".join([*lines, "", body])
    return Asked("http", port, (b"", request.encode(), b""), expected)


def grpc_call(port: int, method: str, message: bytes) -> Asked:
    """As the usual clients encode it: fields that stay the same are told once per connection. The
    answer holds a field 1 that is 1: allowed, or OK."""
    fields = {
        ":path": method,
        ":authority": f"127.0.0.1:{port}",
        "content-type": "application/grpc",
        "te": "trailers",
        "user-agent": "wire-load",
    }
    # :method POST and :scheme http are in the table that everybody has.
    first = b"\x83\x86" + b"".join(_literal(name, value) for name, value in fields.items())
    following = b"\x83\x86" + bytes(range(0x80 + 61 + len(fields), 0x80 + 61, -1))
    framed = struct.pack(">BI", 0, len(message)) + message
    return Asked("grpc", port, (first, following, framed), b"\x08\x01")


def _literal(name: str, value: str) -> bytes:
    """A field that is to be remembered."""
    return b"\x40" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes((number,))


def _message(fields: Mapping[int, int | str | bytes]) -> bytes:
    """A message of protobuf."""
    out = b""
    for at, value in fields.items():
        if isinstance(value, int):
            out += _varint(at << 3) + _varint(value)
        else:
            text = value.encode() if isinstance(value, str) else value
            out += _varint(at << 3 | 2) + _varint(len(text)) + text
    return out


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# What Penstock is asked, and the floors, and Throttle-Flow, which has the same form.
_CHECK = json.dumps({"key": _KEY, "limit": _AMPLE, "window_ms": 60_000}, separators=(",", ":"))
_CALL = _message({1: "default", 2: _KEY, 3: 1})


class Starter:
    """Starts servers on their core; all of them end with the block that it was made for."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, undisturbed: bool) -> None:
        self._stack = stack
        self.folder = folder
        self.undisturbed = undisturbed

    def start(self, name: str, words: list[str | Path], *ports: int, **env: str) -> Server:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(word) for word in words],
                cwd=self.folder,
                env={**os.environ, **env},
                stdout=log,
                stderr=log,
                # Before it begins: runtimes count the cores that they may use.
                preexec_fn=lambda: place(os.getpid(), SERVER_CORE, self.undisturbed),
            )
        self._stack.callback(_end, process)
        for port in ports:
            self._wait(name, process, port)
        return Server(name, process)

    def _wait(self, name: str, process: subprocess.Popen[bytes], port: int) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            time.sleep(0.05)
        log = (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]
        raise foreign.MissingError(f"{name} does not listen on {port}: {log}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def place(pid: int, core: int, undisturbed: bool, priority: int = 10) -> None:
    """Put all threads of a process on a core, in front of all other programs if need be."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), {core})
            if undisturbed:
                os.sched_setscheduler(int(task.name), os.SCHED_RR, os.sched_param(priority))


def _penstock(starter: Starter, name: str, store: str) -> Server:
    web, grpc = _free_port(), _free_port()
    config = starter.folder / "penstock.json"
    ample = {"strategy": "fixedWindow", "limit": _AMPLE, "window": "1m"}
    config.write_text(json.dumps({"version": 1, "limiters": {"default": ample}}))
    words: list[str | Path] = [sys.executable, "-m", "penstock.cli", "serve", "--config", config]
    ports = ["--store", store, "--http-port", str(web), "--grpc-port", str(grpc)]
    server = starter.start(name, [*words, *ports], web, grpc, PYTHONPATH=str(ROOT / "src"))
    server.asked = {
        "http": http(web, "POST /check", _CHECK),
        "http-heads": http(web, "POST /check", _CHECK, own_head=True),
        "http-paths": http(web, f"GET /check/{_KEY}", own_head=True, expected=b'"allowed": true'),
        "grpc": grpc_call(grpc, "/throttlekit.v1.RateLimiter/Check", _CALL),
    }
    return server


def _throttlecrab(starter: Starter) -> Server:
    web, grpc = _free_port(), _free_port()
    program = foreign.THROTTLECRAB.get()
    words: list[str | Path] = [
        program,
        "--http",
        "--http-host",
        "127.0.0.1",
        "--http-port",
        str(web),
    ]
    words += ["--grpc", "--grpc-host", "127.0.0.1", "--grpc-port", str(grpc)]
    server = starter.start("throttlecrab", words, web, grpc)
    figures = {"max_burst": _AMPLE, "count_per_period": _AMPLE, "period": 60}
    body = json.dumps({"key": _KEY, **figures}, separators=(",", ":"))
    message = _message({1: _KEY, 2: _AMPLE, 3: _AMPLE, 4: 60, 5: 1})
    server.asked = {
        "http": http(web, "POST /throttle", body),
        "http-heads": http(web, "POST /throttle", body, own_head=True),
        # It has one path for all clients, but leaves a query alone.
        "http-paths": http(web, f"POST /throttle?request={_NUMBER}", body, own_head=True),
        "grpc": grpc_call(grpc, "/throttlecrab.RateLimiter/Throttle", message),
    }
    return server


def _floor(starter: Starter, protocol: str) -> Server:
    port = _free_port()
    program = foreign.c_program(ROOT / "bench" / "wire_floor.c").get()
    server = starter.start(f"floor-{protocol}", [program, str(port), protocol], port)
    if protocol == "grpc":
        server.asked = {"grpc": grpc_call(port, "/floor", _CALL)}
        return server
    server.asked = {
        "http": http(port, "POST /", _CHECK),
        "http-heads": http(port, "POST /", _CHECK, own_head=True),
        "http-paths": http(port, f"GET /{_NUMBER}", own_head=True),
    }
    return server


def _envoy_ratelimit(starter: Starter, redis_port: int) -> Server:
    web, grpc = _free_port(), _free_port()
    config = starter.folder / "ratelimit" / "config" / "ample.yaml"
    config.parent.mkdir(parents=True)
    limit = {"unit": "minute", "requests_per_unit": _AMPLE}
    config.write_text(
        json.dumps({"domain": "ample", "descriptors": [{"key": "key", "rate_limit": limit}]})
    )
    environment = {
        "HOST": "127.0.0.1",
        "PORT": str(web),
        "GRPC_HOST": "127.0.0.1",
        "GRPC_PORT": str(grpc),
        "DEBUG_HOST": "127.0.0.1",
        "DEBUG_PORT": str(_free_port()),
        "USE_STATSD": "false",
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": f"127.0.0.1:{redis_port}",
        "RUNTIME_ROOT": str(starter.folder),
        "RUNTIME_SUBDIRECTORY": "ratelimit",
        "RUNTIME_WATCH_ROOT": "false",
    }
    server = starter.start(
        "envoy-ratelimit", [foreign.ENVOY_RATELIMIT.get()], grpc, GOMAXPROCS="1", **environment
    )
    entry = _message({1: "key", 2: _KEY})
    message = _message({1: "ample", 2: _message({1: entry}), 3: 1})
    method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    server.asked = {"grpc": grpc_call(grpc, method, message)}
    return server


def _throttle_flow(starter: Starter, redis_port: int) -> Server:
    """It is on no registry: whoever has built it puts it on the path. Its port is a fixed one."""
    program = shutil.which("throttle-flow")
    if program is None:
        raise foreign.MissingError("throttle-flow is on no registry, and not on the path")
    url = f"redis://127.0.0.1:{redis_port}"
    server = starter.start("throttle-flow", [program], 8080, GOMAXPROCS="1", REDIS_ADDR=url)
    server.asked = {"http": http(8080, "POST /check", _CHECK)}
    return server


@contextlib.contextmanager
def open_servers(folder: Path, undisturbed: bool) -> Iterator[Peers]:
    """All that can be had, started."""
    from tests.servers import Valkey

    peers = Peers()
    with contextlib.ExitStack() as stack:
        starter = Starter(stack, folder, undisturbed)
        valkey = stack.enter_context(Valkey())
        # In front of the load, with which it shares a core.
        place(valkey.pid, LOAD_CORE, undisturbed, priority=20)
        makers: dict[str, Callable[[], Server]] = {
            "penstock": lambda: _penstock(starter, "penstock", "memory://"),
            "penstock-redis": lambda: _penstock(starter, "penstock-redis", valkey.url),
            "throttlecrab": lambda: _throttlecrab(starter),
            "floor-http": lambda: _floor(starter, "http"),
            "floor-grpc": lambda: _floor(starter, "grpc"),
            "envoy-ratelimit": lambda: _envoy_ratelimit(starter, valkey.port),
            "throttle-flow": lambda: _throttle_flow(starter, valkey.port),
        }
        for name, make in makers.items():
            peers.add(name, make)
        yield peers
