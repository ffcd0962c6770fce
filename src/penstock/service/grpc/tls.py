"""From certificates to what the library wants."""

from __future__ import annotations

import grpc

from ..tls import Certificates

__all__ = ["credentials"]


def credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Asked anew for every handshake, so that it shows certificates which were read again."""
    shown = certificates.pem()

    def configuration() -> grpc.ServerCertificateConfiguration:
        key, chain, ca = shown
        return grpc.ssl_server_certificate_configuration([(key, chain)], ca)

    def newest() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        if certificates.pem() is shown:
            return None
        shown = certificates.pem()
        return configuration()

    asks = shown[2] is not None
    # None, for "as before", is not in the library's stubs.
    return grpc.dynamic_ssl_server_credentials(configuration(), newest, asks)  # type: ignore[arg-type]
