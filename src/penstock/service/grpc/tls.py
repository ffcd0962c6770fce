"""From certificate files to what the library wants."""

from __future__ import annotations

from pathlib import Path

import grpc

from ..options import TlsFiles
from ..tls import server_context

__all__ = ["credentials"]


def credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """The library takes any bytes and then fails each handshake; so they are tried first."""
    server_context(files)
    pair = Path(files.key).read_bytes(), Path(files.cert).read_bytes()
    ca = None if files.ca is None else Path(files.ca).read_bytes()
    return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)
