"""Access to the service, for every server: the bearer token, and TLS with client certificates.

Certificate files become an `ssl.SSLContext`, or an error that says what is wrong with them.

Certificates expire, so the files can be read again while the service runs. Open connections keep
their certificate, and bad files change nothing.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import ssl
from hashlib import sha256
from typing import Any

from ..core._files import read_regular
from ..core._validation import reject
from ._options import TlsFiles

__all__ = [
    "BearerToken",
    "Certificates",
    "is_for",
    "names_in",
    "read_pem",
    "server_context",
]


_TOKEN = re.compile(r"[!-~]+")
_BEARER = re.compile(r"bearer +([!-~]+)", re.IGNORECASE | re.ASCII)


class BearerToken:
    """The access token of the service. Keeps only its digest."""

    def __init__(self, token: str) -> None:
        if not _TOKEN.fullmatch(token):
            reject("a token must be of printable ASCII characters, without spaces")
        self._digest = _digest(token)

    def accept(self, authorization: str | None) -> bool:
        """Whether the value of an `authorization` header has the token. Compares in constant
        time."""
        match = _BEARER.fullmatch(authorization or "")
        given = "" if match is None else match[1]
        return hmac.compare_digest(self._digest, _digest(given)) and match is not None


def _digest(token: str) -> bytes:
    return sha256(token.encode("ascii")).digest()


def names_in(files: TlsFiles) -> list[str]:
    """The host names and addresses of the certificate; none if they cannot be read."""
    try:
        shown = _shown(files)
    except (OSError, ValueError):
        return []
    names = [value for kind, value in shown.get("subjectAltName", ()) if kind in _KINDS]
    if names:
        return names
    subject = (pair for group in shown.get("subject", ()) for pair in group)
    return [value for kind, value in subject if kind == "commonName"]


def is_for(names: list[str], host: str) -> bool:
    """Whether a client that connects to `host` would accept one of the names."""
    return any(_same(name, host) for name in names)


_KINDS = ("DNS", "IP Address")


def _same(name: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        return name.lower() == host.lower()


def _shown(files: TlsFiles) -> dict[str, Any]:
    """The decoded certificate. The ssl module decodes only a verified certificate of a peer, so a
    client in this process, which trusts nothing else, performs a handshake with it."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(files.cert, files.key, password="")
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    asking.load_verify_locations(files.cert)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(back, there)
    server = serving.wrap_bio(there, back, server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:  # noqa: PERF203 - it is the other side's turn
            continue
    return dict(client.getpeercert() or {})


_MAX_BYTES = 1 << 20


class Certificates:
    """The certificate of the service and the authority of its clients, as of the last time that the
    files were read and valid. Servers use `context`, which stays the same object."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.context: _NewestContext = _NewestContext(ssl.PROTOCOL_TLS_SERVER)
        self.reload()

    def reload(self) -> None:
        """Read the files again. If they are invalid, raises `config_invalid` and changes
        nothing."""
        self.context.newest = _read(self._files)


class _NewestContext(ssl.SSLContext):
    """Starts each connection with the newest context. If one context were changed in place, clients
    could resume sessions of an authority that has been removed."""

    newest: ssl.SSLContext

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.newest.wrap_bio(*args, **kwargs)


def _read(files: TlsFiles) -> ssl.SSLContext:
    """The context of the files, read again if they changed meanwhile."""
    context, tried = server_context(files), None
    while tried != (tried := _bytes(files)):
        context = server_context(files)
    return context


def _bytes(files: TlsFiles) -> tuple[bytes, bytes, bytes | None]:
    ca = None if files.ca is None else read_pem(files.ca)
    return read_pem(files.key), read_pem(files.cert), ca


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """A context for TLS 1.2 or later. With a CA, clients need a certificate of it."""
    for path in (files.cert, files.key, files.ca):
        if path is not None:
            read_pem(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Renegotiation would let a client cause the cost of many handshakes.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        # An empty password: an encrypted key is an error here, not a prompt.
        context.load_cert_chain(files.cert, files.key, password="")
    except (OSError, ValueError) as error:
        reject(
            f"{files.cert} and {files.key} do not hold a certificate and its key in PEM format, "
            f"without a password: {error}"
        )
    if files.ca is not None:
        try:
            context.load_verify_locations(files.ca)
        except (OSError, ValueError) as error:
            reject(f"{files.ca} does not hold a CA certificate in PEM format: {error}")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def read_pem(path: str) -> bytes:
    """The content of a file with a certificate or a key. (The ssl module would also open a FIFO,
    and wait for it forever.)"""
    try:
        return read_regular(path, _MAX_BYTES)
    except OSError as error:
        reject(f"the file {path!r} cannot be read: {error.strerror or error}")
