"""Real backends for tests, on 127.0.0.1, each a context manager with the verbs that hurt it.

    with Valkey(durable=True) as server:
        server.kill()
        server.restart()

A handle has `host`, `port`, `url` and `pid`; `kill()`, `pause()`, `resume()`, `restart()` and
`stop()`. `require(name)` in a fixture skips the test, or fails it in CI, when a backend is not
installed. No process outlives the test run: keeper.py says how.
"""

from .cluster import RedisCluster
from .deno import Deno
from .dynalite import Dynalite
from .dynamodb_local import DynamoDBLocal
from .miniflare import Miniflare
from .missing import require
from .postgres import Postgres
from .process import MissingError, NotReady, RefusedError, ServerError, eventually
from .proxy import FaultProxy
from .redis import Redis7, Redis8, RedisServer, Valkey
from .sentinel import RedisSentinel

__all__ = [
    "Deno",
    "Dynalite",
    "DynamoDBLocal",
    "FaultProxy",
    "Miniflare",
    "MissingError",
    "NotReady",
    "Postgres",
    "Redis7",
    "Redis8",
    "RedisCluster",
    "RedisSentinel",
    "RedisServer",
    "RefusedError",
    "ServerError",
    "Valkey",
    "eventually",
    "require",
]
