"""`WorkersKVStore`: approximate limits in Workers KV, where the last write wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from ..core._store import from_its_url
from ..core._validation import reject
from .cas import Drop, Held, Read, Request
from .cas._requests import fit
from .rest import HttpCall, RestReply, RestStore
from .rest._client import (
    CLOUDFLARE_API,
    CLOUDFLARE_TOKEN_ENV,
    CloudflareRefused,
    read_url,
    require_id,
    result_of,
)

__all__ = ["WorkersKVStore"]


_MAX_KEY_BYTES = 512
_SHORTEST_TTL_S = 60
_LONGEST_TTL_S = 2**30


class WorkersKVStore(RestStore):
    """Keeps states in Workers KV. **Approximate**: it admits more than the limit.

    Workers KV has no conditional write: of two processes that decide at the same time, the last
    one to write wins, and what the other admitted is forgotten. A read may also be up to a minute
    old elsewhere in the world. Inside one process callers take turns and nothing is lost, so
    expect up to (number of processes) x limit, and more across regions. Use it where a rough
    bound is enough and only KV is at hand; for an exact one there are D1Store and
    DurableObjectStore. Cloudflare also allows one write a second to one key.

    Keys are stored percent-encoded, and under their SHA-256 where that takes 512 bytes or more.
    """

    max_record_bytes = 25 * 2**20
    compares = False
    most_calls = 16
    most_requests = 1

    def __init__(
        self,
        account: str,
        namespace: str,
        *,
        token: str,
        base_url: str = CLOUDFLARE_API,
        timeout_ms: int = 2_000,
    ) -> None:
        super().__init__(base_url, token, timeout_ms)
        account = require_id("account", account)
        self.namespace: str = require_id("namespace", namespace)
        self._path = f"/accounts/{account}/storage/kv/namespaces/{self.namespace}/values"

    @classmethod
    @from_its_url
    def from_url(cls, url: str, **options: Any) -> WorkersKVStore:
        """`workers-kv://account/namespace`, with `?token_env=`, `base_url=`, `timeout_ms=`."""
        settings = read_url(url, CLOUDFLARE_TOKEN_ENV, options, "base_url")
        account, _, namespace = settings.place.partition("/")
        if not namespace:
            reject(
                "a workers-kv:// URL names account and namespace: workers-kv://account/namespace"
            )
        return cls(account, namespace, **settings.options)

    def __repr__(self) -> str:
        return f"<approximate {super().__repr__()[1:]}"

    def _calls(self, requests: Sequence[Request]) -> list[HttpCall]:
        return [self._call(request) for request in requests]

    def _call(self, request: Request) -> HttpCall:
        path = f"{self._path}/{_path_of(request.key)}"
        if isinstance(request, Read):
            return HttpCall("GET", path)
        if isinstance(request, Drop):
            return HttpCall("DELETE", path)
        ttl_s = max(_SHORTEST_TTL_S, -(-request.keep_ms // 1000))
        # A TTL has 31 bits; a state that outlives that is kept.
        ttl = f"?expiration_ttl={ttl_s}" if ttl_s <= _LONGEST_TTL_S else ""
        # The version is no condition here; it identifies a write whose reply was lost.
        value = f"{request.version}\n{request.record}"
        return HttpCall("PUT", f"{path}{ttl}", value)

    def _answers(self, requests: Sequence[Request], replies: Sequence[RestReply]) -> list[Any]:
        return [self._answer(*pair) for pair in zip(requests, replies, strict=True)]

    def _answer(self, request: Request, reply: RestReply) -> Any:
        if isinstance(request, Read):
            if reply.status == 200:
                version, _, record = reply.text.partition("\n")
                return Held(record, version)
            if reply.status == 404 and _no_such_key(reply):
                return None
        try:
            result_of(reply, f"Workers KV namespace {self.namespace}")
        except CloudflareRefused as no:
            return no.error
        return ""


def _no_such_key(reply: RestReply) -> bool:
    try:
        result_of(reply, "")
    except CloudflareRefused as no:
        return 10009 in no.codes
    return False


def _path_of(key: str) -> str:
    """The key's name, as part of a path. Encoded twice: the name itself is plain ASCII, since
    not every character survives in a name."""
    name = quote(key, safe=":")
    name = {".": "%2E", "..": "%2E%2E"}.get(name, name)
    return quote(fit(name, _MAX_KEY_BYTES), safe="")
