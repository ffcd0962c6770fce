"""From certificate files to what the library wants."""

from __future__ import annotations

import grpc

from ..options import TlsFiles
from ..tls import read_pem, server_context

__all__ = ["credentials"]


def credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """The library takes any bytes and then fails each handshake; so they are tried first."""
    server_context(files)
    pair = read_pem(files.key), read_pem(files.cert)
    ca = None if files.ca is None else read_pem(files.ca)
    return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)
