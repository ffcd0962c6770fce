"""The service as the gRPC library of Node.js meets it, which is written without grpcio's core."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.servers import require
from tests.servers.node import INSTALL, node_binary
from tests.service.grpc.serving import serving

PROTOS = Path(__file__).resolve().parents[3] / "wire" / "proto"
FILE = """
version: 1
limiters:
  plenty: {strategy: fixedWindow, limit: 1000000, window: 1h, anchor: first}
"""

CLIENT = """
const grpc = require("@grpc/grpc-js");
const { loadSync } = require("@grpc/proto-loader");
const [address, folder] = process.argv.slice(1);
const loaded = loadSync("throttlekit/v1/rate_limiter.proto", {
  includeDirs: [folder], keepCase: true, longs: Number, defaults: true,
});
const { RateLimiter } = grpc.loadPackageDefinition(loaded).throttlekit.v1;
const client = new RateLimiter(address, grpc.credentials.createInsecure());
const call = (name, request, fields = {}, options = {}) => new Promise((resolve) => {
  const metadata = grpc.Metadata.fromHttp2Headers(fields);
  client[name]({ policy: "plenty", ...request }, metadata, options, (error, reply) => {
    resolve(error ? { code: error.code, told: error.metadata.getMap() } : reply);
  });
});
const times = (count, make) => Promise.all([...Array(count).keys()].map(make));
(async () => {
  const found = {};
  const checks = await times(500, () => call("Check", { key: "one" }));
  found.remaining = checks.map((reply) => reply.decision?.remaining).sort((a, b) => b - a);
  const keys = [...Array(1000).keys()].map(String);
  const batches = await times(120, () => call("CheckMany", { keys }));
  found.batches = batches.map((reply) => reply.decisions?.length ?? reply.code);
  found.unknown = (await call("Check", { policy: "nope", key: "one" })).code;
  const past = { deadline: Date.now() - 1000 };
  found.late = (await call("Check", { key: "one" }, {}, past)).code;
  found.large = await call("Check", { key: "one" }, { much: "m".repeat(20000) });
  found.last = (await call("Check", { key: "one" })).decision.remaining;
  client.close();
  console.log(JSON.stringify(found));
})();
"""


def ask(port: int) -> Any:
    words = [str(node_binary()), "-e", CLIENT, f"127.0.0.1:{port}", str(PROTOS)]
    done = subprocess.run(words, cwd=INSTALL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_library_of_node_is_answered_on_one_channel() -> None:
    """More calls than are taken at a time, more answers than its windows have room for, and
    refusals."""
    require("node")
    require("grpc-js")
    with serving(FILE, "memory://") as port:
        found = ask(port)
    assert found["remaining"] == list(range(999_999, 999_499, -1))
    assert found["batches"] == [1_000] * 120
    assert (found["unknown"], found["late"]) == (5, 4)
    assert found["large"]["code"] == 8
    assert found["large"]["told"]["grpc-retry-pushback-ms"] == "-1"
    assert found["last"] == 999_499
