"""Cloudflare's own runtime (workerd) under miniflare: D1, KV and Durable Objects.

One port serves both sides: paths under `/client/v4` answer like Cloudflare's REST API for D1 and
KV, every other path goes to the worker under test. Both see the same data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .node import INSTALL, MANIFEST, NodeServer, http_call
from .process import RefusedError, environment


class Miniflare(NodeServer):
    """Bindings map a name in the worker's `env` to a database, a namespace or a class.

    `script` is an ES module; without one, only the REST API is served.
    """

    name = "miniflare"
    package = "miniflare"

    def __init__(
        self,
        script: Path | None = None,
        *,
        d1: Mapping[str, str] | None = None,
        kv: Mapping[str, str] | None = None,
        durable_objects: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        account: str = "test-account",
        token: str = "test-token",
    ) -> None:
        super().__init__()
        self.account = account
        self.token = token
        self._options = {
            "script": None if script is None else str(script.resolve()),
            "d1": dict(d1 or {}),
            "kv": dict(kv or {}),
            "durableObjects": dict(durable_objects or {}),
            "variables": dict(variables or {}),
            "account": account,
            "token": token,
        }

    @property
    def api_url(self) -> str:
        return f"{self.url}/client/v4"

    def command(self) -> list[str]:
        place = {"host": self.host, "port": self.port, "data": str(self.data_dir)}
        options = json.dumps({**self._options, **place})
        return [str(self._node), str(MANIFEST / "miniflare.mjs"), options]

    def popen_options(self) -> dict[str, Any]:
        # The runner lies outside the install folder, where a bare import would not find it.
        return {"env": environment(PENSTOCK_NODE_FOLDER=str(INSTALL))}

    def ping(self) -> None:
        status, text = self.api("GET", "/user/tokens/verify")
        if status != 200:
            raise RefusedError(f"{status} {text}")

    def api(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """One call of the REST API with the right token."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return http_call(self.port, method, f"/client/v4{path}", body=body, headers=headers)

    def query(self, database: str, sql: str, *params: object) -> dict[str, Any]:
        """Run SQL through the REST API; the first result."""
        path = f"/accounts/{self.account}/d1/database/{database}/query"
        status, text = self.api("POST", path, {"sql": sql, "params": params})
        if status != 200:
            raise RefusedError(f"{status} {text}")
        result: dict[str, Any] = json.loads(text)["result"][0]
        return result

    def kv_path(self, namespace: str, key: str) -> str:
        return f"/accounts/{self.account}/storage/kv/namespaces/{namespace}/values/{key}"
