"""Certificates for an hour: an authority, a server, a client, and a stranger's client."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from shutil import which

import pytest

_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


@dataclass(frozen=True)
class Pair:
    """PEM files."""

    cert: str
    key: str

    def read(self) -> tuple[bytes, bytes]:
        return Path(self.key).read_bytes(), Path(self.cert).read_bytes()


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def authority(folder: Path, name: str) -> Pair:
    if which("openssl") is None:
        pytest.skip("needs the openssl command: apt-get install openssl")
    pair = Pair(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
        *("-nodes", "-days", "1", "-subj", f"/CN={name}", "-keyout", pair.key, "-out", pair.cert),
    )
    return pair


def signed(folder: Path, name: str, by: Pair) -> Pair:
    pair = Pair(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
    request, names = folder / f"{name}.csr", folder / f"{name}.names"
    names.write_text(_NAMES)
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", f"/CN={name}", "-keyout", pair.key, "-out", str(request)),
    )
    _openssl(
        *("x509", "-req", "-in", str(request), "-days", "1", "-CA", by.cert, "-CAkey", by.key),
        *("-CAcreateserial", "-extfile", str(names), "-out", pair.cert),
    )
    return pair
