"""Redis, Valkey and Upstash: one limit across a fleet.

Checks are decided by scripts on the server, in one round trip. `RedisStore` is made from a URL, or
from a client of redis-py, valkey-py or upstash-redis, standalone, of a Sentinel or of a Cluster.
"""

# A check travels through four modules. `flows` decides what to send, what to repeat and what an
# error means, and does no I/O. `topology` knows which server owns a key. `blocking` and
# `multiplexed` carry bytes, for sync and async callers. `recipe` turns a client or a URL into new
# connections, and is the only file that knows the drivers.

from .store import RedisStore

__all__ = ["RedisStore"]
