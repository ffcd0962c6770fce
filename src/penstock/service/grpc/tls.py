"""From certificate files to what the library wants."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from ...core.validation import reject
from ..options import TlsFiles

__all__ = ["credentials"]


def credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """The library takes any bytes and then fails each handshake; so they are tried here first."""
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An empty password: an encrypted key is an error here, not a prompt.
        trial.load_cert_chain(files.cert, files.key, password="")
    except (OSError, ValueError) as error:
        reject(f"no certificate and key in PEM form in {files.cert} and {files.key}: {error}")
    if files.ca is not None:
        try:
            trial.load_verify_locations(files.ca)
        except (OSError, ValueError) as error:
            reject(f"no certificate of an authority in PEM form in {files.ca}: {error}")
    pair = Path(files.key).read_bytes(), Path(files.cert).read_bytes()
    ca = None if files.ca is None else Path(files.ca).read_bytes()
    return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)
