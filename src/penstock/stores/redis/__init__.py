"""Redis, Valkey and Upstash: one limit across a fleet.

A check travels through four rooms. `flows` decides what to send, what to repeat and what an error
means, and does no I/O. `topology` knows which server owns a key. `blocking` and `multiplexed`
carry bytes, one for each colour. `recipe` turns a client or a URL into new connections, and is
the only file that knows the drivers.
"""

from .store import RedisStore

__all__ = ["RedisStore"]
