"""Which names a certificate is for, read off by showing it to ourselves."""

from __future__ import annotations

import ipaddress
import ssl
from typing import Any

from .options import TlsFiles

__all__ = ["is_for", "names_in"]


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
