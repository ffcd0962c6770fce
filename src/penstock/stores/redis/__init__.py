"""Redis, Valkey and Upstash: one limit across a fleet.

Checks are decided by scripts on the server, in one round trip. `RedisStore` is made from a URL, or
from a client of redis-py, valkey-py or upstash-redis, standalone, of a Sentinel or of a Cluster.
"""

# `flows` says what each operation sends, `routing` what is sent again and what an error means,
# `topology` which server owns a key; none of them does I/O. `sync_connections`, and
# `async_connections` with `multiplexed`, carry the bytes. `factory` turns a client or a URL into
# new connections, and is the only file that knows the drivers.

from ._store import RedisStore

__all__ = ["RedisStore"]
