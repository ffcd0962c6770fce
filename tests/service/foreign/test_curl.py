"""The HTTP API as curl meets it over HTTP/2, by knowing and by asking."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.service.http.serving import Penstock
from tests.service.http.test_serve import Guarded, make_certificates

ASK = json.dumps({"key": "k", "limit": 2, "window_ms": 3_600_000})


def _speaks_http_2() -> bool:
    curl = shutil.which("curl")
    if curl is None:
        return False
    told = subprocess.run([curl, "--version"], capture_output=True, text=True, check=False)
    return "HTTP2" in told.stdout


pytestmark = pytest.mark.skipif(not _speaks_http_2(), reason="needs a curl that speaks HTTP/2")


def curl(*words: str) -> tuple[list[str], list[Any]]:
    """The version of HTTP and the status, and the body, per answer."""
    told = "\n%{http_version} %{http_code}\n"
    quiet = ["--silent", "--show-error", "--max-time", "60", "--write-out", told]
    done = subprocess.run(["curl", *quiet, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    return lines[1::2], [json.loads(line) for line in lines[:-1:2]]


def test_a_client_that_knows_is_answered_in_http_2() -> None:
    """And told its limit by the status. A curl of 2023 cannot use such a connection twice."""
    words = ["--http2-prior-knowledge", "--data", ASK, "-H", "content-type: application/json"]
    with Penstock() as server:
        answers = [curl(*words, f"{server.url}/check") for _ in range(3)]
    assert [status for status, _ in answers] == [["2 200"], ["2 200"], ["2 429"]]
    assert [body["allowed"] for _, [body] in answers] == [True, True, False]


def test_a_body_that_is_too_long_is_answered(tmp_path: Path) -> None:
    """A curl of 2023 loses the answer if its stream is reset right behind it."""
    body = tmp_path / "body"
    body.write_bytes(b"x" * 5_000_000)
    with Penstock() as server:
        words = ["--http2-prior-knowledge", "--data-binary", f"@{body}", f"{server.url}/check"]
        status, [told] = curl(*words)
    assert (status, told["code"]) == (["2 413"], "body_too_large")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
@pytest.mark.parametrize(("option", "version"), [("--http2", "2"), ("--http1.1", "1.1")])
def test_behind_tls_a_client_gets_the_protocol_that_it_asks_for(
    tmp_path: Path, option: str, version: str
) -> None:
    make_certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    files = [str(tmp_path / name) for name in ("server.pem", "server.key", "ca.pem")]
    flags = [f"--tls-cert={files[0]}", f"--tls-key={files[1]}"]
    with Guarded(context, flags) as server:
        words = ["--cacert", files[2], option, "--data", ASK]
        words += ["-H", "content-type: application/json"]
        url = f"https://127.0.0.1:{server.port}/check"
        status, bodies = curl(*words, url, url, url)
    assert status == [f"{version} 200", f"{version} 200", f"{version} 429"]
    assert [body["allowed"] for body in bodies] == [True, True, False]
