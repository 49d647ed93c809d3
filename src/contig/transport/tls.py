"""TLS contexts from what users give."""

from __future__ import annotations

import ssl
from typing import Any

__all__ = ["client_context", "server_context"]


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """For a server: paths of a certificate chain and of its private key, both PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


def client_context(tls: Any) -> ssl.SSLContext | None:
    """For a client: True (the system's authorities), the path of one (PEM), or an SSLContext."""
    if tls is None or tls is False:
        return None
    if isinstance(tls, ssl.SSLContext):
        return tls
    return ssl.create_default_context(cafile=None if tls is True else str(tls))
