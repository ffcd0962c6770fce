"""The DynamoDB API, served by dynalite over LevelDB.

Its conditional writes are exact. It has no TTL and no transactions, and a failed condition does
not return the values it failed on.
"""

from __future__ import annotations

import json
from typing import Any

from .node import NodeServer, http_call
from .process import RefusedError, Server

# dynalite wants a signature to be there and does not check it.
_SIGNED = (
    "AWS4-HMAC-SHA256 Credential=test/20250101/us-east-1/dynamodb/aws4_request, "
    "SignedHeaders=host, Signature=0"
)


class DynamoDBServer(Server):
    """Whatever speaks the DynamoDB API."""

    region = "us-east-1"

    def ping(self) -> None:
        self.call("ListTables", {})

    def call(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        """One operation of the DynamoDB API."""
        headers = {
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": f"DynamoDB_20120810.{operation}",
            "X-Amz-Date": "20250101T000000Z",
            "Authorization": _SIGNED,
        }
        status, text = http_call(self.port, "POST", "/", body=request, headers=headers)
        if status != 200:
            raise RefusedError(f"{operation}: {status} {text}")
        reply: dict[str, Any] = json.loads(text)
        return reply


class Dynalite(NodeServer, DynamoDBServer):
    """Tables are ready the moment they are created, unlike in the real service."""

    name = "dynalite"
    package = "dynalite"

    def command(self) -> list[str]:
        delays = [f"--{verb}TableMs=0" for verb in ("create", "update", "delete")]
        where = [f"--host={self.host}", f"--port={self.port}", f"--path={self.data_dir}"]
        return [str(self._node), str(self._package / "cli.js"), *where, *delays]
