"""From certificate files to a context, or to a word on what is wrong with them. For both doors."""

from __future__ import annotations

import ssl

from ..core.files import read_regular
from ..core.validation import reject
from .options import TlsFiles

__all__ = ["read_pem", "server_context"]

_MAX_BYTES = 1 << 20


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.2 or later; with a CA, no client without a certificate of it."""
    for path in (files.cert, files.key, files.ca):
        if path is not None:
            read_pem(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client that shakes hands again and again costs much and pays little.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # An empty password: an encrypted key is an error here, not a prompt.
        context.load_cert_chain(files.cert, files.key, password="")
    except (OSError, ValueError) as error:
        reject(f"no certificate and key in PEM form in {files.cert} and {files.key}: {error}")
    if files.ca is not None:
        try:
            context.load_verify_locations(files.ca)
        except (OSError, ValueError) as error:
            reject(f"no certificate of an authority in PEM form in {files.ca}: {error}")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def read_pem(path: str) -> bytes:
    """The content of a file with a certificate or a key. The library would open anything, and wait
    for a FIFO for ever."""
    try:
        return read_regular(path, _MAX_BYTES)
    except OSError as error:
        reject(f"the file {path!r} cannot be read: {error.strerror or error}")
