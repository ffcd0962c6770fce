"""What a limit costs a web app: `python -m bench.web_frameworks [--in-flight N] [REDIS_URL]`.

For FastAPI, Flask and Django the same hello world: bare, with Penstock, and with the peers that
people use there. Each is a process of its own that is handed requests as a busy server would hand
them over, without a network: N at a time, by default eight, as tasks of a loop or in threads. They
take turns, in short rounds, and what counts is processor time. The overhead is what a request takes
longer than with the bare app; medians over rounds. On Redis where a URL is given, or where the
tests' Valkey is installed, and then only of the app's own process. The last line is JSON.

Each peer is compared with a Penstock that does the same for the client. Two put no headers on
answers, and neither does it beside them: fastapi-limiter, which also counts all clients of a route
together, and django-ratelimit. What it takes with headers is told as well.

On Redis there are three more apps, to see what is possible at all: bare ones in front of which
stands one PING of redis-py, or one PING, or the script of a check, by a socket, hiredis and nothing
else. Who asks a server once per request cannot take less.
"""

from __future__ import annotations

import asyncio
import io
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROUNDS = 40
REQUESTS = 160
IN_FLIGHT = 8
PLENTY = "1000000/day"
PEERS = {
    "fastapi": ("slowapi", "fastapi-limiter"),
    "flask": ("flask-limiter",),
    "django": ("django-ratelimit",),
}
WITHOUT_HEADERS = ("fastapi-limiter", "django-ratelimit")
QUIET = "penstock, no headers"
FLOORS = {"a PING of redis-py": "redis_py", "a bare PING": "ping", "a bare check": "check"}
MOST_OF_PEER = 1 / 3

Serve = Callable[[int, int], None]
"""Hand so many requests to the app, so many at a time."""

# The one that serves ASGI apps: what they open belongs to it.
loop = asyncio.new_event_loop()


def asgi(app: Any) -> Serve:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": ("192.0.2.1", 50_000),
        "server": ("localhost", 80),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start" and message["status"] != 200:
            raise RuntimeError(f"an answer of {message['status']}")

    async def client(requests: int) -> None:
        for _ in range(requests):
            await app({**scope, "state": {}}, receive, send)

    async def serve(requests: int, at_a_time: int) -> None:
        await asyncio.gather(*[client(requests // at_a_time) for _ in range(at_a_time)])

    return lambda requests, at_a_time: loop.run_until_complete(serve(requests, at_a_time))


def wsgi(app: Any) -> Serve:
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/",
        "QUERY_STRING": "",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "localhost",
        "REMOTE_ADDR": "192.0.2.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }

    def start_response(status: str, headers: Any, _info: Any = None) -> Any:
        if not status.startswith("200"):
            raise RuntimeError(f"an answer of {status}")

    def client(requests: int) -> None:
        for _ in range(requests):
            body = app({**environ, "wsgi.input": io.BytesIO()}, start_response)
            b"".join(body)
            getattr(body, "close", lambda: None)()

    threads = ThreadPoolExecutor(64)

    def serve(requests: int, at_a_time: int) -> None:
        list(threads.map(client, [requests // at_a_time] * at_a_time))

    return serve


def command_of(floor: str, url: str) -> bytes:
    """What is sent: PING, or the script of a check."""
    if FLOORS[floor] == "ping":
        return b"PING\r\n"
    script = Path(__file__).parent.parent / "wire" / "scripts" / "gcra.check.lua"
    with import_module("redis").Redis.from_url(url) as client:
        sha = client.script_load(script.read_text())
    check = ("EVALSHA", sha, "1", "floor", "0", "86400000", "1000000", "1000000", "1")
    packed: bytes = import_module("hiredis").pack_command(check)
    return packed


async def bare_connection(url: str, command: bytes) -> Callable[[], Any]:
    """One round trip on a connection of asyncio's."""
    replies = import_module("hiredis").Reader()

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.write = transport.write
            self.waiting: deque[asyncio.Future[Any]] = deque()

        def data_received(self, data: bytes) -> None:
            replies.feed(data)
            while (reply := replies.gets()) is not False:
                self.waiting.popleft().set_result(reply)

    _, connection = await loop.create_connection(Connection, *address_of(url))

    def ask() -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = loop.create_future()
        connection.waiting.append(answer)
        connection.write(command)
        return answer

    return ask


def address_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "localhost", parts.port or 6379


def behind_asgi(app: Any, floor: str, url: str) -> Any:
    """The app, with a round trip before every request."""
    if FLOORS[floor] == "redis_py":
        ask = import_module("redis.asyncio").Redis.from_url(url).ping
    else:
        ask = loop.run_until_complete(bare_connection(url, command_of(floor, url)))

    async def asked(scope: Any, receive: Any, send: Any) -> None:
        await ask()
        await app(scope, receive, send)

    return asked


def bare_connections(url: str, command: bytes) -> Callable[[], Any]:
    """One round trip on a connection of the thread's own."""
    connections = threading.local()

    def ask() -> Any:
        connection = getattr(connections, "own", None)
        if connection is None:
            connection = connections.own = socket.create_connection(address_of(url))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connections.replies = import_module("hiredis").Reader()
        connection.send(command)
        connections.replies.feed(connection.recv(65_536))
        return connections.replies.gets()

    return ask


def behind_wsgi(app: Any, floor: str, url: str) -> Any:
    """The same."""
    if FLOORS[floor] == "redis_py":
        ask = import_module("redis").Redis.from_url(url).ping
    else:
        ask = bare_connections(url, command_of(floor, url))

    def asked(environ: Any, start_response: Any) -> Any:
        ask()
        return app(environ, start_response)

    return asked


def fastapi(limited_by: str, url: str | None) -> Serve:
    fastapi = import_module("fastapi")
    if limited_by in ("penstock", QUIET):
        ours = import_module("penstock.integrations.fastapi")
        app = fastapi.FastAPI(dependencies=[fastapi.Depends(ours.RateLimit(PLENTY))])
        ours.install(app, store=url, headers=limited_by != QUIET)
    elif limited_by == "fastapi-limiter":
        app = fastapi.FastAPI(dependencies=[fastapi.Depends(fastapi_limiter(url))])
    else:
        app = fastapi.FastAPI()
    if limited_by == "slowapi":
        slowapi = import_module("slowapi")
        address = import_module("slowapi.util").get_remote_address
        app.state.limiter = limiter = slowapi.Limiter(
            key_func=address, storage_uri=url or "memory://", headers_enabled=True
        )
        request_type, response_type = fastapi.Request, fastapi.Response

        async def peer_home(request: Any, response: Any) -> dict[str, str]:
            return {"hello": "world"}

        peer_home.__annotations__ = {"request": request_type, "response": response_type}
        app.get("/")(limiter.limit(PLENTY)(peer_home))
        return asgi(app)

    async def home() -> dict[str, str]:
        return {"hello": "world"}

    app.get("/")(home)
    return asgi(behind_asgi(app, limited_by, url) if url and limited_by in FLOORS else app)


def fastapi_limiter(url: str | None) -> Any:
    pyrate = import_module("pyrate_limiter")

    async def limiter() -> Any:
        rate = pyrate.Rate(1_000_000, pyrate.Duration.DAY)
        if url is None:
            return pyrate.Limiter(rate)
        client = import_module("redis.asyncio").Redis.from_url(url)
        return pyrate.Limiter(await pyrate.RedisBucket.init([rate], client, "peer"))

    made = loop.run_until_complete(limiter())
    return import_module("fastapi_limiter.depends").RateLimiter(limiter=made)


def flask(limited_by: str, url: str | None) -> Serve:
    app = import_module("flask").Flask(__name__)
    if limited_by == "penstock":
        import_module("penstock.integrations.flask").RateLimits(app, PLENTY, store=url)
    elif limited_by == "flask-limiter":
        import_module("flask_limiter").Limiter(
            import_module("flask_limiter.util").get_remote_address,
            app=app,
            default_limits=[PLENTY],
            storage_uri=url or "memory://",
            headers_enabled=True,
        )
    app.route("/")(lambda: "hello\n")
    return wsgi(behind_wsgi(app, limited_by, url) if url and limited_by in FLOORS else app)


def django(limited_by: str, url: str | None) -> Serve:
    conf = import_module("django.conf")
    caches: dict[str, Any] = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    if url is not None:
        caches = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url}
    ours = limited_by in ("penstock", QUIET)
    conf.settings.configure(
        SECRET_KEY="a measurement",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        LOGGING_CONFIG=None,
        CACHES={"default": caches},
        SILENCED_SYSTEM_CHECKS=["django_ratelimit.E003", "django_ratelimit.W001"],
        INSTALLED_APPS=["penstock.integrations.django"] if ours else [],
        MIDDLEWARE=["penstock.integrations.django.LimitMiddleware"] if ours else [],
        PENSTOCK={"LIMITS": [PLENTY], "STORE": url, "HEADERS": limited_by != QUIET},
    )
    import_module("django").setup()
    respond = import_module("django.http").HttpResponse

    def home(request: Any) -> Any:
        return respond("hello\n")

    view: Any = home
    if limited_by == "django-ratelimit":
        limit = import_module("django_ratelimit.decorators").ratelimit
        view = limit(key="ip", rate="1000000/d", block=True)(home)
    globals()["urlpatterns"] = [import_module("django.urls").path("", view)]
    app = import_module("django.core.wsgi").get_wsgi_application()
    return wsgi(behind_wsgi(app, limited_by, url) if url and limited_by in FLOORS else app)


FRAMEWORKS = {"fastapi": fastapi, "flask": flask, "django": django}


def answer(framework: str, limited_by: str, url: str | None) -> None:
    """One contender: for every line, serve and say how long it took."""
    serve = FRAMEWORKS[framework](limited_by, url)
    serve(80, IN_FLIGHT)
    print("ready", flush=True)
    for line in sys.stdin:
        at_a_time = int(line)
        began = time.process_time()
        serve(REQUESTS, at_a_time)
        served = REQUESTS // at_a_time * at_a_time
        print((time.process_time() - began) / served * 1e6, flush=True)


class Contender:
    """An app in a process of its own."""

    def __init__(self, framework: str, limited_by: str, url: str | None) -> None:
        self.name = limited_by
        command = [sys.executable, "-m", "bench.web_frameworks", "--serve", framework, limited_by]
        self._process = subprocess.Popen(
            [*command, *([url] if url else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.is_there = self._process.stdout.readline() == "ready\n"
        self.times: list[float] = []

    def run(self, at_a_time: int) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{at_a_time}\n")
        self._process.stdin.flush()
        self.times.append(float(self._process.stdout.readline()))

    def close(self) -> str:
        """Its last words."""
        _, said = self._process.communicate(timeout=30)
        return said.strip().rpartition("\n")[2]


def compared(framework: str, url: str | None, at_a_time: int) -> dict[str, float]:
    """Processor time of a request in us, by contender."""
    names = ["bare", "penstock", *PEERS[framework]]
    if set(names) & set(WITHOUT_HEADERS):
        names.insert(2, QUIET)
    names += FLOORS if url else ()
    contenders = [Contender(framework, name, url) for name in names]
    try:
        there = [each for each in contenders if each.is_there]
        for _ in range(ROUNDS):
            for each in there:
                each.run(at_a_time)
    finally:
        for each in contenders:
            last = each.close()
            if not each.is_there:
                print(f"  without {each.name}: {last}")
    return {each.name: statistics.median(each.times) for each in there}


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--serve"]:
        answer(arguments[1], arguments[2], arguments[3] if len(arguments) > 3 else None)
        return
    at_a_time = IN_FLIGHT
    if arguments[:1] == ["--in-flight"]:
        at_a_time, arguments = int(arguments[1]), arguments[2:]
    figures: dict[str, float] = {}
    with redis_url(arguments) as url:
        for store in (None, url) if url else (None,):
            for framework in PEERS:
                figures |= told(framework, store, at_a_time)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


@contextmanager
def redis_url(arguments: list[str]) -> Iterator[str | None]:
    """The one that was given, or that of a server that is started for this."""
    if arguments:
        yield arguments[0]
        return
    try:
        from tests.servers import Valkey

        server = Valkey()
    except (ImportError, OSError) as error:
        print(f"without Redis: {error}")
        yield None
        return
    with server:
        yield server.url


def told(framework: str, url: str | None, at_a_time: int) -> dict[str, float]:
    """Compare and print; the shares of Penstock, by name."""
    where = "memory" if url is None else "redis"
    print(f"{framework}, {where}, {at_a_time} at a time", flush=True)
    times = compared(framework, url, at_a_time)
    over = {name: took - times["bare"] for name, took in times.items()}
    for name, took in times.items():
        print(f"  {name:20} {took:8.1f} us, {over[name]:7.1f} over bare")
    shares = {}
    for peer in PEERS[framework]:
        if peer not in times:
            continue
        name = f"{framework}_{where}_of_{peer}"
        like = QUIET if peer in WITHOUT_HEADERS else "penstock"
        share = shares[name] = over[like] / over[peer]
        met = "met" if share <= MOST_OF_PEER else "MISSED"
        print(f"  {share:.2f} of {peer}'s overhead, at most {MOST_OF_PEER:.2f}: {met}")
        if like == QUIET:
            full = shares[f"{name}_with_headers"] = over["penstock"] / over[peer]
            print(f"  {full:.2f} with the headers that it lacks")
        for floor, short in FLOORS.items() if url else ():
            least = shares[f"{name}_floor_{short}"] = over[floor] / over[peer]
            print(f"  {least:.2f} is {floor} alone")
    return shares


if __name__ == "__main__":
    main(sys.argv[1:])
