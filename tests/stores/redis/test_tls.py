"""`rediss://` on a real server: sync and async, client certificates, and a stranger's authority."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import redis

from penstock import StoreUnavailableError, gcra, rate_limit
from penstock.stores.redis import RedisStore
from tests.servers import Redis7, require
from tests.servers.process import Port
from tests.service.grpc.certificates import Pair, authority, signed
from tests.stores.redis.live import PATIENT_MS
from tests.support.helpers import run

LONG_MS = 864_000_000


@dataclass
class Tls:
    """A server that talks TLS on `port`, to those with a certificate only."""

    port: int
    trusted: Pair
    client: Pair
    stranger: Pair

    @property
    def identity(self) -> str:
        return f"ssl_certfile={self.client.cert}&ssl_keyfile={self.client.key}"

    @property
    def url(self) -> str:
        query = f"ssl_ca_certs={self.trusted.cert}&{self.identity}"
        return f"rediss://localhost:{self.port}/0?{query}"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    require("redis7")
    folder = tmp_path_factory.mktemp("certificates")
    root = authority(folder, "root")
    own, client = signed(folder, "server", root), signed(folder, "client", root)
    port = Port()
    flags = {
        "tls-port": str(port.number),
        "tls-cert-file": own.cert,
        "tls-key-file": own.key,
        "tls-ca-cert-file": root.cert,
        "tls-auth-clients": "yes",
    }
    args = [word for name, value in flags.items() for word in (f"--{name}", value)]
    with Redis7(args=args):
        yield Tls(port.number, root, client, authority(folder, "stranger"))
    port.release()


def test_a_url_serves_sync_and_async_calls_over_tls(tls: Tls, key: str) -> None:
    """check, check_many, peek, and a second request on the connection that is there."""
    store = RedisStore.from_url(tls.url, timeout_ms=PATIENT_MS)
    limiter = rate_limit(gcra(9, LONG_MS), store=store)
    assert [limiter.check(key).remaining for _ in range(2)] == [8, 7]
    assert [d.remaining for d in limiter.check_many([key, f"{key}b"])] == [6, 8]

    async def main() -> None:
        assert [(await limiter.acheck(key)).remaining for _ in range(2)] == [5, 4]
        assert (await limiter.apeek(key)).remaining == 4
        await store.aclose()

    run(main())
    store.close()


def test_a_client_with_tls_lends_its_settings(tls: Tls, key: str) -> None:
    """Certificates and all."""
    client = redis.Redis(
        host="localhost",
        port=tls.port,
        ssl=True,
        ssl_ca_certs=tls.trusted.cert,
        ssl_certfile=tls.client.cert,
        ssl_keyfile=tls.client.key,
    )
    store = RedisStore(client, timeout_ms=PATIENT_MS)
    assert rate_limit(gcra(9, LONG_MS), store=store).check(key).remaining == 8
    store.close()
    client.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_server_that_a_stranger_vouches_for_is_not_talked_to(
    tls: Tls, key: str, mode: str
) -> None:
    """A typed error, in time, and nothing was charged."""
    query = f"ssl_ca_certs={tls.stranger.cert}&{tls.identity}"
    store = RedisStore.from_url(f"rediss://localhost:{tls.port}/0?{query}", timeout_ms=2_000)
    limiter = rate_limit(gcra(9, LONG_MS), store=store)

    async def main() -> None:
        try:
            await limiter.acheck(key)
        finally:
            await store.aclose()

    start = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="not charged"):
        limiter.check(key) if mode == "sync" else run(main())
    assert time.monotonic() - start < 2.5
    store.close()
