"""Who may ask: those with the token, and over TLS those with a certificate. For every server.

From certificate files to a context, or to a word on what is wrong with them; which names a
certificate is for is read off by showing it to ourselves.

Certificates run out, so they can be read again while the service listens. Connections that are open
keep theirs; a file that is bad changes nothing.
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
    """The token that is good."""

    def __init__(self, token: str) -> None:
        if not _TOKEN.fullmatch(token):
            reject("a token must be of printable ASCII characters, without spaces")
        self._digest = _digest(token)

    def accept(self, authorization: str | None) -> bool:
        """Whether the value of an `authorization` header is good. Takes as long for any wrong
        one."""
        match = _BEARER.fullmatch(authorization or "")
        given = "" if match is None else match[1]
        return hmac.compare_digest(self._digest, _digest(given)) and match is not None


def _digest(token: str) -> bytes:
    return sha256(token.encode("ascii")).digest()


def names_in(files: TlsFiles) -> list[str]:
    """The host names and addresses of the certificate; none if they cannot be told."""
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
    """Whether a client that asks for `host` would find one of the names fitting."""
    return any(_same(name, host) for name in names)


_KINDS = ("DNS", "IP Address")


def _same(name: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        return name.lower() == host.lower()


def _shown(files: TlsFiles) -> dict[str, Any]:
    """The certificate as a client sees it. The library decodes one for whoever has verified it, so
    a client in this process trusts this certificate and nothing else, and shakes hands."""
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
    """What is shown to clients, and by which authority they are known: as the files were when they
    were last read and found good. Servers keep the one `context`."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.context: _NewestContext = _NewestContext(ssl.PROTOCOL_TLS_SERVER)
        self.reload()

    def reload(self) -> None:
        """Read the files again; `config_invalid` if they are bad, and nothing has changed then."""
        self.context.newest = _read(self._files)


class _NewestContext(ssl.SSLContext):
    """Has each connection begin under the newest context. To change one context in place would let
    clients in by sessions that they began under an authority which is not known any more."""

    newest: ssl.SSLContext

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.newest.wrap_bio(*args, **kwargs)


def _read(files: TlsFiles) -> ssl.SSLContext:
    """A context of files that did not change while they were read."""
    context, tried = server_context(files), None
    while tried != (tried := _bytes(files)):
        context = server_context(files)
    return context


def _bytes(files: TlsFiles) -> tuple[bytes, bytes, bytes | None]:
    ca = None if files.ca is None else read_pem(files.ca)
    return read_pem(files.key), read_pem(files.cert), ca


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.2 or later; with a CA, no client without a certificate of it."""
    for path in (files.cert, files.key, files.ca):
        if path is not None:
            read_pem(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client that shakes hands again and again costs much and pays little.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["h2", "http/1.1"])
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
